"""The TPU generations, as numbers: who ranks blocks or tiles for one needs it.

One core of each, from the public figures of its chip (Google Cloud's pages of
TPU versions; a v7x as two cores of half a chip). `vmem_limit_bytes` is what
libtpu 0.0.50.1 gives a Pallas kernel that does not ask for more: it refuses a
larger one with this number.
"""

from __future__ import annotations

import dataclasses

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
  """One core of a TPU generation."""
  bytes_per_ns: float  # Bandwidth of main memory.
  flops_per_ns: float  # bfloat16 operations, two for each multiply-add.
  narrow: str  # The 8-bit type that it multiplies twice as fast, or ''.
  matrix_unit: int  # Its rows and columns; fewer rows of input cost the same.
  vmem_bytes: int  # On-chip memory: the most that `vmem_limit_bytes` may be.
  vmem_limit_bytes: int  # Of a Pallas kernel that does not name a limit.
  accumulates: bool = False  # The matrix unit adds to its last result itself.

  def rate(self, narrow: str) -> float:
    """Operations per ns for operands of 8-bit type `narrow`, or '' if wider."""
    return self.flops_per_ns * (2 if narrow and narrow == self.narrow else 1)


MACHINES = {
    'v2': Machine(300, 22.5e3, '', 128, 16 * _MIB, 16 * _MIB),
    'v3': Machine(450, 61.5e3, '', 128, 16 * _MIB, 16 * _MIB),
    'v4': Machine(614, 137.5e3, '', 128, 16 * _MIB, 16 * _MIB),
    'v5e': Machine(819, 197e3, 'int8', 128, 128 * _MIB, 16 * _MIB),
    'v5p': Machine(1382, 229.5e3, 'int8', 128, 64 * _MIB, 16 * _MIB),
    'v6e': Machine(1640, 918e3, 'int8', 256, 128 * _MIB, 32 * _MIB),
    'v7x': Machine(3690, 1153e3, 'fp8', 256, 64 * _MIB, 32 * _MIB,
                   accumulates=True),
}
