"""Base classes of kernels and programs, and of sequences of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np


class Problem:
  """A graph whose configurations are ranked: a `Kernel` or a `Program`.

  Both also have a `name`, `num_configs`, `node_feat`, `node_opcode`,
  `runtime_ns`, `runtime_rel`, `is_rankable`, and `details` of a configuration,
  further fields of its `Choice`.
  """

  @property
  def num_nodes(self) -> int:
    return len(self.node_feat)

  @property
  def num_edges(self) -> int:
    return len(self.edge_index)

  @property
  def is_labelled(self) -> bool:
    """Whether there are runtimes; public test splits have none."""
    return bool(self.runtime_ns.any())


class Problems:
  """Problems in order: a `Partition` or `Programs`, with their `names`.

  `select` takes those where a mask is true, `with_opcodes_below` sets others
  to 0.
  """

  def blocks(self, name: str) -> Iterator[np.ndarray]:
    """Array `name` of each problem."""
    return (getattr(problem, name) for problem in self)

  @functools.cached_property
  def opcodes(self) -> list[int]:
    """The opcodes of all nodes, each once, ascending."""
    return np.unique(np.concatenate(
        [np.zeros(0, np.uint8), *self.blocks('node_opcode')])).tolist()

  @property
  def max_opcode(self) -> int:
    """The largest opcode of any node; -1 without nodes."""
    return max(self.opcodes, default=-1)


def opcodes_below(number: int, node_opcode: np.ndarray) -> np.ndarray:
  """The opcodes, with 0, the unknown one, in the place of others."""
  return np.where(node_opcode < number, node_opcode, 0).astype(
      node_opcode.dtype)
