"""Runtimes by formula: of a kernel's tiles on a TPU, of operators on a GPU.

loops          a kernel as a loop nest: tile grid, streams, matrix unit
feature_loops  reads it off the kernel's features
feature_dots   matrix products among those
tile_counts    loop nest and tile bounds -> steps, bytes, rows
tpu            what a machine's work costs
candidates     the tiles that a kernel may have
products       HLO -> the one matrix product that it is
blocks         the blocks of a matrix product as a Pallas kernel
explain        one tile: steps, bytes, padding, and which term bounds it
roofline       embedding and matrix operators on a GPU
"""
