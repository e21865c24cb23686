"""What a worker of `rank --workers` does: it ranks a shard's kernels.

One kernel at a time, so that a worker's memory is that of the model and of one
kernel. A worker keeps to one core and to one thread: scores are then the same
bits whatever the number of workers, and of cores.

The rows of a shard are a part: a file of JSON lines, and a last line with a
checksum. Its name is a hash of everything that its rows follow from, so a part
that is there is right, whoever wrote it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import out_of_range, rank, scoring, threads
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError, reason_of
from tpu_graphs_ext.serving import cost_model, kernel_sources, tile_search
from tpu_graphs_ext.stacks import quiet
from tpu_graphs_ext.sweep import rows, storage
from tpu_graphs_ext.tasks import kernel_inputs

PART = '.rows'  # How the names of parts end.


@dataclasses.dataclass(frozen=True)
class Settings:
  """How kernels are ranked.

  Attributes:
    basis: hash of all that rows follow from but their file.
    model: hash of what among these belongs to the model.
    model_dir, loading, stats, num_ops: the model, see `scoring.load_ranker`.
    all_tiles, top_k, most_tiles, tpu: see `rank_many`.
    folder: of the parts, a path or a URL.
  """
  basis: str
  model: str
  model_dir: str
  loading: LoadSettings
  stats: dict[str, Any]
  num_ops: int
  all_tiles: bool
  top_k: Optional[int]
  most_tiles: int
  tpu: str
  folder: str


@dataclasses.dataclass(frozen=True)
class Shard:
  """Files that one worker ranks at a time.

  Attributes:
    key: hash of what its rows follow from.
    files: in order.
  """
  key: str
  files: tuple[storage.Found, ...]

  @property
  def part(self) -> str:
    return self.key + PART


def shards(files: list[storage.Found], size: int, basis: str) -> list[Shard]:
  """Files in shards of a size, whose rows also follow from a `basis`."""
  cut = [files[start:start + size] for start in range(0, len(files), size)]
  return [Shard(hash_of([basis, list(map(dataclasses.astuple, chosen))]),
                tuple(chosen)) for chosen in cut]


def hash_of(content: Any) -> str:
  """Of anything that JSON can hold."""
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_part(folder: str, shard: Shard, lines: list[bytes],
               seconds: float) -> None:
  """Writes the rows of a shard, and how long ranking them took."""
  body = b''.join(lines)
  with storage.new_file(storage.join(folder, shard.part)) as file:
    file.write(body + _last_line(body, seconds))


def _last_line(body: bytes, seconds: float) -> bytes:
  return rows.line_of({'seconds': seconds,
                  'crc32': zlib.crc32(body + repr(seconds).encode())})


def read_part(folder: str, shard: Shard) -> Optional[tuple[list[bytes], float]]:
  """(rows, seconds); None if the part is damaged or gone."""
  try:
    content = storage.read(storage.join(folder, shard.part))
    end = content.rfind(b'\n', 0, -1) + 1
    seconds = json.loads(content[end:])['seconds']
  except (UserError, ValueError, TypeError, KeyError):
    return None
  body = content[:end]
  if content[end:] != _last_line(body, seconds):
    return None
  return body.splitlines(keepends=True), seconds


class _Model:
  """A loaded model, and the opcodes that it has at least a place for."""

  def __init__(self, ranker: scoring.Ranker):
    self.ranker = ranker
    self.opcodes = ranker.opcodes or frozenset(range(ranker.num_ops))

  @functools.cached_property
  def compiled(self) -> Optional[cost_model.CostModel]:
    """The same as one program, in half the time for a small kernel, if it can.
    """
    try:
      return cost_model.CostModel(self.ranker)
    except UserError:
      return None

  def ranking(self, kernel: Kernel, top_k: Optional[int]) -> rank.Ranking:
    """The first choices among the kernel's own tiles; None: all."""
    top_k = top_k or kernel.num_configs
    if self.compiled:
      return self.compiled.rank(kernel, top=top_k)
    return rank.ranking_of(kernel, self.ranker.scored(kernel), top_k)


# The one that this process has loaded, by `Settings.model`.
_loaded: dict[str, _Model] = {}


def rank_shard(task: tuple[Settings, Shard]) -> str:
  """Ranks a shard and writes its part; returns why no shard can be ranked.

  What is wrong with a file stands in its row.
  """
  settings, shard = task
  try:
    with _without_progress():
      model = _model(settings)
      start, lines = time.process_time(), []
      for file, path, fault in storage.local_copies(shard.files):
        for row in _rows_of(model, settings, file, path, fault):
          try:
            lines.append(rows.line_of(row))
          except ValueError as error:  # A number that JSON cannot hold.
            lines.append(rows.line_of(_failed(settings, file, path, error)))
      write_part(settings.folder, shard, lines, time.process_time() - start)
    return ''
  except UserError as error:
    return str(error)


@contextlib.contextmanager
def _without_progress() -> Iterator[None]:
  """What there is to say of a kernel stands in its row."""
  logger = logging.getLogger('tpu_graphs_ext')
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    with contextlib.redirect_stderr(quiet.NoTerminal(sys.stderr)):
      yield
  finally:
    logger.setLevel(level)


def _model(settings: Settings) -> _Model:
  """The model, loaded once a process.

  Raises:
    UserError: it cannot be loaded, or knows nothing of legal tiles.
  """
  if settings.model not in _loaded:
    threads.one_alone()
    _loaded.clear()  # Workers of a cluster outlive a command.
    _loaded[settings.model] = _Model(scoring.load_ranker(
        settings.model_dir, settings.loading,
        (FeatureStats.from_json(settings.stats), settings.num_ops)))
  model = _loaded[settings.model]
  if settings.all_tiles:
    tile_search.require_tpu(model.ranker)
  else:
    _ = model.compiled  # Now, as a part of loading it.
  return model


def _rows_of(model: _Model, settings: Settings, file: storage.Found,
             path: str, fault: str) -> Iterator[dict[str, Any]]:
  """The rows of a file."""
  if fault:
    yield _failed(settings, file, path, fault)
    return
  made = (_legal if settings.all_tiles else _listed)(
      model, settings, file.name, path)
  try:
    for row in made:
      yield (_failed(settings, file, path, row) if isinstance(row, Exception)
             else row)
  except Exception as error:  # A file may be damaged in any way.
    yield _failed(settings, file, path, error)


def _failed(settings: Settings, file: storage.Found, path: str,
            error: Any) -> dict[str, Any]:
  """The row of what cannot be ranked."""
  text = str(error) if isinstance(error, (UserError, str)) else (
      f'{type(error).__name__}: {reason_of(error)}')
  # By the name that was given, not by that of a copy.
  text = text.replace(path, file.name) if path else text
  if file.name not in text:
    text = f'{file.name}: {text}'
  return rows.row(rows.columns(settings.all_tiles), file.name, error=text)


def _listed(model: _Model, settings: Settings, name: str,
            path: str) -> Iterator[Any]:
  """Rows of the tiles that a file lists, or errors of single kernels."""
  stats = model.ranker.stats
  partition = kernel_inputs.read_kernels(path, min_configs=1)
  stats.check_columns(partition)
  for kernel in partition:
    try:
      yield rows.of_ranking(
          name, model.ranking(kernel, settings.top_k),
          out_of_range.of_kernel(stats, kernel, model.opcodes))
    except Exception as error:  # Of this kernel alone.
      yield error


def _legal(model: _Model, settings: Settings, name: str,
           path: str) -> Iterator[Any]:
  """The same of all legal tiles."""
  source = kernel_sources.read_source(path, tpu=settings.tpu)
  if not source.kernels and not source.faults:
    yield rows.row(rows.LEGAL, name, notes=source.notes)
  for found in source.kernels:
    try:
      advice = tile_search.advice_on(model.ranker, found, settings.top_k,
                               settings.most_tiles, at_once=1)
      yield rows.of_advice(name, source.notes, advice)
    except Exception as error:  # Of this kernel alone.
      yield error
  for fault in source.faults:
    yield UserError(fault)
