"""The page of runs of the layout task: measures, curves and differences."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from tpu_graphs_ext.engine import evaluate, scoring, statistics
from tpu_graphs_ext.engine.settings import DATA_ROOT, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import overview, page, summary
from tpu_graphs_ext.report.runs import Group, Run
from tpu_graphs_ext.tasks import layout_settings
from tpu_graphs_ext.tasks.layout_settings import TOP_KS, LayoutLoadSettings

if TYPE_CHECKING:
  import pandas

# (name, whether higher is better, factor, digits, column of the measures).
_MEASURES: Sequence[tuple[str, bool, float, int, str]] = (
    ('tau', True, 1, 3, 'kendall'), ('OPA', True, 1, 3, 'opa'),
    *((f'top-{k} %', False, 100, 2, f'slowdown_{k}') for k in TOP_KS))


@dataclasses.dataclass(frozen=True)
class Measured:
  """The runs of a group on the labelled programs of their collection.

  Attributes:
    group: the runs.
    source: where the programs are from; '' if none could be measured.
    tables: of each run that could be measured, a row a program; see
      `layout.evaluation.row_of`.
  """
  group: Group
  source: str
  tables: Sequence[pandas.DataFrame]

  def per_run(self, column: str) -> list[float]:
    """The mean over programs of each run; NaN of a program is left out."""
    values = (rows[column].dropna().to_numpy() for rows in self.tables)
    return [float(known.mean()) for known in values if known.size]

  def per_program(self, column: str) -> dict[str, float]:
    """The mean over the runs of each program."""
    means = np.mean([rows[column] for rows in self.tables], axis=0)
    return dict(zip(self.tables[0]['program'], means.tolist()))


def sections(groups: Sequence[Group], data: str, loading: LoadSettings,
             problems: list[str]) -> list[page.Section]:
  """Measures the runs and makes the sections of the page.

  Args:
    groups: runs of the layout task.
    data: labelled programs: a folder of .npz files, or one; empty: valid of
      each run's collection, of the data root that is given or of its own.
    loading: of the verb `report`.
    problems: what cannot be done is added, one message each.
  """
  measured = [_measured(group, data, loading, problems) for group in groups]
  known = [one for one in measured if one.tables]
  parts = [_summary(measured)]
  if known:
    parts += [_programs(known), _differences(known)]
  return [part for part in [*parts, overview.learning_curves(
      groups, of='configurations', over='programs'), _runs(measured)] if part]


# ------------------------------------------------------------------ measuring


def _measured(group: Group, data: str, loading: LoadSettings,
              problems: list[str]) -> Measured:
  source, tables = '', []
  for run in group.runs:
    if run.model_dir is None:
      continue
    try:
      own = _loading_of(run, loading)
      ranker = scoring.load_ranker(run.model_dir, own)
      source, members = ranker.read(own, 'valid', data)
      members = evaluate.labelled(members, source, ranker.task)
      tables.append(evaluate.measure(
          ranker, members, f'{run.model} {run.name[:8]}'))
    except UserError as error:
      problems.append(str(error) if run.model_dir in str(error)
                      else f'{run.model_dir}: {error}')
  return Measured(group, source if tables else '', tables)


def _loading_of(run: Run, loading: LoadSettings) -> LayoutLoadSettings:
  """How to load a run: by what is given, else by what it was trained with."""
  trained = run.info.get('settings', {})
  root = loading.data_root
  if root == DATA_ROOT:
    root = trained.get('data_root') or layout_settings.DATA_ROOT
  cache_dir = loading.cache_dir
  if cache_dir == LoadSettings().cache_dir:
    cache_dir = trained.get('cache_dir', layout_settings.CACHE_DIR)
  return LayoutLoadSettings(
      stats='train' if loading.stats == 'all' else loading.stats,
      data_root=root, cache_dir=cache_dir, toy_data=loading.toy_data,
      models_py=loading.models_py)


# ------------------------------------------------------------------- sections


def _summary(measured: Sequence[Measured]) -> page.Section:
  """Which run has the best tau, and how certain that is."""
  known = [one for one in measured if one.tables]
  sources = list(dict.fromkeys(one.source for one in known))
  ranked = sorted(known, key=lambda one: -(one.group.spread(
      one.per_run('kendall'))[0] or -1.0))
  if len(sources) > 1:
    title, certainty = 'Runs of several collections', (
        'Runs are compared only with those of the same programs.')
  elif len(ranked) > 1:
    best, other = ranked[:2]
    title, certainty = summary.verdict(
        best.group.name, other.group.name, statistics.paired_difference(
            best.per_program('kendall'), other.per_program('kendall')),
        'more tau')
  else:
    title = (f'One group of runs: {ranked[0].group.name}' if ranked
             else 'Nothing could be measured')
    certainty = 'There is nothing to compare it with.'
  return page.Section(title, [
      page.Facts([
          ('Certainty', certainty),
          ('Data', 'labelled programs of ' + (
              ', '.join(sources) or 'nothing: none could be read')),
          ('Trained', summary.trained([one.group for one in measured])),
          ('Measures', "tau is Kendall's tau-b of the runtimes and the "
                       "model's order; it and OPA are better higher. top-k "
                       'is how much slower, in %, the fastest of the first k '
                       'configurations is than the fastest of all.')]),
      page.Table('Means over programs', ('group', *(
          name for name, *_ in _MEASURES)), [
              (one.group.name, *_spreads(one))
              for one in [*ranked, *(m for m in measured if not m.tables)]])])


def _runs(measured: Sequence[Measured]) -> page.Section:
  header = ('group', 'collection', 'runs', 'best validation OPA',
            'epochs', 'minutes of training')
  rows = []
  for one in measured:
    group, args = one.group, one.group.runs[0].info['args']
    rows.append([
        group.name, f'{args["source"]}/{args["search"]}', str(len(group.runs)),
        page.with_spread(*group.spread(map(overview.best_opa, group.runs)), 3),
        page.with_spread(*group.spread(
            len(run.curve.get('epoch', [])) for run in group.runs), 0),
        page.with_spread(*group.spread(map(overview.minutes, group.runs)), 1)])
  return page.Section('Runs', [
      page.Text('Runs that differ in their seed alone are one group: mean ± '
                'standard deviation over its seeds.'),
      page.Table('Groups of runs', header, rows),
      page.Fold('Flags and arguments', [
          overview.flags_table([one.group for one in measured])])])


def _spreads(one: Measured) -> list[str]:
  return [page.with_spread(*one.group.spread(
      factor * mean for mean in one.per_run(column)), digits)
          for _, _, factor, digits, column in _MEASURES]


def _programs(measured: Sequence[Measured]) -> page.Section:
  tables = []
  for source, members in _by_source(measured):
    columns = [(one, [one.per_program(column) for *_, column in _MEASURES])
               for one in members]
    rows = []
    for row in members[0].tables[0].itertuples():
      rows.append((row.program, page.count(row.nodes),
                   page.count(row.configs), page.count(row.runtimes), *(
                       page.number(_or_none(factor * values[row.program]),
                                   digits)
                       for _, found in columns
                       for (_, _, factor, digits, _), values in zip(
                           _MEASURES, found))))
    tables.append(page.Table(
        f'Programs of {source}, means over the seeds',
        ('program', 'nodes', 'configurations', 'different runtimes', *(
            f'{one.group.name} {name}'
            for one, _ in columns for name, *_ in _MEASURES)), rows))
  return page.Section('Programs', [page.Text(
      'If a program has few different runtimes, no order has a tau of 1.'),
      *tables])


def _differences(measured: Sequence[Measured]) -> Optional[page.Section]:
  """Paired by program, between the groups of one source."""
  parts = []
  for source, members in _by_source(measured):
    rows = []
    for one, other in itertools.combinations(members, 2):
      cells = [_difference(factor, digits, statistics.paired_difference(
          one.per_program(column), other.per_program(column)))
               for _, _, factor, digits, column in _MEASURES]
      rows.append((f'{one.group.name} {page.MINUS} {other.group.name}',
                   *cells))
    if rows:
      parts.append(page.Table(
          f'Differences on {source}, mean [95 % interval]',
          ('pair', *(f'{name}, {"above" if higher else "below"} 0: the first '
                     'is better' for name, higher, *_ in _MEASURES)), rows))
  return page.Section('Differences between runs', [
      page.Text('The first minus the second, program by program. If an '
                'interval holds 0, these programs do not tell the two apart; '
                'of a handful of programs it is too narrow.'),
      *parts]) if parts else None


def _difference(factor: float, digits: int,
                found: tuple[float, float, float]) -> str:
  return page.with_interval(*(factor * number for number in found), digits)


def _by_source(measured: Sequence[Measured]) -> list[tuple[str, list]]:
  found: dict[str, list[Measured]] = {}
  for one in measured:
    found.setdefault(one.source, []).append(one)
  return list(found.items())


def _or_none(value: float) -> Optional[float]:
  return None if math.isnan(value) else value
