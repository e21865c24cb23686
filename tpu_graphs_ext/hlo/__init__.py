"""XLA programs (HLO) as the arrays of `schema.py`.

protos    messages: HLO as TensorFlow defines it, and the tuning files
compile   a `tf.function` with example arguments -> HLO
features  HLO -> node features, opcodes, edges
layout    how a TPU stores a tensor
tiles     the grid of a kernel's tiles
graph     a program's HLO before fusion, simplified
whole_program  the same as one program, as the layout collection has it
layout_choices  which of its nodes have layouts to choose, and which layouts
fusions   an optimised program -> its kernels
pjrt      libtpu's C API: a program -> the program optimised for a TPU
compiling  the process that does so, for one program after another
tpu_compiler  Google's TPU compiler: a program -> its kernels and their tiles
single_kernel  one of those kernels as a module that the compiler takes again
trips     how many trips a loop makes
dumps     files that a compiler leaves -> HLO
lowering  functions of TensorFlow and JAX -> HLO
lowering_subprocess  the same in a process of its own, and HLO text
tuning    a tuning file -> kernels and layout graphs -> .npz files
"""
