"""Features of problems to rank that training never showed the model.

Features are scaled by their least and largest value in training, and columns
that were constant there are left out. So a value beyond the range asks the
model to go on where it was never fitted, and a column that varies here alone
is not seen at all. What is learned of an opcode that no training kernel had is
what it was at the start, by chance. None is an error, but whoever ranks should
know.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Optional

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.engine.scoring import Ranker
from tpu_graphs_ext.engine.task import Problems, RankingProblem
from tpu_graphs_ext.errors import shortened

_log = logging.getLogger(__name__)

# Columns and opcodes in one warning; the rest is only counted.
MAX_LINES = 20
_ROWS = {'node_feat': 'nodes', 'node_opcode': 'nodes',
         'config_feat': 'configurations',
         'node_config_feat': 'layouts of nodes'}
_NAMES = {'node_feat': schema.NODE_FEATURES,
          'config_feat': schema.CONFIG_FEATURES,
          'node_config_feat': schema.LAYOUT_CONFIG_FEATURES}


@dataclasses.dataclass(frozen=True)
class Unfamiliar:
  """A column, or an opcode, of one kernel that training did not have like that.

  Attributes:
    tile_id: the kernel, or of the layout task the program's name.
    table: 'node_feat', 'config_feat' ('node_config_feat' of the layout task) or
      'node_opcode'.
    column: its name in `schema`; of an opcode that.
    value: the one farthest from the range; an opcode's number.
    outside: how many rows, nodes or configurations (of the layout task the
      layouts of a node in one), are outside, or have the opcode.
    rows: how many there are.
    least: in training; 0 of an opcode.
    largest: in training; where it is the least too, the model has no such
      column.
  """
  tile_id: str
  table: str
  column: str
  value: float
  outside: int
  rows: int
  least: float
  largest: float

  @property
  def is_unknown(self) -> bool:
    """Whether the model does not see the column at all."""
    return self.least == self.largest


def of_problem(ranker: Ranker, problem: RankingProblem) -> list[Unfamiliar]:
  """All such columns of one kernel or program, and its opcodes.

  Args:
    ranker: knows the training data, whose columns the problem has.
    problem: labelled or not.
  """
  return [*of_nodes(ranker.stats, problem, ranker.opcodes),
          *of_rows(ranker.stats.config, problem.name, ranker.task.config_table,
                   ranker.task.config_rows(problem, ranker.stats))]


def of_kernel(stats: FeatureStats, kernel: Kernel,
              opcodes: Optional[Sequence[int]] = None) -> list[Unfamiliar]:
  """`of_problem` of a kernel, by what a ranker knows; see `of_nodes`."""
  return [*of_nodes(stats, kernel, opcodes),
          *of_rows(stats.config, kernel.tile_id, 'config_feat',
                   [kernel.config_feat])]


def of_nodes(stats: FeatureStats, problem: RankingProblem,
             opcodes: Optional[Sequence[int]] = None) -> list[Unfamiliar]:
  """`of_problem` without configurations.

  Args:
    stats: of the training data.
    problem: see there.
    opcodes: of the training data; None: not known.
  """
  found = of_rows(stats.node, problem.name, 'node_feat', [problem.node_feat])
  if opcodes is not None:
    numbers, counts = np.unique(problem.node_opcode, return_counts=True)
    found += [
        Unfamiliar(problem.name, 'node_opcode', _opcode(number), float(number),
                   count, problem.num_nodes, 0.0, 0.0)
        for number, count in zip(numbers.tolist(), counts.tolist())
        if number not in opcodes]
  return found


def of_rows(stats: ColumnStats, tile_id: str, name: str,
            blocks: Iterable[np.ndarray]) -> list[Unfamiliar]:
  """The columns of one table, whose rows come in blocks, that go beyond.

  Args:
    stats: of the training data.
    tile_id: the kernel or program.
    name: of the table; see `Unfamiliar`.
    blocks: float32 [rows, columns], each of at least one row.
  """
  rows, outside, least, largest = 0, 0, np.inf, -np.inf
  for block in blocks:
    rows += len(block)
    least = np.minimum(least, block.min(axis=0))
    largest = np.maximum(largest, block.max(axis=0))
    outside = outside + (
        (block < stats.minimum) | (block > stats.maximum)).sum(axis=0)
  found = []
  for column in np.flatnonzero(outside):
    low, high = stats.minimum[column], stats.maximum[column]
    ends = least[column], largest[column]
    beyond = float(low) - float(ends[0]), float(ends[1]) - float(high)
    found.append(Unfamiliar(
        tile_id=tile_id, table=name,
        column=_name(name, column, len(stats.minimum)),
        value=float(ends[beyond[1] >= beyond[0]]),
        outside=int(outside[column]), rows=rows, least=float(low),
        largest=float(high)))
  return found


def _opcode(number: int) -> str:
  return schema.OPCODE_NAMES.get(number, f'number {number}' if number else
                                 'unknown')


def _name(table: str, column: int, width: int) -> str:
  names = _NAMES[table]
  return names[column] if width == len(names) else f'column {column}'


def warn(ranker: Ranker, problems: Problems) -> None:
  """Warns of what the model was not trained on, one line a column or opcode.

  Args:
    ranker: the model.
    problems: to rank.

  Raises:
    UserError: the problems have other columns than the training data.
  """
  ranker.task.check_columns(problems, ranker.stats)
  warn_of([found for problem in problems
           for found in of_problem(ranker, problem)],
          len(problems), ranker.name, ranker.task.problem)


def warn_of(every: Sequence[Unfamiliar], kernels: int, model: str,
            what: str = 'kernel') -> None:
  """The same of what was found already in so many kernels.

  Args:
    every: all that was found.
    kernels: how many were looked at.
    model: what to call the model.
    what: what to call one of the kernels.
  """
  columns = collections.defaultdict(list)
  for found in every:
    columns[found.table, found.column].append(found)
  if not columns:
    return
  lines = [_line(members, what) for members in columns.values()]
  if len(lines) > MAX_LINES:
    lines[MAX_LINES:] = [f'and {len(lines) - MAX_LINES} more columns']
  details = (
      '\n  '.join([':', *lines]) if _log.isEnabledFor(logging.DEBUG) else
      f' ({len(columns)} columns or opcodes; --verbose lists them)')
  _log.warning(
      '%d of %d %ss have features that %s was not trained on; their order '
      'is less certain%s', len({found.tile_id for found in every}), kernels,
      what, os.path.basename(model), details)


def _line(members: list[Unfamiliar], what: str = 'kernel') -> str:
  """Of one column: what was found where, and what training had."""
  first = members[0]
  rows = sum(found.rows for found in members)
  share = 100 * sum(found.outside for found in members) / rows
  where = (f'in {_percent(share)} of the {_ROWS[first.table]} of '
           f'{shortened([found.tile_id for found in members])}')
  if first.table == 'node_opcode':
    return f'opcode {first.column} (in no {what} of training) {where}'
  value = max((found.value for found in members), key=lambda value: max(
      value - first.largest, first.least - value))
  trained = (f'always {_number(first.least)} in training, so the model has no '
             'such column' if first.is_unknown else
             f'{_number(first.least)} to {_number(first.largest)} in training')
  goes = 'falls to' if value < first.least else 'reaches'
  return f'{first.column} {goes} {_number(value)} ({trained}) {where}'


def _number(value: float) -> str:
  return f'{value:,.0f}' if value == int(value) else f'{value:,.6g}'


def _percent(share: float) -> str:
  return f'{share:.0f} %' if share >= 1 else f'{share:.2g} %'
