"""The messages of a training run in a file beside the run.

  <out_dir>/run_<hash>.log   what went to the terminal, with the time before it

Without progress bars. Written line by line, so a killed run leaves its messages
up to then; a resumed run continues the same file.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import time
import types
from typing import Optional, TextIO

from tpu_graphs_ext.engine.settings import Training
from tpu_graphs_ext.errors import UserError

_PACKAGE = __name__.partition('.')[0]


class RunLog(logging.Handler):
  """Collects the messages of the package; from `open` on, in a file.

  A run has no name before its data are read, so messages wait until `open`. A
  run that gets no name leaves no file.

  Args:
    settings: the first line is the command with those that are not defaults.
  """

  def __init__(self, settings: Training):
    super().__init__()
    self._settings = settings
    self._waiting: list[str] = []
    self._file: Optional[TextIO] = None

  def __enter__(self) -> RunLog:
    logging.getLogger(_PACKAGE).addHandler(self)
    return self

  def open(self, path: str, resumed: bool) -> None:
    """Starts the file at `path`, or continues it if resumed.

    Raises:
      UserError: it cannot be written.
    """
    try:
      # A log is of use while the run lasts, so it does not appear as a whole.
      self._file = open(path, 'a' if resumed else 'w', encoding='utf-8')
      waiting, self._waiting = self._waiting, []
      self.write(shlex.join(['tpu-graphs-ext', *self._settings.command()]))
      for line in waiting:
        self._put(line)
    except OSError as error:
      raise UserError(f'{path}: cannot be written ({error})') from error

  def write(self, text: str) -> None:
    """Adds text that is printed, not logged."""
    self._put(f'{time.strftime("%Y-%m-%d %H:%M:%S")}  {text}\n')

  def emit(self, record: logging.LogRecord) -> None:
    self.write(record.getMessage())

  def _put(self, line: str) -> None:
    if self._file is None:
      self._waiting.append(line)
      return
    # On a full disk the run itself says so where it matters.
    with contextlib.suppress(OSError):
      self._file.write(line)
      self._file.flush()

  def __exit__(self, kind: Optional[type[BaseException]],
               error: Optional[BaseException],
               unused_trace: Optional[types.TracebackType]) -> None:
    logging.getLogger(_PACKAGE).removeHandler(self)
    if self._file is None:
      return
    if isinstance(error, UserError):
      self.write(f'error: {error}')
    elif isinstance(error, KeyboardInterrupt):
      self.write('interrupted')
    elif error is not None:
      self.write(f'{kind.__name__}: {error}')
    with contextlib.suppress(OSError):
      self._file.close()
    self._file = None
