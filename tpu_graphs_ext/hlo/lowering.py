"""TensorFlow and JAX functions -> HLO that no compiler has changed yet.

JAX functions are lowered for a TPU, so that platform-dependent code takes the
TPU's branch. Imports TensorFlow or JAX only to lower a function of theirs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from typing import Any, Callable, Union

from tpu_graphs_ext.errors import (
  UserError,
  did_you_mean,
  how_to_install,
  reason_of,
)

NEEDS_JAX = (f'needs JAX, which is not installed; {how_to_install("jax")}, or '
             'name the Python of an environment that has it with --jax_python')
# XLA's name of an element type -> NumPy's.
_TYPES = {'f32': 'float32', 'f16': 'float16', 'bf16': 'bfloat16',
          'f64': 'float64', 'pred': 'bool', 's8': 'int8', 's16': 'int16',
          's32': 'int32', 's64': 'int64', 'u8': 'uint8', 'u16': 'uint16',
          'u32': 'uint32', 'u64': 'uint64', 'f8e4m3fn': 'float8_e4m3fn',
          'f8e5m2': 'float8_e5m2'}
_SHAPE = re.compile(r'([a-z][a-z\d]*)\[\s*((?:\d+(?:\s*,\s*\d+)*)?)\s*\]')
# A function's name.
_FUNCTION = re.compile(r'[\w./~-]+:[A-Za-z_][\w.]*')
_NAME = re.compile(f'({_FUNCTION.pattern})|[A-Za-z_][\\w.]*')
# Libraries on top of JAX: modules that use them may not import JAX itself.
_JAX_LIBRARIES = frozenset({'jax', 'flax', 'haiku', 'equinox', 'optax'})

# Flat arguments as [(XLA's type name, sizes)]; or the name of a function that
# returns the arguments, in the lowered function's module or as 'module:name'.
Arguments = Union[list, str]


def names_function(name: str) -> bool:
  """Whether this is 'module:function', and not the path of a file."""
  return not os.path.exists(os.path.expanduser(name)) and bool(
      _FUNCTION.fullmatch(name))


def parse_arguments(text: str) -> Arguments:
  """Reads what `--shapes` takes: shapes, or a function's name.

      'f32[512,1024] s32[]' -> [('f32', [512, 1024]), ('s32', [])]

  Raises:
    UserError: it is neither, or names an unknown type.
  """
  text = text.strip()
  if _NAME.fullmatch(text) and text not in _TYPES:
    return text
  if not re.fullmatch(rf'(?:{_SHAPE.pattern}[\s,;]*)*', text):
    raise UserError(f'--shapes={text}: cannot be read; write, for example, '
                    '"f32[512,1024] bf16[1024,4096]", or name a function that '
                    'returns the arguments')
  found = [(name, [int(size) for size in re.findall(r'\d+', sizes)])
           for name, sizes in _SHAPE.findall(text)]
  for name, _ in found:
    if name not in _TYPES:
      raise UserError(f'--shapes={text}: there is no type {name!r}; choose '
                      f'from {", ".join(_TYPES)}')
  return found


def lower_named(target: str, arguments: Arguments) -> bytes:
  """Imports 'module:function' or 'file.py:function' and lowers it.

  Returns:
    Serialized `HloModuleProto`.

  Raises:
    UserError: the function is missing, or cannot be lowered.
  """
  function = _import(target)
  if not callable(function):
    raise UserError(f'{target}: is not a function, but a '
                    f'{type(function).__name__}')
  if isinstance(arguments, str):
    return lower(function, _call_for_arguments(target, arguments), target,
                 arguments)
  return lower(function, arguments_of_shapes(function, arguments), target,
               ' '.join(f'{name}[{",".join(map(str, sizes))}]'
                        for name, sizes in arguments))


def arguments_of_shapes(function: Callable, shapes: list) -> tuple:
  """[(XLA's type name, sizes)] -> abstract arguments for `lower`."""
  if is_jax(function):
    import jax
    return tuple(jax.ShapeDtypeStruct(tuple(sizes), _TYPES[name])
                 for name, sizes in shapes)
  import tensorflow as tf
  return tuple(tf.TensorSpec(sizes, tf.as_dtype(_TYPES[name]))
               for name, sizes in shapes)


def lower(function: Callable, arguments: tuple, name: str = '',
          shown_arguments: str = '') -> bytes:
  """Lowers a TensorFlow or JAX function to a serialized `HloModuleProto`.

  Args:
    function: jitted or not.
    arguments: arrays, `jax.ShapeDtypeStruct`s or `tf.TensorSpec`s, nested as
      you like; only shapes and types matter. May be empty for a `tf.function`
      with an input signature.
    name: the function's name in messages; by default its own.
    shown_arguments: the arguments in messages.

  Raises:
    UserError: it cannot be traced or lowered for these arguments.
  """
  name = name or getattr(function, '__name__', type(function).__name__)
  arguments = tuple(arguments or getattr(function, 'input_signature', None)
                    or ())
  framework, lower_it = (('JAX', _lower_jax) if is_jax(function) else
                         ('XLA', _lower_tensorflow))
  try:
    return lower_it(function, arguments)
  except Exception as error:  # The user's function may raise anything.
    shown = shown_arguments or ', '.join(
        str(argument)[:60] for argument in arguments[:6])
    raise UserError(
        f'{name}: {framework} cannot compile it for the arguments '
        f'{shown or "(none; give --shapes)"} ({type(error).__name__}: '
        f'{reason_of(error)})') from error


def _lower_jax(function, arguments: tuple) -> bytes:
  import jax

  def abstract(leaf):
    if hasattr(leaf, 'shape') and hasattr(leaf, 'dtype'):
      return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf  # A number, or a static argument.

  if not hasattr(function, 'lower'):
    function = jax.jit(function)
  arguments = jax.tree_util.tree_map(abstract, arguments)
  if hasattr(function, 'trace'):
    low = function.trace(*arguments).lower(lowering_platforms=('tpu',))
  else:  # JAX before 0.4.31.
    low = function.lower(*arguments)
  return low.compiler_ir(dialect='hlo').as_serialized_hlo_module_proto()


def _lower_tensorflow(function, arguments: tuple) -> bytes:
  import tensorflow as tf
  # A tf.function is unwrapped: it may have been made without jit_compile.
  function = getattr(function, 'python_function', function)
  leaves = tf.nest.flatten(arguments)
  places = [place for place, leaf in enumerate(leaves)
            if hasattr(leaf, 'shape') and hasattr(leaf, 'dtype')]

  def flat(*tensors):  # XLA's compiler takes no nested specifications.
    given = list(leaves)
    for place, tensor in zip(places, tensors):
      given[place] = tensor
    return function(*tf.nest.pack_sequence_as(arguments, given))

  flat.__name__ = getattr(function, '__name__', 'function')
  return tf.function(flat, jit_compile=True).experimental_get_compiler_ir(*(
      tf.TensorSpec(leaves[place].shape, leaves[place].dtype)
      for place in places))(stage='hlo_serialized')


def _call_for_arguments(target: str, name: str) -> tuple:
  """The arguments that another function returns, or a constant holds."""
  if ':' not in name:
    name = f'{target.rpartition(":")[0]}:{name}'
  found = _import(name)
  if callable(found):
    try:
      found = found()
    except Exception as error:  # The user's function may raise anything.
      raise UserError(
          f'{name}: must return the arguments of {target} when called without '
          f'any ({type(error).__name__}: {reason_of(error)})') from error
  return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _import(target: str) -> Any:
  """The object that 'module:name' or 'file.py:name' names."""
  module_name, _, attribute = target.rpartition(':')
  try:
    module = (_run_file(module_name) if module_name.endswith('.py')
              else importlib.import_module(module_name))
  except (Exception, SystemExit) as error:
    missing = getattr(error, 'name', None) or ''
    if missing.split('.')[0] in ('jax', 'jaxlib'):
      raise UserError(f'{target}: {NEEDS_JAX}') from error
    raise UserError(
        f'{target}: {module_name} cannot be imported from {os.getcwd()} or '
        f'PYTHONPATH ({type(error).__name__}: {reason_of(error)})') from error
  found = module
  for part in attribute.split('.'):
    if not hasattr(found, part):
      names = [name for name in dir(module)
               if callable(getattr(module, name)) and name[0] != '_']
      raise UserError(f'{target}: {module_name} has no {attribute!r}; '
                      f'{did_you_mean(attribute, names)}'.rstrip('; '))
    found = getattr(found, part)
  return found


def _run_file(path: str) -> Any:
  """A file as a module, run once, with its folder on the import path."""
  name = 'file_' + ''.join(c if c.isalnum() else '_' for c in path)
  if name not in sys.modules:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look their module up.
    spec.loader.exec_module(module)
  return sys.modules[name]


def is_jax(function) -> bool:
  """Whether JAX jitted the function, or its module imports JAX."""
  owner = type(function).__module__.split('.')[0]
  if owner in ('jax', 'jaxlib'):
    return True
  if owner in ('tensorflow', 'keras', 'tf_keras'):
    return False
  inner = getattr(function, 'func', function)  # Of functools.partial.
  inner = getattr(inner, '__wrapped__', inner)
  names = {getattr(value, '__name__', '').split('.')[0]
           for value in getattr(inner, '__globals__', {}).values()
           if type(value).__name__ in ('module', 'LazyLoader')}
  if 'tensorflow' in names or names & _JAX_LIBRARIES:
    return 'tensorflow' not in names
  return 'jax' in sys.modules and 'tensorflow' not in sys.modules
