"""What one tile of a kernel on a TPU does, and what its time is made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from tpu_graphs_ext.analytic import candidates
from tpu_graphs_ext.analytic.geometry import Loops
from tpu_graphs_ext.analytic.machines import TpuConstants

# The terms of a time, in words.
BOUND_BY = {
    'launch': 'launching it', 'steps': 'overhead of steps',
    'traffic': 'moving bytes', 'pieces': 'starting transfers',
    'matrix': 'matrix unit', 'vector': 'vector unit',
    'first_transfer': 'first transfer'}


@dataclasses.dataclass(frozen=True)
class Terms:
  """The parts of an analytic time, in ns; or arrays of them, one for each tile.

      time = launch + steps + max(m, a) + unhidden * min(m, a) + first_transfer
      m = traffic + pieces,  a = matrix + vector
  Traffic takes longer for tiles that are too large to be overlapped.

  The first transfer, of the first blocks in and the last out, hides nothing.
  """
  launch: Any
  steps: Any
  traffic: Any
  pieces: Any
  matrix: Any
  vector: Any
  first_transfer: Any
  unhidden: float

  @property
  def time(self) -> Any:
    """The sum, in ns."""
    memory, arithmetic = self.traffic + self.pieces, self.matrix + self.vector
    return (self.launch + self.steps + self.first_transfer
            + np.maximum(memory, arithmetic)
            + self.unhidden * np.minimum(memory, arithmetic))

  @property
  def bound(self) -> str:
    """The name of a single tile's largest term."""
    # Count only the longer of memory and arithmetic, under its larger term.
    parts = {name: getattr(self, name) for name in BOUND_BY}
    longer = max(('traffic', 'pieces'), ('matrix', 'vector'),
                 key=lambda pair: sum(map(parts.get, pair)))
    parts[max(longer, key=parts.get)] = sum(map(parts.get, longer))
    return max(parts, key=parts.get)


@dataclasses.dataclass(frozen=True)
class Explanation:
  """One tile of a kernel: what it does, and where its analytic time goes.

  Attributes:
    output_bounds: layout tiles of the tiled tensor in a tile, along each
      physical dimension, most major first; the whole dimension where the
      configuration has no bound.
    kernel_bounds: the same of a convolution's filter, or of the windows of a
      reduction; empty without either.
    output_elements: `output_bounds` in elements.
    kernel_elements: `kernel_bounds` in elements.
    output_tiles: tiles that the tiled tensor is cut into.
    kernel_tiles: steps of the contraction in each of them, at least 1.
    streams: number of tensors read or written.
    moved_bytes: between main and on-chip memory, with padding and re-reads.
    least_bytes: the same for a single tile that covers the whole kernel.
    block_bytes: one block of every stream: the first transfer.
    footprint_bytes: on-chip memory, by estimate, see `candidates.memory`.
    padding: elements in whole layout tiles over the tiled tensor's own.
    rounding: layout tiles in whole tiles over the tiled tensor's own.
    terms: parts of the time, ns.
  """
  output_bounds: tuple
  kernel_bounds: tuple
  output_elements: tuple
  kernel_elements: tuple
  output_tiles: int
  kernel_tiles: int
  streams: int
  moved_bytes: int
  least_bytes: int
  block_bytes: int
  footprint_bytes: int
  padding: float
  rounding: float
  terms: Terms

  @property
  def steps(self) -> int:
    """Output tiles x kernel tiles."""
    return self.output_tiles * self.kernel_tiles

  @property
  def time_ns(self) -> float:
    """The analytic time."""
    return float(self.terms.time)

  @property
  def bound_by(self) -> str:
    """The term that takes longest, in words."""
    return BOUND_BY[self.terms.bound]

  def to_json(self) -> dict[str, Any]:
    """All attributes, and `steps`, `time_ns` and `bound_by`."""
    return {**dataclasses.asdict(self), 'steps': self.steps,
            'time_ns': self.time_ns, 'bound_by': self.bound_by}

  def text(self) -> str:
    """One line: steps, bytes, padding, and what bounds the time."""
    again = (f' ({self.moved_bytes / self.least_bytes:.2f} x the least)'
             if self.least_bytes else '')
    waste = self.padding * self.rounding - 1
    return (f'{self.steps:,} step{"" if self.steps == 1 else "s"}, '
            f'{in_bytes(self.moved_bytes)} moved{again}, '
            f'padding {100 * waste:.0f} %, bound by {self.bound_by}')


def in_bytes(count: float) -> str:
  """'3.5 MiB': a number of bytes in a suitable unit."""
  units = ['B', 'KiB', 'MiB', 'GiB']
  power = min(3, int(math.log(max(1, count), 1024)))
  return f'{count / 1024 ** power:.{min(power, 1)}f} {units[power]}'


def terms(loops: Loops, tiles: np.ndarray,
          constants: Optional[TpuConstants] = None) -> Terms:
  """Arrays float64 [configs] for tiles int64 [configs, loops].

  `constants`: None for those of the loops' machine.
  """
  return _terms(loops.counts(tiles), constants or loops.machine.constants)


def explain(loops: Loops, tiles: np.ndarray,
            constants: Optional[TpuConstants] = None) -> list[Explanation]:
  """Explains tiles int64 [configs, loops]; for `constants` see `terms`."""
  constants = constants or loops.machine.constants
  every = np.concatenate([loops.whole[np.newaxis], tiles])
  counted = loops.counts(every)
  held, _ = candidates.memory(loops)
  if held is not loops:
    counted['footprint_bytes'] = held.counts(every)['footprint_bytes']
  sizes = (loops.output_bounds(tiles), loops.kernel_bounds(tiles),
           *loops.elements(tiles))
  explanations = []
  for place, of_tile in enumerate(
      zip(*(table.tolist() for table in sizes)), 1):
    counts = {name: float(values[place]) for name, values in counted.items()}
    explanations.append(Explanation(
        *map(tuple, of_tile), **{name: int(counts[name]) for name in (
            'output_tiles', 'kernel_tiles', 'streams', 'moved_bytes',
            'block_bytes', 'footprint_bytes')},
        least_bytes=int(counted['moved_bytes'][0]),
        padding=round(counts['padding'], 4),
        rounding=round(counts['rounding'], 4),
        terms=Terms(*map(float, dataclasses.astuple(
            _terms(counts, constants))))))
  return explanations


def _terms(counted: Mapping[str, Any], constants: TpuConstants) -> Terms:
  """From counts by name, numbers or arrays."""
  idle, crowd_ns = counted['idle'], np.where(
      counted['is_alone'], constants.lone_ns, constants.crowd_ns)
  return Terms(
      launch=constants.launch_ns + 0 * counted['steps'],
      steps=idle * constants.step_ns * counted['steps'],
      traffic=idle * (
          counted['moved_bytes'] / constants.bytes_per_ns
          + crowd_ns * counted['all_tiles']
          * np.maximum(0.0, counted['crowding'] - 1)),
      pieces=idle * (constants.wait_ns * counted['waits']
                     + constants.piece_ns * counted['pieces']),
      matrix=idle * constants.matrix_row_ns * counted['matrix_rows'],
      vector=idle * (constants.vector_ns * counted['vector_registers']
                     + constants.partial_ns * counted['partials']),
      first_transfer=counted['block_bytes'] / constants.bytes_per_ns,
      unhidden=constants.unhidden)
