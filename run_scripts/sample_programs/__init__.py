"""The JAX programs whose kernels are the sample data, by family.

layers     pieces of networks, and what holds their weights
images     convolutional networks
sequences  transformers and recurrent networks
others     recommendation, graphs, diffusion, volumes, detection
table      all programs, their sizes and their splits
"""
