"""Ranks the kernels of very many files with many workers, into one file.

A worker ranks one kernel at a time, on one thread: scores are the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import posixpath
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from tqdm import tqdm

import tpu_graphs_ext
from tpu_graphs_ext import files
from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.engine import (
  artifacts,
  origin,
  out_of_range,
  scoring,
  threads,
)
from tpu_graphs_ext.engine.settings import TOP_CONFIGS
from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.hlo import kernel_sources, libtpu, lowering
from tpu_graphs_ext.serving import cost_model, tile_search
from tpu_graphs_ext.sweep import pool
from tpu_graphs_ext.tasks.tile import LoadSettings

_log = logging.getLogger(__name__)

# Columns of a row: of the tiles that a file lists, and of all legal ones.
LISTED = ('file', 'tile_id', 'nodes', 'configs', 'rankable', 'choices',
          'unfamiliar', 'error')
LEGAL = ('file', 'tile_id', 'nodes', 'copies', 'op_name', 'share', 'cycles',
         'in_open_loop', 'opcodes', 'product', 'combinations', 'fitting',
         'scored', 'choices', 'default', 'default_from', 'notes', 'unfamiliar',
         'error')
_FORMAT = 6  # Changes when the same files give other rows, or other records.


class Summary(NamedTuple):
  """How much was ranked, in words, and the errors of rows."""
  text: str
  errors: list[str]


def rank_many(model_dir: str, places: Sequence[str], out: str, *,
              all_tiles: bool = False, top_k: Optional[int] = TOP_CONFIGS,
              tpu: str = schema.DEFAULT_TPU, jax_python: str = '',
              workers: int = 0, scheduler: str = '',
              loading: LoadSettings = LoadSettings()) -> Summary:
  """Ranks the kernels of files, and writes a row for each, or for an error.

  Args:
    model_dir: the folder model_<hash>, with its run file beside it.
    places: folders, files and patterns, paths or URLs; see `find`.
    out: the .jsonl to write.
    all_tiles: rank all legal tiles instead of those that the files list.
    top_k: tiles of each kernel; None for all.
    tpu, jax_python: with `all_tiles`, see `kernel_sources.read_source`.
    workers, scheduler: see `pool.run`.
    loading: how to load the model.

  Raises UserError if any of them cannot be used, or fsspec is not installed.
  """
  start = time.monotonic()
  if not out.endswith('.jsonl') or '://' in out:
    raise UserError(f'--out={out}: must be the path of a .jsonl')
  out_path = files.Output('--out', '{"file":', 'file of rankings').check(
      files.full_path(out))
  tpu = libtpu.generation(tpu)
  endings = ('.npz', '.pb', '.hlo') if all_tiles else ('.npz',)
  chosen = list({file.path: file for name in places
                for file in find(name, endings)}.values())
  settings = _settings(model_dir, loading, all_tiles=all_tiles,
                       top_k=top_k, tpu=tpu, jax_python=jax_python)
  kernels, tiles, errors = 0, 0, []
  with _journal(out_path + '.partial', settings.basis) as journal:
    left = [file for file in chosen if journal.key(file) not in journal.places]
    _rank(settings, left, journal, len(chosen), workers, scheduler)
    with files.new_file(out_path) as target:
      for line in (line for file in chosen for line in journal.read(file)):
        target.write(line + b'\n')
        row = json.loads(line)
        if row['error'] is not None:
          errors.append(row['error'])
        elif row['tile_id'] is not None:
          kernels += 1
          tiles += row['scored' if all_tiles else 'configs']
  return Summary(
      f'{kernels:,} kernels with {tiles:,} tiles ranked, of {len(chosen):,} '
      f'files ({len(chosen) - len(left):,} by an earlier run), in '
      f'{time.monotonic() - start:,.0f} s: {out}', errors)


def _hash_of(content: Any) -> str:
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:32]


def _settings(model_dir: str, loading: LoadSettings, **asked: Any) -> Settings:
  """All that a worker must know, with the hash of it and of the model."""
  import numpy as np
  import tensorflow as tf

  run = artifacts.load_run(model_dir, loading.task)
  folder = files.full_path(run.model_dir)
  stats, num_ops = scoring.normalisation(run, loading)
  models_py = files.full_path(origin.models_file_of(folder, run.info, loading))
  basis = _hash_of([
      _FORMAT, tpu_graphs_ext.__version__, tf.__version__, np.__version__,
      run.info, files.sums(folder), files.sha256(models_py), stats.to_json(),
      num_ops, loading.keep_repeats, asked])
  return Settings(basis, folder, dataclasses.replace(
      loading, models_py='' if models_py == loading.task.models_file
      else models_py, data_root=files.full_path(loading.data_root)), **asked)


def _rank(settings: Settings, left: Sequence[Found], journal: _Journal,
          number: int, workers: int, scheduler: str) -> None:
  """Ranks files into the journal, also those that kill workers."""
  by_path = {file.path: file for file in left}
  tasks = ((path, (settings, file)) for path, file in by_path.items())
  with tqdm(desc='rank', total=number, initial=number - len(left), unit='file',
            disable=None, leave=False) as bar, contextlib.closing(pool.run(
                rank_file, tasks, workers=workers,
                scheduler=scheduler)) as outcomes:
    for path, lines, error in outcomes if left else ():
      if error and not error.startswith(pool.DIED):  # All would.
        raise UserError(error)
      file = by_path[path]
      journal.add(file, lines or settings.line(file.name, error))
      bar.update()


# ------------------------------------------------------------------- a worker


@dataclasses.dataclass(frozen=True)
class Settings:
  """How a worker ranks; see `scoring.load_ranker` and `rank_many`."""
  basis: str  # Hash of everything that rows depend on, except their file.
  model_dir: str
  loading: LoadSettings
  all_tiles: bool
  top_k: Optional[int]
  tpu: str
  jax_python: str

  def line(self, name: str, row: Any, path: str = '') -> bytes:
    """Values of a row, or an error in the file or its copy at `path`."""
    if not isinstance(row, dict):
      text = row if isinstance(row, str) else pool.described(row)
      text = text.replace(path, name) if path else text
      row = {'error': text if name in text else f'{name}: {text}'}
    columns = dict.fromkeys(LEGAL if self.all_tiles else LISTED)
    try:
      text = json.dumps({**columns, 'file': name, **row}, allow_nan=False,
                        ensure_ascii=False, separators=(',', ':'))
      return text.encode(errors='replace') + b'\n'
    except ValueError as error:  # A number that JSON does not have.
      return self.line(name, error, path)


# Each process loads its model once; workers of a cluster outlive a command.
@functools.lru_cache(1)
def loaded(settings: Settings
           ) -> tuple[scoring.Ranker, Optional[cost_model.CostModel]]:
  """The model, and for listed tiles its program: twice as fast if small."""
  threads.one_each('intra', 'inter')  # Numbers do not depend on the cores.
  ranker = scoring.load_ranker(settings.model_dir, settings.loading)
  ranker = dataclasses.replace(
      ranker, opcodes=ranker.opcodes or frozenset(range(ranker.num_ops)))
  if settings.all_tiles:
    tile_search.require_tpu(ranker)
    return ranker, None
  return ranker, cost_model.CostModel(ranker)


def rank_file(task: tuple[Settings, Found]) -> bytes:
  """The lines of a file's rows, with its faults; UserError: of the model."""
  settings, file = task
  loaded(settings)
  rows, path = _legal if settings.all_tiles else _listed, ''
  lines = []
  try:
    with local_copy(file) as path:
      for row in rows(settings, path):
        lines.append(settings.line(file.name, row, path))
  except Exception as error:  # A file may be damaged in any way.
    lines.append(settings.line(file.name, error, path))
  return b''.join(lines)


def _listed(settings: Settings, path: str) -> Iterator[Any]:
  """Rows of the tiles that a file lists, or errors of single kernels."""
  ranker, program = loaded(settings)
  for kernel in read.read_kernels(path, min_configs=1):
    try:
      ranking = program.rank(kernel, top=settings.top_k or kernel.num_configs)
      yield {**ranking.to_json(),
             'unfamiliar': _names(out_of_range.of_problem(ranker, kernel))}
    except Exception as error:  # Of this kernel alone.
      yield error


def _legal(settings: Settings, path: str) -> Iterator[Any]:
  """The same for all legal tiles."""
  ranker, _ = loaded(settings)
  source = kernel_sources.read_source(
      path, tpu=settings.tpu, jax_python=settings.jax_python)
  if not source.kernels and not source.faults:
    yield {'notes': source.notes}
  for source_kernel in source.kernels:
    if source_kernel.kernel is None:  # It is among the faults.
      continue
    try:
      ranking = tile_search.rank_kernel(
          ranker, source_kernel, settings.top_k, at_once=1, tpu=source.tpu)
      values = ranking.to_json()
      yield {'tile_id': values.pop('name'), **values,
             'notes': [*tile_search.notes_of(ranker, source), *ranking.notes],
             'unfamiliar': _names(ranking.unfamiliar)}
    except Exception as error:  # Of this kernel alone.
      yield error
  yield from source.faults


def _names(out_of_range: Sequence[Any]) -> list[str]:
  return [f'{column.table}.{column.column}' for column in out_of_range]


# -------------------------------------------------------------------- journal


@contextlib.contextmanager
def _journal(path: str, basis: str) -> Iterator[_Journal]:
  """The journal at a path, for one command at a time on this machine."""
  files.require_kind(path, _Journal.START, 'journal of rankings')
  try:
    with open(path, 'a+b') as file, files.held_folder(path):
      try:
        yield _Journal(file, basis)
      except BaseException:
        _log.warning('the rows so far are kept in %s; the same command '
                     'continues from there', path)
        raise
      os.remove(path)
  except BlockingIOError as error:
    raise UserError(f'{path}: another command is ranking into it; wait for '
                    'it, or name another --out') from error
  except OSError as error:
    raise files.cannot_be_written(path, error) from error


class _Journal:
  """Rows of files, appended as they come: a record for each file.

  A record is a checksum, a hash of everything that the rows depend on, and the
  rows, separated by tabs. A damaged one and those after it are cut off.
  `places` are where the others begin.
  """
  START = b'tpu-graphs-ext rank\n'

  def __init__(self, file: Any, basis: str):
    self._file, self._basis = file, basis
    self.places: dict[bytes, int] = {}
    file.seek(0)
    if file.readline() != self.START:
      file.truncate(0)
      file.write(self.START)
    end = file.tell()
    for record in iter(file.readline, b''):
      key, _, rows = record.partition(b'\t')[2].partition(b'\t')
      if record != _record(key, rows):
        break
      self.places[key] = end
      end = file.tell()
    file.truncate(end)

  def key(self, file: Found) -> bytes:
    return _hash_of([self._basis, file]).encode()

  def add(self, file: Found, lines: bytes) -> None:
    key = self.key(file)
    self.places[key] = self._file.seek(0, os.SEEK_END)
    self._file.write(_record(key, b'\t'.join(lines.splitlines()) + b'\n'))
    self._file.flush()

  def read(self, file: Found) -> list[bytes]:
    """The lines of a file, without their ends."""
    self._file.seek(self.places[self.key(file)])
    return self._file.readline()[:-1].split(b'\t')[2:]


def _record(key: bytes, rows: bytes) -> bytes:
  return b'%08x\t%s\t%s' % (zlib.crc32(rows, zlib.crc32(key)), key, rows)


# ---------------------------------------------------------------- input files


class Found(NamedTuple):
  name: str  # Relative if the given path is.
  path: str  # Absolute path or URL.
  stamp: str  # Changes with the file.


def find(place: str, endings: tuple[str, ...]) -> list[Found]:
  """Files of a folder, of a pattern, or one file; sorted by their names.

  `place` is a path or URL, or a pattern with `*`, `?`, `[...]`, and `**` for
  folders of any depth; of a folder, files with one of the `endings` are taken,
  of a SavedModel one. Raises UserError if there is none, or it cannot be read.
  """
  with _opened(place) as (system, path):
    if system.isdir(path):
      infos = [info for info in system.ls(path, detail=True, refresh=True)
               if info['name'].endswith(endings)]
      infos = [info for info in infos if posixpath.basename(
          info['name']) == lowering.SAVED_MODEL] or infos
    else:
      infos = ([system.info(path)] if system.exists(path)
               else system.glob(path, detail=True).values())
    matches = sorted(_found(place, system, info) for info in infos
                     if info['type'] != 'directory')
  if not matches:
    raise UserError(f'{place}: no such file, or no file in this folder that '
                    f'ends with {" or ".join(endings)}; others are named by a '
                    'quoted pattern, as in "DIR/**/*.txt"')
  return matches


def _found(place: str, system: Any, info: dict[str, Any]) -> Found:
  path = info['name']
  if '://' in place:
    url = system.unstrip_protocol(path)
    return Found(url, url, repr(sorted(info.items())))
  stamp = ()
  with contextlib.suppress(OSError):  # Ranking it says so in its row.
    stat = os.stat(path)  # Of the file behind a link.
    stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
  is_absolute = os.path.isabs(os.path.expanduser(place))
  return Found(path if is_absolute else os.path.relpath(path), path,
               repr(stamp))


@contextlib.contextmanager
def local_copy(file: Found) -> Iterator[str]:
  """The path on this machine of a file, or of a copy for the `with` block."""
  if '://' not in file.path:
    yield file.path
    return
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    copy = os.path.join(folder, posixpath.basename(file.path))
    with _opened(file.path) as (system, path):
      system.get_file(path, copy)
      if posixpath.basename(path) == lowering.SAVED_MODEL:  # Not it alone.
        system.get(posixpath.dirname(path) + '/', folder, recursive=True)
    yield copy


@contextlib.contextmanager
def _opened(place: str) -> Iterator[tuple[Any, str]]:
  """(file system of fsspec, the path in it); all its errors are UserErrors."""
  try:
    import fsspec
  except ImportError as error:
    raise UserError(f'{place}: many files are read by fsspec, which is not '
                    f'installed; {how_to_install("scale")}') from error
  try:
    # A `::` in a path is no chain of file systems.
    yield fsspec.core.url_to_fs(place) if '://' in place else (
        fsspec.filesystem('file'), files.full_path(place))
  except Exception as error:  # Each package has errors of its own.
    raise UserError(f'{place}: cannot be read ({reason_of(error)})') from error
