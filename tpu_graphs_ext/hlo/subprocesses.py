"""Lowers functions of users and runs libtpu, each in a process of its own.

jaxlib and TensorFlow each bring an XLA, and some versions hang where one
process loads both; libtpu may end the process that loads it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

from tpu_graphs_ext import children
from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.hlo import libtpu, lowering

COMPILE_SECONDS = 1800.0  # A training step takes 75 s on a free core.
_REFUSED = 3  # Exit code: the output is the reason.
_START = ('sys.path.append(sys.argv[1]); '
          f'from {__name__} import _main; sys.exit(_main(sys.argv[2]))')
# libtpu's line of a failed check, or Python's last one, says why it ended.
_FATAL = re.compile(
    r'Check fail|RET_CHECK|Fatal|FATAL|Unimplemented|INVALID_ARG|INTERNAL:|'
    r'RESOURCE_EXHAUSTED|not supported|LOG\(FATAL\)|^F\d{4} ')
_NOISE = re.compile(r'^\s*(@|\*\*\*|PC:|#\d)|RAW: |coredump|0x[0-9a-f]{8}')
_LOG_PREFIX = re.compile(r'^[A-Z]\d{4} [\d:.]+\s+\d+ ')
Progress = Optional[Callable[[float], None]]  # Called with the seconds taken.
_POLL_SECONDS = 0.5
_LOADED = 'loaded'  # The first that a process writes which compiles.
_running: set[subprocess.Popen] = set()
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class _EndedError(UserError):
  """A process ended by itself; `output` is what it had written."""
  output = b''


def lower_named(target: str, arguments: str, jax_python: str = '') -> bytes:
  """`lowering.lower_named` in a process of this Python or another with JAX."""
  return _run('lower', [target, arguments], python=jax_python)


def convert(content: bytes, jax_python: str = '') -> bytes:
  """`lowering.converted` in such a process."""
  return _run('convert', [], content, jax_python)


def compile_program(library: str, topology: str, program: bytes,
                    program_format: str, options: bytes,
                    progress: Progress = None) -> bytes:
  """The optimised program of `libtpu.Compiler.compile`, or a UserError."""
  (optimized, _, reason), = compile_all(
      library, topology, [(program, program_format, options)], progress)
  if reason:
    raise UserError(f'the compiler refuses it ({reason})')
  return optimized


def compile_all(library: str, topology: str, calls: Sequence[tuple],
                progress: Progress = None) -> list[tuple[bytes, bytes, str]]:
  """Calls `libtpu.Compiler.compile` with each of some arguments.

  Each result has a third part: why the compiler refuses it; '': it does not.
  A program that ends the compiler's process is refused, and the rest go to
  another process.
  UserError if the compiler cannot be loaded, or is ended from outside.
  `progress` is called about twice a second, with the seconds taken.
  """
  results: list[tuple[bytes, bytes, str]] = []
  while len(results) < len(calls):
    fault = 'compile: the process ended early'
    try:
      output = _run('compile', [library, topology],
                    pickle.dumps(calls[len(results):]), progress=progress)
    except _EndedError as error:
      output, fault = error.output, str(error)
    if not output:
      raise UserError(fault)
    stream = io.BytesIO(output)
    pickle.load(stream)  # `_LOADED`.
    while stream.tell() < len(output):
      results.append(pickle.load(stream))
    if len(results) < len(calls):  # Else it ended after its work.
      results.append((b'', b'', fault))
  return results


@contextlib.contextmanager
def waiting(number: int) -> Iterator[ThreadPoolExecutor]:
  """So many threads to wait in; leaving ends the processes that run then."""
  pool = ThreadPoolExecutor(number)
  try:
    yield pool
  finally:
    pool.shutdown(wait=False, cancel_futures=True)
    end_all()


def end_all() -> None:
  """Ends the processes that run now; who waits for them gets a UserError."""
  for process in list(_running):
    process.kill()


def _run(job: str, arguments: list[Any], content: bytes = b'',
         python: str = '', progress: Progress = None) -> bytes:
  """Calls a function of `_JOBS` in this Python or another with JAX."""
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    # Neither lowering for a TPU nor compiling for one needs a TPU or a GPU.
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu',
                   'PYTHONSAFEPATH': '1'}  # See `children`.
    if job == 'compile':
      environment.update(libtpu.ENVIRONMENT, TMPDIR=folder)
    # Another Python may see this package, but no other folder beside it.
    os.symlink(_PACKAGE, os.path.join(folder, 'tpu_graphs_ext'))
    # A pipe of more than 64 KiB would have to be fed while it is read.
    with tempfile.TemporaryFile(dir=folder) as file:
      file.write(content)
      file.seek(0)
      try:
        process = subprocess.Popen(
            children.command(_START, folder, json.dumps([job, arguments]),
                             python=python), stdin=file,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            cwd=folder if job == 'compile' else None)
      except OSError as error:
        raise UserError(
            f'--jax_python={python}: cannot be run ({error})') from error
    _running.add(process)
    try:
      output, log = _outputs(job, process, progress)
    finally:  # Also when interrupted.
      process.kill()
      process.wait()
      _running.discard(process)
  if process.returncode == 0:
    return output
  if process.returncode == _REFUSED:
    raise UserError(output.decode(errors='replace'))
  reason = (f'{job}: the process ended with code {process.returncode} '
            f'({_why(log.decode(errors="replace"))})')
  if process.returncode == -signal.SIGKILL:  # By `end_all`, or for memory.
    raise UserError(reason)
  error = _EndedError(reason)
  error.output = output
  raise error


def _outputs(job: str, process: subprocess.Popen,
             progress: Progress) -> tuple[bytes, bytes]:
  """What it wrote to stdout and stderr; UserError if it takes too long."""
  start = time.monotonic()
  while True:
    try:
      return process.communicate(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired as error:
      taken = time.monotonic() - start
      if job == 'compile' and taken > COMPILE_SECONDS:
        raise UserError(
            f'{job}: took more than {COMPILE_SECONDS:.0f} s') from error
      if progress is not None:
        progress(taken)


def _why(log: str) -> str:
  """The line of a log that says why the process ended."""
  lines = [line for line in log.strip().split('\n') if line.strip()] or ['']
  fatal = [line for line in lines if _FATAL.search(line)]
  plain = [line for line in lines if not _NOISE.search(line)]
  return _LOG_PREFIX.sub('', (fatal[:1] or plain or lines)[-1])[:300]


def _main(call: str) -> int:
  """In the other process: writes a job's result, or why there is none."""
  # Functions and libtpu print, which goes to the log instead.
  output = os.fdopen(os.dup(1), 'wb')
  os.dup2(2, 1)
  job, arguments = json.loads(call)
  with output:
    try:
      for part in _JOBS[job](*arguments):
        output.write(part)
        output.flush()
    except UserError as error:
      output.write(str(error).encode())
      return _REFUSED
  return 0


def _compile(library: str, topology: str) -> Iterator[bytes]:
  try:
    compiler = libtpu.Compiler(library, topology)
  except (OSError, AttributeError, libtpu.PjrtError) as error:
    raise UserError(
        f'{library}: the TPU compiler cannot be loaded ({reason_of(error)}); '
        f'for the version that was tested {how_to_install("tpu")}') from error
  yield pickle.dumps(_LOADED)
  for arguments in pickle.load(sys.stdin.buffer):
    try:
      result = *compiler.compile(*arguments), ''
    except libtpu.PjrtError as error:
      result = b'', b'', reason_of(error)
    yield pickle.dumps(result)


# What each writes, part by part.
_JOBS = {'lower': lambda *names: [lowering.lower_named(*names)],
         'convert': lambda: [lowering.converted(sys.stdin.buffer.read())],
         'compile': _compile}
