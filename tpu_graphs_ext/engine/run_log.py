"""The messages of a training run in a file beside the run.

  <out_dir>/run_<hash>.log   what went to the terminal, with the time before it

Without progress bars. Written line by line, so a killed run leaves its messages
up to then; a resumed run continues the same file.
"""

from __future__ import annotations

import logging
import logging.handlers
import shlex
import sys
import types
from typing import Optional

from tpu_graphs_ext.engine.settings import Training
from tpu_graphs_ext.errors import UserError

_LOG = logging.getLogger(__name__.partition('.')[0])  # Of the package.


class _File(logging.FileHandler):
  """A file with a time before each message."""

  def __init__(self, path: str, mode: str):
    super().__init__(path, mode, encoding='utf-8')
    self.setFormatter(
        logging.Formatter('%(asctime)s  %(message)s', '%Y-%m-%d %H:%M:%S'))

  def handleError(  # noqa: N802
      self, record: logging.LogRecord) -> None:
    """On a full disk the run itself says so where it matters."""


class RunLog(logging.handlers.MemoryHandler):
  """Collects the messages of the package; from `open` on, in a file.

  A run has no name before its data are read, so messages wait until `open`. A
  run that gets no name leaves no file.

  Args:
    settings: the first line is the command with those that are not defaults.
  """

  def __init__(self, settings: Training):
    super().__init__(sys.maxsize, flushOnClose=False)
    self._settings = settings

  def __enter__(self) -> RunLog:
    _LOG.addHandler(self)
    return self

  def shouldFlush(  # noqa: N802
      self, record: logging.LogRecord) -> bool:
    return self.target is not None

  def open(self, path: str, resumed: bool) -> None:
    """Starts the file at `path`, or continues it if resumed.

    Raises:
      UserError: it cannot be written.
    """
    try:
      file = _File(path, 'a' if resumed else 'w')
    except OSError as error:
      raise UserError(f'{path}: cannot be written ({error})') from error
    file.emit(_record(
        shlex.join(['tpu-graphs-ext', *self._settings.command()])))
    self.setTarget(file)
    self.flush()

  def write(self, text: str) -> None:
    """Adds text that is printed, not logged."""
    self.emit(_record(text))

  def __exit__(self, kind: Optional[type[BaseException]],
               error: Optional[BaseException],
               unused_trace: Optional[types.TracebackType]) -> None:
    _LOG.removeHandler(self)
    if isinstance(error, UserError):
      self.write(f'error: {error}')
    elif isinstance(error, KeyboardInterrupt):
      self.write('interrupted')
    elif error is not None:
      self.write(f'{kind.__name__}: {error}')
    if self.target is not None:
      self.target.close()
    self.close()


def _record(text: str) -> logging.LogRecord:
  return logging.makeLogRecord({'msg': text})
