"""Functions of TensorFlow and JAX -> HLO, before any compiler has seen it.

JAX functions are lowered for a TPU, whatever JAX itself runs on, so that what
depends on the platform is the TPU's. This file needs neither TensorFlow nor
JAX until a function of theirs is lowered.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
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
_TYPES = {'f32': 'float32', 'f16': 'float16', 'bf16': 'bfloat16',
          'f64': 'float64', 'pred': 'bool', 's8': 'int8', 's16': 'int16',
          's32': 'int32', 's64': 'int64', 'u8': 'uint8', 'u16': 'uint16',
          'u32': 'uint32', 'u64': 'uint64', 'f8e4m3fn': 'float8_e4m3fn',
          'f8e5m2': 'float8_e5m2'}
TYPES = tuple(_TYPES)

# [(XLA's name of the type, sizes)] of flat arguments; or the name of something
# in the function's own module, or of 'module:something', that is the arguments
# or returns them.
Arguments = Union[list, str]


def module_of(target: str, arguments: Arguments) -> bytes:
  """Imports 'module:function' and lowers it: serialized `HloModuleProto`.

  Raises:
    UserError: the module or function is missing, or cannot be lowered.
  """
  function = named(target)
  if not callable(function):
    raise UserError(f'{target}: is no function, but of the type '
                    f'{type(function).__name__}')
  if not isinstance(arguments, str):
    _require_as_many(function, len(arguments), target)
  given = (_named_arguments(target, arguments) if isinstance(arguments, str)
           else arguments_of_shapes(function, arguments))
  text = arguments if isinstance(arguments, str) else ' '.join(
      f'{name}[{",".join(map(str, sizes))}]' for name, sizes in arguments)
  return lowered(function, given, target, text)


def _require_as_many(function: Callable, number: int, target: str) -> None:
  """Refuses fewer arguments than the function takes, and names those."""
  if not number and getattr(function, 'input_signature', None):
    return
  try:
    parameters = inspect.signature(function).parameters.values()
  except (TypeError, ValueError):
    return  # Nobody knows.
  names = [one.name for one in parameters if one.default is one.empty
           and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
  if number < len(names):
    count = f'{len(names)} shapes' if len(names) > 1 else 'one shape'
    raise UserError(
        f'{target} takes {", ".join(names)}: give {count} with --shapes, as in '
        "'f32[512,1024] bf16[1024]', or the name of a function that returns "
        f'the arguments{f"; {number} given" if number else ""}')


def arguments_of_shapes(function: Callable, shapes: list) -> tuple:
  """[(XLA's name of the type, sizes)] -> what `lowered` takes."""
  if is_of_jax(function):
    import jax
    return tuple(jax.ShapeDtypeStruct(tuple(sizes), _TYPES[name])
                 for name, sizes in shapes)
  import tensorflow as tf
  return tuple(tf.TensorSpec(sizes, tf.as_dtype(_TYPES[name]))
               for name, sizes in shapes)


def lowered(function: Callable, arguments: tuple, name: str,
            text: str = '') -> bytes:
  """A function of TensorFlow or JAX -> serialized `HloModuleProto`.

  Args:
    function: jitted or not.
    arguments: of the function, in any nesting: arrays, or what says a shape
      and a type (`jax.ShapeDtypeStruct`, `tf.TensorSpec`).
    name: of the function, for messages.
    text: the arguments, for messages.

  Raises:
    UserError: it cannot be traced or lowered for these arguments.
  """
  of_jax = is_of_jax(function)
  arguments = arguments or tuple(
      getattr(function, 'input_signature', None) or ())
  try:
    return (_by_jax if of_jax else _by_tensorflow)(function, arguments)
  except UserError as error:
    raise UserError(f'{name}: {error}') from error
  except Exception as error:  # The user's function may raise anything.
    raise UserError(
        f'{name}: {"JAX" if of_jax else "XLA"} cannot compile it for the '
        f'arguments {text or _listed(arguments) or "(none; give --shapes)"} '
        f'({type(error).__name__}: {reason_of(error)})') from error


def _listed(arguments: tuple) -> str:
  return ', '.join(str(argument)[:60] for argument in arguments[:6])


def _by_jax(function, arguments: tuple) -> bytes:
  import jax

  def abstract(leaf):
    if hasattr(leaf, 'shape') and hasattr(leaf, 'dtype'):
      return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf  # A number, or an argument that is static.

  if not hasattr(function, 'lower'):
    function = jax.jit(function)
  arguments = jax.tree_util.tree_map(abstract, arguments)
  if hasattr(function, 'trace'):
    low = function.trace(*arguments).lower(lowering_platforms=('tpu',))
  else:  # JAX before 0.4.31.
    low = function.lower(*arguments)
  return low.compiler_ir(dialect='hlo').as_serialized_hlo_module_proto()


def _by_tensorflow(function, arguments: tuple) -> bytes:
  import tensorflow as tf

  from tpu_graphs_ext.hlo import compile as hlo_compile
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
  module = hlo_compile.function_module(flat, *(
      tf.TensorSpec(leaves[place].shape, leaves[place].dtype)
      for place in places))
  return module.SerializeToString()


def _named_arguments(target: str, name: str) -> tuple:
  """Of 'function', in the target's own module, or 'module:function'."""
  if ':' not in name:
    name = f'{target.rpartition(":")[0]}:{name}'
  found = named(name)
  if callable(found):
    try:
      found = found()
    except Exception as error:  # The user's function may raise anything.
      raise UserError(
          f'{name}: must return the arguments of {target} when it is called '
          f'without any ({type(error).__name__}: {reason_of(error)})'
          ) from error
  return tuple(found) if isinstance(found, (tuple, list)) else (found,)


# ----------------------------------------------------------------- names

# Libraries on top of JAX whose modules may import no JAX themselves.
_OF_JAX = frozenset({'jax', 'flax', 'haiku', 'equinox', 'optax'})


def named(target: str) -> Any:
  """The object that 'module:name' or 'file.py:name' names; imports it.

  Raises:
    UserError: there is none, or the module cannot be imported.
  """
  module_name, _, attribute = target.rpartition(':')
  try:
    if module_name.endswith('.py'):
      module = _run_file(module_name)
    else:
      module = importlib.import_module(module_name)
  except (Exception, SystemExit) as error:
    missing = (isinstance(error, ModuleNotFoundError)
               and error.name in (module_name, module_name.split('.')[0])
               ) or isinstance(error, FileNotFoundError)
    if isinstance(error, ModuleNotFoundError) and (
        error.name or '').split('.')[0] in ('jax', 'jaxlib'):
      raise UserError(f'{target}: {NEEDS_JAX}') from error
    if missing and module_name.endswith('.py'):
      raise UserError(f'{target}: there is no file {module_name}') from error
    if missing:
      raise UserError(
          f'{target}: there is no module {module_name!r} in {os.getcwd()} or '
          'on PYTHONPATH; name one that `python -c "import ..."` '
          'finds, or a file as in layers.py:dense') from error
    raise UserError(f'{target}: {module_name} cannot be imported '
                    f'({type(error).__name__}: {reason_of(error)})'
                    ) from error
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
  """A file as a module, run once; its folder is looked through, too."""
  name = 'file_' + ''.join(c if c.isalnum() else '_' for c in path)
  if name not in sys.modules:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look their module up.
    spec.loader.exec_module(module)
  return sys.modules[name]


def is_of_jax(function) -> bool:
  """Whether a function is JAX's: jitted, or of a module that imports JAX."""
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
  if 'tensorflow' in names or names & _OF_JAX:
    return 'tensorflow' not in names
  return 'jax' in sys.modules and 'tensorflow' not in sys.modules
