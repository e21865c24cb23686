"""The sample data: estimates of Google's TPU compiler for JAX programs.

`compiled/` was made with libtpu by `run_scripts/compile_kernels.py` and
`compile_layouts.py`; libtpu itself is not in this package.

kernels  the compiled kernels that the package brings, read
layouts  programs and their layout configurations, read
write    the data roots of both tasks
"""
