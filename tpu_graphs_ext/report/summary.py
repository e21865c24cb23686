"""The first screen: which run wins, by how much, and how certain that is."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Optional

import numpy as np

from tpu_graphs_ext.engine import metrics, statistics
from tpu_graphs_ext.report import overview, page, slowdowns
from tpu_graphs_ext.report.measure import Measurements
from tpu_graphs_ext.report.runs import Group


def summary(measurements: Measurements) -> page.Section:
  """The winner as the title, and below it what it was measured on."""
  groups = measurements.groups
  facts = [('Trained', trained(groups))]
  if not measurements.measured_groups:
    title, certainty = _by_run_files(groups)
    return page.Section(title, [
        page.Facts([('Certainty', certainty), *facts]),
        overview.groups_table(measurements)])
  choices = slowdowns.choices(measurements)
  ranked = sorted(choices[:-2], key=lambda one: one.mean(1))
  best, other = ranked[0], (ranked + [choices[-2]])[1]
  if math.isnan(other.mean(1)):  # The kernels have no default tile.
    other = choices[-1]
  found = statistics.paired_difference(other.slowdowns[1], best.slowdowns[1])
  title, certainty = verdict(best.name, other.name, found,
                             'percentage points less slowdown')
  seeds = min(len(of) for of in measurements.of_group.values() if of)
  if seeds == 1:
    certainty += (' One run each: what another seed would change is not '
                  'known.')
  rows = choices[0].rows
  programs = rows['program'].nunique()
  ks = metrics.TOP_KS
  return page.Section(title, [page.Row([
      page.Facts([
          ('Certainty', certainty),
          ('Data', f'{len(rows)} labelled kernels of {programs} '
                   f'program{"s" * (programs != 1)}: {measurements.source}'),
          *facts,
          ('Slowdown', 'how much slower, in %, the best of the first k tiles '
                       'is than the best tile of the kernel (top-k). Lower is '
                       'better; brackets and bars are 95 % intervals over '
                       'kernels.')]),
      slowdowns.range_figure(1, 'all kernels', ranked + choices[-2:], [
          ('', np.ones(len(rows), bool))])]),
      page.Table('Mean slowdown in % [95 % interval]', (
          'who chooses', *(f'top-{k}' for k in ks), 'runs'),
          [(one.name, *(page.with_interval(*slowdowns.mean_and_interval(
              one.slowdowns[k])) for k in ks), _runs_of(groups, one.name))
           for one in ranked + choices[-2:]])])


def _runs_of(groups: Sequence[Group], name: str) -> str:
  return next((str(len(group.runs)) for group in groups
               if group.name == name), page.NOTHING)


def verdict(best: str, other: str, found: tuple[float, float, float],
            unit: str) -> tuple[str, str]:
  """A title, and a sentence on how certain it is.

  Args:
    best, other: names of what is compared.
    found: by how much `best` is better than `other`, and the 95 % interval
      of that; NaN where there is none.
    unit: of these numbers.
  """
  mean, low, high = found
  ahead = f'{page.number(mean)} {unit} than {other}'
  if math.isnan(low):
    return (f'{best} leads: {ahead}',
            'There is no interval: too few kernels or programs.')
  interval = (f'The 95 % interval of the difference is {page.number(low)} to '
              f'{page.number(high)}')
  if low > 0:
    return f'{best} wins: {ahead}', f'{interval}, all of it above 0.'
  if high < 0:
    return (f'{other} beats {best}: {page.number(-mean)} {unit}',
            f'{interval}, all of it below 0.')
  return (f'No clear winner: {best} has {ahead}',
          f'{interval}. It holds 0, so this may be chance.')


def _by_run_files(groups: Sequence[Group]) -> tuple[str, str]:
  """Title and certainty where no kernel could be measured."""
  means = {group.name: group.spread(run.final_error(1)
                                    for run in group.runs)[0]
           for group in groups}
  known = {name: mean for name, mean in means.items() if mean is not None}
  certainty = ('Unknown: nothing was measured here. The numbers are those '
               'that each trainer wrote into its run file, which may be of '
               'different kernels.')
  if not known:
    return 'Nothing could be measured', certainty
  best = min(known, key=known.__getitem__)
  return (f'By its run file {best} leads: its first tile is '
          f'{page.percent(known[best])} % slower than the best', certainty)


def trained(groups: Sequence[Group]) -> str:
  """How many runs, when, and on which data.

  A run file holds no time, so it is the file's own.
  """
  runs = [run for group in groups for run in group.runs]
  days = sorted(time.strftime('%Y-%m-%d %H:%M', time.localtime(
      os.path.getmtime(run.run_path))) for run in runs)
  when = days[0] if days[0] == days[-1] else f'{days[0]} to {days[-1]}'
  epochs = sorted({len(run.curve.get('epoch', [])) for run in runs})
  roots = sorted({str(root) for run in runs
                  for root in [_root_of(run.flags)] if root})
  return (f'{len(runs)} run{"s" * (len(runs) > 1)}, {when} (age of the run '
          f'files), {" to ".join(map(str, sorted({epochs[0], epochs[-1]})))} '
          f'epochs' + f', on {", ".join(roots)}' * bool(roots))


def _root_of(flags: dict) -> Optional[str]:
  return flags.get('data_root')
