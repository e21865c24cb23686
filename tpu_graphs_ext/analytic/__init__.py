"""Runtimes by formula: of a kernel's tiles on a TPU, of operators on a GPU.

loops      a kernel as a loop nest: tile grid, streams, matrix unit
hlo_loops  reads the loop nest off the kernel's HLO
tpu        loop nest and tile bounds -> nanoseconds, a function a term
roofline   embedding and matrix operators on a GPU
"""
