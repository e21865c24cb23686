"""Runtimes by formula: of a kernel's tiles on a TPU, of operators on a GPU.

tile_counts    a kernel as a loop nest: steps, bytes, rows of its tiles
feature_loops  reads the loop nest off a kernel's features
candidates     the legal tiles of a kernel
explain        one tile: steps, bytes, padding, and which term bounds it
machines       the TPU generations as numbers
products       the matrix product that a function computes
blocks         the blocks of a matrix product as a Pallas kernel
grouped_blocks the same for a product whose rows come in groups
roofline       embedding operators on a GPU
"""
