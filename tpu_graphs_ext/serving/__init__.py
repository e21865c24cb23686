"""A trained model in other people's programs, and the tiles to try.

cost_model   the model as an object: score, rank, explain
tile_search  a model's first choices among all legal tiles, and why
tile_advice  the result of that search, and how it reads
sources      what a user names (a file, or a function of their own) -> kernels
blocks       blocks for a product that is a Pallas kernel, in order
score_cache  scores of recent requests
arguments    the kernels and tiles that a caller passes
program      the model as one TensorFlow program on plain tensors
batch        the same for several kernels at once, with checks that speak
export       the SavedModel of that, for whoever has TensorFlow alone
"""
