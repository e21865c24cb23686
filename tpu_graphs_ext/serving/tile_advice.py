"""The tiles to try for a kernel, as data and as text."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tpu_graphs_ext.analytic import explain
from tpu_graphs_ext.analytic.explain import in_bytes
from tpu_graphs_ext.engine import out_of_range
from tpu_graphs_ext.errors import shortened
from tpu_graphs_ext.serving import kernel_sources


@dataclasses.dataclass(frozen=True)
class Pick:
  """One tile that the model likes, or the default."""
  place: int  # From 1, among all scored tiles.
  score: float  # The model's; lower is faster, without a unit.
  tile: explain.Explanation
  predicted_ns: Optional[float]  # The model's analytic time, if it has one.
  over_default: Optional[float]  # That time over the default's.
  measured_ns: Optional[int]  # The fastest run of this tile in the file.

  def to_json(self) -> dict[str, Any]:
    return {**dataclasses.asdict(self), 'tile': self.tile.to_json()}

  @property
  def against_default(self) -> str:
    """The analytic time against the default's, as in '-11.1 %'."""
    if self.over_default is None:
      return ''
    percent = round(100 * (self.over_default - 1), 1)
    return f'{percent:+,.1f} %' if percent else '0.0 %'

  @property
  def bounds(self) -> str:
    """'16x32', or '16x32 | 4x8' with a filter's."""
    filters = self.tile.kernel_bounds
    return _sizes(self.tile.output_bounds) + (
        f' | {_sizes(filters)}' if filters else '')


@dataclasses.dataclass(frozen=True)
class Advice:
  """The tiles to try for one kernel."""
  name: str
  copies: int  # How often it runs, counting all equal kernels of the program.
  op_name: str  # The operation in the user's program; '' if unknown.
  share: Optional[float]  # Of the program's time, by the compiler's cycles.
  cycles: Optional[int]  # Of one run, by the TPU compiler's estimate.
  nodes: int  # Number of instructions.
  opcodes: list[str]  # What they do, once each; products, reductions first.
  # Rows, columns and summands of a matrix product or convolution (M, N, K).
  product: Optional[tuple[int, int, int]]
  combinations: int  # Tiles by the rules for bounds, whether they fit or not.
  fitting: int  # How many of them fit on-chip memory, of those looked at.
  scored: int  # How many of these the model scored.
  picks: list[Pick]  # The best of them; empty if there is only one.
  default: Optional[Pick]  # The tile to beat.
  default_from: str  # As in `kernel_sources`.
  notes: list[str]  # A sentence each.
  unfamiliar: list[out_of_range.OutOfRange]

  def to_json(self) -> dict[str, Any]:
    return {**vars(self), 'default': self.default and self.default.to_json(),
            'picks': [pick.to_json() for pick in self.picks],
            'unfamiliar': list(map(dataclasses.asdict, self.unfamiliar))}


@dataclasses.dataclass(frozen=True)
class SourceAdvice:
  """Advice on all kernels of a `kernel_sources.Source`."""
  name: str
  kernels: list[Advice]
  notes: list[str]
  faults: list[str]

  def text(self, verbose: bool = False) -> str:
    """What `tpu-graphs-ext rank` prints; with scores if verbose."""
    lines = [f'{self.name}: {_count(len(self.kernels), "kernel")}',
             *(f'  {note}' for note in self.notes)]
    choosing = [kernel for kernel in self.kernels if kernel.picks]
    if choosing:
      lines.append('  bounds: layout tiles and elements of each physical '
                   'dimension, most major first')
    if fixed := [kernel.name for kernel in self.kernels if not kernel.picks]:
      lines.append('  nothing to choose, with one legal tile: '
                   + shortened(fixed, 8))
    parts = ['\n'.join(lines)]
    if len(self.kernels) > 1 or (self.kernels and self.kernels[0].share):
      parts.append(_summary(self.kernels))
    parts += [_details(kernel, verbose) for kernel in choosing]
    return '\n\n'.join(parts)

  def to_json(self) -> dict[str, Any]:
    return {'source': self.name, 'notes': self.notes, 'faults': self.faults,
            'kernels': [kernel.to_json() for kernel in self.kernels]}


def _summary(kernels: list[Advice]) -> str:
  """A line for each kernel; columns without any value are left out."""
  rows = [('kernel', 'share of time', 'best tile', 'analytic time',
           'default tile', 'its place', 'operation'),
          *map(_summary_row, kernels)]
  columns = [column for column in zip(*rows) if any(column[1:])]
  widths = [max(map(len, column)) for column in columns]
  lines = ['  '.join(map(str.ljust, row, widths)).rstrip()
           for row in zip(*columns)]
  if any(kernel.picks and kernel.picks[0].over_default for kernel in kernels):
    lines.append("analytic time: the best tile's against the default's, by "
                 'formula; it does not predict the gain, so measure both')
  return '\n'.join(lines)


def _summary_row(kernel: Advice) -> tuple[str, ...]:
  name = kernel.name + (f' x{kernel.copies}' if kernel.copies > 1 else '')
  share = '' if kernel.share is None else f'{100 * kernel.share:.1f} %'
  if not kernel.picks:
    return name, share, 'no choice', '', '', '', kernel.op_name
  best, default = kernel.picks[0], kernel.default
  is_known = kernel.default_from != kernel_sources.FROM_TIME
  return (name, share, best.bounds, best.against_default,
          default.bounds if is_known else '',
          f'{default.place:,} of {kernel.scored:,}' if is_known else '',
          kernel.op_name)


def _details(advice: Advice, verbose: bool) -> str:
  """A heading, three lines for each pick, and the default tile."""
  copies = f', {advice.copies} times' if advice.copies > 1 else ''
  tiles = f'{advice.scored:,} tiles'
  if advice.fitting > advice.scored:
    tiles += f' of {advice.fitting:,} that fit'
  lines = [
      f'{advice.name}{copies}: {_count(advice.nodes, "node")} '
      f'({shortened(advice.opcodes, 6)}), {tiles}',
      *([f'  {advice.op_name}'] if advice.op_name else []),
      *(['  a product of M = {:,}, N = {:,}, K = {:,}'.format(*advice.product)]
        if advice.product else []),
      *(f'  {note}' for note in advice.notes)]
  for pick in advice.picks:
    lines += _pick_lines(f'{pick.place:>3}', pick, verbose)
  lines.append(f'  default, {advice.default_from}; the model puts it at '
               f'place {advice.default.place:,}')
  if advice.default.place > len(advice.picks):
    lines += _pick_lines('  -', advice.default, verbose)
  return '\n'.join(lines)


def _pick_lines(place: str, pick: Pick, verbose: bool) -> list[str]:
  tile = pick.tile
  bounds = (f'output {_sizes(tile.output_bounds)} '
            f'= {_sizes(tile.output_elements)} elements')
  if tile.kernel_bounds:
    bounds += (f', kernel {_sizes(tile.kernel_bounds)} '
               f'= {_sizes(tile.kernel_elements)}')
  worth = [f'score {pick.score:.4f}'] if verbose else []
  if pick.predicted_ns is not None:
    worth.append(f'analytic time {pick.predicted_ns / 1000:,.1f} us' + (
        f', {pick.against_default} against the default'
        if place.strip() != '-' else ''))
  if pick.measured_ns is not None:
    worth.append(f'measured {pick.measured_ns / 1000:,.1f} us')
  worth.append(f'{in_bytes(tile.footprint_bytes)} on chip')
  return [f'{place}  {bounds}', f'     {"; ".join(worth)}',
          f'     {tile.text()}']


def _count(number: int, what: str) -> str:
  return f'{number:,} {what}{"s" * (number != 1)}'


def _sizes(sizes: tuple) -> str:
  return 'x'.join(map(str, sizes)) or '-'
