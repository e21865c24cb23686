"""The tiles to try for a kernel, as data and as text."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tpu_graphs_ext.analytic import explain
from tpu_graphs_ext.analytic.explain import in_bytes
from tpu_graphs_ext.engine import out_of_range
from tpu_graphs_ext.errors import shortened
from tpu_graphs_ext.hlo import kernel_sources
from tpu_graphs_ext.serving import compiler_report
from tpu_graphs_ext.serving.compiler_report import counted, sizes


@dataclasses.dataclass(frozen=True)
class TileChoice:
  """One tile that the model likes, or the default."""
  place: int  # From 1, among all scored tiles.
  score: float  # The model's; lower is faster, without a unit.
  tile: explain.Explanation  # Its bounds, counts and reasons.
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
    return sizes(self.tile.output_bounds, self.tile.kernel_bounds)


@dataclasses.dataclass(frozen=True)
class KernelRanking:
  """The tiles to try for one kernel."""
  name: str  # XLA's, unique in a program.
  copies: int  # How often it runs, counting all equal kernels of the program.
  op_name: str  # The operation in the user's program; '' if unknown.
  share: Optional[float]  # Of the program's time, by the compiler's cycles.
  cycles: Optional[int]  # Of one run, by the TPU compiler's estimate.
  in_open_loop: bool  # Of unknown trips: counted once, so a larger share.
  nodes: int  # Number of instructions.
  opcodes: list[str]  # What they do, once each; products, reductions first.
  # Rows, columns and summands of a matrix product or convolution (M, N, K).
  product: Optional[tuple[int, int, int]]
  combinations: int  # Tiles by the rules for bounds, whether they fit or not.
  fitting: int  # How many of them fit on-chip memory, of those looked at.
  scored: int  # How many of these the model scored.
  choices: list[TileChoice]  # The best of them; empty if there is no choice.
  default: Optional[TileChoice]  # The tile to beat.
  default_from: str  # As in `kernel_sources`.
  notes: list[str]  # A sentence each.
  unfamiliar: list[out_of_range.OutOfRange]  # Outside the training data.

  def to_json(self) -> dict[str, Any]:
    return {**vars(self), 'default': self.default and self.default.to_json(),
            'choices': [choice.to_json() for choice in self.choices],
            'unfamiliar': list(map(dataclasses.asdict, self.unfamiliar))}


@dataclasses.dataclass(frozen=True)
class SourceRanking:
  """The tiles to try for all kernels of a `kernel_sources.Source`."""
  name: str  # Of the program or file.
  kernels: list[KernelRanking]  # Most estimated time first.
  notes: list[str]  # How they were made and what was left out.
  faults: list[str]  # Why some cannot be ranked.
  report: compiler_report.CompilerReport  # Of programs: all kernels.

  def text(self, verbose: bool = False) -> str:
    """What `tpu-graphs-ext rank` prints; with scores if verbose."""
    lines = [f'{self.name}: {counted(len(self.kernels), "kernel")}',
             *(f'  {note}' for note in self.notes)]
    choosing = [kernel for kernel in self.kernels if kernel.choices]
    if choosing:
      lines.append('  bounds: layout tiles and elements of each physical '
                   'dimension, most major first')
    if fused := [kernel.name for kernel in self.kernels if not kernel.scored]:
      lines.append('  not ranked, because they fuse several products: '
                   + shortened(fused, 8))
    if fixed := [kernel.name for kernel in self.kernels if kernel.scored == 1]:
      lines.append('  nothing to choose, with one legal tile: '
                   + shortened(fixed, 8))
    parts = ['\n'.join(lines)]
    if len(self.kernels) > 1 or (self.kernels and self.kernels[0].share):
      if self.report.kernels:
        parts.append(self.report.table())
      parts.append(_summary(self.kernels))
    parts += [_details(kernel, verbose) for kernel in choosing]
    return '\n\n'.join(parts)

  def to_json(self) -> dict[str, Any]:
    return {'source': self.name, 'notes': self.notes, 'faults': self.faults,
            'kernels': [kernel.to_json() for kernel in self.kernels],
            'report': self.report.to_json()['kernels']}


def _summary(kernels: list[KernelRanking]) -> str:
  """A line for each kernel; columns without any value are left out."""
  rows = [('kernel', 'best tile', 'analytic time', 'default tile',
           'its place'), *map(_summary_row, kernels)]
  text = compiler_report.table(rows)
  if any(row[2] for row in rows[1:]):
    text += ('\nanalytic time: change from the default to the best tile, by '
             'formula; it does not predict the gain, so measure both')
  return text


def _summary_row(kernel: KernelRanking) -> tuple[str, ...]:
  if not kernel.choices:
    return kernel.name, 'no choice', '', '', ''
  best, default = kernel.choices[0], kernel.default
  is_known = kernel.default_from != kernel_sources.FROM_TIME
  return (kernel.name, best.bounds, best.against_default,
          default.bounds if is_known else '',
          f'{default.place:,} of {kernel.scored:,}' if is_known else '')


def _details(ranking: KernelRanking, verbose: bool) -> str:
  """A heading, three lines for each choice, and the default tile."""
  copies = f', {ranking.copies} times' if ranking.copies > 1 else ''
  tiles = f'{ranking.scored:,} tiles'
  if ranking.fitting > ranking.scored:
    tiles += f' of {ranking.fitting:,} that fit'
  lines = [
      f'{ranking.name}{copies}: {counted(ranking.nodes, "node")} '
      f'({shortened(ranking.opcodes, 6)}), {tiles}',
      *([f'  {ranking.op_name}'] if ranking.op_name else []),
      *(['  a product of M = {:,}, N = {:,}, K = {:,}'.format(*ranking.product)]
        if ranking.product else []), *(f'  {note}' for note in ranking.notes)]
  if ranking.unfamiliar:
    lines.append('  its order is less certain, unlike in training: ' +
                 shortened(list(map(_outside, ranking.unfamiliar)), 2))
  for choice in ranking.choices:
    lines += _choice_lines(f'{choice.place:>3}', choice, verbose)
  lines.append(f'  default, {ranking.default_from}; the model puts it at '
               f'place {ranking.default.place:,}')
  if ranking.default.place > len(ranking.choices):
    lines += _choice_lines('  -', ranking.default, verbose)
  return '\n'.join(lines)


def _choice_lines(place: str, choice: TileChoice, verbose: bool) -> list[str]:
  tile = choice.tile
  bounds = (f'output {sizes(tile.output_bounds) or "-"} '
            f'= {sizes(tile.output_elements) or "-"} elements')
  if tile.kernel_bounds:
    bounds += (f', kernel {sizes(tile.kernel_bounds)} '
               f'= {sizes(tile.kernel_elements)}')
  worth = [f'score {choice.score:.4f}'] if verbose else []
  if choice.predicted_ns is not None:
    worth.append(f'analytic time {choice.predicted_ns / 1000:,.1f} us' + (
        f', {choice.against_default} against the default'
        if place.strip() != '-' else ''))
  if choice.measured_ns is not None:
    worth.append(f'measured {choice.measured_ns / 1000:,.1f} us')
  worth.append(f'{in_bytes(tile.footprint_bytes)} on chip')
  return [f'{place}  {bounds}', f'     {"; ".join(worth)}',
          f'     {tile.text()}']


def _outside(feature: out_of_range.OutOfRange) -> str:
  if feature.table == 'node_opcode':
    return f'opcode {feature.column}'
  return (f'{feature.column} {feature.value:,.9g} ({feature.least:,.9g} to '
          f'{feature.largest:,.9g})')
