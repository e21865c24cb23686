"""What a worker of `rank --workers` does: it ranks a shard's kernels.

One kernel at a time, so that memory is that of the model and one kernel; on a
single thread, so that scores are the same bits for any number of workers and
cores.

The rows of a shard are a part: JSON lines, and a last line with a checksum.
Its name is a hash of everything that the rows depend on, so a part that is
there is right, whoever wrote it.
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
from collections.abc import Iterator, MutableMapping, Sequence
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
    basis: hash of everything that rows depend on, except their file.
    model: hash of the part of it that is the model.
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

  @property
  def columns(self) -> dict[str, Any]:
    return rows.LEGAL if self.all_tiles else rows.LISTED

  def failed(self, name: str, error: Any, path: str = '') -> dict[str, Any]:
    """The row of a file that cannot be ranked, or of its copy at `path`."""
    text = str(error) if isinstance(error, (UserError, str)) else (
        f'{type(error).__name__}: {reason_of(error)}')
    text = text.replace(path, name) if path else text
    return rows.row(self.columns, name,
                    error=text if name in text else f'{name}: {text}')


@dataclasses.dataclass(frozen=True)
class Shard:
  """Files that one worker ranks at a time.

  Attributes:
    part: name of its part, from a hash of what its rows depend on.
    files: in order.
  """
  part: str
  files: tuple[storage.Found, ...]


def shards(files: Sequence[storage.Found], size: int,
           basis: str) -> list[Shard]:
  """Files in shards of a size, whose rows also depend on a `basis`."""
  cut = [files[start:start + size] for start in range(0, len(files), size)]
  return [Shard(hash_of([basis, list(map(dataclasses.astuple, chosen))]) + PART,
                tuple(chosen)) for chosen in cut]


def hash_of(content: Any) -> str:
  """Hash of anything that JSON can hold."""
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:32]


def parts_in(folder: str) -> MutableMapping[str, bytes]:
  """Name of a part -> its content, in a folder or at a URL."""
  import fsspec
  system, _, _ = storage.opened(folder)
  system.invalidate_cache()
  return fsspec.get_mapper(storage.full(folder))


def sealed(lines: Sequence[bytes], seconds: float) -> bytes:
  """A part of these rows, which took some processor time to rank."""
  body = b''.join(lines)
  return body + rows.line_of({
      'seconds': seconds, 'crc32': zlib.crc32(body + repr(seconds).encode())})


def read_part(parts: MutableMapping[str, bytes],
              name: str) -> Optional[tuple[list[bytes], float]]:
  """(rows, seconds); None if the part is damaged or missing."""
  try:
    content = parts[name]
    *lines, last = content.splitlines(keepends=True)
    seconds = json.loads(last)['seconds']
  except Exception:  # Whatever a file system or a damaged line raises.
    return None
  return (lines, seconds) if content == sealed(lines, seconds) else None


class _Model:
  """A loaded model, and the opcodes that it has at least a place for."""

  def __init__(self, settings: Settings):
    threads.one_alone()
    self.ranker = scoring.load_ranker(
        settings.model_dir, settings.loading,
        (FeatureStats.from_json(settings.stats), settings.num_ops))
    self.opcodes = self.ranker.opcodes or frozenset(range(self.ranker.num_ops))

  @functools.cached_property
  def compiled(self) -> Optional[cost_model.CostModel]:
    """The model as one program, twice as fast on small kernels; or None."""
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

  Faults of a file are in its row.
  """
  settings, shard = task
  try:
    with _without_progress():
      model = _model(settings)
      start = time.process_time()
      lines = [line for copy in storage.local_copies(shard.files)
               for line in _lines_of(model, settings, *copy)]
      with storage.user_errors(settings.folder, 'written'):
        parts_in(settings.folder)[shard.part] = sealed(
            lines, time.process_time() - start)
    return ''
  except UserError as error:
    return str(error)


@contextlib.contextmanager
def _without_progress() -> Iterator[None]:
  """Messages about a kernel are in its row."""
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
    UserError: it cannot be loaded, or cannot rank legal tiles.
  """
  if settings.model not in _loaded:
    _loaded.clear()  # Workers of a cluster outlive a command.
    _loaded[settings.model] = _Model(settings)
  model = _loaded[settings.model]
  if settings.all_tiles:
    tile_search.require_tpu(model.ranker)
  else:
    _ = model.compiled  # Now, as a part of loading it.
  return model


def _lines_of(model: _Model, settings: Settings, file: storage.Found,
              path: str, fault: str) -> Iterator[bytes]:
  """The rows of a file, which is at `path` on this machine, as lines."""
  made = [fault] if fault else (_legal if settings.all_tiles else _listed)(
      model, settings, file.name, path)
  try:
    for row in made:
      if not isinstance(row, dict):
        row = settings.failed(file.name, row, path)
      try:
        yield rows.line_of(row)
      except ValueError as error:  # A number that JSON does not have.
        yield rows.line_of(settings.failed(file.name, error, path))
  except Exception as error:  # A file may be damaged in any way.
    yield rows.line_of(settings.failed(file.name, error, path))


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
  """The same for all legal tiles."""
  source = kernel_sources.read_source(path, tpu=settings.tpu)
  if not source.kernels and not source.faults:
    yield rows.row(rows.LEGAL, name, notes=source.notes)
  for found in source.kernels:
    try:
      yield rows.of_advice(name, source.notes, tile_search.advice_on(
          model.ranker, found, settings.top_k, settings.most_tiles, at_once=1))
    except Exception as error:  # Of this kernel alone.
      yield error
  yield from source.faults
