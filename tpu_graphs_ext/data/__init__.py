"""Kernels and programs from files: read, checked, cached, scaled. Knows NumPy alone.

schema     the fields and columns of an .npz file, named in one place
task_of_file  which of the two tasks a file belongs to
npz        arrays out of files that are not trusted
kernel     one kernel: the arrays of one file
kernel_kinds  what a kernel does: convolution, reduction, element-wise, copy
rules      what must hold of those arrays, one function a rule
layout_rules  the same of a file of the layout task
check      every fault of every file, in one report
partition  many kernels as a few flat arrays
cache      the same on disk, mapped into memory
read       folders of files -> partitions
normalize  how features are scaled
programs   the programs of a layout collection
stored_programs  their files in the cache, read only where used
"""
