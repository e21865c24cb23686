"""XLA programs (HLO) as the arrays of `schema.py`.

Every program takes one path: lowered or read to HLO, compiled through PJRT,
split into kernels, featurized.

lowering        a TensorFlow or JAX function -> HLO
programs        a file of HLO or StableHLO -> what the compiler takes
tpu_compiler    HLO -> kernels and their tiles, by Google's TPU compiler
costs           what a kernel computes and moves
loops           how often the computations of a program run
stored          how a kernel stores what it reads, and its memory
libtpu          that compiler: the TPUs it knows, where it is, its C API
subprocesses    lowers functions and runs libtpu in processes of their own
features        HLO -> node features, opcodes, edges
tuning          a tuning file -> kernels and layout graphs -> .npz files
tiles           how a TPU stores a tensor; the bounds of tiles
kernel_sources  a file or a function -> the kernels to rank
kernel_modules  kernels as programs with a tile each, to time on a TPU
featurize       tuning data, programs, measured times -> .npz files
protos          the messages and files: HLO as TensorFlow defines it, tuning
"""
