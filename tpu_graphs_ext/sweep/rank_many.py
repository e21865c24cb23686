"""Ranks the kernels of very many files by many workers, into one file.

Files are cut into shards, and each shard's rows are written into a part beside
the output, so a run that was broken off goes on with the shards that are
missing. At the end the parts become the output, in the order of the files.
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
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Optional

from tqdm import tqdm

import tpu_graphs_ext
from tpu_graphs_ext import file_ownership, files, load_models
from tpu_graphs_ext.engine.settings import TOP_CONFIGS, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import tpu_compiler
from tpu_graphs_ext.serving import kernel_sources
from tpu_graphs_ext.sweep import SHARD_FILES, pool, rank_shard, rows, storage
from tpu_graphs_ext.sweep.rank_shard import Shard, hash_of

_log = logging.getLogger(__name__)

MOST_TILES = 100_000
PARTS = '.parts'  # What follows the output's name.

# Files of a folder that are looked at.
_LISTED_ENDINGS = ('.npz',)
_LEGAL_ENDINGS = ('.npz', '.pb', '.hlo')
_FORMAT = 2  # Changes when the same files give other rows.
_SHOWN = 10  # Columns of `Summary.text`.
_MOST_MESSAGES = 20


@dataclasses.dataclass
class Summary:
  """What was ranked.

  Attributes:
    out: the file with the rows.
    files, kernels, configs: numbers of what was ranked.
    kept: files whose rows an earlier run had left.
    seconds: of this run.
    worked: seconds of processor time, without loading the model, of all runs.
    strange: kernels with features that the model was not trained on.
    columns: such a feature -> kernels that have it.
    errors, messages: number of rows that have an error instead; the first.
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
      if self.errors <= _MOST_MESSAGES:
        self.messages.append(row['error'])
    elif row['tile_id'] is not None:
      self.kernels += 1
      self.configs += row['scored'] if 'scored' in row else row['configs']
    self.columns.update(row['unfamiliar'] or ())
    self.strange += bool(row['unfamiliar'])

  def text(self) -> str:
    """What there is, and what about it is uncertain."""
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
          f'{self.strange:,} kernels have features that the model was not '
          'trained on; their order is less certain:', *(
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

  The bytes of the output follow from the files, the model and what is asked
  of it, not from the workers, nor from whether a run was broken off.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it. All
      workers must be able to read both.
    given: folders, files and patterns, paths or URLs; see `storage.find`.
    out: the .jsonl or .parquet to write, a path or a URL.
    all_tiles: rank all legal tiles, as `advice.picks.advise` does, not those
      that the files list.
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
  tpu_compiler.generation_of(tpu)
  found = {file.path: file for one in given for file in storage.find(
      one, _LEGAL_ENDINGS if all_tiles else _LISTED_ENDINGS)}
  settings = _settings(model_dir, out, loading, all_tiles=all_tiles,
                       top_k=top_k, most_tiles=most_tiles, tpu=tpu)
  shards = rank_shard.shards(list(found.values()), shard_files, settings.basis)
  summary = Summary(out, len(found))
  with _parts_folder(settings.folder):
    done = _kept(settings.folder, shards)
    summary.kept = sum(len(shard.files) for shard in shards
                       if shard.key in done)
    pieces = _ranked(settings, shards, done, workers, scheduler)
    with storage.new_file(out) as file:
      _write(file, out, _lines(settings, pieces, summary), all_tiles)
    storage.remove(settings.folder, [
        name for name in storage.names_in(settings.folder)
        if rank_shard.PART in name])
  summary.seconds = time.monotonic() - start
  return summary


def check_out(out: str) -> None:
  """Raises a UserError where no rows can be written under that name."""
  kinds = {'.jsonl': (rows.START, 'file of rankings'),
           '.parquet': (rows.PARQUET_START, 'file of Parquet')}
  ending = os.path.splitext(out)[1]
  if ending not in kinds:
    raise UserError(f'--out={out}: must end with {" or ".join(kinds)}, which '
                    'say what is written')
  if ending == '.parquet':
    rows.require_parquet(out)
  start, what = kinds[ending]
  if not storage.is_url(out):
    file_ownership.require_file(files.full_path(out), start, what)
  elif storage.read(out, len(start)) not in (b'', start):
    raise UserError(f'{out}: is no {what}, so it is not replaced; name another '
                    'file')


def _settings(model_dir: str, out: str, loading: LoadSettings,
              **asked: Any) -> rank_shard.Settings:
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
  model = hash_of([
      tpu_graphs_ext.__version__, tf.__version__, np.__version__, run.info,
      _sums(folder), _sums(source), stats.to_json(), num_ops,
      loading.keep_repeats])
  return rank_shard.Settings(
      basis=hash_of([_FORMAT, model, asked]), model=model, model_dir=folder,
      loading=loading, stats=stats.to_json(), num_ops=num_ops,
      folder=storage.full(out) + PARTS, **asked)


def _sums(path: str) -> list[list[str]]:
  """(name, hash of the content) of one file, or of all in a folder."""
  found = [path] if os.path.isfile(path) else sorted(
      os.path.join(parent, name) for parent, _, names in os.walk(path)
      for name in names)
  sums = []
  for file in found:
    with open(file, 'rb') as opened:
      sums.append([os.path.relpath(file, path),
                   hashlib.sha256(opened.read()).hexdigest()])
  return sums


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


def _kept(folder: str, shards: Sequence[Shard]) -> set[str]:
  """Keys of the shards whose parts are there and whole."""
  names = set(storage.names_in(folder))
  there = [shard for shard in shards if shard.part in names]
  return {shard.key for shard, part in tqdm(
      storage.ahead(lambda shard: rank_shard.read_part(folder, shard), there),
      desc='look over', total=len(there), unit='part', disable=None,
      leave=False) if part.result()}


def _ranked(settings: rank_shard.Settings, shards: Sequence[Shard],
            done: set[str], workers: int,
            scheduler: str) -> list[tuple[Shard, str]]:
  """Every shard with '', or with why it has no part, in order.

  A shard whose worker dies is ranked file by file, so that one kernel costs
  no other its row.
  """
  pieces, again = [], []
  with tqdm(desc='rank', total=sum(len(shard.files) for shard in shards),
            unit='file', disable=None, leave=False) as bar:
    try:
      failed = _run(settings, shards, done, bar, workers, scheduler)
      for shard in shards:
        singles = [shard] if shard.key not in failed else rank_shard.shards(
            list(shard.files), 1, settings.basis)
        again += singles if shard.key in failed else []
        pieces += singles
      done |= _kept(settings.folder, again)
      failed = _run(settings, again, done, bar, workers, scheduler)
    except BaseException:
      if done:
        _log.warning('what is ranked is kept in %s; the same command goes on '
                     'from there', settings.folder)
      raise
  return [(piece, failed.get(piece.key, '')) for piece in pieces]


def _run(settings: rank_shard.Settings, shards: Sequence[Shard],
         done: set[str], bar: tqdm, workers: int,
         scheduler: str) -> dict[str, str]:
  """Ranks shards; adds to `done`, and returns why others have no part."""
  failed, by_key = {}, {shard.key: shard for shard in shards}
  for key in done & set(by_key):
    bar.update(len(by_key.pop(key).files))
  if not by_key:
    return {}
  tasks = ((key, (settings, shard)) for key, shard in by_key.items())
  with contextlib.closing(pool.run(
      rank_shard.rank_shard, tasks, workers=workers,
      scheduler=scheduler)) as outcomes:
    for key, fault, error in outcomes:
      if pool.is_death(error):
        failed[key] = error
        continue
      if error or fault:  # All others would end like that.
        raise UserError(fault or f'a worker cannot rank: {error}')
      done.add(key)
      bar.update(len(by_key[key].files))
  return failed


def _lines(settings: rank_shard.Settings, pieces: Sequence[tuple[Shard, str]],
           summary: Summary) -> Iterator[bytes]:
  """The lines of all rows, in order, which are added to the summary."""
  def part_of(piece: tuple[Shard, str]) -> tuple[list[bytes], float]:
    shard, error = piece
    if error:
      name = shard.files[0].name
      return [rows.line_of(rows.row(
          rows.columns(settings.all_tiles), name, error=f'{name}: {error}'))], 0
    part = rank_shard.read_part(settings.folder, shard)
    if part is None:
      raise UserError(f'{settings.folder}: a part was damaged or removed while '
                      'parts were joined; run the same command')
    return part

  for _, part in tqdm(storage.ahead(part_of, pieces), desc='join',
                      total=len(pieces), unit='part', disable=None,
                      leave=False):
    lines, seconds = part.result()
    summary.worked += seconds
    for line in lines:
      summary.add(json.loads(line))
      yield line


def _write(file: BinaryIO, out: str, lines: Iterator[bytes],
           all_tiles: bool) -> None:
  if out.endswith('.parquet'):
    rows.write_parquet(file, lines, rows.columns(all_tiles))
    return
  for line in lines:
    file.write(line)
