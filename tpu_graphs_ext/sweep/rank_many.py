"""Ranks the kernels of very many files by many workers, into one file.

Files are cut into shards, and each shard's rows are written into a part beside
the output, so a run that was broken off goes on with the shards that are
missing. At the end the parts become the output, in the order of the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Optional

from tqdm import tqdm

import tpu_graphs_ext
from tpu_graphs_ext import files, load_models, owned
from tpu_graphs_ext.advice import sources
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import tpu_compiler
from tpu_graphs_ext.host.settings import TOP_CONFIGS, LoadSettings
from tpu_graphs_ext.sweep import engine, parts, places, rank_shard, rows
from tpu_graphs_ext.sweep.parts import Contents, Shard
from tpu_graphs_ext.sweep.places import Found

_log = logging.getLogger(__name__)

ENDINGS = ('.jsonl', '.parquet')
MOST_TILES = 100_000
PARTS = '.parts'  # What follows the output's name.

# Files of a folder that are looked at.
_LISTED_ENDINGS = ('.npz',)
_LEGAL_ENDINGS = ('.npz', '.pb', '.hlo')
_FORMAT = 1  # Another one where other rows are made of the same files.
_COLUMNS_TOLD = 10


@dataclasses.dataclass(frozen=True)
class Summary:
  """What was ranked.

  Attributes:
    out: the file with the rows.
    files: how many there were.
    kept: those of them whose rows an earlier run had left.
    contents: of all rows.
    seconds: of this run.
  """
  out: str
  files: int
  kept: int
  contents: Contents
  seconds: float

  def text(self) -> str:
    """What there is, and of what it is uncertain."""
    told = self.contents
    lines = [f'{told.kernels:,} kernels with {told.configs:,} tiles ranked, of '
             f'{self.files:,} files, in {self.seconds:,.0f} s: {self.out}',
             f'{told.seconds:,.1f} s of processor time, without loading the '
             'model']
    if self.kept:
      lines[-1] += (f'; {self.kept:,} of the files were ranked by an earlier '
                    'run')
    if told.strange:
      common = sorted(told.columns.items(), key=lambda item: (-item[1], item))
      more = len(common) - _COLUMNS_TOLD
      lines += [
          f'{told.strange:,} kernels have features that the model was not '
          'trained on; their order is less certain:', *(
              f'  {name}: {count:,} kernels'
              for name, count in common[:_COLUMNS_TOLD]), *(
                  [f'  and {more} more'] if more > 0 else [])]
    if told.errors:
      lines.append(f'{told.errors:,} rows have an error')
    return '\n'.join(lines)


def rank_many(model_dir: str, given: Sequence[str], out: str, *,
              all_tiles: bool = False, top_k: Optional[int] = TOP_CONFIGS,
              most_tiles: int = MOST_TILES, tpu: str = sources.DEFAULT_TPU,
              workers: int = 0,
              scheduler: str = '', shard_files: int = parts.SHARD_FILES,
              loading: LoadSettings = LoadSettings()) -> Summary:
  """Ranks the kernels of files, in any number, and writes a row for each.

  The bytes of the output follow from the files, the model and what is asked
  of it, not from the workers, nor from whether a run was broken off.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it. All
      workers must be able to read both.
    given: folders, files and patterns, paths or URLs; see `places.find`.
    out: the .jsonl or .parquet to write, a path or a URL.
    all_tiles: rank all legal tiles, as `advice.picks.advise` does, not those
      that the files list.
    top_k: tiles of each kernel; None for all.
    most_tiles, tpu: with `all_tiles`, see `advise`.
    workers, scheduler: see `engine.run`.
    shard_files: files of a part.
    loading: how to load the model.

  Returns:
    What was ranked. A file that cannot be ranked has a row with an error.

  Raises:
    UserError: there is no file to rank, or no such generation of TPU; the
      model cannot be loaded; the output cannot be written, or is another's
      file; the workers cannot be reached.
  """
  start = time.monotonic()
  check_out(out)
  tpu_compiler.generation_of(tpu)
  found = _all_files(given, _LEGAL_ENDINGS if all_tiles else _LISTED_ENDINGS)
  settings = _settings(model_dir, out, loading, all_tiles=all_tiles,
                       top_k=top_k, most_tiles=most_tiles, tpu=tpu)
  shards = list(parts.shards(found, shard_files, settings.basis))
  with _parts_folder(settings.folder):
    known = _kept(settings.folder, shards)
    kept = sum(len(shard.files) for shard in shards if shard.key in known)
    pieces = _ranked(settings, shards, known, workers, scheduler)
    contents = Contents()
    for _, piece in pieces:
      contents.add(piece if isinstance(piece, Contents)
                   else Contents(1, 0, 1, messages=[piece]))
    with places.new_file(places.full(out)) as file:
      _write(file, out, _lines(settings, pieces), all_tiles)
    places.remove(settings.folder, parts.parts_among(
        places.names_in(settings.folder)))
  return Summary(out, len(found), kept, contents, time.monotonic() - start)


def check_out(out: str) -> None:
  """Raises a UserError where no rows can be written under that name."""
  if not out.endswith(ENDINGS):
    raise UserError(f'--out={out}: must end with {" or ".join(ENDINGS)}, which '
                    'say what is written')
  if out.endswith('.parquet'):
    rows.require_parquet(out)
  start, what = ((rows.PARQUET_START, 'file of Parquet')
                 if out.endswith('.parquet') else
                 (rows.START, 'file of rankings'))
  if not places.is_url(out):
    owned.require_file(files.full_path(out), start, what)
  elif places.start_of(out, len(start)) not in (b'', start):
    raise UserError(f'{out}: is no {what}, so it is not replaced; name another '
                    'file')


def _all_files(given: Sequence[str], endings: tuple[str, ...]) -> list[Found]:
  """Each file once, in the order of what was given."""
  found: dict[str, Found] = {}
  for one in given:
    for file in places.find(one, endings):
      found.setdefault(file.path, file)
  return list(found.values())


def _settings(model_dir: str, out: str, loading: LoadSettings,
              **asked: Any) -> rank_shard.Settings:
  """All that a worker must know, with the sum of it and of the model."""
  import numpy as np
  import tensorflow as tf

  from tpu_graphs_ext.host import artifacts, scoring
  run = artifacts.load_run(model_dir)
  full = files.full_path(run.model_dir)
  stats, num_ops = scoring.normalisation(run, loading)
  if loading.models_py:
    loading = dataclasses.replace(
        loading, models_py=files.full_path(loading.models_py))
  model = parts.sum_of([
      tpu_graphs_ext.__version__, tf.__version__, np.__version__, run.info,
      parts.sum_of_files(full), parts.sum_of_files(
          loading.models_py or load_models.models_path()),
      stats.to_json(), num_ops, loading.keep_repeats])
  return rank_shard.Settings(
      basis=parts.sum_of([_FORMAT, model, asked]), model=model, model_dir=full,
      loading=loading, stats=stats.to_json(), num_ops=num_ops,
      folder=places.full(out) + PARTS, **asked)


# ---------------------------------------------------------------- parts


@contextlib.contextmanager
def _parts_folder(folder: str) -> Iterator[None]:
  """The folder of the parts, for one command at a time on this machine."""
  if places.is_url(folder):
    yield
    return
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    raise files.cannot_be_written(folder, error) from error
  held = files.held_folder(folder)
  try:
    held.__enter__()
  except BlockingIOError as error:
    raise UserError(f'{folder}: another command is ranking into it; wait for '
                    'it, or name another --out') from error
  with contextlib.ExitStack() as stack:
    stack.push(held)
    try:
      yield
    finally:
      with contextlib.suppress(OSError):  # Where there are parts in it.
        os.rmdir(folder)


def _kept(folder: str, shards: Sequence[Shard]) -> dict[str, Contents]:
  """Key of a shard -> what its part holds, where it is there and whole."""
  there = places.names_in(folder)
  candidates = [shard for shard in shards if shard.part in there]
  found = {}
  with tqdm(desc='look over', total=len(candidates), unit='part', disable=None,
            leave=False) as bar:
    for shard, contents in places.ahead(
        lambda shard: parts.contents_of(folder, shard), candidates):
      if contents.result():
        found[shard.key] = contents.result()
      bar.update()
  return found


def _ranked(settings: rank_shard.Settings, shards: Sequence[Shard],
            known: dict[str, Contents], workers: int,
            scheduler: str) -> list[tuple[Shard, Any]]:
  """Every shard with what its part holds, in order.

  A shard whose worker dies is ranked file by file, so that one kernel costs
  no other its row. Of a file whose worker dies there is no part, but the
  error.
  """
  total = sum(len(shard.files) for shard in shards)
  done = dict(known)
  with tqdm(desc='rank', total=total, unit='file', disable=None,
            leave=False) as bar, _told_where(settings.folder, done):
    bar.update(sum(len(shard.files) for shard in shards if shard.key in done))
    missing = [shard for shard in shards if shard.key not in done]
    failed = _run(settings, missing, done, bar, workers, scheduler)
    singles = {
        shard.key: list(parts.shards(list(shard.files), 1, settings.basis))
        for shard in missing if shard.key in failed}
    again = [single for group in singles.values() for single in group]
    failed = _run(settings, again, done, bar, workers, scheduler)
  pieces = []
  for shard in shards:
    for piece in singles.get(shard.key, [shard]):
      pieces.append((piece, done[piece.key] if piece.key in done else
                     f'{piece.files[0].name}: {failed[piece.key]}'))
  return pieces


def _run(settings: rank_shard.Settings, shards: Sequence[Shard],
         done: dict[str, Contents], bar: tqdm, workers: int,
         scheduler: str) -> dict[str, str]:
  """Ranks shards; adds to `done`, and returns why others could not be."""
  if not shards:
    return {}
  failed, by_key = {}, {shard.key: shard for shard in shards}
  tasks = ((shard.key, (settings, shard)) for shard in shards)
  with contextlib.closing(engine.run(
      rank_shard.rank_shard, tasks, workers=workers,
      scheduler=scheduler)) as outcomes:
    for key, ranked, error in outcomes:
      if engine.is_death(error):
        failed[key] = error
        continue
      if error or ranked.fault:  # So would all others end.
        raise UserError(ranked.fault if ranked else
                        f'a worker cannot rank: {error}')
      done[key] = ranked.contents
      bar.update(len(by_key[key].files))
  return failed


@contextlib.contextmanager
def _told_where(folder: str, done: dict[str, Contents]) -> Iterator[None]:
  """Says where the parts are, if it comes to no end."""
  try:
    yield
  except BaseException:
    if done:
      _log.warning('what is ranked is kept in %s; the same command goes on '
                   'from there', folder)
    raise


# ---------------------------------------------------------------- output


def _lines(settings: rank_shard.Settings,
           pieces: Sequence[tuple[Shard, Any]]) -> Iterator[bytes]:
  """The lines of all rows, in order."""
  def lines_of(known: tuple[Shard, Any]) -> list[bytes]:
    shard, piece = known
    if isinstance(piece, Contents):
      return parts.rows_of(settings.folder, shard)
    return [parts.line_of(rows.row(
        rows.columns(settings.all_tiles), shard.files[0].name, error=piece))]

  with tqdm(desc='join', total=len(pieces), unit='part', disable=None,
            leave=False) as bar:
    for _, lines in places.ahead(lines_of, pieces):
      yield from lines.result()
      bar.update()


def _write(file: BinaryIO, out: str, lines: Iterator[bytes],
           all_tiles: bool) -> None:
  if out.endswith('.parquet'):
    rows.write_parquet(file, lines, rows.columns(all_tiles))
    return
  for line in lines:
    file.write(line)
