"""Runs jaxlib's parser, and users' functions, in a process of their own.

jaxlib and TensorFlow each bring their own XLA, and some versions hang where
one process loads both. The result comes back in a file, because functions may
print.
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

_REFUSED = 3  # Exit code: the result is a message for the user.
_START = ('import json, sys; '
          'sys.path[:] = json.loads(sys.argv[1]) or sys.path + sys.argv[3:]; '
          f'from {__name__} import _main; sys.exit(_main(sys.argv[2]))')
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_text(path: str, text: bytes, jax_python: str = '') -> bytes:
  """HLO text -> serialized `HloModuleProto`, parsed by jaxlib.

  Args:
    path: for messages.
    text: of one module.
    jax_python: the Python of an environment with JAX; '' for this one.

  Raises:
    UserError: jaxlib is missing, or cannot parse the text.
  """
  return _run({'name': path}, text, jax_python)


def lower_named(target: str, arguments: lowering.Arguments,
                jax_python: str = '') -> bytes:
  """`lowering.lower_named`, which imports the user's module, in a process.

  The module is looked for in the working folder first.

  Args:
    target: 'module:function', or 'file.py:function'.
    arguments: of the function; [] for a `tf.function` with a signature.
    jax_python: the Python of an environment with JAX; '' for this one.

  Raises:
    UserError: the function is missing, or cannot be lowered.
  """
  return _run({'name': target, 'arguments': arguments}, python=jax_python)


def _run(job: dict[str, Any], content: bytes = b'', python: str = '') -> bytes:
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    result = os.path.join(folder, 'result')
    # Lowering for a TPU needs neither a TPU nor a GPU.
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
    command = _command(json.dumps({**job, 'result': result}), python, folder)
    try:
      done = subprocess.run(command, input=content, capture_output=True,
                            check=False, env=environment)
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
  """Starts `_main` in this Python, or in another with its own packages."""
  if not python:
    # -I keeps the working folder and PYTHONPATH off the import path, so that a
    # `jaxlib.py` there does not run. -P would do less, and needs Python 3.11.
    # A checkout of this package that is the working folder comes last.
    here = os.path.realpath(os.getcwd())
    path = [*(os.path.abspath(entry) for entry in sys.path
              if entry and os.path.realpath(entry) != here),
            os.path.dirname(_PACKAGE)]
    return [sys.executable, '-I', '-c', _START, json.dumps(path), job]
  # Of this Python's packages the other one may see this one alone.
  packages = os.path.join(folder, 'packages')
  os.makedirs(packages)
  os.symlink(_PACKAGE, os.path.join(packages, 'tpu_graphs_ext'))
  return [os.path.expanduser(python), '-c', _START, 'null', job, packages]


# --- In the other process -----------------------------------------------------


def _parser():
  """jaxlib's parser of HLO text, wherever this version keeps it."""
  try:
    from jaxlib import _hlo
    return _hlo.hlo_module_from_text
  except ImportError:
    from jaxlib import xla_client
    return xla_client._xla.hlo_module_from_text


def _parsed(name: str, text: str) -> bytes:
  try:
    parse = _parser()
  except (ImportError, AttributeError) as error:
    raise UserError(
        f'{name}: HLO text needs jaxlib, which is not installed; '
        f'{how_to_install("jax")}, or dump protobufs with '
        '--xla_dump_hlo_as_proto') from error
  try:
    return parse(text).as_serialized_hlo_module_proto()
  except Exception as error:  # Each version raises a type of its own.
    raise UserError(
        f'{name}: is not HLO text that this jaxlib understands '
        f'({reason_of(error)}); if a newer JAX wrote it, dump protobufs, or '
        'name its Python with --jax_python') from error


def _main(argument: str) -> int:
  """Does a job, given as JSON; returns the exit code."""
  job = json.loads(argument)
  try:
    if 'arguments' in job:
      sys.path.insert(0, os.getcwd())
      found = lowering.lower_named(job['name'], job['arguments'])
    else:
      text = sys.stdin.buffer.read().decode(errors='replace')
      found = _parsed(job['name'], text)
    code = 0
  except UserError as error:
    found, code = str(error).encode(), _REFUSED
  with open(job['result'], 'wb') as file:
    file.write(found)
  return code
