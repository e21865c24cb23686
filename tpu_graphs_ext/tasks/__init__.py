"""The two tasks: tiles of a kernel, layouts of a program.

tile             what `engine` asks of the tile task
tile_results     how close a model comes to the best tile of measured kernels
tile_batches     kernels -> GraphTensors
kernel_inputs    the kernels of a folder, an .npz or a .pb file
ensembling       several members trained as one model
layout           what `engine` asks of the layout task
layout_results   Kendall's tau and other measures of labelled programs
layout_batches   programs -> GraphTensors
layout_settings  settings of the layout task's verbs
feature_stats    the scale of the features, as an argument of a model
"""
