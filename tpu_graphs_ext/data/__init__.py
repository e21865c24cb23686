"""Kernels and programs from files: read, checked, cached, scaled, with NumPy.

schema         fields and columns of an .npz file, named in one place
npz            arrays out of untrusted files
rules          rules for those arrays, one function each; reads them
check          every fault of every file, in one report
cache          arrays on disk, mapped into memory
problem        base classes of kernels and programs
kernel         one kernel: the arrays of one file
kernel_kinds   convolution, reduction, element-wise or copy
partition      many kernels as a few flat arrays
programs       programs with layouts, read only where used
read           data roots and folders of files
normalize      how features are scaled
"""
