"""The rows of the accuracy benchmark: a CSV, which `tables.py` shows."""

from __future__ import annotations

import io
import os
from typing import NamedTuple

import pandas

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

# What a run is: two rows never agree in all of these.
KEY = ('data', 'model', 'kwargs', 'seed', 'epochs')
SPLITS = ('valid', 'test', 'real')
TRAINING = ('parameters', 'seconds_an_epoch', 'epochs_done', 'best_epoch')

Row = dict[str, str]


class Task(NamedTuple):
  """The columns of a task: of each split these, after '<split>_'."""
  problems: str
  measures: tuple[str, ...]
  bounds: tuple[str, ...]  # Of choices without a model.

  @property
  def columns(self) -> tuple[str, ...]:
    """All columns of the CSV."""
    return (*KEY, 'name', 'status', 'error', *TRAINING, *(
        f'{split}_{column}' for split in SPLITS
        for column in (self.problems, *self.measures, *self.bounds)),
            'threads', 'models_py', 'content', 'recipe', 'protocol', 'date',
            'machine', 'versions', 'command')


TILE = Task(
    'kernels', ('micro_top1', 'micro_top5', 'micro_top10', 'micro_opa',
                'micro_kendall'),
    ('default', 'random1', 'random5', 'random10'))
LAYOUT = Task(
    'programs', ('kendall', 'opa', 'top1', 'top10', 'top100'),
    ('most_kendall', 'random1', 'random10', 'random100'))


class Results:
  """A CSV with a row a run; each change replaces the file as a whole."""

  def __init__(self, path: str, task: Task = TILE):
    self.path, self._task = path, task

  def rows(self) -> list[Row]:
    """All rows, as text.

    Raises:
      UserError: the file has other columns.
    """
    if not os.path.exists(self.path):
      return []
    frame = pandas.read_csv(self.path, dtype=str, keep_default_na=False)
    if tuple(frame.columns) != self._task.columns:
      raise UserError(
          f'{self.path}: its columns are not those of this benchmark; move '
          'it away, or name another --results')
    return frame.to_dict('records')

  def put(self, row: dict[str, object]) -> None:
    """Adds a row, or replaces the one of the same run."""
    new = {column: _text(row.get(column)) for column in self._task.columns}
    rows = {key_of(each): each for each in [*self.rows(), new]}
    text = io.StringIO()
    pandas.DataFrame(rows.values()).to_csv(text, index=False)
    files.write_file(self.path, text.getvalue().encode())


def key_of(row: dict[str, object]) -> tuple[str, ...]:
  return tuple(_text(row[column]) for column in KEY)


def _text(value: object) -> str:
  if value is None:
    return ''
  return f'{value:.6g}' if isinstance(value, float) else str(value)
