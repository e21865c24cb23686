"""Kernels from files: read, checked, cached, scaled. Knows NumPy alone.

schema     the fields and columns of an .npz file, named in one place
tasks      which of the two tasks a file is of
npz        arrays out of files that are not trusted
kernel     one kernel: the arrays of one file
kinds      what a kernel does: convolution, reduction, element-wise, copy
rules      what must hold of those arrays, one function a rule
layout_rules  the same of a file of the layout task
check      every fault of every file, in one report
partition  many kernels as a few flat arrays
cache      the same on disk, mapped into memory
read       folders of files -> partitions
normalize  how features are scaled
"""
