"""Drops those of TensorFlow's messages that nobody can act on."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

# TensorFlow's own variable: 1 hides information, 2 warnings, 3 errors.
LEVEL_VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'

# Said whenever a model that takes graphs is saved.
SAVING_WARNING = 'Encoding a StructuredValue with type tensorflow_gnn'

# Lines of level 'information' (I), and the one that comes before the first.
_STARTUP_NOTE = re.compile(
    rb'I\d{4} |WARNING: All log messages before absl::InitializeLog')


class NoTerminal:
  """A stream that denies being a terminal, so that no bars are drawn on it."""

  def __init__(self, stream: Any):
    self._stream = stream

  def isatty(self) -> bool:
    return False

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


def ignore_saving_warning() -> None:
  """Drops the warning that saving a graph model gives, from now on."""
  warnings.filterwarnings('ignore', SAVING_WARNING, UserWarning)


@contextlib.contextmanager
def without_startup_notes() -> Iterator[None]:
  """Drops the notes that TensorFlow 2.21 writes while it is imported.

  It writes them before it reads TF_CPP_MIN_LOG_LEVEL. Whatever else is written
  to stderr appears at the end.
  """
  if os.environ.get(LEVEL_VARIABLE) not in ('1', '2', '3'):
    yield
    return
  sys.stderr.flush()
  stderr = os.dup(2)  # They come from C++, which knows only this number.
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(stderr, 2)
      os.close(stderr)
      held.seek(0)
      for line in held:
        if not _STARTUP_NOTE.match(line):
          os.write(2, line)
