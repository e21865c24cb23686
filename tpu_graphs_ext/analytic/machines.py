"""The TPU generations, as numbers: who ranks blocks or tiles for one needs it.

One core of each, from the public figures of its chip (Google Cloud's pages of
TPU versions; a v7x as two cores of half a chip). `vmem_limit_bytes` is what
libtpu 0.0.50.1 gives a kernel that does not ask for more: it refuses a larger
one of Pallas with this number, and its own take half a MiB less at most.
"""

from __future__ import annotations

import dataclasses

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class TpuConstants:
  """What a tile's work costs; by default near the fit to 15 kernels of a TPU
  v3."""
  launch_ns: float = 220.0  # A kernel that does nothing.
  step_ns: float = 45.0  # Overhead of a step for each stream.
  bytes_per_ns: float = 540.0  # Between main and on-chip memory.
  piece_ns: float = 3.0  # Each contiguous piece of a transfer.
  matrix_row_ns: float = 0.6  # A row through one block of weights.
  vector_ns: float = 0.9  # An instruction on a layout tile of 1024 elements.
  # Share of the shorter of memory and arithmetic time that nothing hides.
  unhidden: float = 0.05


@dataclasses.dataclass(frozen=True)
class Machine:
  """One core of a TPU generation.

  What only legal tiles ask for was inferred from the tiles that the compiler
  weighs (v5e, v5p, v6e, v7x), and from measured ones (v3). `tile_ns` are
  launch, step, piece and vector of `TpuConstants` near the fit to the
  compiler's cycles of five programs; without them they are a v3's.
  """
  bytes_per_ns: float  # Bandwidth of main memory.
  flops_per_ns: float  # bfloat16 operations, two for each multiply-add.
  narrow: str  # The 8-bit type that it multiplies twice as fast, or ''.
  matrix_unit: int  # Its rows and columns; fewer rows of input cost the same.
  vmem_bytes: int  # On-chip memory: the most that `vmem_limit_bytes` may be.
  vmem_limit_bytes: int  # Of a Pallas kernel that does not name a limit.
  accumulates: bool = False  # The matrix unit adds to its last result itself.
  tile_ns: tuple[float, ...] = ()
  block_columns: int = 128  # Of a product: its blocks also come in multiples.
  # Fewer than 128 columns of a result are cut if a layout tile has so many.
  cut_unit: int = 1024
  divides: bool = True  # Tiles of a result's columns must be equally large.
  # A product keeps its operands and sums in float32, a pooling what it reads.
  copies: bool = False
  # Of blocks, in `vmem_limit_bytes`: of products, poolings, other kernels, if
  # it is not known which tensors are held on the chip and need none.
  fills: tuple[float, float, float] = (1.5, 0.95, 1.0)

  @property
  def constants(self) -> TpuConstants:
    """Of the analytic time of tiles."""
    if not self.tile_ns:
      return TpuConstants()
    launch, step, piece, vector = self.tile_ns
    return TpuConstants(
        launch, step, self.bytes_per_ns, piece,
        2 * self.matrix_unit ** 2 / self.flops_per_ns, vector, 0.0)

  def rate(self, narrow: str) -> float:
    """Operations per ns for operands of 8-bit type `narrow`, or '' if wider."""
    return self.flops_per_ns * (2 if narrow and narrow == self.narrow else 1)


_OLD = {'cut_unit': 128, 'divides': False, 'copies': True,
        'fills': (1.04, 1.2, 1.2)}
_V5P_NS = 1550, 68, 0.09, 0.66
MACHINES = {
    'v2': Machine(300, 22.5e3, '', 128, 16 * _MIB, 16 * _MIB, **_OLD),
    'v3': Machine(450, 61.5e3, '', 128, 16 * _MIB, 16 * _MIB, **_OLD),
    'v4': Machine(614, 137.5e3, '', 128, 16 * _MIB, 16 * _MIB, tile_ns=_V5P_NS,
                  cut_unit=2048),
    'v5e': Machine(819, 197e3, 'int8', 128, 128 * _MIB, 16 * _MIB,
                   tile_ns=(2400, 94, 0.37, 2.2), fills=(2.0, 1.1, 1.0)),
    'v5p': Machine(1382, 229.5e3, 'int8', 128, 64 * _MIB, 16 * _MIB,
                   tile_ns=_V5P_NS, cut_unit=2048),
    'v6e': Machine(1640, 918e3, 'int8', 256, 128 * _MIB, 32 * _MIB,
                   tile_ns=(2700, 149, 1.26, 0.56), fills=(2.0, 1.1, 1.0)),
    'v7x': Machine(3690, 1153e3, 'fp8', 256, 64 * _MIB, 32 * _MIB,
                   accumulates=True, tile_ns=(1900, 160, 0.88, 0.105),
                   block_columns=256),
}
# Those whose tiles nobody measured or saw the compiler weigh; their rules for
# legal tiles and their `tile_ns` are another generation's.
UNCHECKED = ('v2', 'v4')
