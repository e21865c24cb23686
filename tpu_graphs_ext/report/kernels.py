"""Single kernels: where the models do worst, and where best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tpu_graphs_ext.analytic.explain import explain, in_bytes
from tpu_graphs_ext.analytic.geometry import loops_of
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel, bounds_of
from tpu_graphs_ext.engine.scoring import Scores
from tpu_graphs_ext.report import page
from tpu_graphs_ext.report.compare import Comparison, Looks
from tpu_graphs_ext.report.page import Look
from tpu_graphs_ext.tasks import feature_stats


def section(comparison: Comparison, count: int, looks: Looks) -> dict[str, Any]:
  """Everything that the template shows of single kernels."""
  if not (comparison.task.has_geometry and count):
    return {}
  unit, _ = feature_stats.what_tiles_count(comparison.problems)
  return {'unit': unit, 'kernels': [
      _kernel(comparison, place, roles, looks, unit == 'elements')
      for place, roles in chosen(comparison, count).items()]}


def chosen(comparison: Comparison, count: int) -> dict[int, dict[str, str]]:
  """Place of a kernel, the worst first -> group -> 'worst' or 'best'."""
  rows = {name: of[0].rows for name, of in comparison.groups.items()}
  roles: dict[int, dict[str, str]] = {}
  for name in rows:
    for role, places in zip(('worst', 'best'), ends(rows[name], count)):
      for place in places:
        roles.setdefault(place, {})[name] = role
  return dict(sorted(roles.items(), key=lambda item: (
      'worst' not in item[1].values(),
      -max(rows[name]['slowdown_1'][item[0]] for name in item[1]))))


def ends(rows: pd.DataFrame, count: int) -> tuple[list[int], list[int]]:
  """Places of the worst and of the best kernels; none is in both.

  Worst: the first tile to try is slowest against the best one; of equal ones
  the lowest tau. Best: the other end, kernels with many tiles first.
  """
  by = rows[rows['rankable']].fillna({'kendall': -1}).sort_values(
      ['slowdown_1', 'kendall', 'tile_id'], ascending=[False, True, True])
  rest = by.iloc[count:][::-1]
  rest = rest.sort_values('configs', kind='stable', key=lambda n: n <= 10)
  return list(by.index[:count]), list(rest.index[:count])


def _kernel(comparison: Comparison, place: int, roles: Mapping[str, str],
            looks: Looks, in_elements: bool) -> dict[str, Any]:
  kernel = comparison.problems[place]
  first = {name: comparison.groups[name][0] for name in roles}
  rows = {name: result.rows.iloc[place] for name, result in first.items()}
  scores = {name: result.ranker.scored(kernel)
            for name, result in first.items()}
  row, best = next(iter(rows.values())), int(np.argmin(kernel.runtime_rel))
  said = ', '.join(
      f'{role} of {name} ({page.number(100 * rows[name]["slowdown_1"])} %)'
      for name, role in roles.items())
  opcodes = pd.Series(kernel.node_opcode).map(
      schema.OPCODE_NAMES).value_counts().sort_index()
  return {
      'title': f'{kernel.tile_id}: {said}',
      'text': f'Kind: {row["kind"]}; opcodes: ' + ', '.join(
          f'{number} {name}' for name, number in opcodes.items())
              + f'. {kernel.num_configs} configurations, the best of which '
              f'takes {_plain(kernel.runtime_ns[best] / 1000)} us. Slowdown of '
              f'the default tile: {page.number(100 * row["default"])} %.',
      'figures': [
          _scatter(kernel, looks[name], of, best, rows[name]['kendall'])
          for name, of in scores.items()],
      'tiles': _tiles_table(kernel, scores, best, in_elements)}


def _plain(value: float) -> str:
  return f'{value:,.0f}' if value >= 1000 else f'{value:.3g}'


def _slowdown(kernel: Kernel) -> np.ndarray:
  """float64 [configs]: how much slower than the best one, in %."""
  return 100 * (kernel.runtime_rel / kernel.runtime_rel.min() - 1)


def _scatter(kernel: Kernel, look: Look, scores: Scores, best: int,
             tau: float) -> page.Figure:
  """Measured time by predicted place."""
  from matplotlib import ticker
  by_place = _slowdown(kernel)[scores.order]  # Of the first to try, ...
  best_place = int(np.flatnonzero(scores.order == best)[0]) + 1

  def draw(axes):
    axes.plot(np.arange(1, len(by_place) + 1), by_place, look.mark, ms=3,
              mew=0.4, color=look.colour, alpha=0.75, clip_on=False,
              rasterized=True)  # Thousands of marks are large as vectors.
    for place, text, mark in ((1, 'chosen', 's'), (best_place, 'best', 'o')):
      axes.plot(place, by_place[place - 1], mark, ms=10, mfc='none',
                mec=page.INK, mew=1.4, label=text, clip_on=False)
    page.log_scale(axes, 'y', 0, float(by_place.max()))
    axes.set_xscale('log')
    axes.xaxis.set_major_formatter('{x:,.0f}')
    axes.xaxis.set_minor_formatter(ticker.LogFormatter())  # Without formulas.
    axes.set(xlabel='predicted place; 1 is tried first (log scale)',
             ylabel='% over the best (log scale\nabove 1 %)')
    axes.grid(True)

  return page.Figure(
      f'Measured time by the place that {look.name} predicts for '
      f'{kernel.tile_id}',
      f'Each mark is a tile. The one tried first is {by_place[0]:.1f} % '
      f'slower than the best one, which has place {best_place} of '
      f"{len(by_place)}. Kendall's tau is {page.number(tau)}.", page.svg(draw))


def _tiles_table(kernel: Kernel, scores: Mapping[str, Scores], best: int,
                 in_elements: bool) -> page.Table:
  """The best tile beside those that the runs choose, and where they differ."""
  orders = {name: of.order.tolist() for name, of in scores.items()}
  configs = [best, *(order[0] for order in orders.values())]
  slowdown = _slowdown(kernel)
  rows = [('configuration', *configs)]
  for group in ('output_bounds', 'kernel_bounds'):
    bounds = ['x'.join(map(str, bounds_of(kernel.config_feat[config], group)))
              for config in configs]
    if any(bounds):
      rows.append((group, *(of or page.NOTHING for of in bounds)))
  rows += [
      ('measured, us', *(_plain(kernel.runtime_ns[c] / 1000) for c in configs)),
      ('% over the best', *(page.number(slowdown[c]) for c in configs)),
      *((f'place that {name} predicts', *(order.index(c) + 1 for c in configs))
        for name, order in orders.items()),
      *([] if in_elements else cost_rows(kernel, configs))]
  return page.Table(
      f'{kernel.tile_id}: the chosen tiles against the best one',
      ('', 'best', *(f'chosen by {name}' for name in orders)), rows)


def cost_rows(kernel: Kernel, configs: Sequence[int]) -> list[tuple[str, ...]]:
  """What tiles cost, as models with tile geometry compute it.

  No rows if the file lacks columns, or the kernel has several products, of
  which only the last is counted.
  """
  if (kernel.node_feat.shape[1] < len(schema.NODE_FEATURES)
      or kernel.config_feat.shape[1] < len(schema.CONFIG_FEATURES)):
    return []
  loops, = loops_of([kernel])
  if loops.products > 1:
    return []
  tiles = explain(loops, loops.tiles_of(kernel.config_feat[list(configs)]))
  return [
      ('steps', *(f'{tile.steps:,}' for tile in tiles)),
      ('bytes moved', *(in_bytes(tile.moved_bytes) for tile in tiles)),
      ('on-chip memory', *(in_bytes(tile.footprint_bytes) for tile in tiles)),
      ('padding', *(f'{100 * (tile.padding * tile.rounding - 1):.0f} %'
                    for tile in tiles)),
      ('bound by', *(tile.bound_by for tile in tiles))]
