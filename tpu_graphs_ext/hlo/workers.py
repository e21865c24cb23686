"""Work for a process of its own: jaxlib's parser, and the user's functions.

jaxlib and TensorFlow bring their own XLA each, and some versions of them stop
for ever where one process loads both. The process that is started runs
`_main`; its result is a file too, because functions may print.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from tpu_graphs_ext.errors import UserError, how_to_install, reason_of

_NEEDS_JAX = f'needs JAX, which is not installed; {how_to_install("jax")}'
_REFUSED = 3  # Exit code: the result is a message for the user.
# -I keeps the working folder and PYTHONPATH off the path; a `jaxlib.py` there
# must not run. -P would do less, and needs Python 3.11.
_START = ('import json, sys; sys.path[:] = json.loads(sys.argv[1]); '
          f'from {__name__} import _main; sys.exit(_main(sys.argv[2]))')
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))


def module_of_text(path: str, text: bytes) -> bytes:
  """HLO text -> serialized `HloModuleProto`, parsed by jaxlib.

  Raises:
    UserError: jaxlib is missing, or says what is wrong with the text.
  """
  return _run({'kind': 'text', 'name': path}, text)


def module_of_function(target: str, shapes: Sequence[tuple]) -> bytes:
  """A function of somebody's module -> serialized `HloModuleProto`.

  The working folder is looked through for the module first. The module is run.

  Args:
    target: 'module:function', or 'file.py:function'.
    shapes: (XLA's name of the type, sizes) of each argument; none if the
      function is a `tf.function` with an input signature.

  Raises:
    UserError: the module or function is missing, or cannot be compiled.
  """
  return _run({'kind': 'function', 'name': target, 'shapes': list(shapes)})


def _run(job: dict[str, Any], content: bytes = b'') -> bytes:
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    result = os.path.join(folder, 'result')
    job = {**job, 'result': result}
    done = subprocess.run(
        [sys.executable, '-I', '-c', _START, json.dumps(_import_path()),
         json.dumps(job)], input=content, capture_output=True, check=False)
    if os.path.exists(result):
      with open(result, 'rb') as file:
        found = file.read()
      if done.returncode == 0:
        return found
      if done.returncode == _REFUSED:
        raise UserError(found.decode())
  said = done.stderr.decode(errors='replace').strip().split('\n')[-1]
  raise UserError(f'{job["name"]}: the process that reads it ended with code '
                  f'{done.returncode} ({said[:300] or "it said nothing"})')


def _import_path() -> list[str]:
  """This process's sys.path without the working folder.

  A checkout of this package that is the working folder comes last, where its
  files cannot stand in for Python's or jaxlib's.
  """
  here = os.path.realpath(os.getcwd())
  return [*(os.path.abspath(folder) for folder in sys.path
            if folder and os.path.realpath(folder) != here), _PACKAGE_PARENT]


# ------------------------------------------------- in the other process


def _parser():
  """jaxlib's parser of HLO text, wherever this version keeps it."""
  try:
    from jaxlib import _hlo
    return _hlo.hlo_module_from_text
  except ImportError:
    pass
  from jaxlib import xla_client
  return xla_client._xla.hlo_module_from_text


def _parsed(name: str, text: str) -> bytes:
  try:
    parse = _parser()
  except (ImportError, AttributeError) as error:
    raise UserError(
        f'{name}: HLO text {_NEEDS_JAX}, or dump protobufs with '
        '--xla_dump_hlo_as_proto') from error
  try:
    return parse(text).as_serialized_hlo_module_proto()
  except Exception as error:  # Of a type that each version calls its own.
    raise UserError(
        f'{name}: is not HLO text that jaxlib understands '
        f'({reason_of(error)})') from error


def _function_of(target: str):
  """The object that 'module:function' names; imports the module."""
  import importlib
  import importlib.util
  module_name, _, attribute = target.rpartition(':')
  try:
    if module_name.endswith('.py'):
      spec = importlib.util.spec_from_file_location('user_functions',
                                                    module_name)
      module = importlib.util.module_from_spec(spec)
      spec.loader.exec_module(module)
    else:
      module = importlib.import_module(module_name)
  except (Exception, SystemExit) as error:
    missing = (isinstance(error, ModuleNotFoundError)
               and error.name in (module_name, module_name.split('.')[0])
               ) or isinstance(error, FileNotFoundError)
    if isinstance(error, ModuleNotFoundError) and (
        error.name or '').split('.')[0] in ('jax', 'jaxlib'):
      raise UserError(f'{target}: {_NEEDS_JAX}') from error
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
      from tpu_graphs_ext.errors import did_you_mean
      names = [name for name in dir(module)
               if callable(getattr(module, name)) and name[0] != '_']
      raise UserError(f'{target}: {module_name} has no {attribute!r}; '
                      f'{did_you_mean(attribute, names)}'.rstrip('; '))
    found = getattr(found, part)
  if not callable(found):
    raise UserError(f'{target}: is no function, but of the type '
                    f'{type(found).__name__}')
  return found


def _is_of_jax(function) -> bool:
  """Whether a function is JAX's: jitted, or of a module that imports JAX."""
  owner = type(function).__module__.split('.')[0]
  if owner in ('jax', 'jaxlib'):
    return True
  if owner in ('tensorflow', 'keras', 'tf_keras'):
    return False
  inner = getattr(function, '__wrapped__', function)
  names = {getattr(value, '__name__', '').split('.')[0]
           for value in getattr(inner, '__globals__', {}).values()
           if type(value).__name__ in ('module', 'LazyLoader')}
  return 'jax' in names and 'tensorflow' not in names


def _compiled(target: str, shapes: list) -> bytes:
  sys.path.insert(0, os.getcwd())
  function = _function_of(target)
  compiled = _compiled_by_jax if _is_of_jax(function) else _compiled_by_tf
  return compiled(target, function, shapes)


_JAX_TYPES = {'f32': 'float32', 'f16': 'float16', 'bf16': 'bfloat16',
              'f64': 'float64', 'pred': 'bool', 's8': 'int8', 's16': 'int16',
              's32': 'int32', 's64': 'int64', 'u8': 'uint8', 'u16': 'uint16',
              'u32': 'uint32', 'u64': 'uint64'}
TYPES = tuple(_JAX_TYPES)


def _compiled_by_jax(target: str, function, shapes: list) -> bytes:
  import jax
  import jax.numpy as jnp
  arguments = [jax.ShapeDtypeStruct(tuple(dims), getattr(
      jnp, 'bool_' if name == 'pred' else _JAX_TYPES[name]))
      for name, dims in shapes]
  try:
    if not hasattr(function, 'lower'):
      function = jax.jit(function)
    module = function.lower(*arguments).compiler_ir(dialect='hlo')
    return module.as_serialized_hlo_module_proto()
  except Exception as error:  # The user's function may raise anything.
    raise _does_not_compile(target, 'JAX', shapes, error) from error


def _compiled_by_tf(target: str, function, shapes: list) -> bytes:
  import tensorflow as tf

  from tpu_graphs_ext.hlo import compile as hlo_compile
  specs = [tf.TensorSpec(dims, tf.as_dtype(_JAX_TYPES[name]))
           for name, dims in shapes]
  signature = getattr(function, 'input_signature', None)
  try:
    module = hlo_compile.function_module(
        function, *(specs or signature or []))
  except Exception as error:
    raise _does_not_compile(target, 'XLA', shapes, error) from error
  return module.SerializeToString()


def _does_not_compile(target, by, shapes, error) -> UserError:
  if isinstance(error, UserError):
    return UserError(f'{target}: {error}')
  given = ' '.join(f'{name}[{",".join(map(str, dims))}]'
                   for name, dims in shapes)
  return UserError(
      f'{target}: {by} cannot compile it for the arguments '
      f'{given or "(none; give --shapes)"} '
      f'({type(error).__name__}: {reason_of(error)})')


def _main(argument: str) -> int:
  """Does a job, given as JSON; returns the exit code."""
  job = json.loads(argument)
  try:
    if job['kind'] == 'text':
      text = sys.stdin.buffer.read().decode(errors='replace')
      found = _parsed(job['name'], text)
    else:
      found = _compiled(job['name'], job['shapes'])
    code = 0
  except UserError as error:
    found, code = str(error).encode(), _REFUSED
  with open(job['result'], 'wb') as file:
    file.write(found)
  return code
