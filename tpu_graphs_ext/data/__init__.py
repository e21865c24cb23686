"""Kernels and programs from files: read, checked, cached, scaled, with NumPy.

schema         fields and columns of an .npz file, named in one place
npz            arrays out of untrusted files
rules          what must hold of those arrays, one function a rule
check          every fault of every file, in one report
kernel         one kernel: the arrays of one file
kernel_kinds   what a kernel does: convolution, reduction, element-wise, copy
partition      many kernels as a few flat arrays
cache          the same on disk, mapped into memory
read           folders of files -> partitions
normalize      how features are scaled
program        one program of a layout collection, read only where used
programs       folders of them
"""
