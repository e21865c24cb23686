"""TensorFlow and JAX functions -> HLO that no compiler has changed yet.

JAX functions are lowered for a TPU, so that platform-dependent code takes the
TPU's branch. Imports TensorFlow or JAX only to lower a function of theirs.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import os
import re
import sys
from typing import Any, Callable

from tpu_graphs_ext.errors import UserError, how_to_install, reason_of

# XLA's name of an element type -> NumPy's.
_TYPES = {'f32': 'float32', 'f16': 'float16', 'bf16': 'bfloat16',
          'f64': 'float64', 'pred': 'bool', 's8': 'int8', 's16': 'int16',
          's32': 'int32', 's64': 'int64', 'u8': 'uint8', 'u16': 'uint16',
          'u32': 'uint32', 'u64': 'uint64', 'f8e4m3fn': 'float8_e4m3fn',
          'f8e5m2': 'float8_e5m2'}
_SHAPE = re.compile(r'([a-z][a-z\d]*)\[\s*((?:\d+(?:\s*,\s*\d+)*)?)\s*\]')
# A function's name, with its module or without.
_NAME = re.compile(r'([\w./~-]+:)?[A-Za-z_][\w.]*')
# Libraries on top of JAX: modules that use them may not import JAX itself.
_JAX_LIBRARIES = frozenset({'jax', 'flax', 'haiku', 'equinox', 'optax'})


def names_function(name: str) -> bool:
  """Whether this is 'module:function', and not the path of a file."""
  return (':' in name and bool(_NAME.fullmatch(name))
          and not os.path.exists(os.path.expanduser(name)))


def parse_shapes(text: str) -> list[tuple[str, list[int]]]:
  """'f32[512,1024] s32[]' -> [('f32', [512, 1024]), ('s32', [])].

  Raises UserError if it is not a list of shapes, or names an unknown type.
  """
  found = [(name, [int(size) for size in re.findall(r'\d+', sizes)])
           for name, sizes in _SHAPE.findall(text)]
  if _SHAPE.sub('', text).strip(' ,;\t\n') or not all(
      name in _TYPES for name, _ in found):
    raise UserError(f'--shapes={text}: cannot be read; write, for example, '
                    '"f32[512,1024] bf16[1024,4096]", or name a function that '
                    f'returns the arguments. The types are {", ".join(_TYPES)}')
  return found


def lower_named(target: str, arguments: str) -> bytes:
  """Imports 'module:function' or 'file.py:function'; then as `lower`.

  `arguments` are shapes, or the name of a function that returns them, in the
  same module or as 'module:name'.
  """
  name = arguments.strip()
  is_function = bool(_NAME.fullmatch(name)) and name not in _TYPES
  shapes = [] if is_function else parse_shapes(arguments)
  function = _import(target)
  return lower(function, _returned(target, name) if is_function
               else arguments_of_shapes(function, shapes), target)


def arguments_of_shapes(function: Callable, shapes: list) -> tuple:
  """What `parse_shapes` returns -> abstract arguments for `lower`."""
  if is_jax(function):
    import jax
    return tuple(jax.ShapeDtypeStruct(tuple(sizes), _TYPES[name])
                 for name, sizes in shapes)
  import tensorflow as tf
  return tuple(tf.TensorSpec(sizes, tf.as_dtype(_TYPES[name]))
               for name, sizes in shapes)


def lower(function: Callable, arguments: tuple, name: str = '') -> bytes:
  """A TensorFlow or JAX function as a serialized `HloModuleProto`.

  `arguments` are arrays, `jax.ShapeDtypeStruct`s or `tf.TensorSpec`s, nested as
  you like; empty for a `tf.function` with an input signature.

  Raises UserError, which names the function, if it cannot be lowered.
  """
  name = name or getattr(function, '__name__', type(function).__name__)
  arguments = tuple(arguments or getattr(function, 'input_signature', None)
                    or ())
  of_jax = is_jax(function)
  try:
    return (_lower_jax if of_jax else _lower_tensorflow)(function, arguments)
  except Exception as error:  # The user's function may raise anything.
    shown = ', '.join(str(argument)[:60] for argument in arguments[:6])
    raise UserError(
        f'{name}: {"JAX" if of_jax else "XLA"} cannot compile it for the '
        f'arguments {shown or "(none; give --shapes)"} '
        f'({type(error).__name__}: {reason_of(error)})') from error


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
  tensors = {place: tf.TensorSpec(leaf.shape, leaf.dtype)
             for place, leaf in enumerate(leaves)
             if hasattr(leaf, 'shape') and hasattr(leaf, 'dtype')}

  def flat(*given):  # XLA's compiler takes no nested specifications.
    given = {**dict(enumerate(leaves)), **dict(zip(tensors, given))}
    return function(*tf.nest.pack_sequence_as(
        arguments, list(given.values())))

  flat.__name__ = getattr(function, '__name__', 'function')
  return tf.function(flat, jit_compile=True).experimental_get_compiler_ir(
      *tensors.values())(stage='hlo_serialized')


def _returned(target: str, name: str) -> tuple:
  """The arguments that another function returns."""
  if ':' not in name:
    name = f'{target.rpartition(":")[0]}:{name}'
  function = _import(name)
  try:
    found = function()
  except Exception as error:  # The user's function may raise anything.
    raise UserError(
        f'{name}: must return the arguments of {target} when called without '
        f'any ({type(error).__name__}: {reason_of(error)})') from error
  return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _import(target: str) -> Any:
  """The object that 'module:name' or 'file.py:name' names.

  Only from here on is the working folder searched for modules.
  """
  module_name, _, attribute = target.rpartition(':')
  sys.path.insert(0, os.getcwd())
  try:
    module = (_run_file(module_name) if module_name.endswith('.py')
              else importlib.import_module(module_name))
  except (Exception, SystemExit) as error:
    needs_jax = (getattr(error, 'name', None) or '').startswith('jax')
    hint = (f'; {how_to_install("jax")}, or name the Python of an environment '
            'that has it with --jax_python') if needs_jax else ''
    raise UserError(
        f'{target}: {module_name} cannot be imported from {os.getcwd()} or '
        f'PYTHONPATH ({type(error).__name__}: {reason_of(error)}){hint}'
    ) from error
  try:
    return operator.attrgetter(attribute)(module)
  except AttributeError as error:
    raise UserError(f'{target}: {module_name} has no {attribute!r}') from error


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
  if owner in ('jax', 'jaxlib', 'tensorflow', 'keras', 'tf_keras'):
    return owner.startswith('jax')
  inner = inspect.unwrap(getattr(function, 'func', function))  # Of a partial.
  names = {getattr(value, '__name__', '').split('.')[0]
           for value in getattr(inner, '__globals__', {}).values()
           if type(value).__name__ in ('module', 'LazyLoader')}
  if not names & {'tensorflow', *_JAX_LIBRARIES}:
    names = sys.modules
  return 'tensorflow' not in names and not _JAX_LIBRARIES.isdisjoint(names)
