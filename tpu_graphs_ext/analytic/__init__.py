"""Runtimes by formula: of a kernel's tiles on a TPU.

geometry        a kernel's loop nest, and what its tiles do, by models.py
candidates      the legal tiles of a kernel
explain         one tile: steps, bytes, padding, and which term bounds it
machines        the TPU generations as numbers
products        the matrix product that a function computes
blocks          the blocks of a matrix product as a Pallas kernel
grouped_blocks  the same for a product whose rows come in groups
"""
