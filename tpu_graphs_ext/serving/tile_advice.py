"""What is told of a kernel: the tiles to try, and how that reads."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tpu_graphs_ext.analytic import explain
from tpu_graphs_ext.analytic.explain import in_bytes
from tpu_graphs_ext.engine import out_of_range
from tpu_graphs_ext.errors import shortened

# Where the default tile of a kernel is from, if not from its source.
FROM_TIME = 'fastest by the TPU v3 formula, as no default is known'


@dataclasses.dataclass(frozen=True)
class Pick:
  """One tile that the model likes, or the default.

  Attributes:
    place: from 1, among all tiles that were scored.
    score: of the model; lower is faster, without a unit.
    tile: what it does, with bounds in layout tiles and in elements.
    predicted_ns: the model's analytic time; None where it has none.
    over_default: that over the default's; None where there is none.
    measured_ns: the fastest run of this tile in the file; None without one.
  """
  place: int
  score: float
  tile: explain.Explanation
  predicted_ns: Optional[float]
  over_default: Optional[float]
  measured_ns: Optional[int]

  def to_json(self) -> dict[str, Any]:
    return {**dataclasses.asdict(self), 'tile': self.tile.to_json()}


@dataclasses.dataclass(frozen=True)
class Advice:
  """The tiles to try for one kernel, best first.

  Attributes:
    name: of the kernel.
    copies: how often it runs, with all equal kernels of the program.
    op_name: of the operation in the user's program; '' if not known.
    share: of the program's time, by the TPU compiler's estimate; 0 to 1.
    cycles: of one run, by the same estimate.
    nodes: instructions.
    opcodes: what they do, each once; products and reductions first.
    product: (M, N, K) of a matrix product or convolution: rows, columns and
      summands of each element, batches left out; else None.
    combinations: tiles by the rules for bounds, whether they fit or not.
    fitting: how many of them fit on-chip memory, of those looked at.
    scored: how many of these the model saw.
    picks: the best of them; none where there is only one.
    default: the tile to beat.
    default_from: `FROM_TIME`, or as `sources.Found` has it.
    notes: what to know of it, a sentence each.
    unfamiliar: in what its nodes and tiles are unlike those of the training
      data.
  """
  name: str
  copies: int
  op_name: str
  share: Optional[float]
  cycles: Optional[int]
  nodes: int
  opcodes: list[str]
  product: Optional[tuple[int, int, int]]
  combinations: int
  fitting: int
  scored: int
  picks: list[Pick]
  default: Optional[Pick]
  default_from: str
  notes: list[str]
  unfamiliar: list[out_of_range.Unfamiliar]

  def to_json(self) -> dict[str, Any]:
    own = {field.name: getattr(self, field.name)
           for field in dataclasses.fields(self)}
    return {**own, 'default': self.default and self.default.to_json(),
            'picks': [pick.to_json() for pick in self.picks],
            'unfamiliar': [dataclasses.asdict(each)
                           for each in self.unfamiliar]}


@dataclasses.dataclass(frozen=True)
class SourceAdvice:
  """Advice on all kernels of a file or function; see `sources.Source`."""
  name: str
  kernels: list[Advice]
  notes: list[str]
  faults: list[str]

  def text(self, verbose: bool = False) -> str:
    """What `tpu-graphs-ext rank` prints; with scores where it is verbose."""
    return source_text(self, verbose)

  def to_json(self) -> dict[str, Any]:
    return {'source': self.name, 'notes': self.notes, 'faults': self.faults,
            'kernels': [kernel.to_json() for kernel in self.kernels]}


def source_text(advice: SourceAdvice, verbose: bool = False) -> str:
  """Notes and a summary, then every kernel with tiles to choose from.

  Args:
    advice: of a file or function.
    verbose: whether to name the model's scores.
  """
  lines = [f'{advice.name}: {_count(len(advice.kernels), "kernel")}',
           *(f'  {note}' for note in advice.notes)]
  if any(kernel.picks for kernel in advice.kernels):
    lines.append('  bounds: layout tiles and elements of each physical '
                 'dimension, most major first')
  alone = [kernel.name for kernel in advice.kernels if not kernel.picks]
  if alone:
    lines.append(f'  nothing to choose, with one legal tile: '
                 f'{shortened(alone, 8)}')
  parts = ['\n'.join(lines)]
  if len(advice.kernels) > 1 or any(
      kernel.share is not None for kernel in advice.kernels):
    parts.append(summary_text(advice.kernels))
  return '\n\n'.join([*parts, *(
      advice_text(kernel, verbose) for kernel in advice.kernels
      if kernel.picks)])


def summary_text(kernels: list[Advice]) -> str:
  """A table of a program's kernels, in the order given.

  Share and compiler's tile are the TPU compiler's, place and first choice the
  model's. Columns of which nothing is known are left out.
  """
  rows = [('kernel', 'share of time', 'first choice', 'analytic time',
           'default tile', 'its place', 'operation')]
  rows += [_summary_row(kernel) for kernel in kernels]
  columns = [column for column in zip(*rows) if any(column[1:])]
  widths = [max(map(len, column)) for column in columns][:-1]
  return '\n'.join('  '.join([
      *(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]
                              ).rstrip() for row in zip(*columns))


def _summary_row(kernel: Advice) -> tuple[str, ...]:
  name = kernel.name + (f' x{kernel.copies}' if kernel.copies > 1 else '')
  share = '' if kernel.share is None else f'{kernel.share:.1%}'
  if not kernel.picks:
    return name, share, 'no choice', '', '', '', kernel.op_name
  best, default = kernel.picks[0], kernel.default
  known = place = ''
  if kernel.default_from != FROM_TIME:
    known, place = _bounds(default), f'{default.place:,} of {kernel.scored:,}'
  return (name, share, _bounds(best), _change(best), known, place,
          kernel.op_name)


def _change(pick: Pick) -> str:
  """The analytic time over the default's, as in '-11.1 %'."""
  if pick.over_default is None:
    return ''
  percent = round(100 * (pick.over_default - 1), 1)
  return f'{percent:+,.1f} %' if percent else '0.0 %'


def _bounds(pick: Pick) -> str:
  filters = pick.tile.kernel_bounds
  return _sizes(pick.tile.output_bounds) + (
      f' | {_sizes(filters)}' if filters else '')


def advice_text(advice: Advice, verbose: bool = False) -> str:
  """A heading, the default tile, and three lines a pick."""
  copies = f', {advice.copies} times' if advice.copies > 1 else ''
  tiles = f'{advice.scored:,} tiles'
  if advice.fitting > advice.scored:
    tiles += f' of {advice.fitting:,} that fit'
  lines = [
      f'{advice.name}{copies}: {_count(advice.nodes, "node")} '
      f'({shortened(advice.opcodes, 6)}), {tiles}',
      *([f'  {advice.op_name}'] if advice.op_name else []),
      *([_product_text(advice.product)] if advice.product else []),
      *(f'  {note}' for note in advice.notes)]
  for pick in advice.picks:
    lines += _pick_lines(f'{pick.place:>3}', pick, verbose)
  if advice.default:
    lines.append(f'  default, {advice.default_from}; the model puts it at '
                 f'place {advice.default.place:,}')
    lines += _pick_lines('  -', advice.default, verbose)
  return '\n'.join(lines)


def _product_text(product: tuple[int, int, int]) -> str:
  return '  a product of M = {:,}, N = {:,}, K = {:,}'.format(*product)


def _pick_lines(place: str, pick: Pick, verbose: bool) -> list[str]:
  tile = pick.tile
  bounds = (f'output {_sizes(tile.output_bounds)} '
            f'= {_sizes(tile.output_elements)} elements')
  if tile.kernel_bounds:
    bounds += (f', kernel {_sizes(tile.kernel_bounds)} '
               f'= {_sizes(tile.kernel_elements)}')
  worth = [f'score {pick.score:.4f}'] if verbose else []
  if pick.predicted_ns is not None:
    against = _change(pick)
    worth.append(f'analytic time {pick.predicted_ns / 1000:,.1f} us' + (
        f', {against} to the default' if place.strip() != '-' else ''))
  if pick.measured_ns is not None:
    worth.append(f'measured {pick.measured_ns / 1000:,.1f} us')
  worth.append(f'{in_bytes(tile.footprint_bytes)} on chip')
  return [f'{place}  {bounds}', f'     {"; ".join(worth)}',
          f'     {tile.text()}']


def _count(number: int, what: str) -> str:
  return f'{number:,} {what}{"s" * (number != 1)}'


def _sizes(sizes: tuple) -> str:
  return 'x'.join(map(str, sizes)) or '-'
