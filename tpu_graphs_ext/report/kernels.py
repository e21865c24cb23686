"""The section of single kernels: where the models do worst, and where best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import bounds_of
from tpu_graphs_ext.report import charts, counts, drawing, page
from tpu_graphs_ext.report.measure import Measurements, Shown
from tpu_graphs_ext.report.runs import Group

# Configurations that a figure shows; of more, some are left out.
MOST_MARKS = 500


def kernels(measurements: Measurements, chosen: Sequence[Shown],
            in_elements: bool) -> page.Section:
  """A kernel a fold.

  Args:
    measurements: names the groups.
    chosen: the kernels.
    in_elements: whether tile bounds count elements, not layout tiles.
  """
  groups = {group.name: group for group in measurements.groups}
  drawn = tqdm(chosen, desc='draw', unit='kernel', disable=None, leave=False)
  unit = 'elements' if in_elements else 'layout tiles'
  return page.Section('Single kernels', [
      page.Text('The worst and the best kernels of the first run of each '
                'group, by the slowdown of its first tile. Steps, bytes and '
                'padding are worked out from shapes, layouts and bounds, not '
                f'measured. Tile bounds count {unit}, most major dimension '
                'first.'),
      *(page.Fold(f'{one.kernel.tile_id}: {_roles(one)}',
                  _kernel(one, groups, in_elements)) for one in drawn)])


def _roles(shown: Shown) -> str:
  """'worst of Mine (12.3 %), best of Other (0.0 %)'."""
  return ', '.join(
      f'{role} of {name} ({page.percent(shown.rows[name]["slowdown_1"])} %)'
      for name, role in shown.roles.items())


def _kernel(shown: Shown, groups: dict[str, Group],
            in_elements: bool) -> list:
  kernel = shown.kernel
  names = [name for name in groups if name in shown.roles]
  row = shown.rows[names[0]]
  best = int(np.argmin(kernel.runtime_rel))
  order = list(groups)
  return [
      page.Text(f'Kind: {row["kind"]}; {kernel.num_configs} configurations, '
                'of which the best takes '
                f'{_microseconds(kernel.runtime_ns[best])} µs. Slowdown of '
                f'the default tile: {page.percent(row["default"])} %.'),
      page.Row([drawing.drawing(kernel), *(
          _scatter(shown, name, order.index(name), best) for name in names)]),
      _tiles_table(shown, names, best, in_elements),
      page.Fold('Nodes', [drawing.table(kernel)])]


def _microseconds(runtime_ns: float) -> str:
  value = float(runtime_ns) / 1000
  return f'{value:,.0f}'.replace(',', '\u202f') if value >= 1000 else (
      f'{value:.3g}')


# ------------------------------------------------------------------- figures


def _scatter(shown: Shown, name: str, number: int,
             best: int) -> page.Figure:
  """Predicted place against runtime."""
  kernel = shown.kernel
  order = shown.scores[name].order
  runtime = kernel.runtime_rel / kernel.runtime_rel.min() - 1
  by_place = 100 * runtime[order]  # Slowdown in % of the first to try, ...
  places = np.arange(1, len(order) + 1)
  drawn = _drawn(by_place)
  best_place = int(np.flatnonzero(order == best)[0]) + 1
  look = charts.look_of(number, name)

  def draw(figure, axes):
    axes.plot(places[drawn], by_place[drawn], lw=0, marker=look.mark, ms=3,
              mew=0.4, color=look.colour, alpha=0.75, clip_on=False)
    for place, text, mark in ((1, 'chosen', 's'), (best_place, 'best', 'o')):
      axes.plot(place, by_place[place - 1], marker=mark, ms=10, lw=0,
                mfc='none', mec=charts.INK, mew=1.4, label=text,
                clip_on=False)
    most = max(float(by_place.max()), 3.0)
    axes.set_yscale('symlog', linthresh=1, linscale=0.5)
    axes.set_ylim(-0.12, most * 1.3)
    ticks = [tick for tick in (0, 1, 10, 100, 1000, 10 ** 4, 10 ** 5)
             if tick <= most * 1.3]
    axes.set_yticks(ticks, [f'{tick:,}' for tick in ticks])
    axes.minorticks_off()
    if len(order) > 100:
      axes.set_xscale('log')
      ticks = [tick for tick in (1, 10, 100, 1000, 10 ** 4, 10 ** 5)
               if tick <= len(order)]
      axes.set_xticks(ticks, [f'{tick:,}' for tick in ticks])
      axes.minorticks_off()
    axes.set_xlabel('predicted place, 1 is tried first'
                    + ' (log scale)' * (len(order) > 100))
    axes.set_ylabel('% over the best (log scale\nabove 1 %)')
    axes.grid(True)
    charts.legend_below(figure, axes)

  tau = shown.rows[name]['kendall']
  left_out = len(order) - int(drawn.sum())
  first = min(10, len(order))
  return page.Figure(
      f'Measured time by the place that {name} predicts for '
      f'{kernel.tile_id}',
      f'Each mark is a tile. The one tried first is {by_place[0]:.1f} % '
      f'slower than the best one, which has place {best_place} of '
      f"{len(order)}. Kendall's tau is {page.number(tau)}."
      + f' {left_out} of the tiles are not drawn.' * bool(left_out),
      charts.svg(draw),
      page.Table(f'The first {first} of {name}', (
          'place', 'configuration', 'measured, µs', '% over the best'),
          [(str(place + 1), str(int(order[place])),
            _microseconds(kernel.runtime_ns[order[place]]),
            page.number(float(by_place[place]))) for place in range(first)]))


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


def _tiles_table(shown: Shown, names: Sequence[str], best: int,
                 in_elements: bool) -> page.Table:
  """The best tile beside those that the runs choose, and where they differ."""
  kernel = shown.kernel
  chosen = [int(shown.scores[name].order[0]) for name in names]
  configs = [best, *chosen]
  slowdown = kernel.runtime_rel / kernel.runtime_rel.min() - 1
  rows = [('configuration', *map(str, configs))]
  for group in ('output_bounds', 'kernel_bounds'):
    bounds = [page.TIMES.join(map(str, bounds_of(
        kernel.config_feat[config], group))) or page.NOTHING
              for config in configs]
    if set(bounds) != {page.NOTHING}:
      rows.append((group, *bounds))
  rows.append(('measured, µs', *(
      _microseconds(kernel.runtime_ns[config]) for config in configs)))
  rows.append(('% over the best', *(
      page.percent(float(slowdown[config])) for config in configs)))
  for name in names:
    order = shown.scores[name].order.tolist()
    rows.append((f'place that {name} predicts', *(
        str(order.index(config) + 1) for config in configs)))
  rows += _count_rows(kernel, configs, in_elements)
  return page.Table(
      f'{kernel.tile_id}: the chosen tiles against the best one; in brackets '
      'the multiple of the best, where they differ',
      ('', 'best', *(f'chosen by {name}' for name in names)), rows)


def _count_rows(kernel, configs: Sequence[int],
                in_elements: bool) -> list[tuple]:
  """Steps, bytes and padding; none where the file lacks their columns."""
  if (kernel.node_feat.shape[1] < len(schema.NODE_FEATURES)
      or kernel.config_feat.shape[1] < len(schema.CONFIG_FEATURES)):
    return []
  found = counts.counts_of(kernel, configs, in_elements)
  rows = []
  for one in counts.COUNTS:
    values = found[one.name]
    # Without a product, or without padding, there is nothing to tell.
    if one.name != 'steps' and (
        not values.any() or np.array_equal(values, np.ones(len(configs)))):
      continue
    shown = page.size if one.unit == 'B' else page.count
    rows.append((one.title, shown(values[0]), *(
        shown(value) + _multiple(value, values[0])
        for value in values[1:])))
  return rows


def _multiple(value: float, best: float) -> str:
  """' (x 2)'; nothing where the two are equal."""
  ratio: Optional[float] = value / best if best else None
  if ratio is None or abs(ratio - 1) < 1e-6:
    return ''
  return f' ({page.TIMES} {ratio:.3g})'
