"""Kernels and programs from files: read, checked, cached, scaled, with NumPy.

schema         fields and columns of an .npz file, named in one place
npz            arrays out of untrusted files
rules          what must hold of those arrays, one function a rule; reads them
check          every fault of every file, in one report
cache          arrays on disk, mapped into memory
problem        what kernels and programs have in common
kernel         one kernel: the arrays of one file
kernel_kinds   what a kernel does: convolution, reduction, element-wise, copy
partition      many kernels as a few flat arrays
programs       programs with layouts, read only where used
read           data roots and folders of files
normalize      how features are scaled
"""
