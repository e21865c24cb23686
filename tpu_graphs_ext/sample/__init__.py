"""The sample data: kernels and tiles of Google's TPU compiler.

`compiled/` was made with libtpu 0.0.50.1, of programs of JAX, by
`run_scripts/compile_kernels.py`; libtpu itself is not in this package.

kernels        the compiled kernels that the package brings, read and packed
tiles          a kernel's tile configurations and their runtimes
programs       whole programs for the layout task, read and packed
layouts        a program's layout configurations and their runtimes
folder         a data root on disk: written whole, replaced where it is ours
write          the data root of the tile task: splits, files, seeds
write_layouts  the same of the layout task
"""
