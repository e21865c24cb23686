"""The synthetic sample data: real HLO graphs, modelled runtimes.

layers         pieces of neural networks in TensorFlow
programs       whole networks of them, with a training step
tiles          a kernel's tile configurations and their runtimes
layouts        a program's layout configurations and their runtimes
folder         a data root on disk: written whole, replaced where it is ours
write          the data root of the tile task: splits, files, seeds
write_layouts  the same of the layout task
"""
