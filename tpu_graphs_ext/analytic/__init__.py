"""Runtimes by formula: of a kernel's tiles on a TPU, of operators on a GPU.

loops          a kernel as a loop nest: tile grid, streams, matrix unit
hlo_loops      reads the loop nest off the kernel's HLO
feature_loops  the same off the arrays of an .npz file, and what tiles count
feature_dots   matrix products among those
tpu            loop nest and tile bounds -> nanoseconds, a function a term
layout_cost    a whole program and its layouts -> nanoseconds
candidates     the tiles that a kernel may have
products       HLO -> the one matrix product that it is
blocks         the blocks of a matrix product as a Pallas kernel
explain        one tile: steps, bytes, padding, and which term bounds it
roofline       embedding and matrix operators on a GPU
"""
