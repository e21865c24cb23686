"""Features of kernels to rank that training never showed the model.

Features are scaled by their least and largest value in training, and columns
that were constant there are left out. So a value beyond the range asks the
model to go on where it was never fitted, and a column that varies here alone
is not seen at all. Neither is an error, but whoever ranks should know.
"""

from __future__ import annotations

import collections
import dataclasses
import logging

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import shortened

_log = logging.getLogger(__name__)

# Columns in one warning; the rest is only counted.
MAX_LINES = 20
_ROWS = {'node_feat': 'nodes', 'config_feat': 'configurations'}
_NAMES = {'node_feat': schema.NODE_FEATURES,
          'config_feat': schema.CONFIG_FEATURES}


@dataclasses.dataclass(frozen=True)
class Unfamiliar:
  """A column of one kernel with values that training did not have.

  Attributes:
    tile_id: the kernel.
    table: 'node_feat' or 'config_feat'.
    column: its name in `schema`.
    value: the one farthest from the range.
    outside: how many rows, nodes or configurations, are outside.
    rows: how many there are.
    least: in training.
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


def of_kernel(stats: FeatureStats, kernel: Kernel) -> list[Unfamiliar]:
  """All such columns of one kernel, in the order of the tables.

  Args:
    stats: of the training data; the kernel has their columns.
    kernel: labelled or not.
  """
  return [*_of_table(stats.node, kernel, 'node_feat'),
          *_of_table(stats.config, kernel, 'config_feat')]


def _of_table(stats: ColumnStats, kernel: Kernel,
              name: str) -> list[Unfamiliar]:
  table, found = getattr(kernel, name), []
  least, largest = table.min(axis=0), table.max(axis=0)
  for column in np.flatnonzero(
      (least < stats.minimum) | (largest > stats.maximum)):
    low, high = stats.minimum[column], stats.maximum[column]
    values = table[:, column]
    ends = least[column], largest[column]
    beyond = float(low) - float(ends[0]), float(ends[1]) - float(high)
    found.append(Unfamiliar(
        tile_id=kernel.tile_id, table=name,
        column=_name(name, column, table.shape[1]),
        value=float(ends[beyond[1] >= beyond[0]]),
        outside=int(((values < low) | (values > high)).sum()),
        rows=len(values), least=float(low), largest=float(high)))
  return found


def _name(table: str, column: int, width: int) -> str:
  names = _NAMES[table]
  return names[column] if width == len(names) else f'column {column}'


def warn(stats: FeatureStats, partition: Partition, model: str) -> None:
  """Warns of what the model was not trained on, one line a column.

  Args:
    stats: of the training data.
    partition: kernels to rank.
    model: what to call the model.

  Raises:
    UserError: the kernels have other columns than the training data.
  """
  stats.check_columns(partition)
  columns = collections.defaultdict(list)
  for kernel in partition:
    for found in of_kernel(stats, kernel):
      columns[found.table, found.column].append(found)
  if not columns:
    return
  kernels = {found.tile_id for members in columns.values()
             for found in members}
  lines = [_line(members) for members in columns.values()]
  if len(lines) > MAX_LINES:
    lines[MAX_LINES:] = [f'and {len(lines) - MAX_LINES} more columns']
  _log.warning(
      '%d of %d kernels have features that %s was not trained on; their order '
      'is less certain:\n%s', len(kernels), len(partition), model,
      '\n'.join('  ' + line for line in lines))


def _line(members: list[Unfamiliar]) -> str:
  """Of one column: what was found where, and what training had."""
  first = members[0]
  value = max((found.value for found in members), key=lambda value: max(
      value - first.largest, first.least - value))
  trained = (f'always {_number(first.least)} in training, so the model has no '
             'such column' if first.is_unknown else
             f'{_number(first.least)} to {_number(first.largest)} in training')
  rows = sum(found.rows for found in members)
  share = 100 * sum(found.outside for found in members) / rows
  names = shortened([found.tile_id for found in members])
  goes = 'falls to' if value < first.least else 'reaches'
  return (f'{first.column} {goes} {_number(value)} ({trained}) in '
          f'{_percent(share)} of the {_ROWS[first.table]} of {names}')


def _number(value: float) -> str:
  return f'{value:,.0f}' if value == int(value) else f'{value:,.6g}'


def _percent(share: float) -> str:
  return f'{share:.0f} %' if share >= 1 else f'{share:.2g} %'
