"""The synthetic sample data: real HLO graphs, modelled runtimes.

layers    pieces of neural networks in TensorFlow
programs  whole networks of them, with a training step
tiles     a kernel's tile configurations and their runtimes
write     the data root: splits, files, seeds
"""
