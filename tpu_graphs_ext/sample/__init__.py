"""The sample data: estimates of Google's TPU compiler for JAX programs.

`compiled/` was made with libtpu by `run_scripts/compile_kernels.py` and
`compile_layouts.py`; libtpu itself is not in this package.

kernels        the compiled kernels that the package brings, read and packed
layouts        programs and their layout configurations, read and packed
folder         a data root on disk: written whole, replaced where it is ours
write          the data root of the tile task: splits, files, seeds, noise
write_layouts  the same of the layout task
"""
