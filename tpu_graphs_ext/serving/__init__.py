"""A trained model in your program, and the tiles to try for your kernels.

cost_model        the model as an object: score, rank, explain
tile_search       a model's first choices among all legal tiles, and why
tile_ranking      the result of that search, as data and as text
compiler_report   the compiler's own report on a program's kernels
blocks            ranks blocks for a product that is a Pallas kernel
block_kernels     compiles them, each in such a kernel
pallas_kernel     that kernel; needs JAX alone
tf_program        the model as one TensorFlow program on plain tensors
export            that program as a SavedModel, which needs TensorFlow alone
"""
