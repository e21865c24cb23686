"""Runs the code of a hand-in: no secrets, no network, a time limit.

That guards against accidents, not against attackers: the code runs as you. It
can read and change your files and, on Linux, read the environment variables of
your other processes from /proc/<pid>/environ.
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
# What TensorFlow, Python and the linker read; nothing else is passed on.
_PASSED = frozenset((
    'PATH', 'LANG', 'LANGUAGE', 'TZ', 'TMPDIR', 'TEMP', 'TMP', 'SYSTEMROOT',
    'LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH', 'VIRTUAL_ENV', 'PYTHONHASHSEED'))
_PASSED_STARTS = ('LC_', 'TF_', 'CUDA_', 'XLA_', 'OMP_', 'KMP_')
# Terraform's names begin with TF_ too, and hold credentials.
_SECRET_PARTS = ('TF_VAR_', 'TF_CLI_', 'TOKEN', 'SECRET', 'PASSWORD',
                 'CREDENTIAL', 'API_KEY')
_WITHOUT_NETWORK = (('unshare', '--net', '--'),
                    ('unshare', '--map-root-user', '--net', '--'))
_POLL_SECONDS = 0.1


class OutOfTimeError(UserError):
  """The code ran longer than --time_limit."""


class Confinement:
  """Runs programs one after another, with one time limit for all of them."""

  def __init__(self, home: str, minutes: float):
    """Makes the temporary folder that the programs get as HOME.

    Raises:
      UserError: `minutes` is not positive and finite.
    """
    if not (math.isfinite(minutes) and minutes > 0):
      raise UserError('--time_limit must be a number of minutes above 0; got '
                      f'{minutes}')
    self._minutes, self._seconds_left = minutes, 60 * minutes
    self._environment = {**passed(os.environ), 'HOME': home,
                         'TF_CPP_MIN_LOG_LEVEL': '2'}
    os.makedirs(home, exist_ok=True)

  def text(self) -> str:
    """What holds, for the user."""
    network = ('no network' if without_network() else
               'with network (this system does not let a program go without)')
    return (f'{network}, none of your environment variables, at most '
            f'{self._minutes:g} minutes; your files are not protected')

  def run(self, command: Sequence[str], folder: str, log: str,
          on_output: Callable[[bytes], None] = lambda unused: None) -> str:
    """Runs a program to its end.

    Args:
      command: program and arguments.
      folder: its working folder.
      log: file that gets all of its output.
      on_output: called with what was printed since the last call.

    Returns:
      How it failed, for example 'with exit code 1'; '' if it did not.

    Raises:
      OutOfTimeError: the time limit has passed.
    """
    start = time.monotonic()
    # A file, for a pipe may be held open by what outlives the program.
    with open(log, 'wb') as output, open(log, 'rb') as printed:
      process = subprocess.Popen(
          [*without_network(), *command], cwd=folder, env=self._environment,
          stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
          start_new_session=True)
      try:
        while process.poll() is None:
          if time.monotonic() - start > self._seconds_left:
            raise OutOfTimeError(
                f'the hand-in has taken more than {self._minutes:g} minutes '
                'and was stopped; look for a loop without end, or allow more '
                'with --time_limit')
          time.sleep(_POLL_SECONDS)
          on_output(printed.read(1 << 16))
      finally:
        _kill_group(process)
        self._seconds_left -= time.monotonic() - start
    return _failure(process.returncode)


def passed(environment: dict[str, str]) -> dict[str, str]:
  """The variables that a hand-in may see."""
  return {
      name: value for name, value in environment.items()
      if (name in _PASSED or name.startswith(_PASSED_STARTS))
      and not any(part in name for part in _SECRET_PARTS)}


@functools.cache
def without_network() -> tuple[str, ...]:
  """Prefix of a command that must not reach the network; () if none works."""
  for prefix in _WITHOUT_NETWORK:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
      if subprocess.run([*prefix, 'true'], stdin=subprocess.DEVNULL,
                        capture_output=True, timeout=10,
                        check=False).returncode == 0:
        return prefix
  return ()


def _kill_group(process: subprocess.Popen) -> None:
  """Ends a program and everything it started in its process group."""
  if hasattr(os, 'killpg'):
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(process.pid, signal.SIGKILL)
  if process.poll() is None:
    process.kill()
  process.wait()


def _failure(code: int) -> str:
  if code >= 0:
    return f'with exit code {code}' if code else ''
  name = signal.Signals(-code).name
  return f'by {name}' + (
      ' (out of memory?)' if name == 'SIGKILL' else '')
