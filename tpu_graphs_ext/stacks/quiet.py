"""Drops a warning of TensorFlow that nobody can act on, and progress bars."""

from __future__ import annotations

import warnings
from typing import Any


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
  warnings.filterwarnings(
      'ignore', 'Encoding a StructuredValue with type tensorflow_gnn',
      UserWarning)
