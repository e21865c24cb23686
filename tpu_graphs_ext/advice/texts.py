"""Advice for people to read."""

from __future__ import annotations

from tpu_graphs_ext.advice.picks import (
  FROM_TIME,
  Advice,
  Pick,
  SourceAdvice,
)
from tpu_graphs_ext.errors import shortened


def source_text(advice: SourceAdvice) -> str:
  """Notes and a summary, then every kernel with tiles to choose from."""
  lines = [f'{advice.name}: {_count(len(advice.kernels), "kernel")}',
           *(f'  {note}' for note in advice.notes)]
  if any(kernel.picks for kernel in advice.kernels):
    lines.append('  bounds: layout tiles and elements of each physical '
                 'dimension, most major first')
  alone = [kernel.name for kernel in advice.kernels if not kernel.picks]
  if alone:
    lines.append(f'  nothing to choose, with one legal tile: '
                 f'{shortened(alone, 8)}')
  shared = [kernel for kernel in advice.kernels if kernel.share is not None]
  parts = ['\n'.join(lines)] + ([summary_text(shared)] if shared else [])
  return '\n\n'.join([*parts, *(
      advice_text(kernel) for kernel in advice.kernels if kernel.picks)])


def summary_text(kernels: list[Advice]) -> str:
  """A table of a program's kernels, in the order given.

  Share and compiler's tile are the TPU compiler's, place and first choice the
  model's. No gain is told: the analytic time does not know it.
  """
  rows = [('kernel', 'share of time', "compiler's tile", 'place',
           'first choice', 'operation')]
  rows += [_summary_row(kernel) for kernel in kernels]
  widths = [max(map(len, column)) for column in zip(*rows)][:-1]
  return '\n'.join('  '.join([
      *(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]
                              ).rstrip() for row in rows)


def _summary_row(kernel: Advice) -> tuple[str, ...]:
  name = kernel.name + (f' x{kernel.copies}' if kernel.copies > 1 else '')
  share = f'{kernel.share:.1%}'
  if not kernel.picks:
    return name, share, '-', '-', 'no choice', kernel.op_name
  best, default = kernel.picks[0], kernel.default
  if kernel.default_from == FROM_TIME:
    known = place = '-'
  else:
    known, place = _bounds(default), f'{default.place:,} of {kernel.scored:,}'
  return name, share, known, place, _bounds(best), kernel.op_name


def _bounds(pick: Pick) -> str:
  filters = pick.tile.kernel_bounds
  return _sizes(pick.tile.output_bounds) + (
      f' | {_sizes(filters)}' if filters else '')


def advice_text(advice: Advice) -> str:
  """A heading, the default tile, and three lines a pick."""
  copies = f', {advice.copies} times' if advice.copies > 1 else ''
  tiles = f'{advice.scored:,} tiles'
  if advice.fitting > advice.scored:
    tiles += f' of {advice.fitting:,} that fit'
  lines = [
      f'{advice.name}{copies}: {_count(advice.nodes, "node")} '
      f'({shortened(advice.opcodes, 6)}), {tiles}',
      *([f'  {advice.op_name}'] if advice.op_name else []),
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
    worth.append(f'analytic time {pick.predicted_ns / 1000:,.1f} us, '
                 f'{pick.over_default:.3f} of the default\'s')
  if pick.measured_ns is not None:
    worth.append(f'measured {pick.measured_ns / 1000:,.1f} us')
  return [f'{place}  {bounds}', f'     {"; ".join(worth)}',
          f'     {tile.text()}']


def _count(number: int, what: str) -> str:
  return f'{number:,} {what}{"s" * (number != 1)}'


def _sizes(sizes: tuple) -> str:
  return 'x'.join(map(str, sizes)) or '-'
