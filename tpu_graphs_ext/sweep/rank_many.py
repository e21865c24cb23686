"""Ranks the kernels of very many files with many workers, into one file.

Files are cut into shards, and each shard's rows are written into a part beside
the output, so an interrupted run continues with the missing shards. At the end
the parts become the output, in the order of the files.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from tqdm import tqdm

import tpu_graphs_ext
from tpu_graphs_ext import file_ownership, files, load_models
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.engine.settings import TOP_CONFIGS, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import libtpu
from tpu_graphs_ext.serving import kernel_sources
from tpu_graphs_ext.sweep import SHARD_FILES, pool, rank_shard, rows, storage
from tpu_graphs_ext.sweep.rank_shard import Settings, Shard, hash_of

_log = logging.getLogger(__name__)

MOST_TILES = 100_000
PARTS = '.parts'  # What follows the output's name.

# Files of a folder that are ranked.
_LISTED_ENDINGS = ('.npz',)
_LEGAL_ENDINGS = ('.npz', '.pb', '.hlo')
_FORMAT = 2  # Changes when the same files give other rows.
_SHOWN = 10  # Features in `Summary.text`.
_MOST_MESSAGES = 20


@dataclasses.dataclass
class Summary:
  """What was ranked.

  Attributes:
    out: the file with the rows.
    files, kernels, configs: numbers of what was ranked.
    kept: files that an earlier run had ranked.
    seconds: of this run.
    worked: processor seconds of all runs, without loading the model.
    strange: kernels with features outside the training data.
    columns: such a feature -> kernels that have it.
    errors, messages: number of rows with an error; the first errors.
  """
  out: str
  files: int = 0
  kept: int = 0
  seconds: float = 0.0
  worked: float = 0.0
  kernels: int = 0
  configs: int = 0
  columns: collections.Counter = dataclasses.field(
      default_factory=collections.Counter)
  strange: int = 0
  errors: int = 0
  messages: list[str] = dataclasses.field(default_factory=list)

  def add(self, row: dict[str, Any]) -> None:
    """Counts one more row."""
    if row['error'] is not None:
      self.errors += 1
      self.messages += [row['error']][:_MOST_MESSAGES - len(self.messages)]
    elif row['tile_id'] is not None:
      self.kernels += 1
      self.configs += row['scored'] if 'scored' in row else row['configs']
    self.columns.update(row['unfamiliar'] or ())
    self.strange += bool(row['unfamiliar'])

  def text(self) -> str:
    """How much was ranked, and what is uncertain about it."""
    lines = [f'{self.kernels:,} kernels with {self.configs:,} tiles ranked, of '
             f'{self.files:,} files, in {self.seconds:,.0f} s: {self.out}',
             f'{self.worked:,.1f} s of processor time, without loading the '
             'model']
    if self.kept:
      lines[-1] += (f'; {self.kept:,} of the files were ranked by an earlier '
                    'run')
    if self.strange:
      common = sorted(self.columns.items(), key=lambda item: (-item[1], item))
      lines += [
          f'{self.strange:,} kernels have features outside the training data; '
          'their order is less certain:', *(
              f'  {name}: {count:,} kernels'
              for name, count in common[:_SHOWN])]
      if len(common) > _SHOWN:
        lines.append(f'  and {len(common) - _SHOWN} more')
    if self.errors:
      lines.append(f'{self.errors:,} rows have an error')
    return '\n'.join(lines)


def rank_many(model_dir: str, given: Sequence[str], out: str, *,
              all_tiles: bool = False, top_k: Optional[int] = TOP_CONFIGS,
              most_tiles: int = MOST_TILES,
              tpu: str = kernel_sources.DEFAULT_TPU,
              workers: int = 0, scheduler: str = '',
              shard_files: int = SHARD_FILES,
              loading: LoadSettings = LoadSettings()) -> Summary:
  """Ranks the kernels of files, in any number, and writes a row for each.

  The bytes of the output depend on the files, the model and what is asked,
  not on the workers, nor on whether a run was interrupted.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it. All
      workers must be able to read both.
    given: folders, files and patterns, paths or URLs; see `storage.find`.
    out: the .jsonl or .parquet to write, a path or a URL.
    all_tiles: rank all legal tiles, as `tile_search.advise` does, instead of
      those that the files list.
    top_k: tiles of each kernel; None for all.
    most_tiles, tpu: with `all_tiles`, see `advise`.
    workers, scheduler: see `pool.run`.
    shard_files: files of a part.
    loading: how to load the model.

  Returns:
    What was ranked. A file that cannot be ranked has a row with an error.

  Raises:
    UserError: files, model, output, workers or the TPU's generation cannot be
      used; fsspec is not installed.
  """
  start = time.monotonic()
  check_out(out)
  libtpu.generation_of(tpu)
  found = {file.path: file for one in given for file in storage.find(
      one, _LEGAL_ENDINGS if all_tiles else _LISTED_ENDINGS)}
  settings = _settings(model_dir, out, loading, all_tiles=all_tiles,
                       top_k=top_k, most_tiles=most_tiles, tpu=tpu)
  with _parts_folder(settings.folder):
    ranking = _Ranking(settings, workers, scheduler, Summary(out, len(found)))
    pieces = ranking.rank(rank_shard.shards(
        list(found.values()), shard_files, settings.basis))
    lines = ranking.lines(pieces)
    with storage.new_file(out) as file:
      if out.endswith('.parquet'):
        rows.write_parquet(file, lines, settings.columns)
      else:
        file.writelines(lines)
    ranking.remove_parts()
  ranking.summary.seconds = time.monotonic() - start
  return ranking.summary


def check_out(out: str) -> None:
  """Raises UserError if no rows can be written under that name."""
  kinds = {'.jsonl': (rows.START, 'file of rankings'),
           '.parquet': (rows.PARQUET_START, 'file of Parquet')}
  ending = os.path.splitext(out)[1]
  if ending not in kinds:
    raise UserError(f'--out={out}: must end with {" or ".join(kinds)}, which '
                    'choose the format')
  if ending == '.parquet':
    rows.require_parquet(out)
  start, what = kinds[ending]
  if not storage.is_url(out):
    output_paths.require_file(files.full_path(out), start, what)
    return
  system, inner, _ = storage.opened(out)
  with storage.user_errors(out, 'read'):
    if system.exists(inner) and system.read_block(
        inner, 0, len(start)) not in (b'', start):
      raise UserError(f'{out}: is no {what}, so it is not replaced; name '
                      'another file')


def _settings(model_dir: str, out: str, loading: LoadSettings,
              **asked: Any) -> Settings:
  """All that a worker must know, with the hash of it and of the model."""
  import numpy as np
  import tensorflow as tf

  from tpu_graphs_ext.engine import artifacts, scoring
  run = artifacts.load_run(model_dir)
  folder = files.full_path(run.model_dir)
  stats, num_ops = scoring.normalisation(run, loading)
  if loading.models_py:
    loading = dataclasses.replace(
        loading, models_py=files.full_path(loading.models_py))
  source = loading.models_py or load_models.models_path()
  with open(source, 'rb') as file:
    source_sum = hashlib.sha256(file.read()).hexdigest()
  model = hash_of([
      tpu_graphs_ext.__version__, tf.__version__, np.__version__, run.info,
      file_ownership.sums(folder), source_sum, stats.to_json(), num_ops,
      loading.keep_repeats])
  return Settings(
      basis=hash_of([_FORMAT, model, asked]), model=model, model_dir=folder,
      loading=loading, stats=stats.to_json(), num_ops=num_ops,
      folder=storage.full(out) + PARTS, **asked)


@contextlib.contextmanager
def _parts_folder(folder: str) -> Iterator[None]:
  """The folder of the parts, for one command at a time on this machine."""
  if storage.is_url(folder):
    yield
    return
  with contextlib.ExitStack() as stack:
    try:
      os.makedirs(folder, exist_ok=True)
      stack.enter_context(files.held_folder(folder))
    except BlockingIOError as error:
      raise UserError(f'{folder}: another command is ranking into it; wait for '
                      'it, or name another --out') from error
    except OSError as error:
      raise files.cannot_be_written(folder, error) from error
    try:
      yield
    finally:
      with contextlib.suppress(OSError):  # There may be parts in it.
        os.rmdir(folder)


class _Ranking:
  """One command at work."""

  def __init__(self, settings: Settings, workers: int, scheduler: str,
               summary: Summary):
    self._settings, self.summary = settings, summary
    self._asked = {'workers': workers, 'scheduler': scheduler}
    self._parts = rank_shard.parts_in(settings.folder)
    self._done: set[str] = set()  # Names of parts.

  def rank(self, shards: Sequence[Shard]) -> list[tuple[Shard, str]]:
    """Every shard with '', or with why it has no part, in order.

    A shard whose worker dies is ranked file by file, so that one kernel costs
    no other its row.
    """
    self._find_done(shards)
    self.summary.kept = sum(
        len(shard.files) for shard in shards if shard.part in self._done)
    pieces = []
    with tqdm(desc='rank', total=self.summary.files, unit='file',
              disable=None, leave=False) as bar:
      try:
        failed = self._run(shards, bar)
        for shard in shards:
          pieces += [shard] if shard.part not in failed else rank_shard.shards(
              shard.files, 1, self._settings.basis)
        again = [piece for piece in pieces if piece.part not in self._done]
        self._find_done(again)
        failed = self._run(again, bar)
      except BaseException:
        if self._done:
          _log.warning('what is ranked is kept in %s; the same command '
                       'continues from there', self._settings.folder)
        raise
    return [(piece, failed.get(piece.part, '')) for piece in pieces]

  def _find_done(self, shards: Sequence[Shard]) -> None:
    """Notes the shards whose parts are there and whole."""
    with storage.user_errors(self._settings.folder, 'read'):
      there = set(self._parts)
    names = [shard.part for shard in shards if shard.part in there]
    self._done.update(name for name, part in zip(names, self._read(
        names, 'check')) if part)

  def _read(self, names: Sequence[str], what: str) -> Iterator[Any]:
    """Parts in order, a few read ahead; None for a damaged one."""
    # In blocks: a pool would read them all ahead of use.
    block = 4 * storage.AT_ONCE
    with ThreadPoolExecutor(storage.AT_ONCE) as readers, tqdm(
        desc=what, total=len(names), unit='part', disable=None,
        leave=False) as bar:
      for start in range(0, len(names), block):
        for part in readers.map(lambda name: rank_shard.read_part(
            self._parts, name), names[start:start + block]):
          bar.update()
          yield part

  def _run(self, shards: Iterable[Shard], bar: tqdm) -> dict[str, str]:
    """Ranks shards; returns why a worker died of some."""
    by_name = {shard.part: shard for shard in shards}
    failed: dict[str, str] = {}
    for name in self._done & set(by_name):
      bar.update(len(by_name.pop(name).files))
    if not by_name:
      return failed
    tasks = ((name, (self._settings, shard))
             for name, shard in by_name.items())
    with contextlib.closing(pool.run(
        rank_shard.rank_shard, tasks, **self._asked)) as outcomes:
      for name, fault, error in outcomes:
        if pool.is_death(error):
          failed[name] = error
          continue
        if error or fault:  # All others would end like that.
          raise UserError(fault or f'a worker cannot rank: {error}')
        self._done.add(name)
        bar.update(len(by_name[name].files))
    return failed

  def lines(self, pieces: Sequence[tuple[Shard, str]]) -> Iterator[bytes]:
    """The lines of all rows, in order, which are added to the summary."""
    parts = self._read([shard.part for shard, error in pieces if not error],
                       'join')
    for shard, error in pieces:
      if error:
        part = [rows.line_of(self._settings.failed(
            shard.files[0].name, error))], 0.0
      else:
        part = next(parts)
      if part is None:
        raise UserError(f'{self._settings.folder}: a part was damaged or '
                        'removed while parts were joined; run the same command')
      lines, seconds = part
      self.summary.worked += seconds
      for line in lines:
        self.summary.add(json.loads(line))
        yield line

  def remove_parts(self) -> None:
    with storage.user_errors(self._settings.folder, 'written'):
      self._parts.delitems([name for name in self._parts
                            if name.endswith(rank_shard.PART)])
