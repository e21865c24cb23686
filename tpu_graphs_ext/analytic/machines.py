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
  wait_ns: float = 260.0  # Until a transfer starts.
  step_ns: float = 10.0  # Overhead of a step.
  bytes_per_ns: float = 540.0  # Between main and on-chip memory.
  piece_ns: float = 3.0  # Each contiguous piece of a transfer.
  matrix_row_ns: float = 0.6  # A row through one block of weights.
  vector_ns: float = 0.9  # An instruction on a layout tile of 1024 elements.
  # Share of the shorter of memory and arithmetic time that nothing hides.
  unhidden: float = 0.05
  # A layout tile of tiles twice as large as can move at full speed.
  crowd_ns: float = 12.0
  lone_ns: float = 12.0  # The same, of an operation outside a fusion.
  partial_ns: float = 21.0  # A layout tile of partial results of an argmax.


@dataclasses.dataclass(frozen=True)
class Machine:
  """One core of a TPU generation.

  What only legal tiles ask for was inferred from the tiles that the compiler
  weighs (v5e, v5p, v6e, v7x), and from measured ones (v3). `tile_ns` are
  launch, wait, step, piece, vector, crowd, lone, partial of `TpuConstants`,
  near the fit to the compiler's cycles of the sample data's train programs;
  without them they are a v3's.
  """
  bytes_per_ns: float  # Bandwidth of main memory.
  flops_per_ns: float  # bfloat16 operations, two for each multiply-add.
  narrow: str  # The 8-bit type that it multiplies twice as fast, or ''.
  matrix_unit: int  # Its rows and columns; fewer rows of input cost the same.
  vmem_bytes: int  # On-chip memory: the most that `vmem_limit_bytes` may be.
  vmem_limit_bytes: int  # Of a Pallas kernel that does not name a limit.
  cores: int = 1  # That share the tiles of a kernel.
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
    launch, wait, step, piece, vector, *others = self.tile_ns
    return TpuConstants(
        launch, wait, step, self.bytes_per_ns, piece,
        2 * self.matrix_unit ** 2 / self.flops_per_ns, vector, 0.0, *others)

  def rate(self, narrow: str) -> float:
    """Operations per ns for operands of 8-bit type `narrow`, or '' if wider."""
    return self.flops_per_ns * (2 if narrow and narrow == self.narrow else 1)


_OLD = {'cut_unit': 128, 'divides': False, 'copies': True,
        'fills': (1.04, 1.2, 1.2)}
_V5P_NS = 320, 565, 67, 0.13, 0.5, 3.9, 3.7, 73.0
MACHINES = {
    'v2': Machine(300, 22.5e3, '', 128, 16 * _MIB, 16 * _MIB, **_OLD),
    'v3': Machine(450, 61.5e3, '', 128, 16 * _MIB, 16 * _MIB, **_OLD),
    'v4': Machine(614, 137.5e3, '', 128, 16 * _MIB, 16 * _MIB, cores=2,
                  tile_ns=_V5P_NS, cut_unit=2048),
    'v5e': Machine(819, 197e3, 'int8', 128, 128 * _MIB, 16 * _MIB,
                   tile_ns=(540, 975, 220, 0.08, 1.65, 9.1, 8.9, 10.8),
                   fills=(2.0, 1.1, 1.0)),
    'v5p': Machine(1382, 229.5e3, 'int8', 128, 64 * _MIB, 16 * _MIB,
                   cores=2, tile_ns=_V5P_NS, cut_unit=2048),
    'v6e': Machine(1640, 918e3, 'int8', 256, 128 * _MIB, 32 * _MIB,
                   tile_ns=(210, 800, 480, 0.08, 0.66, 3.6, 4.4, 73.0),
                   fills=(2.0, 1.1, 1.0)),
    'v7x': Machine(3690, 1153e3, 'fp8', 256, 64 * _MIB, 32 * _MIB,
                   accumulates=True, block_columns=256,
                   tile_ns=(375, 715, 360, 0.09, 0.5, 1.7, 0.2, 58.0)),
}
# Those whose tiles nobody measured or saw the compiler weigh; their rules for
# legal tiles and their `tile_ns` are another generation's.
UNCHECKED = ('v2', 'v4')
