"""Runs jaxlib's parser, users' functions and libtpu, each in its own process.

jaxlib and TensorFlow each bring an XLA, and some versions hang where one
process loads both; libtpu may end the process that loads it. Results come back
in a file, because functions and libtpu print.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Optional

from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.hlo import lowering, pjrt

COMPILE_SECONDS = 1800.0  # A training step takes 75 s on a free core.
_REFUSED, _NOT_COMPILED = 3, 4  # Exit codes: the result is the reason.
_START = ('import json, sys; '
          'sys.path[:] = json.loads(sys.argv[1]) or sys.path + sys.argv[3:]; '
          f'from {__name__} import _main; sys.exit(_main(sys.argv[2]))')
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Keeps libtpu from asking the cloud which TPU it runs on, and from taking the
# lock for the TPU, which compiling does not need.
_LIBTPU_ENVIRONMENT = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_ACCELERATOR_TYPE': 'v3-8',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_LOG_DIR': 'disabled',
}


class CompileError(UserError):
  """A program does not compile: refused, out of time, or the process ended."""


def parse_text(path: str, text: bytes, jax_python: str = '') -> bytes:
  """HLO text -> serialized `HloModuleProto`, parsed by jaxlib.

  Args:
    path: for messages.
    text: of one module.
    jax_python: the Python of an environment with JAX; '' for this one.

  Raises:
    UserError: jaxlib is missing, or cannot parse the text.
  """
  return _run(path, {'do': 'parse'}, text, jax_python)


def lower_named(target: str, arguments: lowering.Arguments,
                jax_python: str = '') -> bytes:
  """`lowering.lower_named` in a process, for a module that users name.

  It looks for the module in the working folder first. `jax_python` and errors
  are as in `parse_text`.
  """
  return _run(target, {'do': 'lower', 'arguments': arguments},
              python=jax_python)


def compile_program(library: str, topology: str, program: bytes,
                    program_format: str = 'hlo',
                    seconds: float = COMPILE_SECONDS) -> bytes:
  """`pjrt.Compiler.compile` in a process: the optimised program.

  Raises:
    CompileError: the compiler refuses it, takes too long, or ended itself.
    UserError: the library cannot be loaded.
  """
  try:
    return _run('the compiler', {
        'do': 'compile', 'library': library, 'topology': topology,
        'format': program_format}, program, seconds=seconds)
  except subprocess.TimeoutExpired as error:
    raise CompileError(
        f'the compiler took more than {seconds:.0f} s') from error


def _run(name: str, job: dict[str, Any], content: bytes = b'',
         python: str = '', seconds: Optional[float] = None) -> bytes:
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    result = os.path.join(folder, 'result')
    compiles = job['do'] == 'compile'
    # Lowering for a TPU needs neither a TPU nor a GPU.
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
    if compiles:
      environment.update(_LIBTPU_ENVIRONMENT, TMPDIR=folder)
    command = _command(
        json.dumps({**job, 'name': name, 'result': result}), python, folder)
    try:
      done = subprocess.run(
          command, input=content, capture_output=True, check=False,
          env=environment, timeout=seconds, cwd=folder if compiles else None)
    except OSError as error:
      raise UserError(f'--jax_python={python}: cannot be run ({error})'
                      ) from error
    if os.path.exists(result):
      with open(result, 'rb') as file:
        found = file.read()
      if done.returncode == 0:
        return found
      if done.returncode in (_REFUSED, _NOT_COMPILED):
        raise (UserError if done.returncode == _REFUSED else CompileError)(
            found.decode())
  raise (CompileError if compiles else UserError)(
      f'{name}: the process ended with code {done.returncode} '
      f'({_last_words(done.stderr) or "it said nothing"})')


def _last_words(log: bytes) -> str:
  """The line that says why a process ended: libtpu's fatal one, or the last."""
  lines = log.decode(errors='replace').strip().split('\n')
  fatal = [line for line in lines if line.startswith('F')]
  return _one_line((fatal or lines)[-1])


def _one_line(text: str) -> str:
  return ' '.join(text.split())[:300]


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
  # The other Python may see this package, but no other of this Python's.
  packages = os.path.join(folder, 'packages')
  os.makedirs(packages)
  os.symlink(_PACKAGE, os.path.join(packages, 'tpu_graphs_ext'))
  return [os.path.expanduser(python), '-c', _START, 'null', job, packages]


# --- In the other process -----------------------------------------------------


def _main(argument: str) -> int:
  """Does a job, given as JSON; returns the exit code."""
  job = json.loads(argument)
  content = sys.stdin.buffer.read()
  try:
    if job['do'] == 'lower':
      sys.path.insert(0, os.getcwd())
      found = lowering.lower_named(job['name'], job['arguments'])
    elif job['do'] == 'parse':
      found = _parsed(job['name'], content.decode(errors='replace'))
    else:
      found = _compiled(job, content)
    code = 0
  except UserError as error:
    found = str(error).encode()
    code = _NOT_COMPILED if isinstance(error, CompileError) else _REFUSED
  with open(job['result'], 'wb') as file:
    file.write(found)
  return code


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


def _compiled(job: dict[str, Any], program: bytes) -> bytes:
  try:
    compiler = pjrt.Compiler(job['library'], job['topology'])
  except (OSError, AttributeError, pjrt.PjrtError) as error:
    raise UserError(
        f'{job["library"]}: the TPU compiler cannot be loaded '
        f'({_one_line(str(error))}); for the version that was tested '
        f'{how_to_install("tpu")}') from error
  try:
    return compiler.compile(program, job['format'])
  except pjrt.PjrtError as error:
    raise CompileError(
        f'the compiler refuses it ({_one_line(str(error))})') from error
