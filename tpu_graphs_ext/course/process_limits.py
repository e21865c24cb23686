"""Bounds for the code of a hand-in, which may be anybody's.

It gets an environment without secrets, no network where the system can take
it away, an end, and so much memory. That is against accidents and curiosity;
it is no jail: the code may read and write every file that the caller may,
on Linux also /proc/<pid>/environ, the variables of the caller's processes.
Hiding those of one process would leave them in the shell that started it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from tpu_graphs_ext.errors import UserError

DEFAULT_MINUTES = 240
# TensorFlow reserves several GiB before it does anything.
LEAST_MEMORY = 16 << 30
# Of what is printed; a run of 844 kernels prints some KiB.
MAX_OUTPUT = 64 << 20

# What TensorFlow, Python and the linker read; nothing else is passed on.
_PASSED = frozenset((
    'PATH', 'LANG', 'LANGUAGE', 'TZ', 'TMPDIR', 'TEMP', 'TMP', 'SYSTEMROOT',
    'LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH', 'VIRTUAL_ENV', 'PYTHONHASHSEED'))
_PASSED_STARTS = ('LC_', 'TF_', 'CUDA_', 'XLA_', 'OMP_', 'KMP_')
# Terraform's names begin with TF_ too, and hold credentials.
_SECRET_STARTS = ('TF_VAR_', 'TF_TOKEN_', 'TF_CLI_')
_SECRET_PARTS = ('TOKEN', 'SECRET', 'PASSWORD', 'CREDENTIAL', 'API_KEY')
_WITHOUT_NETWORK = (('unshare', '--net', '--'),
                    ('unshare', '--map-root-user', '--net', '--'))
_POLL_SECONDS = 0.05
_LONGEST_LINE = 1 << 16


class OverLimitError(UserError):
  """The code took more time or wrote more than it may."""


class EndedError(UserError):
  """The code ended with another exit code than 0; says how."""


class Confinement:
  """Runs programs, which have so much time together."""

  def __init__(self, home: str, minutes: float):
    """Makes the temporary folder that the programs take for their home."""
    self.memory = memory_limit()
    self._minutes, self._left = minutes, 60 * minutes
    self._environment = {**passed(os.environ), 'HOME': home,
                         'TF_CPP_MIN_LOG_LEVEL': '2'}
    os.makedirs(home, exist_ok=True)

  def text(self) -> str:
    """What holds, for the user."""
    network = ('without network' if without_network() else
               'with network, which this system does not let one take away')
    return (f'{network}; not given your environment variables; to '
            f'{self._minutes:g} minutes and {self.memory / (1 << 30):.0f} GiB; '
            'not from your files')

  def run(self, command: Sequence[str], folder: str, log: str,
          on_line: Callable[[str], None] | None = None) -> None:
    """Runs a program to its end, or to the end of its time.

    Args:
      command: program and arguments.
      folder: its working folder.
      log: file that gets all of its output.
      on_line: called with each line of the output, soon after it came.

    Raises:
      OverLimitError: it took too long, or printed too much.
      EndedError: its exit code is not 0.
    """
    start = time.monotonic()
    # Through a file, for a pipe may be held open by what outlives the program.
    with open(log, 'wb') as output, open(log, 'rb') as printed:
      process = subprocess.Popen(
          [*without_network(), *command], cwd=folder, env=self._environment,
          stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
          start_new_session=True)
      try:
        while True:
          ended = process.poll() is not None
          _follow(printed, on_line)
          if ended:
            break
          self._check(time.monotonic() - start, os.fstat(output.fileno()))
          time.sleep(_POLL_SECONDS)
      finally:
        _kill_group(process)
        self._left -= time.monotonic() - start
    if process.returncode:
      raise EndedError(_how_it_ended(process.returncode))

  def _check(self, seconds: float, output: os.stat_result) -> None:
    if seconds > self._left:
      raise OverLimitError(
          f'the hand-in has taken more than {self._minutes:g} minutes and was '
          'stopped; look for what never ends, or give it more with '
          '--time_limit')
    if output.st_size > MAX_OUTPUT:
      raise OverLimitError(
          f'the hand-in has printed more than {MAX_OUTPUT:,} bytes and was '
          'stopped; take the printing out of models.py')


def check_minutes(minutes: float) -> None:
  """Raises a UserError for what is no time."""
  if not (math.isfinite(minutes) and minutes > 0):
    raise UserError('--time_limit must be a number of minutes above 0; got '
                    f'{minutes}')


def passed(environment: dict[str, str]) -> dict[str, str]:
  """The variables that a hand-in may see."""
  return {
      name: value for name, value in environment.items()
      if (name in _PASSED or name.startswith(_PASSED_STARTS))
      and not name.startswith(_SECRET_STARTS)
      and not any(part in name for part in _SECRET_PARTS)}


@functools.cache
def without_network() -> tuple[str, ...]:
  """What stands before a command that must not reach the network, or ()."""
  for prefix in _WITHOUT_NETWORK:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
      if subprocess.run([*prefix, 'true'], stdin=subprocess.DEVNULL,
                        capture_output=True, timeout=10,
                        check=False).returncode == 0:
        return prefix
  return ()


def memory_limit() -> int:
  """Bytes of address space: the machine's memory, but not below 16 GiB."""
  try:
    there = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  except (AttributeError, ValueError, OSError):
    there = 0
  return max(there, LEAST_MEMORY)


def _follow(printed, on_line: Callable[[str], None] | None) -> None:
  """Hands over the lines that are whole by now."""
  # Not those that come meanwhile: they might come faster than they are read.
  end = os.fstat(printed.fileno()).st_size
  while on_line and printed.tell() < end:
    start = printed.tell()
    line = printed.readline(_LONGEST_LINE)
    if not line.endswith(b'\n') and len(line) < _LONGEST_LINE:
      printed.seek(start)
      return
    on_line(line.decode(errors='replace'))


def _kill_group(process: subprocess.Popen) -> None:
  """Ends a program and what it has started and left behind."""
  if hasattr(os, 'killpg'):
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(process.pid, signal.SIGKILL)
  if process.poll() is None:
    process.kill()
  process.wait()


def _how_it_ended(code: int) -> str:
  if code >= 0:
    return f'with exit code {code}'
  try:
    return f'by {signal.Signals(-code).name}'
  except ValueError:
    return f'by signal {-code}'
