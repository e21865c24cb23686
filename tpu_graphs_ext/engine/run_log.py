"""What a training run says, once more in a file beside the run.

  <out_dir>/run_<hash>.log   what went to the terminal, with the time before it

Progress bars are left out. Written line by line, so a run that is killed
leaves what it said until then; a resumed run goes on in the same file.
"""

from __future__ import annotations

import logging
import shlex
import time
import types
from typing import Optional, TextIO

from tpu_graphs_ext.engine.settings import Training
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import cannot_be_written

_PACKAGE = __name__.partition('.')[0]


class RunLog(logging.Handler):
  """Collects the package's messages from `with` on; a file has them at last.

  A run has no name before its data is read, so messages wait until `open`. A
  run that gets no name leaves no file.

  Args:
    settings: the first line names those that are no defaults.
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
    """Writes what has been said so far, and from now on what is said.

    Args:
      path: of the file.
      resumed: goes on in the file that is there, else replaces it.

    Raises:
      UserError: it cannot be written.
    """
    try:
      # A log is of use while the run goes on, so it is not made whole first.
      self._file = open(path, 'a' if resumed else 'w', encoding='utf-8')
      waiting, self._waiting = self._waiting, []
      self.write(shlex.join(['tpu-graphs-ext', *self._settings.command()]))
      for line in waiting:
        self._put(line)
    except OSError as error:
      raise cannot_be_written(path, error) from error

  def write(self, text: str) -> None:
    """Adds text that is printed, not logged."""
    self._put(_dated(text))

  def emit(self, record: logging.LogRecord) -> None:
    self._put(_dated(record.getMessage()))

  def _put(self, line: str) -> None:
    if self._file is None:
      self._waiting.append(line)
      return
    try:
      self._file.write(line)
      self._file.flush()
    except OSError:  # A full disk: the run itself says so where it matters.
      pass

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
    try:
      self._file.close()
    except OSError:
      pass
    self._file = None


def _dated(text: str) -> str:
  return f'{time.strftime("%Y-%m-%d %H:%M:%S")}  {text}\n'
