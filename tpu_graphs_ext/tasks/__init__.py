"""The two tasks: tiles of a kernel, layouts of a program.

tile, layout                  what `engine` asks of each task
tile_results, layout_results  measures of labelled kernels, of programs
tile_batches, layout_batches  kernels, programs -> GraphTensors
layout_settings               settings of the layout task's verbs
kernel_inputs                 the kernels of a folder, an .npz or a .pb file
feature_stats                 the scale of the features, as a model's argument
"""
