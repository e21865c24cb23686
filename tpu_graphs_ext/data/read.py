"""Data roots and folders of .npz files as partitions of kernels.

Kernels come sorted by file name; the baseline takes them as the file system
lists them, so that its order differs from machine to machine.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from tpu_graphs_ext.data import partition, schema
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError, shortened

# How many files of each split `toy_data` reads.
TOY_FILES = 100
# A single configuration leaves nothing to rank.
MIN_CONFIGS = 2

Problems = TypeVar('Problems')  # A `Partition`, or `Programs`.
_log = logging.getLogger(__name__)
# (folder, min_configs) of warnings given: one process may read a split often.
_reported = set()


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(Generic[Problems]):
  """The three splits of a data root, features as stored."""
  train: Problems  # With enough configurations to train on.
  every_train: Problems  # The others too.
  valid: Problems  # With two configurations or more.
  test: Problems

  @property
  def num_ops(self) -> int:
    """One more than the largest opcode in any split: rows of an embedding."""
    return 1 + max(split.max_opcode
                   for split in (self.train, self.valid, self.test))


def read_dataset(data_root: str, *, min_train_configs: int = -1,
                 cache_dir: str | None = None,
                 toy_data: bool = False) -> Dataset[Partition]:
  """Reads the splits of a data root; arguments and errors as of `read_split`.

  Args:
    data_root: folder with the folders train, valid and test.
    min_train_configs: `min_configs` of the train split; 2 in the others.
    cache_dir: see `read_split`.
    toy_data: only 100 files of each split.
  """
  limit = TOY_FILES if toy_data else None
  every, chosen = {}, {}
  for split, folder in split_folders(data_root).items():
    every[split] = _read_all(folder, cache_dir, limit)
    chosen[split] = with_enough_configs(
        every[split], folder,
        min_train_configs if split == 'train' else MIN_CONFIGS)
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
    limit: only this many files, before the filter; see `find_npz`.

  Raises:
    UserError: the folder is missing, has no .npz file or none with enough
      configurations, or a file is damaged.
  """
  return with_enough_configs(
      _read_all(folder, cache_dir, limit), folder, min_configs)


def _read_all(folder: str, cache_dir: str | None,
              limit: int | None) -> Partition:
  return partition.open_files(
      find_npz(folder, limit),
      os.path.expanduser(cache_dir) if cache_dir else None)


def split_folders(data_root: str,
                  collection: Sequence[str] = ()) -> dict[str, str]:
  """Split -> its folder in a data root, below the folders of `collection`.

  Raises:
    UserError: a folder is missing.
  """
  root = os.path.expanduser(data_root)
  folders = {split: os.path.join(root, *collection, split)
             for split in schema.SPLITS}
  missing = [split for split, folder in folders.items()
             if not os.path.isdir(folder)]
  if missing:
    task = ' --task layout' if collection else ''
    which = (f'; {", ".join(missing)} not found'
             if len(missing) < len(folders) else '')
    raise UserError(
        f'{data_root}: {_what_is_there(root)}, but a data root has the folders '
        f'{"/".join([*collection, "train"])}, valid and test{which}. Name '
        f'another --data_root'
        f'{", --source or --search" if collection else ""}, or make sample '
        f'data with `tpu-graphs-ext sample-data{task} --out DIR`')
  return folders


def with_enough_configs(every: Problems, where: str, min_configs: int,
                        what: str = 'kernel') -> Problems:
  """The kernels or programs with enough configurations.

  Warns of those left out, once a process: `where` is where they were read.

  Raises:
    UserError: none has enough.
  """
  enough = np.asarray(every.num_configs) >= min_configs
  if enough.all():
    return every
  if not enough.any():
    raise UserError(
        f'{where}: none of {len(every)} {what}s has {min_configs} or more '
        f'configurations (the largest has {max(every.num_configs)}); use '
        + 'a smaller --configs, or ' * (min_configs > 2) + 'other data')
  skipped = every.select(~enough).names
  if (where, min_configs) not in _reported:
    _reported.add((where, min_configs))
    _log.warning(
        '%s: left out %d of %d %ss with fewer than %d configurations: %s',
        where, len(skipped), len(every), what, min_configs, shortened(skipped))
    _log.debug('%s: left out %s', where, ' '.join(skipped))
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
