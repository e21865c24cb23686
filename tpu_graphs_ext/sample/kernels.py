"""The compiled kernels that the package brings; `run_scripts/` packs them.

`compiled/<tpu>_<split>_<part>.xz` hold the kernels of a split, each file an
.npz of whole numbers in an order that compresses well:

  about     JSON: format, compiler, tpu, names of the programs
  kernels   [kernels, 7], the columns of `COLUMNS`
  rows      float32 [140, distinct rows], distinct rows of node_feat
  row       [nodes of all kernels], their numbers
  opcode    [nodes], node_opcode
  edges     [2, edges]: consumer, consumer - producer
  bounds    tile bounds, kernel by kernel, [rank, tiles] each
  cycles    uint8 [4, tiles]: the compiler's estimate, lowest byte first
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import io
import json
import lzma
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tpu_graphs_ext.errors import UserError

# v3: Norrie et al., "The Design Process for Google's Training Chips: TPUv2 and
# TPUv3", IEEE Micro 2021. The others: a device's published bfloat16 FLOP/s over
# those of a cycle, 2^17 for v5e, 2^18 for v5p and 2^19 for v6e and v7x, by the
# compiler's cycles for large products.
CLOCK_GHZ = {'v3': 0.94, 'v5e': 1.5, 'v5p': 1.75, 'v6e': 1.75, 'v7x': 2.2}
FOLDER = os.path.join(os.path.dirname(__file__), 'compiled')
FORMAT = 1
COLUMNS = ('program', 'nodes', 'edges', 'output_rank', 'kernel_rank', 'tiles',
            'default')


@dataclasses.dataclass(frozen=True, eq=False)
class WeighedKernel:
  """A kernel as the TPU's compiler made it, with the tiles that it weighed."""
  program: str
  node_feat: np.ndarray  # The graph, as in `Kernel`.
  node_opcode: np.ndarray
  edge_index: np.ndarray
  output_bounds: np.ndarray  # int64 [tiles, dims], layout tiles, major first.
  kernel_bounds: np.ndarray  # int64 [tiles, dims]; no dims without a product.
  cycles: np.ndarray  # int64 [tiles], the compiler's own estimate.
  default: int  # Number of the tile that the compiler took.

  def graph_hash(self) -> str:
    """The graph's; no two kernels have the same."""
    return hashlib.sha256(b''.join(array.tobytes() for array in (
        self.node_feat, self.node_opcode, self.edge_index))).hexdigest()


def split_kernels(tpu: str, split: str) -> list[WeighedKernel]:
  """All kernels of a split that the package brings; see `load`."""
  paths = glob.glob(path_of(tpu, split, '*')) or [path_of(tpu, split, 0)]
  return [kernel for path in sorted(paths) for kernel in load(path)]


def path_of(tpu: str, split: str, part: object) -> str:
  return os.path.join(FOLDER, f'{tpu}_{split}_{part}.xz')


def load(path: str) -> list[WeighedKernel]:
  """The kernels of a file; see `unpacked`."""
  return unpacked(path, FORMAT, _kernels)


def unpacked(path: str, file_format: int,
             read: Callable[[dict[str, np.ndarray], dict], Any]) -> Any:
  """Applies `read` to the arrays of a file and its JSON, `about`.

  Raises UserError if the file is missing, damaged, or of another format.
  """
  try:
    with lzma.open(path) as file, np.load(
        io.BytesIO(file.read()), allow_pickle=False) as stored:
      arrays = dict(stored)
    about = json.loads(arrays['about'].tobytes())
    if about['format'] != file_format:
      raise ValueError(f'format {about["format"]}, not {file_format}')
    return read(arrays, about)
  except (OSError, EOFError, ValueError, LookupError,
          lzma.LZMAError) as error:
    raise UserError(f'{path}: cannot be read ({error}); it is a part of the '
                    'package: install the package again') from error


def _kernels(arrays, about) -> list[WeighedKernel]:
  rows = np.ascontiguousarray(arrays['rows'].T)
  cycles = np.ascontiguousarray(arrays['cycles'].T).view('<u4')[:, 0].astype(
      np.int64)
  consumer, distance = arrays['edges'].astype(np.int64)
  edges = np.stack([consumer, consumer - distance], 1)
  column = dict(zip(COLUMNS, arrays['kernels'].T.astype(np.int64)))
  ranks = column['output_rank'] + column['kernel_rank']
  parts = [np.split(array, np.cumsum(counts)[:-1]) for array, counts in (
      (arrays['row'], column['nodes']), (arrays['opcode'], column['nodes']),
      (edges, column['edges']), (cycles, column['tiles']),
      (arrays['bounds'], ranks * column['tiles']))]
  kernels = []
  for number, (row, opcode, edge, cycle, bound) in enumerate(zip(*parts)):
    bound = bound.reshape(ranks[number], -1).T.astype(np.int64)
    output_rank = column['output_rank'][number]
    kernels.append(WeighedKernel(
        program=about['programs'][column['program'][number]],
        node_feat=rows[row], node_opcode=opcode, edge_index=edge,
        output_bounds=bound[:, :output_rank],
        kernel_bounds=bound[:, output_rank:], cycles=cycle,
        default=int(column['default'][number])))
  return kernels
