"""XLA programs (HLO) as the arrays of `schema.py`.

Every source takes one path: lowered or read to HLO, compiled through PJRT,
split into kernels, featurized.

lowering             a TensorFlow or JAX function -> HLO
lowering_subprocess  the same in a process of its own, and HLO text
hlo_files            HLO files of compilers -> HLO
tpu_compiler         Google's TPU compiler: HLO -> kernels and their tiles
libtpu               the TPUs that libtpu compiles for, and where it is
compiler_process     the process that it runs in
pjrt                 its C API
fusions              an optimised program -> kernels; trip counts; inlined calls
features             HLO -> node features, opcodes, edges
tuning               a tuning file -> kernels and layout graphs -> .npz files
layout               how a TPU stores a tensor
tiles                the grid of a kernel's tiles
layout_choices       which of its nodes have layouts to choose, and which
protos               the messages: HLO as TensorFlow defines it, tuning files
"""
