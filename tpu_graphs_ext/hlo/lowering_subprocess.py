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
from typing import Any

from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.hlo import lowering

_NEEDS_JAX = f'needs jaxlib, which is not installed; {how_to_install("jax")}'
_REFUSED = 3  # Exit code: the result is a message for the user.
_START = ('import json, sys; '
          'sys.path[:] = json.loads(sys.argv[1]) or sys.path + sys.argv[3:]; '
          f'from {__name__} import _main; sys.exit(_main(sys.argv[2]))')
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))


def module_of_text(path: str, text: bytes, jax_python: str = '') -> bytes:
  """HLO text -> serialized `HloModuleProto`, parsed by jaxlib.

  Args:
    path: for messages.
    text: of one module.
    jax_python: the Python of an environment with JAX; not given: this one.

  Raises:
    UserError: jaxlib is missing, or says what is wrong with the text.
  """
  return _run({'kind': 'text', 'name': path}, text, jax_python)


def module_of_function(target: str, arguments: lowering.Arguments,
                       jax_python: str = '') -> bytes:
  """A function of somebody's module -> serialized `HloModuleProto`.

  The working folder is looked through for the module first. The module is run.

  Args:
    target: 'module:function', or 'file.py:function'.
    arguments: of the function; none if it is a `tf.function` with an input
      signature.
    jax_python: the Python of an environment with JAX; not given: this one.

  Raises:
    UserError: the module or function is missing, or cannot be lowered.
  """
  return _run({'kind': 'function', 'name': target, 'arguments': arguments},
              python=jax_python)


def _run(job: dict[str, Any], content: bytes = b'', python: str = '') -> bytes:
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    result = os.path.join(folder, 'result')
    job = {**job, 'result': result}
    # Lowering for a TPU needs none, nor a GPU.
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
    try:
      done = subprocess.run(
          _command(json.dumps(job), python, folder), input=content,
          capture_output=True, check=False, env=environment)
    except OSError as error:
      raise UserError(f'--jax_python={python}: cannot be run ({error})'
                      ) from error
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


def _command(job: str, python: str, folder: str) -> list[str]:
  """Starts `_main` in this Python, or another with its own packages."""
  if not python:
    # -I keeps the working folder and PYTHONPATH off the path; a `jaxlib.py`
    # there must not run. -P would do less, and needs Python 3.11.
    return [sys.executable, '-I', '-c', _START, json.dumps(_import_path()), job]
  # Of this Python's packages the other one may see this alone.
  only = os.path.join(folder, 'packages')
  os.makedirs(only)
  os.symlink(os.path.join(_PACKAGE_PARENT, 'tpu_graphs_ext'),
             os.path.join(only, 'tpu_graphs_ext'))
  return [os.path.expanduser(python), '-c', _START, 'null', job, only]


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
        f'{name}: is not HLO text that the jaxlib here understands '
        f'({reason_of(error)}); of a newer JAX, dump protobufs, or name its '
        'Python with --jax_python') from error


def _main(argument: str) -> int:
  """Does a job, given as JSON; returns the exit code."""
  job = json.loads(argument)
  try:
    if job['kind'] == 'text':
      text = sys.stdin.buffer.read().decode(errors='replace')
      found = _parsed(job['name'], text)
    else:
      sys.path.insert(0, os.getcwd())
      found = lowering.module_of(job['name'], job['arguments'])
    code = 0
  except UserError as error:
    found, code = str(error).encode(), _REFUSED
  with open(job['result'], 'wb') as file:
    file.write(found)
  return code
