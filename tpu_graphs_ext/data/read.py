"""Data roots and folders of .npz files as kernels, sorted by file name."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.data import rules, schema
from tpu_graphs_ext.data.kernel import Kernel, Partition, Problems, open_files
from tpu_graphs_ext.errors import UserError, shortened

# How many files of each split `toy_data` reads.
TOY_FILES = 100
# A single configuration leaves nothing to rank.
MIN_CONFIGS = 2
_ROWS_LOOKED_AT = 8

_log = logging.getLogger(__name__)
_warn_once = functools.cache(_log.warning)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
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
                 cache_dir: str = '', toy_data: bool = False) -> Dataset:
  """Reads the folders train, valid and test of a data root.

  `min_train_configs` is `min_configs` of the train split; it is 2 in the
  others. `toy_data`: only 100 files of each. See `read_kernels`.
  """
  folders = split_folders(data_root)
  every = {split: read_kernels(folder, min_configs=-1, cache_dir=cache_dir,
                               limit=TOY_FILES if toy_data else None)
           for split, folder in folders.items()}
  return Dataset(every_train=every['train'], **{
      split: with_enough_configs(
          kernels, folders[split],
          min_train_configs if split == 'train' else MIN_CONFIGS)
      for split, kernels in every.items()})


def read_kernels(path: str, *, min_configs: int = MIN_CONFIGS,
                 cache_dir: str = '', limit: int | None = None) -> Partition:
  """Reads the kernels of one folder, sorted by file name, or of one file.

  Those of a folder with fewer than `min_configs` configurations are left out.
  `cache_dir` keeps a folder's arrays for the next run, which maps them into
  memory; empty keeps nothing. `limit`: see `find_npz`.

  Raises UserError if there is no .npz file, none has enough configurations, or
  a file is damaged.
  """
  paths = find_npz(path, limit)
  is_file = paths == [os.path.expanduser(path)]
  every = Partition.from_kernels(map(Kernel.load, paths)) if is_file else (
      open_files(paths, os.path.expanduser(cache_dir)))
  warn_of_columns(every, path)
  return every if is_file else with_enough_configs(every, path, min_configs)


def warn_of_columns(problems: Problems, where: str,
                    what: str = 'kernel') -> None:
  """Warns of kernels or programs whose columns contradict each other.

  Once a process. Looks at the first rows of each: what is wrong there, such as
  columns in another order, is wrong in most rows. `check-data` looks at all.
  """
  wrong: set[int] = set()
  for rule in rules.COLUMNS:
    tables = [getattr(problem, *rule.fields, np.zeros((0, 0)))[:_ROWS_LOOKED_AT]
              for problem in problems]
    numbers = np.repeat(np.arange(len(tables)), list(map(len, tables)))
    wrong.update(numbers[rule.broken(np.concatenate(tables))].tolist())
  if wrong:
    names = shortened([problems[number].name for number in sorted(wrong)])
    _warn_once(
        f'{where}: the columns of {len(wrong)} of {len(problems)} {what}s '
        'contradict each other, so their ranking means nothing: '
        f'{names}. Run `tpu-graphs-ext check-data` on the folder')


def split_folders(data_root: str,
                  collection: Sequence[str] = ()) -> dict[str, str]:
  """Split -> its folder in a data root, below the folders of `collection`."""
  root = os.path.join(os.path.expanduser(data_root), *collection)
  folders = {split: os.path.join(root, split) for split in schema.SPLITS}
  missing = [folder for folder in folders.values() if not os.path.isdir(folder)]
  if missing:
    raise UserError(
        f'{missing[0]}: does not exist; a data root has the folders '
        f'{"/".join([*collection, "train"])}, valid and test. Name another '
        f'--data_root{", --source or --search" if collection else ""}, or make '
        'sample data: `tpu-graphs-ext sample-data --help` says how')
  return folders


def with_enough_configs(every: Problems, where: str, min_configs: int,
                        what: str = 'kernel') -> Problems:
  """The kernels or programs with enough configurations, or a UserError.

  Warns of the others, once a process: several models may read the same data.
  """
  enough = every.num_configs >= min_configs
  if enough.all():
    return every
  if not enough.any():
    raise UserError(
        f'{where}: none of {len(every)} {what}s has {min_configs} or more '
        f'configurations (the largest has {max(every.num_configs)}); use '
        + ('a smaller --configs, or ' if min_configs > MIN_CONFIGS else '')
        + 'other data')
  skipped = every.select(~enough).names
  _warn_once(f'{where}: left out {len(skipped)} of {len(every)} {what}s with '
             f'fewer than {min_configs} configurations: {shortened(skipped)}')
  return every.select(enough)


def find_npz(path: str, limit: int | None = None) -> list[str]:
  """Paths of a folder's .npz files, sorted, or of the one that is given.

  `limit`: only this many, those that the file system lists first, which the
  baseline's --toy_data takes. Raises UserError if there is no .npz file.
  """
  full = os.path.expanduser(path)
  if full.endswith('.npz') and os.path.exists(full):
    return [full]
  names = [name for name in (os.listdir(full) if os.path.isdir(full) else [])
           if name.endswith('.npz')]
  if not names:
    fault = 'has no .npz files' if os.path.exists(full) else 'does not exist'
    raise UserError(f'{path}: {fault}; expected a folder of .npz files, or one')
  return [os.path.join(full, name) for name in sorted(names[:limit])]
