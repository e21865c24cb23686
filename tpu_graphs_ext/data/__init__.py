"""Kernels and programs from files: read, checked, cached, scaled, with NumPy.

schema     fields and columns of an .npz file, named in one place
npz        arrays out of untrusted files
rules      rules for those arrays, in one table; reads them
check      every fault of every file, in one report
cache      arrays on disk, mapped into memory
kernel     kernels, read and cached
programs   programs with layouts, read only where used
read       data roots, folders and files of kernels
normalize  how features are scaled
"""
