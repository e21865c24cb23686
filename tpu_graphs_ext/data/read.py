"""Data roots and folders of .npz files as partitions of kernels.

The same kernels as the baseline's reader gives, kernels with too few
configurations left out (and said so). They come sorted by file name; the
baseline takes them as the file system lists them, so that its order differs
from machine to machine.
"""

from __future__ import annotations

import dataclasses
import logging
import os

from tpu_graphs_ext.data import cache
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError, shortened

# How many files of each split `toy_data` reads.
TOY_FILES = 100
# A single configuration leaves nothing to rank.
MIN_CONFIGS = 2

_log = logging.getLogger(__name__)
# (folder, min_configs) of warnings given: one process may read a split often.
_reported = set()


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
  """The three splits of a data root, features as stored.

  Attributes:
    train: kernels with enough configurations to train on.
    every_train: the others too; the arrays are the same.
    valid: kernels with two configurations or more.
    test: the same.
  """
  train: Partition
  every_train: Partition
  valid: Partition
  test: Partition

  @property
  def num_ops(self) -> int:
    """One more than the largest opcode in any split: rows of an embedding."""
    return 1 + max(split.max_opcode
                   for split in (self.train, self.valid, self.test))


def read_dataset(data_root: str, *, min_train_configs: int = -1,
                 cache_dir: str | None = None,
                 toy_data: bool = False) -> Dataset:
  """Reads `<data_root>/{train,valid,test}`.

  Args:
    data_root: folder with the three split folders; `~` is expanded.
    min_train_configs: train kernels with fewer configurations are left out;
      in valid and test, those with fewer than 2 are.
    cache_dir: see `read_split`.
    toy_data: only 100 files of each split, before the filter; which ones,
      see `find_npz`.

  Raises:
    UserError: a folder is missing or empty, or a file is damaged.
  """
  root = os.path.expanduser(data_root)
  limit = TOY_FILES if toy_data else None
  minimum = {'train': min_train_configs, 'valid': MIN_CONFIGS,
             'test': MIN_CONFIGS}
  missing = [split for split in minimum
             if not os.path.isdir(os.path.join(root, split))]
  if missing:
    raise UserError(
        f'{data_root}: {_what_is_there(root)}, but a data root has the '
        f'folders train, valid and test; {", ".join(missing)} not found. '
        'Name another --data_root, or make sample data with `tpu-graphs-ext '
        'sample-data --out DIR`')
  every, chosen = {}, {}
  for split, least in minimum.items():
    folder = os.path.join(root, split)
    every[split] = _read_all(folder, cache_dir, limit)
    chosen[split] = _with_enough(every[split], folder, least)
  return Dataset(every_train=every['train'], **chosen)


def read_split(folder: str, *, min_configs: int = MIN_CONFIGS,
               cache_dir: str | None = None,
               limit: int | None = None) -> Partition:
  """Reads the kernels of one folder, sorted by file name.

  Args:
    folder: folder with .npz files; `~` is expanded.
    min_configs: kernels with fewer configurations are left out, with a
      warning that names them.
    cache_dir: keeps the arrays here for the next run, which maps them into
      memory instead of reading; empty or None keeps nothing.
    limit: only this many files, before the filter; which ones, see
      `find_npz`.

  Raises:
    UserError: the folder is missing, has no .npz file or none with enough
      configurations, or a file is damaged.
  """
  return _with_enough(_read_all(folder, cache_dir, limit), folder, min_configs)


def _read_all(folder: str, cache_dir: str | None,
              limit: int | None) -> Partition:
  return cache.open_files(
      find_npz(folder, limit),
      os.path.expanduser(cache_dir) if cache_dir else None)


def _with_enough(every: Partition, folder: str, min_configs: int) -> Partition:
  """The kernels with enough configurations; says which are left out."""
  enough = every.num_configs >= min_configs
  if enough.all():
    return every
  if not enough.any():
    raise UserError(
        f'{folder}: none of {len(every)} kernels has {min_configs} or more '
        f'configurations (the largest has {every.num_configs.max()}); use a '
        'smaller --configs, or other data')
  skipped = every.select(~enough).tile_ids
  if (folder, min_configs) not in _reported:
    _reported.add((folder, min_configs))
    _log.warning(
        '%s: left out %d of %d kernels with fewer than %d configurations: %s',
        folder, len(skipped), len(every), min_configs, shortened(skipped))
    _log.debug('%s: left out %s', folder, ' '.join(skipped))
  return every.select(enough)


def find_npz(folder: str, limit: int | None = None) -> list[str]:
  """Paths of a folder's .npz files, sorted; at least one.

  Args:
    folder: the folder; `~` is expanded.
    limit: only this many, those that the file system lists first: the same
      ones that the baseline's --toy_data takes of this folder. A copy of the
      folder may list others first.

  Raises:
    UserError: the folder is missing or has none.
  """
  full = os.path.expanduser(folder)
  names = ([name for name in os.listdir(full) if name.endswith('.npz')]
           if os.path.isdir(full) else [])
  if not names:
    raise UserError(f'{folder}: {_what_is_there(full)}; expected .npz files')
  return [os.path.join(full, name) for name in sorted(names[:limit])]


def _what_is_there(folder: str) -> str:
  """Says what a folder holds instead of what was expected."""
  if not os.path.exists(folder):
    return 'does not exist'
  if not os.path.isdir(folder):
    return 'is not a folder'
  names = sorted(os.listdir(folder))
  return f'holds {shortened(names)}' if names else 'is empty'
