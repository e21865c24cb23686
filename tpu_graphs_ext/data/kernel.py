"""One kernel of the tile collection: its graph, configurations and runtimes."""

from __future__ import annotations

import dataclasses
import io
import os

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data import rules, schema
from tpu_graphs_ext.data.problem import Problem

# Attribute of `Kernel` -> key in the .npz file. The file's names carry no unit.
STORED_NAMES = {name: field.name for name, field in rules.TILE.arrays.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel(Problem):
  """A kernel and its measured tile-size configurations.

  Attributes:
    tile_id: `<program>_<hash>`, the file name without its ending. Hidden test
      kernels have the hash alone.
    node_feat: float32 [nodes, 140], one row an instruction; columns
      `schema.NODE_FEATURES`.
    node_opcode: uint8 [nodes], numbers of `schema.OPCODES`.
    edge_index: int64 [edges, 2], rows (consumer, producer), counted from 0:
      the first node takes the output of the second.
    config_feat: float32 [configs, 24], one row a tile; columns
      `schema.CONFIG_FEATURES`.
    runtime_ns: int64 [configs], measured; 0 where the label is withheld.
    normalizer_ns: int64 [configs], of the default tile on the machine that
      measured this configuration; 1 where withheld.
  """
  tile_id: str
  node_feat: np.ndarray
  node_opcode: np.ndarray
  edge_index: np.ndarray
  config_feat: np.ndarray
  runtime_ns: np.ndarray
  normalizer_ns: np.ndarray

  @property
  def num_configs(self) -> int:
    return len(self.config_feat)

  @property
  def runtime_rel(self) -> np.ndarray:
    """float64 [configs]: runtime over the default tile's; has no unit."""
    return self.runtime_ns / self.normalizer_ns

  @property
  def is_rankable(self) -> bool:
    """Whether any two configurations differ in their features."""
    return bool((self.config_feat != self.config_feat[:1]).any())

  @property
  def name(self) -> str:
    """`tile_id`; problems of both tasks have a `name`."""
    return self.tile_id

  @property
  def program(self) -> str:
    """The program that the kernel was cut from: `tile_id` without its hash."""
    return self.tile_id.rsplit('_', 1)[0]

  def details(self, config: int) -> dict[str, list[int]]:
    """The tile of a configuration; see `bounds_of`."""
    return {group: bounds_of(self.config_feat[config], group)
            for group in ('output_bounds', 'kernel_bounds')}

  @classmethod
  def load(cls, path: str) -> Kernel:
    """Reads one .npz file; `require_readable` checks what is in it.

    Raises:
      UserError: the file is missing, damaged, pickled or lacks a key.
    """
    stored = rules.TILE.read(path)
    return cls(tile_id=tile_id_of(path), **{
        name: stored[key] for name, key in STORED_NAMES.items()})

  def save(self, folder: str) -> str:
    """Writes `<folder>/<tile_id>.npz` and returns its path.

    The same kernel always gives the same bytes.
    """
    path = os.path.join(folder, self.tile_id + '.npz')
    content = io.BytesIO()
    np.savez_compressed(content, **self.stored())
    files.write_file(path, content.getvalue())
    return path

  def stored(self) -> dict[str, np.ndarray]:
    """The arrays under the names that they have in a file."""
    return {key: getattr(self, name) for name, key in STORED_NAMES.items()}


def bounds_of(row: np.ndarray, group: str) -> list[int]:
  """The bounds of one configuration, without the zeros that fill the row."""
  bounds = row[schema.CONFIG_GROUPS[group]][:schema.MAX_DIMS]
  used = np.flatnonzero(bounds)
  return bounds[:used[-1] + 1].astype(int).tolist() if used.size else []


def require_readable(kernel: Kernel, where: str = '') -> None:
  """Raises UserError if the arrays of a kernel make no sense together.

  Other feature widths than in the real files and narrower integers pass.
  `check-data` applies all rules.
  """
  rules.TILE.require(kernel.stored(), where or kernel.tile_id)


def tile_id_of(path: str) -> str:
  """The tile id that a file name stands for."""
  return os.path.splitext(os.path.basename(path))[0]
