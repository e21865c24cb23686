"""Features of problems that are out of the range of the training data.

There a model extrapolates, does not see a column that was constant in training,
or has random weights for an opcode: the ranking is less certain.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Sequence

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Problem, Problems
from tpu_graphs_ext.data.normalize import ColumnStats
from tpu_graphs_ext.engine.scoring import Ranker
from tpu_graphs_ext.errors import shortened

_log = logging.getLogger(__name__)

_COLUMNS = {  # Table -> the names of its columns.
    'node_feat': schema.NODE_FEATURES, 'config_feat': schema.CONFIG_FEATURES,
    'node_config_feat': schema.LAYOUT_CONFIG_FEATURES}


@dataclasses.dataclass(frozen=True)
class OutOfRange:
  """A column of one problem with values out of range, or an unseen opcode."""
  tile_id: str  # Name of the kernel or program.
  table: str  # Its name in the file.
  column: str  # Its name in `schema`, or the opcode's.
  value: float  # Farthest from the range, or the opcode's number.
  least: float  # In training, as is the largest; 0 for an opcode.
  largest: float


def of_problem(ranker: Ranker, problem: Problem) -> list[OutOfRange]:
  """All such columns of one kernel or program, and its unseen opcodes."""
  return [*of_nodes(ranker, problem),
          *of_rows(ranker.stats.config, problem.name, ranker.task.config_table,
                   ranker.task.config_rows(problem, ranker.stats))]


def of_nodes(ranker: Ranker, problem: Problem) -> list[OutOfRange]:
  """`of_problem` without configurations."""
  outside = of_rows(ranker.stats.node, problem.name, 'node_feat',
                    [problem.node_feat])
  for number in np.unique(problem.node_opcode).tolist():
    if ranker.opcodes is not None and number not in ranker.opcodes:
      name = f'number {number}' if number else 'unknown'
      outside.append(OutOfRange(
          problem.name, 'node_opcode', schema.OPCODE_NAMES.get(number, name),
          float(number), 0.0, 0.0))
  return outside


def of_rows(stats: ColumnStats, tile_id: str, table: str,
            blocks: Iterable[np.ndarray]) -> list[OutOfRange]:
  """The columns of one table, float32 [rows, columns], out of their range."""
  least, largest = np.inf, -np.inf
  for block in blocks:
    stats.require_columns(block, table)
    least = np.minimum(least, block.min(axis=0))
    largest = np.maximum(largest, block.max(axis=0))
  columns, names = [], _COLUMNS.get(table, ())
  outside = (least < stats.minimum) | (largest > stats.maximum)
  for column in np.flatnonzero(outside).tolist():
    low, high, start, end = (float(values[column]) for values in (
        stats.minimum, stats.maximum, least, largest))
    columns.append(OutOfRange(
        tile_id, table, names[column] if len(stats.minimum) == len(names)
        else f'column {column}', end if end - high >= low - start else start,
        low, high))
  return columns


def warn(ranker: Ranker, problems: Problems) -> None:
  """Warns of values that the model was not trained on, a line a column."""
  warn_of(ranker, [column for problem in problems
                   for column in of_problem(ranker, problem)], len(problems))


def warn_of(ranker: Ranker, every: Sequence[OutOfRange], problems: int) -> None:
  """The same for columns that are known, of so many problems."""
  columns: dict[tuple[str, str], list[OutOfRange]] = {}
  for column in every:
    columns.setdefault((column.table, column.column), []).append(column)
  if columns:
    lines = '\n  '.join([':', *map(_line, columns.values())])
    if not _log.isEnabledFor(logging.DEBUG):
      lines = f' (columns or opcodes: {len(columns)}; --verbose lists them)'
    _log.warning(
        '%d of %d %ss have features that %s was not trained on; their order '
        'is less certain%s', len({column.tile_id for column in every}),
        problems, ranker.task.problem, os.path.basename(ranker.name), lines)


def _line(members: list[OutOfRange]) -> str:
  """One column: the value farthest from the range, the range, and where."""
  where = shortened([column.tile_id for column in members])
  if members[0].table == 'node_opcode':
    return f'opcode {members[0].column} (unseen in training) in {where}'
  worst = max(members, key=lambda column: max(
      column.value - column.largest, column.least - column.value))
  return (f'{worst.column} is {worst.value:,.9g} ({worst.least:,.9g} to '
          f'{worst.largest:,.9g} in training) in {where}')
