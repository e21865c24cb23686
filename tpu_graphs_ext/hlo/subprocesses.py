"""Lowers functions of users and runs libtpu, each in a process of its own.

jaxlib and TensorFlow each bring an XLA, and some versions hang where one
process loads both; libtpu may end the process that loads it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Optional

from tpu_graphs_ext import children
from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.hlo import libtpu, lowering

COMPILE_SECONDS = 1800.0  # A training step takes 75 s on a free core.
_REFUSED = 3  # Exit code: the output is the reason.
_START = ('sys.path.append(sys.argv[1]); '
          f'from {__name__} import _main; sys.exit(_main(sys.argv[2]))')
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def lower_named(target: str, arguments: str,
                jax_python: str = '') -> bytes:
  """`lowering.lower_named` in a process of this Python or another with JAX."""
  return _run('lower', [target, arguments], python=jax_python)


def compile_program(library: str, topology: str, program: bytes,
                    program_format: str = 'hlo',
                    seconds: float = COMPILE_SECONDS) -> bytes:
  """`libtpu.Compiler.compile` in a process, or a UserError."""
  return _run('compile', [library, topology, program_format], program,
              seconds=seconds)


def _run(job: str, arguments: list[Any], content: bytes = b'',
         python: str = '', seconds: Optional[float] = None) -> bytes:
  """Calls a function of `_JOBS` in this Python or another with JAX."""
  compiles = job == 'compile'
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    # Neither lowering for a TPU nor compiling for one needs a TPU or a GPU.
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
    if compiles:
      environment.update(libtpu.ENVIRONMENT, TMPDIR=folder)
    # Another Python may see this package, but no other folder beside it.
    os.symlink(_PACKAGE, os.path.join(folder, 'tpu_graphs_ext'))
    try:
      done = subprocess.run(
          children.command(_START, folder, json.dumps([job, arguments]),
                           python=python),
          input=content, capture_output=True, check=False, env=environment,
          timeout=seconds, cwd=folder if compiles else None)
    except subprocess.TimeoutExpired as error:
      raise UserError(f'{job}: took more than {seconds:.0f} s') from error
    except OSError as error:
      raise UserError(
          f'--jax_python={python}: cannot be run ({error})') from error
  if done.returncode == 0:
    return done.stdout
  reason = done.stdout.decode(errors='replace')
  if done.returncode != _REFUSED:
    # libtpu's fatal line says why, or the last one.
    lines = done.stderr.decode(errors='replace').strip().split('\n')
    fatal = [line for line in lines if line.startswith('F')]
    reason = (f'{job}: the process ended with code {done.returncode} '
              f'({(fatal or lines)[-1][:300]})')
  raise UserError(reason)


def _main(call: str) -> int:
  """In the other process: writes a job's result, or why there is none."""
  # Functions and libtpu print, which goes to the log instead.
  output = os.fdopen(os.dup(1), 'wb')
  os.dup2(2, 1)
  job, arguments = json.loads(call)
  try:
    found, code = _JOBS[job](*arguments), 0
  except UserError as error:
    found, code = str(error).encode(), _REFUSED
  with output:
    output.write(found)
  return code


def _compile(library: str, topology: str, program_format: str) -> bytes:
  try:
    compiler = libtpu.Compiler(library, topology)
  except (OSError, AttributeError, libtpu.PjrtError) as error:
    raise UserError(
        f'{library}: the TPU compiler cannot be loaded '
        f'({reason_of(error)}); for the version that was tested '
        f'{how_to_install("tpu")}') from error
  try:
    return compiler.compile(sys.stdin.buffer.read(), program_format)
  except libtpu.PjrtError as error:
    raise UserError(
        f'the compiler refuses it ({reason_of(error)})') from error


_JOBS = {'lower': lowering.lower_named, 'compile': _compile}
