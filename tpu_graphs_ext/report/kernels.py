"""Single kernels: where the models do worst, and where best."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel, bounds_of
from tpu_graphs_ext.engine.duplicate_configs import Scores
from tpu_graphs_ext.report import charts, counts, drawing, page
from tpu_graphs_ext.report.compare import Looks
from tpu_graphs_ext.report.measure import Comparison
from tpu_graphs_ext.tasks import feature_stats

if TYPE_CHECKING:
  import pandas

# Configurations that a figure shows; of more, some are left out.
MOST_MARKS = 500


@dataclasses.dataclass(frozen=True)
class Shown:
  """A kernel, and for whom it is a good or a bad one.

  Attributes:
    kernel: the kernel.
    roles: name of a group -> 'worst' or 'best'.
    rows: name -> what the group's first run measured, by column.
    scores: name -> how that run scores the configurations.
  """
  kernel: Kernel
  roles: dict[str, str]
  rows: dict[str, Any]
  scores: dict[str, Scores]


def chosen(comparison: Comparison, count: int) -> list[Shown]:
  """The `count` worst and best kernels of each group's first run.

  Worst: the first tile to try is slowest against the best one; of equal ones
  the lowest tau. Best: the other end, among kernels with more than ten tiles
  if there are enough. Kernels whose configurations all have the same features
  are left out.
  """
  first = {name: of[0] for name, of in comparison.groups.items()}
  roles: dict[int, dict[str, str]] = {}
  for name, measured in first.items():
    for role, places in zip(('worst', 'best'), ends(measured.rows, count)):
      for place in places:
        roles.setdefault(place, {})[name] = role
  order = sorted(roles, key=lambda place: (
      'worst' not in roles[place].values(),
      -max(first[name].rows['slowdown_1'][place] for name in roles[place])))
  scores: dict[int, dict[str, Scores]] = {place: {} for place in order}
  for name, measured in first.items():
    own = [place for place in order if name in roles[place]]
    of = measured.ranker.score_all(
        comparison.problems.select(own), f'kernels of {name}') if own else ()
    for place, (_, found) in zip(own, of):
      scores[place][name] = found
  return [Shown(comparison.problems.kernel(place), roles[place],
                {name: first[name].rows.iloc[place] for name in roles[place]},
                scores[place]) for place in order]


def ends(rows: pandas.DataFrame, count: int) -> tuple[list[int], list[int]]:
  """Places of the worst and of the best kernels; none is in both."""
  by = rows[rows['rankable']].fillna({'kendall': -1}).sort_values(
      ['slowdown_1', 'kendall', 'tile_id'], ascending=[False, True, True])
  worst = list(by.index[:count])
  # Equal ones in the order of their names, in both.
  rest = by.drop(worst).sort_values(
      ['slowdown_1', 'kendall', 'tile_id'], ascending=[True, False, True])
  many = rest[rest['configs'] > 10]
  return worst, list((many if len(many) >= count else rest).index[:count])


def section(comparison: Comparison, count: int,
            looks: Looks) -> dict[str, Any]:
  """Everything that the template shows of single kernels."""
  if comparison.task.name != 'tile' or not count:
    return {}
  in_elements = (feature_stats.what_tiles_count(comparison.problems)
                 == feature_stats.TILES[1])
  kernels = tqdm(chosen(comparison, count), desc='draw', unit='kernel',
                 disable=None, leave=False)
  return {'unit': 'elements' if in_elements else 'layout tiles',
          'kernels': [_kernel(one, looks, in_elements) for one in kernels]}


def _kernel(shown: Shown, looks: Looks, in_elements: bool) -> dict[str, Any]:
  kernel = shown.kernel
  row = next(iter(shown.rows.values()))
  best = int(np.argmin(kernel.runtime_rel))
  roles = ', '.join(
      f'{role} of {name} ({page.number(100 * shown.rows[name]["slowdown_1"])} '
      '%)' for name, role in shown.roles.items())
  return {
      'title': f'{kernel.tile_id}: {roles}',
      'text': f'Kind: {row["kind"]}; {kernel.num_configs} configurations, the '
              f'best of which takes {_us(kernel.runtime_ns[best])} us. '
              'Slowdown of the default tile: '
              f'{page.number(100 * row["default"])} %.',
      'figures': [drawing.drawing(kernel), *(
          _scatter(shown, name, looks, best) for name in shown.roles)],
      'tiles': _tiles_table(shown, best, in_elements),
      'nodes': drawing.table(kernel)}


def _us(runtime_ns: float) -> str:
  value = float(runtime_ns) / 1000
  return page.count(round(value)) if value >= 1000 else f'{value:.3g}'


def _slowdown(kernel: Kernel) -> np.ndarray:
  """float64 [configs]: how much slower than the best one, in %."""
  return 100 * (kernel.runtime_rel / kernel.runtime_rel.min() - 1)


# ------------------------------------------------------------------- figures


def _scatter(shown: Shown, name: str, looks: Looks, best: int) -> page.Figure:
  """Predicted place against runtime."""
  kernel, order = shown.kernel, shown.scores[name].order
  by_place = _slowdown(kernel)[order]  # Of the first to try, the second, ...
  places = np.arange(1, len(order) + 1)
  drawn = _drawn(by_place)
  best_place = int(np.flatnonzero(order == best)[0]) + 1
  look, is_long = looks[name], len(order) > 100

  def draw(figure, axes):
    axes.plot(places[drawn], by_place[drawn], look.mark, ms=3, mew=0.4,
              color=look.colour, alpha=0.75, clip_on=False)
    for place, text, mark in ((1, 'chosen', 's'), (best_place, 'best', 'o')):
      axes.plot(place, by_place[place - 1], mark, ms=10, mfc='none',
                mec=charts.INK, mew=1.4, label=text, clip_on=False)
    charts.log_scale(axes, 'y', 0, float(by_place.max()))
    if is_long:
      axes.set_xscale('log')
      axes.xaxis.set_major_formatter('{x:,.0f}')
    axes.set(xlabel='predicted place; 1 is tried first'
             + ' (log scale)' * is_long,
             ylabel='% over the best (log scale\nabove 1 %)')
    axes.minorticks_off()
    axes.grid(True)
    charts.legend_below(figure, axes)

  left_out = len(order) - int(drawn.sum())
  return page.Figure(
      f'Measured time by the place that {name} predicts for '
      f'{kernel.tile_id}',
      f'Each mark is a tile. The one tried first is {by_place[0]:.1f} % '
      f'slower than the best one, which has place {best_place} of '
      f"{len(order)}. Kendall's tau is "
      f'{page.number(shown.rows[name]["kendall"])}.'
      + f' {left_out} of the tiles are not drawn.' * bool(left_out),
      charts.svg(draw), page.table(
          f'The first choices of {name}', (
              'place', 'configuration', 'measured, us', '% over the best'),
          ((place + 1, order[place], _us(kernel.runtime_ns[order[place]]),
            page.number(by_place[place]))
           for place in range(min(10, len(order))))))


def _drawn(by_place: np.ndarray) -> np.ndarray:
  """bool [configs]: the first and the fastest ones, and some of the others."""
  if by_place.size <= MOST_MARKS:
    return np.ones(by_place.size, bool)
  drawn = np.zeros(by_place.size, bool)
  drawn[:20] = True
  drawn[np.argsort(by_place)[:20]] = True
  drawn[np.linspace(0, by_place.size - 1, MOST_MARKS - 40).astype(int)] = True
  return drawn


# --------------------------------------------------------------------- tables


def _tiles_table(shown: Shown, best: int, in_elements: bool) -> page.Table:
  """The best tile beside those that the runs choose, and where they differ."""
  kernel, orders = shown.kernel, {
      name: shown.scores[name].order.tolist() for name in shown.roles}
  configs = [best, *(order[0] for order in orders.values())]
  slowdown = _slowdown(kernel)
  rows = [('configuration', *configs)]
  for group in ('output_bounds', 'kernel_bounds'):
    bounds = [page.TIMES.join(map(str, bounds_of(
        kernel.config_feat[config], group))) for config in configs]
    if any(bounds):
      rows.append((group, *(of or page.NOTHING for of in bounds)))
  rows += [
      ('measured, us', *(_us(kernel.runtime_ns[c]) for c in configs)),
      ('% over the best', *(page.number(slowdown[c]) for c in configs)),
      *((f'place that {name} predicts', *(order.index(c) + 1 for c in configs))
        for name, order in orders.items()),
      *_count_rows(kernel, configs, in_elements)]
  return page.table(
      f'{kernel.tile_id}: the chosen tiles against the best one; in brackets '
      'the multiple of the best, where they differ',
      ('', 'best', *(f'chosen by {name}' for name in orders)), rows)


def _count_rows(kernel: Kernel, configs: Sequence[int],
                in_elements: bool) -> Iterable[tuple[str, ...]]:
  """Steps, bytes and padding; none if the file lacks their columns."""
  if (kernel.node_feat.shape[1] < len(schema.NODE_FEATURES)
      or kernel.config_feat.shape[1] < len(schema.CONFIG_FEATURES)):
    return
  for title, (best, *others) in counts.counts_of(
      kernel, configs, in_elements).items():
    text = page.size if title in counts.BYTES.values() else page.count
    yield (title, text(best), *(
        text(value) if not best or abs(value / best - 1) < 1e-6
        else f'{text(value)} ({page.TIMES} {value / best:.3g})'
        for value in others))
