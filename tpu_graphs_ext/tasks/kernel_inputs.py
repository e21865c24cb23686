"""The kernels of a folder, an .npz or a .pb file that a user names."""

from __future__ import annotations

import os

from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError


def read_kernels(path: str, *, min_configs: int = read.MIN_CONFIGS,
                 cache_dir: str | None = None) -> Partition:
  """Reads a folder of .npz files, one .npz, or a .pb of tile tuning data.

  Of a folder, kernels with fewer than `min_configs` are left out, and
  `cache_dir` is as in `read.read_split`; `~` is expanded.

  Raises:
    UserError: there is no such path, it is of another kind, or damaged.
  """
  full = os.path.expanduser(path)
  if os.path.isdir(full):
    return read.read_split(full, min_configs=min_configs, cache_dir=cache_dir)
  if not os.path.exists(full):
    raise UserError(f'{path}: no such file or folder')
  if full.endswith('.npz'):
    return Partition.from_kernels([Kernel.load(full)])
  if full.endswith('.pb'):
    # Only here: TensorFlow's protobufs take seconds to import.
    from tpu_graphs_ext.hlo import tuning
    return Partition.from_kernels(tuning.read_tile_kernels(full))
  raise UserError(f'{path}: expected a folder of .npz files, a .npz file or a '
                  '.pb file of tuning data')
