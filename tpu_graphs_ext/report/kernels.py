"""The section of single kernels: where the models do worst, and where best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import bounds_of
from tpu_graphs_ext.report import charts, counts, drawing, html
from tpu_graphs_ext.report.measure import Measurements, Shown
from tpu_graphs_ext.report.runs import Group

# Configurations that a figure shows; of more, some are left out.
MOST_MARKS = 500


def kernels(measurements: Measurements, chosen: Sequence[Shown],
            in_elements: bool) -> str:
  """One article a kernel.

  Args:
    measurements: names the groups.
    chosen: the kernels.
    in_elements: whether tile bounds count elements, not layout tiles.
  """
  groups = {group.letter: group for group in measurements.groups}
  drawn = tqdm(chosen, desc='draw', unit='kernel', disable=None, leave=False)
  listing = '<ul>' + ''.join(
      f'<li><a href="#kernel-{number}">{html.escape(one.kernel.tile_id)}</a>: '
      f'{html.escape(_roles(one))}</li>'
      for number, one in enumerate(chosen, 1)) + '</ul>'
  unit = 'elements' if in_elements else 'layout tiles'
  return html.section('Single kernels', html.paragraph(
      'The worst and the best kernels of the first run of each group, by the '
      'slowdown of its first tile. In the figures each mark is a tile: to the '
      'left those that the model would try first, at the bottom the fast '
      f'ones. Tile bounds count {unit}, most major dimension first. Steps, '
      'bytes and padding are worked out from shapes, layouts and bounds, '
      'not measured.') + listing + ''.join(
          _article(number, one, groups, in_elements)
          for number, one in enumerate(drawn, 1)))


def _roles(shown: Shown) -> str:
  """'worst of A (12.3 %), best of B (0.0 %)'."""
  return ', '.join(
      f'{role} of {letter} ({html.percent(shown.rows[letter]["slowdown_1"])} '
      '%)' for letter, role in sorted(shown.roles.items()))


def _article(number: int, shown: Shown, groups: dict[str, Group],
             in_elements: bool) -> str:
  kernel = shown.kernel
  letters = sorted(shown.roles)
  row = shown.rows[letters[0]]
  best = int(np.argmin(kernel.runtime_rel))
  roles = _roles(shown)
  about = (f'{roles[0].upper()}{roles[1:]}. Kind: {row["kind"]}; '
           f'{kernel.num_configs} configurations, of which the best takes '
           f'{_microseconds(kernel.runtime_ns[best])} µs. Slowdown of the '
           f'default tile: {html.percent(row["default"])} %.')
  order = list(groups)
  pictures = [
      _scatter(f'kernel-{number}-{letter}', shown, groups[letter],
               order.index(letter), best) for letter in letters]
  return (f'<article id="kernel-{number}">'
          f'<h3>{html.escape(kernel.tile_id)}</h3>{html.paragraph(about)}'
          '<div class="beside">'
          + drawing.drawing(kernel, f'graph-{number}') + ''.join(pictures)
          + html.table(_tiles_table(shown, letters, best, in_elements))
          + '</div></article>')


def _microseconds(runtime_ns: float) -> str:
  value = float(runtime_ns) / 1000
  return f'{value:,.0f}'.replace(',', '\u202f') if value >= 1000 else (
      f'{value:.3g}')


# ------------------------------------------------------------------- figures


def _scatter(name: str, shown: Shown, group: Group, number: int,
             best: int) -> str:
  """Predicted place against runtime."""
  kernel = shown.kernel
  order = shown.scores[group.letter].order
  runtime = kernel.runtime_rel / kernel.runtime_rel.min() - 1
  by_place = 100 * runtime[order]  # Slowdown in % of the first to try, ...
  places = np.arange(1, len(order) + 1)
  drawn = _drawn(by_place)
  best_place = int(np.flatnonzero(order == best)[0]) + 1
  look = charts.look_of(number, group.letter)

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
    axes.set_xlabel(f'place that {group.letter} predicts, 1 is tried first')
    axes.set_title(f'{group.letter}: measured, % over the best tile')
    axes.grid(True)
    charts.legend_below(figure, axes)

  tau = shown.rows[group.letter]['kendall']
  said = (f'The tile that {group.letter} tries first is {by_place[0]:.1f} % '
          f'slower than the best one, which has place {best_place} of '
          f"{len(order)}. Kendall's tau is {html.number(tau)}.")
  left_out = len(order) - int(drawn.sum())
  note = f' {left_out} of the tiles are not drawn.' * bool(left_out)
  title = f'{kernel.tile_id}: place predicted by {group.name}'
  first = min(10, len(order))
  return html.figure(
      charts.svg(draw, name=name, title=title, description=said), said + note,
      html.Table(f'The first {first} of {group.letter}', (
          'place', 'configuration', 'measured, µs', '% over the best'),
          [(str(place + 1), str(int(order[place])),
            _microseconds(kernel.runtime_ns[order[place]]),
            html.number(float(by_place[place]))) for place in range(first)]))


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


def _tiles_table(shown: Shown, letters: Sequence[str], best: int,
                 in_elements: bool) -> html.Table:
  """The best tile beside those that the runs choose, and where they differ."""
  kernel = shown.kernel
  chosen = [int(shown.scores[letter].order[0]) for letter in letters]
  configs = [best, *chosen]
  slowdown = kernel.runtime_rel / kernel.runtime_rel.min() - 1
  rows = [('configuration', *map(str, configs))]
  for group in ('output_bounds', 'kernel_bounds'):
    bounds = [html.TIMES.join(map(str, bounds_of(
        kernel.config_feat[config], group))) or html.NOTHING
              for config in configs]
    if set(bounds) != {html.NOTHING}:
      rows.append((group, *bounds))
  rows.append(('measured, µs', *(
      _microseconds(kernel.runtime_ns[config]) for config in configs)))
  rows.append(('% over the best', *(
      html.percent(float(slowdown[config])) for config in configs)))
  for letter in letters:
    order = shown.scores[letter].order.tolist()
    rows.append((f'place that {letter} predicts', *(
        str(order.index(config) + 1) for config in configs)))
  rows += _count_rows(kernel, configs, in_elements)
  return html.Table(
      f'{kernel.tile_id}: the chosen tiles against the best one; in brackets '
      'the multiple of the best, where they differ',
      ('', 'best', *(f'chosen by {letter}' for letter in letters)), rows)


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
    title = f'{one.title}, {one.unit}' if one.unit else one.title
    rows.append((title, html.count(values[0]), *(
        html.count(value) + _multiple(value, values[0])
        for value in values[1:])))
  return rows


def _multiple(value: float, best: float) -> str:
  """' (x 2)'; nothing where the two are equal."""
  ratio: Optional[float] = value / best if best else None
  if ratio is None or abs(ratio - 1) < 1e-6:
    return ''
  return f' ({html.TIMES} {ratio:.3g})'
