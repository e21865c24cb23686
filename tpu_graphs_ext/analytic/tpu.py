"""A TPU-like machine: what its work costs.

The constants are round numbers near what fits measurements of 15 kernels of
one program; another machine is another set. `explain.Terms` has the formula.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class TpuConstants:
  """A machine. The defaults are close to one core of a TPU v3.

  Attributes:
    launch_ns: time of a kernel that does nothing.
    step_ns: overhead of one step of the loops for each stream.
    bytes_per_ns: bandwidth between main and on-chip memory.
    piece_ns: for each contiguous piece of a transfer.
    matrix_row_ns: one row through one 128 x 128 block of weights.
    matrix_min_rows: rows that a block of weights costs at least.
    vector_ns: one vector instruction, on one layout tile of 1024 elements.
    unhidden: share, from 0 to 1, of the shorter of memory and arithmetic time
      that does not overlap with the longer.
    memory_bytes: on-chip memory that tiles may occupy.
  """
  launch_ns: float = 220.0
  step_ns: float = 45.0
  bytes_per_ns: float = 540.0
  piece_ns: float = 3.0
  matrix_row_ns: float = 0.6
  matrix_min_rows: int = 128
  vector_ns: float = 0.9
  unhidden: float = 0.05
  memory_bytes: float = 16 * 2**20


TPU_V3_LIKE = TpuConstants()
