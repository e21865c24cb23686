"""Classifies kernels by their opcodes.

The first kind that applies:
  convolution   it has a convolution or a dot, whatever is fused to them
  reduction     it reduces along dimensions or windows
  copy          it only moves numbers: copy, transpose, slice, pad, gather, ...
  element-wise  all that it computes, it computes element by element
  other         sorts, scatters, random bits, custom calls, unknown opcodes
"""

from __future__ import annotations

import numpy as np

from tpu_graphs_ext.data import schema

CONVOLUTION, REDUCTION = 'convolution', 'reduction'
ELEMENT_WISE, COPY = 'element-wise', 'copy'
OTHER = 'other'
KINDS = (CONVOLUTION, REDUCTION, ELEMENT_WISE, COPY, OTHER)


def _numbers(names: str) -> np.ndarray:
  """bool [256]: which opcodes, as stored, are among the names."""
  chosen = np.zeros(256, bool)
  chosen[[schema.OPCODES[name] for name in names.split()]] = True
  return chosen


_PRODUCTS = _numbers('convolution dot')
_REDUCTIONS = _numbers('''
reduce reduce-window select-and-scatter batch-norm-training batch-norm-grad
''')
# They change the place or the number of copies of a value, or are structure.
_MOVES = _numbers('''
add-dependency after-all async-done async-start async-update bitcast broadcast
call concatenate constant copy copy-done copy-start domain dynamic-reshape
dynamic-slice dynamic-update-slice fusion gather get-dimension-size
get-tuple-element iota opt-barrier pad parameter reshape reverse
set-dimension-size slice trace transpose tuple
''')
# As XLA's HloInstruction::IsElementwise has them, and normalisation with
# given means, which XLA expands to such.
_ELEMENT_WISE = _numbers('''
abs add and atan2 batch-norm-inference bitcast-convert cbrt ceil clamp compare
complex convert cosine count-leading-zeros divide exponential
exponential-minus-one floor imag is-finite log log-plus-one logistic map
maximum minimum multiply negate not or popcnt power real reduce-precision
remainder rng round-nearest-afz round-nearest-even rsqrt select shift-left
shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert
subtract tan tanh tuple-select xor
''')


def kind_of(node_opcode: np.ndarray) -> str:
  """The kind of a kernel: one of `KINDS`.

  Args:
    node_opcode: uint8 [nodes], of all its computations.
  """
  there = np.zeros(256, bool)
  there[node_opcode] = True
  if (there & _PRODUCTS).any():
    return CONVOLUTION
  if (there & _REDUCTIONS).any():
    return REDUCTION
  beyond = there & ~_MOVES
  if not beyond.any():
    return COPY
  return OTHER if (beyond & ~_ELEMENT_WISE).any() else ELEMENT_WISE
