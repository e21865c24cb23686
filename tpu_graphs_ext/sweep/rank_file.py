"""What a worker of `rank --workers` does: ranks the kernels of one file.

One kernel at a time, on a single thread: scores are the same bits for any
number of workers and cores.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import out_of_range, rank, scoring, threads
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError, reason_of
from tpu_graphs_ext.serving import cost_model, kernel_sources, tile_search
from tpu_graphs_ext.stacks import quiet
from tpu_graphs_ext.sweep.storage import Found, local_copy
from tpu_graphs_ext.tasks import kernel_inputs

# Columns of a row: of the tiles that a file lists, and of all legal ones. A
# file that cannot be ranked has a row with `file` and `error` alone.
LISTED = ('file', 'tile_id', 'nodes', 'configs', 'rankable', 'choices',
          'unfamiliar', 'error')
LEGAL = ('file', 'tile_id', 'nodes', 'copies', 'op_name', 'share', 'cycles',
         'opcodes', 'product', 'combinations', 'fitting', 'scored', 'picks',
         'default', 'default_from', 'notes', 'unfamiliar', 'error')


@dataclasses.dataclass(frozen=True)
class Settings:
  """How kernels are ranked; see `scoring.load_ranker` and `rank_many`."""
  basis: str  # Hash of everything that rows depend on, except their file.
  model_dir: str
  loading: LoadSettings
  stats_json: str
  num_ops: int
  all_tiles: bool
  top_k: Optional[int]
  most_tiles: int
  tpu: str

  def row(self, file: str, **values: Any) -> dict[str, Any]:
    """A row with its columns in order; None in those without a value."""
    columns = LEGAL if self.all_tiles else LISTED
    return {**dict.fromkeys(columns), 'file': file, **values}

  def failed(self, name: str, error: Any, path: str = '') -> dict[str, Any]:
    """The row of a file that cannot be ranked, or of its copy at `path`."""
    text = str(error) if isinstance(error, (UserError, str)) else (
        f'{type(error).__name__}: {reason_of(error)}')
    text = text.replace(path, name) if path else text
    return self.row(name, error=text if name in text else f'{name}: {text}')


def line_of(row: dict[str, Any]) -> bytes:
  """A row as a line of JSON.

  Raises:
    ValueError: it has a number that JSON does not have, such as NaN.
  """
  return json.dumps(row, allow_nan=False, ensure_ascii=False,
                    separators=(',', ':')).encode() + b'\n'


class _Model:
  """A loaded model, and the opcodes that it was trained for."""

  def __init__(self, settings: Settings):
    threads.one_alone()
    ranker = scoring.load_ranker(
        settings.model_dir, settings.loading,
        (FeatureStats.from_json(json.loads(settings.stats_json)),
         settings.num_ops))
    self.ranker = dataclasses.replace(
        ranker, opcodes=ranker.opcodes or frozenset(range(ranker.num_ops)))
    self.compiled = None  # As one program: twice as fast on small kernels.
    if settings.all_tiles:
      tile_search.require_tpu(self.ranker)
    else:
      with contextlib.suppress(UserError):
        self.compiled = cost_model.CostModel(self.ranker)

  def ranking(self, kernel: Kernel, top_k: Optional[int]) -> rank.Ranking:
    """The first choices among the kernel's own tiles; None: all."""
    top_k = top_k or kernel.num_configs
    if self.compiled:
      return self.compiled.rank(kernel, top=top_k)
    return rank.ranking_of(kernel, self.ranker.scored(kernel), top_k)


# Each process loads its model once; workers of a cluster outlive a command.
loaded = functools.lru_cache(1)(_Model)


def rank_file(task: tuple[Settings, Found]) -> tuple[bytes, float]:
  """Ranks a file; faults of the file are in its rows.

  Returns:
    The lines of its rows, and processor seconds without loading the model.

  Raises:
    UserError: the model cannot be used, so no file can be ranked.
  """
  settings, file = task
  with _without_progress():
    model = loaded(settings)
    start = time.process_time()
    lines = b''.join(_lines_of(model, settings, file))
    return lines, time.process_time() - start


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


def _lines_of(model: _Model, settings: Settings,
              file: Found) -> Iterator[bytes]:
  path = ''
  try:
    with local_copy(file) as path:
      made = (_legal if settings.all_tiles else _listed)(
          model, settings, file.name, path)
      for row in made:
        if not isinstance(row, dict):
          row = settings.failed(file.name, row, path)
        try:
          yield line_of(row)
        except ValueError as error:  # A number that JSON does not have.
          yield line_of(settings.failed(file.name, error, path))
  except Exception as error:  # A file may be damaged in any way.
    yield line_of(settings.failed(file.name, error, path))


def _listed(model: _Model, settings: Settings, name: str,
            path: str) -> Iterator[Any]:
  """Rows of the tiles that a file lists, or errors of single kernels."""
  stats = model.ranker.stats
  partition = kernel_inputs.read_kernels(path, min_configs=1)
  stats.check_columns(partition)
  for kernel in partition:
    try:
      yield settings.row(
          name, **model.ranking(kernel, settings.top_k).to_json(),
          unfamiliar=_names(out_of_range.of_problem(model.ranker, kernel)))
    except Exception as error:  # Of this kernel alone.
      yield error


def _legal(model: _Model, settings: Settings, name: str,
           path: str) -> Iterator[Any]:
  """The same for all legal tiles."""
  source = kernel_sources.read_source(path, tpu=settings.tpu)
  if not source.kernels and not source.faults:
    yield settings.row(name, notes=source.notes)
  for found in source.kernels:
    try:
      advice = tile_search.advice_on(
          model.ranker, found, settings.top_k, settings.most_tiles, at_once=1)
      values = advice.to_json()
      yield settings.row(name, tile_id=values.pop('name'), **{
          **values, 'notes': [*source.notes, *advice.notes],
          'unfamiliar': _names(advice.unfamiliar)})
    except Exception as error:  # Of this kernel alone.
      yield error
  yield from source.faults


def _names(out_of_range: Sequence[Any]) -> list[str]:
  return [f'{found.table}.{found.column}' for found in out_of_range]
