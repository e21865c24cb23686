"""A trained model's first choices among all legal tiles of a kernel, and why.

Tiles are scored in parts and kept by number, so memory does not grow with them
but for 20 bytes each. What the model cannot tell apart is tried in the order of
the analytic time.
"""

from __future__ import annotations

import dataclasses
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext.analytic import candidates, explain
from tpu_graphs_ext.analytic.loops import Loops
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import out_of_range, scoring
from tpu_graphs_ext.engine.settings import TOP_CONFIGS, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features
from tpu_graphs_ext.serving import sources
from tpu_graphs_ext.serving.tile_advice import FROM_TIME, Advice, Pick, SourceAdvice

# Tiles that are scored, of a kernel with more: an even sample.
MOST_TILES = 100_000
_AT_ONCE = 8192  # Tiles of one call of the model.
_MOST_WORKERS = 8  # Parts that are scored at once: each takes memory.


def advise(model_dir: str, names: list[str], *, shapes: str = '',
           tpu: str = sources.DEFAULT_TPU, jax_python: str = '',
           top_k: Optional[int] = TOP_CONFIGS, most_tiles: int = MOST_TILES,
           loading: LoadSettings = LoadSettings()) -> list[SourceAdvice]:
  """Ranks the legal tiles of kernels, whether or not they were ever timed.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    names: files or functions, see `sources`.
    shapes, tpu, jax_python: see `sources.read_source`.
    top_k: tiles of each kernel to give; None for all.
    most_tiles: of a kernel with more, an even sample of so many is ranked.
    loading: how to load the model.

  Returns:
    One for each name; what cannot be ranked is among its faults.

  Raises:
    UserError: the model cannot be loaded, or is of other hardware.
  """
  ranker = scoring.load_ranker(model_dir, loading)
  require_tpu(ranker)
  advice = []
  for name in names:
    try:
      source = sources.read_source(name, shapes, tpu, jax_python)
    except UserError as error:
      advice.append(SourceAdvice(name, [], [], [str(error)]))
      continue
    advice.append(advice_on_source(ranker, source, top_k, most_tiles))
  return advice


def advice_on_source(ranker: scoring.Ranker, source: sources.Source,
                     top_k: Optional[int] = TOP_CONFIGS,
                     most_tiles: int = MOST_TILES) -> SourceAdvice:
  """Ranks the legal tiles of each kernel of a file or function."""
  kernels, faults = [], list(source.faults)
  for found in tqdm(source.found, 'kernels', unit='kernel', disable=None,
                    leave=False):
    try:
      kernels.append(advice_on(ranker, found, top_k, most_tiles))
    except UserError as error:
      faults.append(f'{source.name}: {error}')
  out_of_range.warn_of(
      [each for kernel in kernels for each in kernel.unfamiliar],
      len(kernels), ranker.name)
  return SourceAdvice(source.name, kernels, source.notes, faults)


def require_tpu(ranker: scoring.Ranker) -> None:
  """Raises a UserError where the model is of hardware with other tiles."""
  if ranker.in_elements:
    raise UserError(
        f'{ranker.name}: was trained on tiles that are counted in elements, '
        'and which tiles are legal is known of TPUs alone; rank those that a '
        'file lists, with --data')


def advice_on(ranker: scoring.Ranker, found: sources.Found,
              top_k: Optional[int] = TOP_CONFIGS, most_tiles: int = MOST_TILES,
              at_once: int = _MOST_WORKERS) -> Advice:
  """Ranks the legal tiles of one kernel; arguments as of `advise`.

  Args:
    at_once: parts of its tiles that are scored side by side, no more than
      there are cores.

  Raises:
    UserError: the kernel cannot be ranked.
  """
  kernel = found.kernel
  explainer = explain.Explainer(kernel, constants_of(ranker.model))
  has_time = bool(constants_of(ranker.model))
  legal = _legal(explainer, kernel, most_tiles)
  notes = list(found.notes)
  if legal.looked_at < legal.combinations:
    notes.append(f'of {legal.combinations:,} combinations of bounds '
                 f'{legal.looked_at:,} were looked at, evenly spread')
  picks, default, default_from = [], None, ''
  if len(legal) < 2:
    notes.append('it has one legal tile, so there is nothing to choose')
  else:
    scores, times = _scores_and_times(
        ranker, kernel, explainer, legal, at_once)
    order = np.lexsort((times, scores))
    chosen, default_from = _default(found, explainer, legal)
    make = _PickMaker(kernel, explainer, legal, scores, order,
                      float(times[chosen]) if has_time else None)
    count = len(order) if top_k is None else min(top_k, len(order))
    for start in range(0, count, _AT_ONCE):
      picks += make(start, min(count, start + _AT_ONCE))
    place = int(np.flatnonzero(order == chosen)[0])
    default, = make(place, place + 1)
  return Advice(
      name=kernel.tile_id, copies=found.copies, op_name=found.op_name,
      share=found.share, cycles=found.cycles, nodes=kernel.num_nodes,
      opcodes=_opcodes(kernel), product=_product_of(explainer.loops),
      combinations=legal.combinations,
      fitting=legal.fitting, scored=len(legal), picks=picks, default=default,
      default_from=default_from, notes=notes,
      unfamiliar=_unfamiliar(ranker, kernel, explainer, legal))


def _product_of(loops: Loops) -> Optional[tuple[int, int, int]]:
  """`Advice.product`."""
  matrix = loops.matrix
  if matrix is None:
    return None
  return tuple(
      math.prod(loops.grid.axes[axis].size for axis in axes if axis >= 0)
      for axes in (matrix.row_axes, (matrix.feature,),
                   (matrix.contracted, *matrix.window_axes)))


def _unfamiliar(ranker, kernel, explainer,
                legal) -> list[out_of_range.Unfamiliar]:
  """Of the nodes, and of the tiles where there is a choice."""
  found = out_of_range.of_nodes(ranker.stats, kernel, ranker.opcodes)
  if len(legal) < 2:
    return found
  return found + out_of_range.of_rows(
      ranker.stats.config, kernel.tile_id, 'config_feat', (
          _config_features(explainer, legal.tiles(start, start + _AT_ONCE))
          for start in range(0, len(legal), _AT_ONCE)))


def constants_of(model: Any) -> dict[str, float]:
  """A model's physical constants; none if it has no analytic time."""
  given = getattr(model, 'constants', None)
  return dict(given()) if callable(given) else {}


def _legal(explainer, kernel, most_tiles) -> candidates.Candidates:
  """The legal tiles, those of the file and its default among them."""
  with tqdm(desc='tiles', unit='tile', disable=None, leave=False) as bar:
    legal = candidates.candidates(
        explainer.loops, most=most_tiles, progress=bar.update)
  if not kernel.num_configs or not explainer.loops.grid.bounded:
    return legal
  return legal.with_extra(explainer.tiles(kernel.config_feat))


def _default(found, explainer, legal) -> tuple[int, str]:
  """(place among the tiles, where it is from)."""
  kernel = found.kernel
  row = sources.default_of(kernel)
  if row is None:
    # The model's own constants may be learned; a compiler knows none of them.
    plain = explain.Explainer(kernel)
    least = [plain.terms(legal.tiles(start, start + _AT_ONCE)).time
             for start in range(0, len(legal), _AT_ONCE)]
    return int(np.argmin(np.concatenate(least))), FROM_TIME
  wanted = explainer.tiles(kernel.config_feat[row:row + 1])
  return legal.place_of(wanted[0]), found.default_from


def _scores_and_times(ranker, kernel, explainer, legal, at_once) -> tuple:
  """(float32 [tiles], float64 [tiles]): model's scores, analytic times."""
  kernel = ranker.prepared(_with_tiles(kernel, explainer, legal.tiles(0, 1)))

  def part(start: int) -> tuple:
    tiles = legal.tiles(start, start + _AT_ONCE)
    scores = ranker.scored(_with_tiles(kernel, explainer, tiles))
    return scores.of_tiles, explainer.terms(tiles).time

  starts = range(0, len(legal), _AT_ONCE)
  parts = []
  workers = min(os.cpu_count() or 1, at_once, len(starts))
  with ThreadPoolExecutor(workers) as pool, tqdm(
      desc=kernel.tile_id, total=len(legal), unit='tile', disable=None,
      leave=False) as bar:
    for scores, times in pool.map(part, starts):
      parts.append((scores, times))
      bar.update(len(scores))
  return tuple(np.concatenate(column) for column in zip(*parts))


def _with_tiles(kernel: Kernel, explainer, tiles: np.ndarray) -> Kernel:
  """The kernel with these configurations, unmeasured."""
  ones = np.ones(len(tiles), np.int64)
  return dataclasses.replace(
      kernel, runtime_ns=ones, normalizer_ns=ones,
      config_feat=_config_features(explainer, tiles))


def _config_features(explainer, tiles: np.ndarray) -> np.ndarray:
  """float32 [tiles, 24]."""
  grid = explainer.loops.grid
  return features.config_features(
      grid.kernel_bounds(tiles), grid.output_bounds(tiles))


class _PickMaker:
  """Makes the `Pick`s of places in the order."""

  def __init__(self, kernel, explainer, legal, scores, order, default_ns):
    self._explainer, self._legal = explainer, legal
    self._scores, self._order = scores, order
    self._default_ns = default_ns
    self._measured = _measured(kernel, explainer)

  def __call__(self, start: int, stop: int) -> list[Pick]:
    chosen = self._order[start:stop].tolist()
    tiles = np.concatenate([self._legal.tiles(i, i + 1) for i in chosen])
    return [self._pick(start + 1 + number, index, tile, told)
            for number, (index, tile, told) in enumerate(zip(
                chosen, tiles.tolist(), self._explainer.explain_tiles(tiles)))]

  def _pick(self, place, index, tile, told) -> Pick:
    predicted = over = None
    if self._default_ns is not None:
      predicted, over = told.time_ns, told.time_ns / self._default_ns
    return Pick(place, float(self._scores[index]), told, predicted, over,
                self._measured.get(tuple(tile)))


def _measured(kernel, explainer) -> dict[tuple, int]:
  """Tile bounds -> the fastest run with them, ns; empty without runs."""
  if not kernel.num_configs or not (kernel.runtime_ns > 1).all():
    return {}
  slowest_first = np.argsort(-kernel.runtime_ns, kind='stable')
  tiles = explainer.tiles(kernel.config_feat[slowest_first])
  return dict(zip(map(tuple, tiles.tolist()),
                  kernel.runtime_ns[slowest_first].tolist()))


# What every kernel has, and what says most about one.
_PLAIN = frozenset({'parameter', 'fusion', 'constant', 'tuple', 'broadcast',
                    'bitcast', 'get-tuple-element'})
_TELLING = ('convolution', 'dot', 'reduce', 'reduce-window',
            'select-and-scatter')


def _opcodes(kernel: Kernel) -> list[str]:
  names = [schema.OPCODE_NAMES.get(int(number), 'unknown')
           for number in kernel.node_opcode]
  first = [name for name in _TELLING if name in names]
  return [name for name in dict.fromkeys(first + names) if name not in _PLAIN]
