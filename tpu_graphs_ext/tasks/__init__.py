"""The two tasks: tiles of a kernel, layouts of a program.

tile, layout                  what `engine` asks of each task; their measures
tile_batches, layout_batches  kernels, programs -> GraphTensors
layout_settings               settings of the layout task's verbs
feature_stats                 the scale of the features, as a model's argument
"""
