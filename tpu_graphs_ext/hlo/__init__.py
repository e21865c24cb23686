"""XLA programs (HLO) as the arrays of `schema.py`.

Every program takes one path: lowered or read to HLO, compiled through PJRT,
split into kernels, featurized.

lowering        a TensorFlow or JAX function -> HLO
hlo_files       HLO files of compilers -> HLO
tpu_compiler    Google's TPU compiler: HLO -> kernels and their tiles
libtpu          the TPUs that libtpu compiles for, and where it is
pjrt            its C API
subprocesses    runs functions, HLO parsers and libtpu in processes of their own
fusions         an optimised program -> kernels; trip counts
features        HLO -> node features, opcodes, edges
tuning          a tuning file -> kernels and layout graphs -> .npz files
layout          how a TPU stores a tensor
tiles           the grid of a kernel's tiles
layout_choices  the nodes of a program with layouts to choose, and the choices
protos          the messages: HLO as TensorFlow defines it, tuning files
"""
