"""Advice for people to read."""

from __future__ import annotations

from tpu_graphs_ext.advice.picks import Advice, Pick, SourceAdvice
from tpu_graphs_ext.errors import shortened


def source_text(advice: SourceAdvice) -> str:
  """Notes, then every kernel; those with one tile in a line together."""
  lines = [f'{advice.name}: {_count(len(advice.kernels), "kernel")}',
           *(f'  {note}' for note in advice.notes)]
  if any(kernel.picks for kernel in advice.kernels):
    lines.append('  bounds: layout tiles and elements of each physical '
                 'dimension, most major first')
  alone = [kernel.name for kernel in advice.kernels if not kernel.picks]
  if alone:
    lines.append(f'  nothing to choose, with one legal tile: '
                 f'{shortened(alone, 8)}')
  return '\n\n'.join(['\n'.join(lines), *(
      advice_text(kernel) for kernel in advice.kernels if kernel.picks)])


def advice_text(advice: Advice) -> str:
  """A heading, the default tile, and three lines a pick."""
  copies = f', {advice.copies} times' if advice.copies > 1 else ''
  tiles = f'{advice.scored:,} tiles'
  if advice.fitting > advice.scored:
    tiles += f' of {advice.fitting:,} that fit'
  lines = [
      f'{advice.name}{copies}: {_count(advice.nodes, "node")} '
      f'({shortened(advice.opcodes, 6)}), {tiles}',
      *(f'  {note}' for note in advice.notes)]
  for pick in advice.picks:
    lines += _pick_lines(f'{pick.place:>3}', pick)
  if advice.default:
    lines.append(f'  default, {advice.default_from}; the model puts it at '
                 f'place {advice.default.place:,}')
    lines += _pick_lines('  -', advice.default)
  return '\n'.join(lines)


def _pick_lines(place: str, pick: Pick) -> list[str]:
  tile = pick.tile
  bounds = (f'output {_sizes(tile.output_bounds)} '
            f'= {_sizes(tile.output_elements)} elements')
  if tile.kernel_bounds:
    bounds += (f', kernel {_sizes(tile.kernel_bounds)} '
               f'= {_sizes(tile.kernel_elements)}')
  worth = [f'score {pick.score:.4f}']
  if pick.predicted_ns is not None:
    worth.append(f'predicted {pick.predicted_ns / 1000:,.1f} us, '
                 f'{pick.over_default:.3f} of the default')
  if pick.measured_ns is not None:
    worth.append(f'measured {pick.measured_ns / 1000:,.1f} us')
  return [f'{place}  {bounds}', f'     {"; ".join(worth)}',
          f'     {tile.text()}']


def _count(number: int, what: str) -> str:
  return f'{number:,} {what}{"s" * (number != 1)}'


def _sizes(sizes: tuple) -> str:
  return 'x'.join(map(str, sizes)) or '-'
