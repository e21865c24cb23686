"""Folders of the layout collections as programs, mostly on disk."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tqdm

from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.data.program import Program, open_program
from tpu_graphs_ext.errors import UserError

# How many files of each split `toy_data` reads, as in the baseline.
TOY_FILES = 5


class Programs(Sequence):
  """Programs in order; `where` they were read from, for messages."""

  def __init__(self, members: Sequence[Program], where: str):
    self._members, self.where = list(members), where

  def __len__(self) -> int:
    return len(self._members)

  def __getitem__(self, index: int) -> Program:
    return self._members[index]

  @property
  def names(self) -> list[str]:
    return [program.name for program in self]

  @property
  def num_configs(self) -> list[int]:
    return [program.num_configs for program in self]

  @property
  def max_opcode(self) -> int:
    return max(int(program.node_opcode.max()) for program in self)

  @property
  def opcodes(self) -> list[int]:
    """The opcodes of all nodes, each once, ascending."""
    return sorted({int(opcode) for program in self
                   for opcode in np.unique(program.node_opcode)})

  @property
  def stats(self) -> FeatureStats:
    """Least and largest value of each column over all of them.

    Raises:
      UserError: no column varies, so a model would see nothing.
    """
    node, config = (
        ColumnStats(np.min([one.minimum for one in columns], axis=0),
                    np.max([one.maximum for one in columns], axis=0))
        for columns in zip(*((program.bounds.node, program.bounds.config)
                             for program in self)))
    for field, columns in (('node_feat', node), ('node_config_feat', config)):
      if not columns.num_used:
        raise UserError(
            f'{self.where}: {field} is the same in all rows of all '
            f'{len(self)} programs; train on data in which it varies')
    return FeatureStats(node, config)

  def select(self, mask: Sequence[bool]) -> Programs:
    """Those for which `mask` is true."""
    return Programs([program for program, kept in zip(self, mask) if kept],
                    self.where)

  def with_opcodes_below(self, number: int) -> Programs:
    """The same programs, in which other opcodes are 0."""
    return Programs([dataclasses.replace(program, node_opcode=np.where(
        program.node_opcode < number, program.node_opcode, 0))
                     for program in self], self.where)

  def to_train_on(self, min_configs: int, max_configs: int,
                  seed: Sequence[int]) -> Programs:
    """Those with enough configurations, `Program.at_most` max_configs each."""
    rng = np.random.default_rng(seed)
    chosen = read.with_enough_configs(self, self.where, min_configs, 'program')
    return Programs([program.at_most(max_configs, rng) for program in chosen],
                    self.where)


def read_collection(data_root: str, source: str, search: str, *,
                    min_configs: int, max_configs: int = -1,
                    cache_dir: str = '', toy_data: bool = False,
                    seed: int = 0) -> read.Dataset[Programs]:
  """Reads `<data_root>/<source>/<search>/{train,valid,test}`.

  Args:
    data_root: folder of the layout collections; `~` is expanded.
    source, search: 'xla' or 'nlp'; 'random' or 'default'.
    min_configs, max_configs: see `Programs.to_train_on`.
    cache_dir: see `read_folder`.
    toy_data: only 5 files of each split.
    seed: fixes what `max_configs` draws.

  Raises:
    UserError: a folder is missing or empty, or a file is damaged or of the
      other task.
  """
  every = {
      split: read_folder(folder, cache_dir=cache_dir,
                         limit=TOY_FILES if toy_data else None)
      for split, folder in read.split_folders(
          data_root, (source, search)).items()}
  return read.Dataset(
      every['train'].to_train_on(
          min_configs, max_configs, [seed, schema.SPLITS.index('train')]),
      every['train'], every['valid'], every['test'])


def read_folder(folder: str, *, cache_dir: str = '',
                limit: int | None = None) -> Programs:
  """Reads the programs of one folder, sorted by file name.

  Args:
    folder: folder with .npz files; `~` is expanded.
    cache_dir: keeps what is read for the next run; empty: a temporary folder
      does, until the process ends.
    limit: only this many files; which ones, see `data.read.find_npz`.

  Raises:
    UserError: the folder is missing or empty, or a file is damaged, of the
      tile task, or breaks a rule of its fields.
  """
  paths = read.find_npz(folder, limit)
  name = os.path.basename(os.path.normpath(folder))
  return Programs([
      open_program(path, cache_dir)
      for path in tqdm.tqdm(paths, desc=name, unit='program', disable=None,
                            leave=False)], folder)


def read_programs(path: str, *, cache_dir: str = '') -> Programs:
  """Reads a folder of .npz files or a single one; else as `read_folder`."""
  full = os.path.expanduser(path)
  if os.path.isdir(full):
    return read_folder(path, cache_dir=cache_dir)
  if not (full.endswith('.npz') and os.path.exists(full)):
    raise UserError(f'{path}: no such folder of .npz files, nor .npz file')
  return Programs([open_program(full, cache_dir)], path)


def blocks_of(number: int, at_once: int) -> Iterator[np.ndarray]:
  """int64 [at most at_once], numbers below `number` in order."""
  for start in range(0, number, at_once):
    yield np.arange(start, min(start + at_once, number))
