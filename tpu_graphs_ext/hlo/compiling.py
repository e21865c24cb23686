"""A process that compiles for a TPU, one program after another.

libtpu may end the process that it is loaded into, and writes to its standard
streams; so it gets one of its own, which is started again when it has ended.
This file is both sides: `CompilingProcess`, and the process itself.

A request is a header in JSON and the program; a reply is one letter and bytes.
Each part is preceded by its length, 8 bytes.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Optional

from tpu_graphs_ext.errors import UserError, how_to_install
from tpu_graphs_ext.hlo import pjrt

TIME_LIMIT_SECONDS = 1800.0  # A training step takes 75 s on a free core.
_END_SECONDS = 60.0  # For a process that has closed its pipes already.
_LENGTH = struct.Struct('<Q')
_READY, _DONE, _REFUSED, _NO_LIBRARY = b'r', b'd', b'f', b'l'
# libtpu asks the cloud which TPU it runs on unless it is told. It also takes a
# lock for the TPU, which nobody needs for compiling.
_ENVIRONMENT = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_ACCELERATOR_TYPE': 'v3-8',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


class CompileError(UserError):
  """A program does not compile: refused, out of time, or the process ended."""


class CompilingProcess:
  """Compiles programs for one topology; a context manager.

      with CompilingProcess(library, 'v3:2x2x1') as process:
        optimized = process.compile(module.SerializeToString())

  Not for several threads at once. Several of these may run side by side.

  Attributes:
    log: what the compiler wrote to its standard error for the last program.
  """

  def __init__(self, library: str, topology: str,
               env: Optional[Mapping[str, str]] = None,
               time_limit_seconds: float = TIME_LIMIT_SECONDS):
    """Starts nothing yet.

    Args:
      library: path of libtpu.so.
      topology: libtpu's name for a TPU, such as 'v3:2x2x1'.
      env: further environment variables of the process.
      time_limit_seconds: for one program, with the start of the process.
    """
    self.log = b''
    self._library, self._topology = library, topology
    self._env = dict(env or {})
    self._limit = time_limit_seconds
    self._process: Optional[subprocess.Popen] = None
    self._folder: Optional[tempfile.TemporaryDirectory] = None
    self._stderr: Optional[BinaryIO] = None

  def __enter__(self) -> CompilingProcess:
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def close(self) -> None:
    """Ends the process; the next program starts another."""
    if self._process:
      self._process.kill()
      self._process.wait()
      self._process.stdin.close()
      self._process.stdout.close()
      self._process = None
    if self._folder:
      self._stderr.close()
      self._folder.cleanup()
      self._folder = None

  def compile(self, program: bytes, program_format: str = 'hlo',
              overrides: Optional[Mapping[str, pjrt.Override]] = None,
              argument_layouts: Sequence[bytes] = (),
              result_layout: Optional[bytes] = None) -> bytes:
    """The optimised program; arguments as of `pjrt.Compiler`.

    Raises:
      CompileError: the compiler refuses it, takes too long, or ended itself.
      UserError: the compiler cannot be started.
    """
    deadline = time.monotonic() + self._limit
    options = pjrt.compile_options(overrides, argument_layouts, result_layout)
    self.log = b''
    try:
      if not self._process:
        self._start(deadline)
      self._send(json.dumps({'format': program_format}).encode(), options,
                 program)
      kind, found = self._reply(deadline)
    except TimeoutError as error:
      self.log = self._written()
      self.close()
      raise CompileError(
          f'the compiler took more than {self._limit:.0f} s') from error
    except (OSError, EOFError) as error:
      self.log = self._written()
      code = self._process.wait(_END_SECONDS)
      self.close()
      raise CompileError(
          f'the compiler ended with code {code} ({_last_line(self.log)})'
          ) from error
    self.log = self._written()
    if kind == _REFUSED:
      raise CompileError(f'the compiler refuses it ({_reason(found)})')
    return found

  def _start(self, deadline: float) -> None:
    self._folder = tempfile.TemporaryDirectory(prefix='tpu_graphs_ext')
    # Appending, so that the file can be emptied while it is written.
    self._stderr = open(os.path.join(self._folder.name, 'stderr'), 'a+b')
    environment = {
        **os.environ, **_ENVIRONMENT, 'TMPDIR': self._folder.name,
        'TPU_LOG_DIR': 'disabled',
        'PYTHONPATH': os.pathsep.join(filter(None, sys.path)), **self._env}
    self._process = subprocess.Popen(
        self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=self._stderr, bufsize=0, env=environment, cwd=self._folder.name)
    kind, found = self._reply(deadline)
    if kind != _READY:
      self.close()
      raise UserError(
          f'{self._library}: the TPU compiler cannot be loaded '
          f'({_reason(found)}); for the version that was tested '
          f'{how_to_install("tpu")}')

  def _command(self) -> list[str]:
    return [sys.executable, '-m', __name__, self._library, self._topology]

  def _send(self, *parts: bytes) -> None:
    for part in parts:
      _write(self._process.stdin, part)

  def _reply(self, deadline: float) -> tuple[bytes, bytes]:
    read = _TimedReader(self._process.stdout, deadline)
    return read(1), read(*_LENGTH.unpack(read(_LENGTH.size)))

  def _written(self) -> bytes:
    """What stands in the process's standard error; empties it."""
    if not self._stderr:
      return b''
    self._stderr.seek(0)
    found = self._stderr.read()
    self._stderr.truncate(0)
    return found


class _TimedReader:
  """Reads so many bytes of a pipe until a moment of `time.monotonic`."""

  def __init__(self, pipe: BinaryIO, deadline: float):
    self._pipe, self._deadline = pipe, deadline

  def __call__(self, size: int) -> bytes:
    parts, missing = [], size
    while missing:
      left = self._deadline - time.monotonic()
      if left <= 0 or not select.select([self._pipe], [], [], left)[0]:
        raise TimeoutError
      part = os.read(self._pipe.fileno(), min(missing, 1 << 20))
      if not part:
        raise EOFError
      parts.append(part)
      missing -= len(part)
    return b''.join(parts)


def _write(file: BinaryIO, content: bytes) -> None:
  view = memoryview(_LENGTH.pack(len(content)) + content)
  while view:  # A pipe without a buffer takes what it has room for.
    view = view[file.write(view):]


def _reason(found: bytes) -> str:
  return ' '.join(found.decode(errors='replace').split())[:300]


def _last_line(log: bytes) -> str:
  lines = log.decode(errors='replace').strip().split('\n')
  marked = [line for line in lines if line.startswith('F')]  # Fatal.
  return ' '.join((marked or lines)[-1].split())[:300] or 'it said nothing'


# ---------------------------------------------------- the process itself


def _read(file: BinaryIO) -> bytes:
  """One part; none where the other side has closed the pipe."""
  length = file.read(_LENGTH.size)
  if len(length) < _LENGTH.size:
    sys.exit(0)
  return file.read(*_LENGTH.unpack(length))


def _serve(library: str, topology: str) -> None:
  replies = os.fdopen(os.dup(1), 'wb', buffering=0)
  os.dup2(2, 1)  # The library may print.

  def reply(kind: bytes, content: bytes) -> None:
    replies.write(kind)
    _write(replies, content)

  try:
    compiler = pjrt.Compiler(library, topology)
  except (OSError, AttributeError, pjrt.PjrtError) as error:
    reply(_NO_LIBRARY, str(error).encode())
    return
  reply(_READY, b'')
  requests = sys.stdin.buffer
  while True:
    header = json.loads(_read(requests))
    options, program = _read(requests), _read(requests)
    try:
      reply(_DONE, compiler.compile(program, header['format'], options))
    except pjrt.PjrtError as error:
      reply(_REFUSED, str(error).encode())


if __name__ == '__main__':
  _serve(*sys.argv[1:])
