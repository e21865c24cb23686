"""A TensorFlow function with example arguments -> its HLO module."""

from __future__ import annotations

from typing import Callable

import tensorflow as tf

from tpu_graphs_ext.errors import UserError, reason_of
from tpu_graphs_ext.hlo import protos


def function_module(fn: Callable, *args,
                    optimized: bool = False) -> protos.HloModuleProto:
  """Compiles a function with XLA and returns its HLO.

  Args:
    fn: `tf.function`, or a Python function of tensors to make one from.
    *args: example arguments: tensors, arrays or `tf.TensorSpec`s, all of
      fixed shape. Only shapes and types matter.
    optimized: False gives the module as TensorFlow writes it, the same on
      every machine. True gives it after fusion by XLA's compiler for this
      machine, which is not the TPU's.

  Raises:
    UserError: the function cannot be traced or compiled for these arguments.
  """
  # A tf.function is unwrapped: it may have been made without jit_compile.
  compiled = tf.function(getattr(fn, 'python_function', fn), jit_compile=True)
  stage = 'optimized_hlo_serialized' if optimized else 'hlo_serialized'
  try:
    serialized = compiled.experimental_get_compiler_ir(*args)(stage=stage)
  except (tf.errors.OpError, ValueError, TypeError) as error:
    name = getattr(fn, '__name__', repr(fn))
    raise UserError(
        f'{name}: XLA cannot compile it for the example arguments '
        f'({reason_of(error)}); all operations must have fixed shapes and an '
        'XLA version') from error
  return protos.as_module(serialized)
