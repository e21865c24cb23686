"""A sweep's tables: configurations with their seeds together, best first.

  <out>/leaderboard.md    for people, with links to models
  <out>/leaderboard.csv   one row a configuration and data root
  <out>/trials.csv        one row a trial, failed ones with the reason
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.csv_text import of_rows
from tpu_graphs_ext.host import outputs
from tpu_graphs_ext.sweep.grid import GOALS, Grid
from tpu_graphs_ext.sweep.trials import FAILED, STARTED, STOPPED, Record

NAME = 'leaderboard'
TRIALS_NAME = 'trials.csv'
# How each file begins; another one of its name is not replaced.
_STARTS = {f'{NAME}.md': '# Sweep of ', f'{NAME}.csv': 'rank,model,',
           TRIALS_NAME: 'key,model,kwargs,'}

# Of drawn numbers, where people read them.
_DIGITS = 4


def check(out: str) -> None:
  """Raises a UserError where a sweep would replace somebody else's file."""
  for name, start in _STARTS.items():
    outputs.check_file('--out', os.path.join(out, name), start,
                       'table of a sweep')


def t_quantile(freedom: int) -> float:
  """97.5 % of Student's t."""
  from scipy import stats  # Half a second, for tables with three seeds alone.
  return float(stats.t.ppf(0.975, freedom))


@dataclasses.dataclass(frozen=True)
class Spread:
  """Values of several seeds.

  Attributes:
    mean: of them.
    deviation: standard, of a sample; None of one value.
    interval: (low, high): holds the mean of all seeds in 95 of 100 cases, if
      seeds spread normally (Student's t); None of fewer than three.
  """
  mean: float
  deviation: Optional[float]
  interval: Optional[tuple[float, float]]

  @classmethod
  def of(cls, values: Sequence[float]) -> Optional[Spread]:
    """None where there is no value."""
    if not values:
      return None
    mean = statistics.fmean(values)
    if len(values) < 2:
      return cls(mean, None, None)
    deviation = statistics.stdev(values)
    half = (t_quantile(len(values) - 1) * deviation / math.sqrt(len(values))
            if len(values) > 2 else None)
    return cls(mean, deviation,
               None if half is None else (mean - half, mean + half))


class Group:
  """The trials of one configuration on one data root.

  Args:
    records: at least one, all of the same but for their seed.
    grid: says what is best.
  """

  def __init__(self, records: Sequence[Record], grid: Grid):
    self.records = sorted(records, key=lambda record: record.seed)
    self.first = self.records[0]
    self._grid = grid
    self.measured = [record for record in self.records if record.is_over
                     and grid.goal in record.values]
    self.spread = self.of(grid.goal)

  def of(self, name: str) -> Optional[Spread]:
    """Of a value of `GOALS`."""
    return Spread.of([record.values[name] for record in self.measured
                      if name in record.values])

  @property
  def seconds(self) -> float:
    """Of a trial, in the mean over those that were measured."""
    return statistics.fmean(record.seconds for record in self.measured)

  def count(self, state: str) -> int:
    return sum(record.state == state for record in self.records)

  @property
  def best(self) -> Optional[Record]:
    """The seed with the best goal."""
    sign = 1 if self._grid.highest_is_best else -1
    return max(self.measured, default=None,
               key=lambda record: sign * record.values[self._grid.goal])

  @property
  def order(self) -> tuple:
    if self.spread is None:
      return (1, 0.0)
    mean = self.spread.mean
    return (0, -mean if self._grid.highest_is_best else mean)


class Leaderboard:
  """Tables of records.

  Args:
    grid: what was tried.
    records: of all trials that are known, in any order.
  """

  def __init__(self, grid: Grid, records: Iterable[Record]):
    self._grid = grid
    self.records = list(records)
    members: dict[str, list[Record]] = {}
    for record in self.records:
      members.setdefault(json.dumps(
          [record.model, record.kwargs, record.settings, record.data_root],
          sort_keys=True), []).append(record)
    self.groups = sorted((Group(group, grid) for group in members.values()),
                         key=lambda group: group.order)
    self._columns, self._constant = self._parted()

  def _parted(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(part, name) in which groups differ, and those that all have alike."""
    differ, alike = [], []
    for part in ('kwargs', 'settings'):
      names = dict.fromkeys(name for group in self.groups
                            for name in getattr(group.first, part)
                            if name != 'cache_dir')  # Changes nothing.
      for name in names:
        texts = {_text(getattr(group.first, part).get(name, ''))
                 for group in self.groups}
        (differ if len(texts) > 1 else alike).append((part, name))
    if len({group.first.data_root for group in self.groups}) > 1:
      differ.append(('', 'data_root'))
    return differ, alike

  def _cells(self, group: Group, digits: int = 17) -> list[str]:
    """What a group has in each of the columns that differ."""
    return [group.first.data_root if not part
            else _text(getattr(group.first, part)[name], digits)
            if name in getattr(group.first, part) else ''
            for part, name in self._columns]

  def _values(self) -> list[str]:
    """Names of measured values, the goal first."""
    goal = self._grid.goal
    return [goal, *(name for name in GOALS[self._grid.task] if name != goal)]

  @property
  def best(self) -> Optional[Group]:
    return next((group for group in self.groups if group.best), None)

  def counts(self) -> str:
    """'12 trials: 10 finished, 1 stopped early, 1 failed'."""
    states = [record.state for record in self.records]
    parts = [f'{states.count(state)} {word}' for state, word in (
        ('finished', 'finished'), (STOPPED, 'stopped early'),
        (FAILED, 'failed'), (STARTED, 'not finished'))
        if states.count(state) or state == 'finished']
    return f'{len(states)} trials: {", ".join(parts)}'

  def write(self, out: str) -> None:
    """Replaces the three files.

    Raises:
      UserError: one cannot be written.
    """
    for name, text in ((f'{NAME}.md', self.markdown()),
                       (f'{NAME}.csv', self.csv()),
                       (TRIALS_NAME, self.trials_csv())):
      files.write_file(os.path.join(out, name), text.encode())

  # ------------------------------------------------------------------ tables

  def rows(self, link: bool = True) -> list[list[str]]:
    """The table of `markdown`, the names of the columns first.

    Args:
      link: whether the best run of a row is a link, or its hash.
    """
    heads = ['', 'model', *(name for _, name in self._columns), 'seeds',
             *map(_head, self._values()), 'seconds', 'stopped', 'failed',
             'best run']
    rows = [heads]
    for place, group in enumerate(self.groups):
      best = group.best
      name = f'model_{best.run}' if best else ''
      rows.append([
          str(place + 1) if best else '', group.first.model,
          *self._cells(group, _DIGITS),
          f'{len(group.measured)} of {len(group.records)}',
          *(_shown(value, group.of(value), value == self._grid.goal)
            for value in self._values()),
          f'{group.seconds:.0f}' if best else '',
          str(group.count(STOPPED) or ''), str(group.count(FAILED) or ''),
          f'[{best.run[:8]}]({name})' if best and link else name])
    return rows

  def markdown(self) -> str:
    lines = [f'# Sweep of {os.path.basename(self._grid.path)}', '',
             f'{self.counts()}. {self._heading()}', '']
    rows = [[cell.replace('|', '\\|') for cell in row] for row in self.rows()]
    lines += ['| ' + ' | '.join(row) + ' |' for row in rows]
    lines.insert(5, '| ' + ' | '.join('---' for _ in rows[0]) + ' |')
    best = self.best
    if best:
      record = best.best
      lines += ['', f'Best model: [model_{record.run}](model_{record.run}), '
                f'seed {record.seed}, {_head(self._grid.goal)} '
                f'{_number(self._grid.goal, record.values[self._grid.goal])}.']
    lines += self._failures()
    return '\n'.join(lines) + '\n'

  def _heading(self) -> str:
    shared = [f'{name}={_text(getattr(self.groups[0].first, part)[name])}'
              for part, name in self._constant]
    most = 'highest' if self._grid.highest_is_best else 'lowest'
    return (f'The {most} {_head(self._grid.goal)} on the validation split '
            'first: mean over seeds, ± deviation, and from three seeds on its '
            '(95 % interval).' + (f' All with {", ".join(shared)}.'
                                  if shared else ''))

  def _failures(self) -> list[str]:
    failed = [record for record in self.records if record.state == FAILED]
    if not failed:
      return []
    return ['', '## Failed', '', *(
        f'- `{record.key}` {describe(record)}: '
        + ' '.join(record.error.split()).replace('|', '\\|')
        for record in failed)]

  def csv(self) -> str:
    names = self._values()
    rows = [['rank', 'model', *(name for _, name in self._columns), 'seeds',
             'trials', 'stopped', 'failed',
             *(f'{name}_{part}' for name in names
               for part in ('mean', 'deviation', 'low', 'high')),
             'seconds', 'best_seed', 'best_run']]
    for place, group in enumerate(self.groups):
      best = group.best
      rows.append([
          place + 1 if best else '', group.first.model, *self._cells(group),
          len(group.measured), len(group.records), group.count(STOPPED),
          group.count(FAILED),
          *(number for name in names for number in _numbers(group.of(name))),
          f'{group.seconds:.1f}' if best else '',
          best.seed if best else '', best.run if best else ''])
    return _csv(rows)

  def trials_csv(self) -> str:
    names = self._values()
    rows = [['key', 'model', 'kwargs', 'settings', 'seed', 'data_root', 'state',
             'error', 'attempts', 'epochs', 'best_epoch', 'parameters',
             'seconds', *names, 'run']]
    for group in self.groups:
      rows += [[record.key, record.model,
                json.dumps(record.kwargs, sort_keys=True),
                json.dumps(record.settings, sort_keys=True), record.seed,
                record.data_root, record.state, record.error, record.attempts,
                record.epochs, record.best_epoch, record.parameters,
                f'{record.seconds:.1f}',
                *(record.values.get(name, '') for name in names), record.run]
               for record in group.records]
    return _csv(rows)


def describe(record: Record) -> str:
  """'EarlyJoinSAGE hidden_dim=32 lr=0.01 seed=0'."""
  given = {**record.kwargs, **record.settings}
  return ' '.join([record.model, *(
      f'{name}={_text(value, _DIGITS)}' for name, value in given.items()
      if name != 'cache_dir'), f'seed={record.seed}'])


def _head(name: str) -> str:
  if name.startswith('top'):
    return f'top-{name[3:]} %'
  return {'opa': 'OPA', 'kendall': "Kendall's tau"}[name]


def _number(name: str, value: float) -> str:
  return f'{100 * value:.2f}' if name.startswith('top') else f'{value:.4f}'


def _shown(name: str, spread: Optional[Spread], with_interval: bool) -> str:
  if spread is None:
    return ''
  text = _number(name, spread.mean)
  if spread.deviation is not None:
    text += f' ± {_number(name, spread.deviation)}'
  if spread.interval and with_interval:
    text += ' ({} to {})'.format(
        *(_number(name, end) for end in spread.interval))
  return text


def _numbers(spread: Optional[Spread]) -> list[Any]:
  if spread is None:
    return [''] * 4
  return [spread.mean, '' if spread.deviation is None else spread.deviation,
          *(spread.interval or ('', ''))]


def _text(value: Any, digits: int = 17) -> str:
  if isinstance(value, float):  # Of which a search draws 17 digits.
    value = float(f'{value:.{digits}g}')
  return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _csv(rows: list[list[Any]]) -> str:
  return of_rows(rows)
