"""A process that compiles for a TPU, one program after another.

libtpu may end the process that loads it, and it writes to the standard
streams. So it gets a process of its own, which is started again after it ends.
This file is both sides: `CompilerProcess`, and `_serve`, which the other runs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any, Optional

from tpu_graphs_ext.errors import UserError, how_to_install
from tpu_graphs_ext.hlo import pjrt

TIME_LIMIT_SECONDS = 1800.0  # A training step takes 75 s on a free core.
_END_SECONDS = 60.0  # For a process that has closed its connection.
_READY, _DONE, _REFUSED, _NO_LIBRARY = 'ready', 'done', 'refused', 'no library'
# libtpu asks the cloud which TPU it runs on unless it is told. It also takes a
# lock for the TPU, which compiling does not need.
_ENVIRONMENT = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_ACCELERATOR_TYPE': 'v3-8',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_LOG_DIR': 'disabled',
}


class CompileError(UserError):
  """A program does not compile: refused, out of time, or the process ended."""


class CompilerProcess:
  """Compiles programs for one topology; a context manager.

      with CompilerProcess(library, 'v3:2x2x1') as process:
        optimized = process.compile(module.SerializeToString())

  Not thread-safe. Several of these may run side by side.

  Attributes:
    log: what the compiler wrote to its standard error for the last program.
  """

  def __init__(self, library: str, topology: str,
               time_limit_seconds: float = TIME_LIMIT_SECONDS):
    """Starts nothing yet.

    Args:
      library: path of libtpu.so.
      topology: libtpu's name for a TPU, such as 'v3:2x2x1'.
      time_limit_seconds: for one program, including the process's start.
    """
    self.log = b''
    self._library, self._topology = library, topology
    self._limit = time_limit_seconds
    self._process: Optional[subprocess.Popen] = None

  def __enter__(self) -> CompilerProcess:
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def close(self) -> None:
    """Ends the process; the next program starts another."""
    if self._process:
      self._process.kill()
      self._process.wait()
      self._process = None
      self._connection.close()
      self._stderr.close()
      self._folder.cleanup()

  def compile(self, program: bytes, program_format: str = 'hlo') -> bytes:
    """Returns the optimised program; see `pjrt.Compiler.compile`.

    Raises:
      CompileError: the compiler refuses it, takes too long, or ended itself.
      UserError: the compiler cannot be started.
    """
    deadline = time.monotonic() + self._limit
    self.log = b''
    fault = ''
    try:
      if not self._process:
        self._start(deadline)
      self._connection.send((program, program_format))
      kind, found = self._reply(deadline)
    except TimeoutError:
      fault = f'the compiler took more than {self._limit:.0f} s'
    except (OSError, EOFError):
      code = self._process.wait(_END_SECONDS)
      self.log = self._read_log()
      fault = (f'the compiler ended with code {code} '
               f'({_last_line(self.log)})')
    self.log = self.log or self._read_log()
    if fault:
      self.close()
      raise CompileError(fault)
    if kind == _REFUSED:
      raise CompileError(f'the compiler refuses it ({_one_line(found)})')
    return found

  def _start(self, deadline: float) -> None:
    self._folder = tempfile.TemporaryDirectory(prefix='tpu_graphs_ext')
    # Appending, so that the file can be emptied while it is written.
    self._stderr = open(os.path.join(self._folder.name, 'stderr'), 'a+b')
    ours, theirs = socket.socketpair()
    with theirs:
      self._process = subprocess.Popen(
          [*self._command(), str(theirs.fileno())], stdin=subprocess.DEVNULL,
          stdout=self._stderr, stderr=self._stderr, cwd=self._folder.name,
          pass_fds=[theirs.fileno()], env={
              **os.environ, **_ENVIRONMENT, 'TMPDIR': self._folder.name,
              'PYTHONPATH': os.pathsep.join(filter(None, sys.path))})
    self._connection = Connection(ours.detach())
    kind, found = self._reply(deadline)
    if kind != _READY:
      self.close()
      raise UserError(
          f'{self._library}: the TPU compiler cannot be loaded '
          f'({_one_line(found)}); for the version that was tested '
          f'{how_to_install("tpu")}')

  def _command(self) -> list[str]:
    return [sys.executable, '-m', __name__, self._library, self._topology]

  def _reply(self, deadline: float) -> tuple[str, Any]:
    if not self._connection.poll(max(0, deadline - time.monotonic())):
      raise TimeoutError
    return self._connection.recv()

  def _read_log(self) -> bytes:
    """The process's output since the last call."""
    self._stderr.seek(0)
    found = self._stderr.read()
    self._stderr.truncate(0)
    return found


def _one_line(text: str) -> str:
  return ' '.join(text.split())[:300]


def _last_line(log: bytes) -> str:
  lines = log.decode(errors='replace').strip().split('\n')
  fatal = [line for line in lines if line.startswith('F')]
  return _one_line((fatal or lines)[-1]) or 'it said nothing'


# --- The process itself -------------------------------------------------------


def _serve(library: str, topology: str, descriptor: str) -> None:
  connection = Connection(int(descriptor))
  try:
    compiler = pjrt.Compiler(library, topology)
  except (OSError, AttributeError, pjrt.PjrtError) as error:
    connection.send((_NO_LIBRARY, str(error)))
    return
  connection.send((_READY, ''))
  while True:
    try:
      request = connection.recv()
    except EOFError:  # The other side is gone.
      return
    try:
      reply = _DONE, compiler.compile(*request)
    except pjrt.PjrtError as error:
      reply = _REFUSED, str(error)
    connection.send(reply)


if __name__ == '__main__':
  _serve(*sys.argv[1:])
