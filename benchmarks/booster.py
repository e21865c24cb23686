"""LightGBM on columns made by hand: what a user would try instead of a network.

A row is one configuration of one kernel. Its columns, in groups:

  root, max, sum   the 140 node features of the root, the largest and the sum
                   over the kernel's nodes
  opcodes          how many nodes have each opcode
  bounds           the 24 columns of the configuration
  extents          of the tiled tensor and of a product's second operand, and
                   their product
  trips            ceil(extent / bound), and their product
  remainders       extent mod bound, and trips * bound / extent: how far the
                   last tile of an axis reaches beyond its end
  minor            bound, extent and trips again, by place in memory instead of
                   by axis: most minor first

All are log2(1 + |x|) with the sign of x, but for the second remainder, which
is log2. What is tiled: the output of a convolution or dot, with its last
operand as the second; else the root; where that has another rank than the
bounds, the operand of a reduction.

Tile bounds of the public files count layout tiles, by physical dimension; those
of other data count elements, by logical dimension. The train kernels show it.
LightGBM comes with `pip install -e ".[dev]"` in a clone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError, how_to_install
from tpu_graphs_ext.hlo import tiles
from tpu_graphs_ext.tasks import TILE, feature_stats

# In the CSV and the tables.
NAME = 'LightGBM'

_DIMS = schema.MAX_DIMS
_PRODUCTS = [schema.OPCODES[name] for name in ('convolution', 'dot')]
_REDUCE = schema.OPCODES['reduce']


# --- Columns -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Reading:
  """What tile bounds mean.

  Attributes:
    in_elements: they count elements of logical dimensions; else layout tiles
      of physical ones, most major first.
  """
  in_elements: bool = False

  def extents(self, node: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Extents of one node by axis of the bounds, and the axes minor first.

    Args:
      node: float32 [140], its features.

    Returns:
      float64 [rank], in what bounds count; the places of the axes in it.
    """
    rank = rank_of(node)
    sizes = node[schema.NODE_GROUPS['shape_dimensions']][:rank]
    physical = tiles.physical_dims(
        node[schema.NODE_GROUPS['layout_minor_to_major']][:rank], rank)
    if self.in_elements:
      return sizes, physical[::-1]
    sizes = sizes[physical]
    return (np.ceil(sizes / tiles.layout_units(sizes)),
            list(range(rank))[::-1])


def rank_of(node: np.ndarray) -> int:
  """Dimensions of a node's output: sizes are positive, the rest is 0."""
  sizes = node[schema.NODE_GROUPS['shape_dimensions']][:_DIMS]
  return int((sizes > 0).sum())


def reading_of(kernels: Iterable[Kernel]) -> Reading:
  """What most kernels show, as models.py decides."""
  tiles, _ = feature_stats.what_tiles_count(kernels)
  return Reading(tiles == 'elements')


def _tiled(kernel: Kernel) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """(features of a node, its bounds [configs, 6]): tiled tensor, operand."""
  bounds = {name: kernel.config_feat[:, schema.CONFIG_GROUPS[name]][:, :_DIMS]
            for name in ('output_bounds', 'kernel_bounds')}
  rank = int((bounds['output_bounds'] > 0).sum(1).max())
  products = np.flatnonzero(np.isin(kernel.node_opcode, _PRODUCTS))
  if len(products):
    yield kernel.node_feat[products[-1]], bounds['output_bounds']
    operands = _producers(kernel, products[-1])
    if len(operands):
      yield kernel.node_feat[operands[-1]], bounds['kernel_bounds']
    return
  tiled = kernel.node_feat[-1]
  if rank_of(tiled) != rank:
    for reduce in np.flatnonzero(kernel.node_opcode == _REDUCE):
      for operand in _producers(kernel, reduce):
        if rank_of(kernel.node_feat[operand]) == rank:
          tiled = kernel.node_feat[operand]
  yield tiled, bounds['output_bounds']


def _producers(kernel: Kernel, node: int) -> np.ndarray:
  return kernel.edge_index[kernel.edge_index[:, 0] == node, 1]


def log(x: np.ndarray) -> np.ndarray:
  """log2(1 + |x|) with the sign of x."""
  return np.sign(x) * np.log2(1 + np.abs(x))


def columns(kernel: Kernel, reading: Reading) -> dict[str, np.ndarray]:
  """Group -> float32 [configs, columns of the group]; see the module."""
  feat = kernel.node_feat.astype(np.float64)
  pools = {
      'root': log(feat[-1]), 'max': log(feat.max(0)), 'sum': log(feat.sum(0)),
      'opcodes': log(np.bincount(
          kernel.node_opcode, minlength=schema.NUM_OPCODES))}
  groups = {name: np.tile(pool, (kernel.num_configs, 1))
            for name, pool in pools.items()}
  groups['bounds'] = log(kernel.config_feat)
  axes = [_axis_columns(node, bounds.astype(np.float64), reading)
          for node, bounds in _tiled(kernel)]
  if len(axes) == 1:
    axes.append({name: np.zeros_like(part) for name, part in axes[0].items()})
  for name in axes[0]:
    groups[name] = np.concatenate([part[name] for part in axes], 1)
  return {name: part.astype(np.float32) for name, part in groups.items()}


def _axis_columns(node: np.ndarray, bounds: np.ndarray,
                  reading: Reading) -> dict[str, np.ndarray]:
  """Group -> float64 [configs, columns] of one tiled tensor."""
  sizes, minor_first = reading.extents(node)
  rank = len(sizes)
  extents = np.zeros_like(bounds)
  extents[:, :rank] = sizes
  there = (extents > 0) & (bounds > 0)
  bound = np.where(there, bounds, 1)
  extent = np.where(there, extents, 1)
  trips = np.ceil(extent / bound)
  minor = np.zeros((len(bounds), 3 * _DIMS))
  for place, values in enumerate((bound, extent, trips)):
    minor[:, place * _DIMS:place * _DIMS + rank] = values[:, minor_first]
  return {
      'extents': log(np.concatenate([extents, extent.prod(1)[:, None]], 1)),
      'trips': log(np.concatenate([trips, trips.prod(1)[:, None]], 1)),
      'remainders': np.concatenate(
          [log(extent % bound), np.log2(trips * bound / extent)], 1),
      'minor': log(minor)}


def table(kernels: Iterable[Kernel], reading: Reading) -> np.ndarray:
  """float32 [configs of all kernels, columns]."""
  return np.concatenate([
      np.concatenate(list(columns(kernel, reading).values()), 1)
      for kernel in kernels])


# --- Training ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Settings:
  """How the trees are grown; defaults were chosen on `valid` of measured tiles.

  Attributes:
    trees: at most; the best multiple of `EVERY` by OPA on the validation split
      is kept.
    leaves, rate, least, columns, rows: LightGBM's num_leaves, learning_rate,
      min_data_in_leaf, feature_fraction and bagging_fraction (of every tree).
  """
  trees: int = 1500
  leaves: int = 127
  rate: float = 0.05
  least: int = 20
  columns: float = 0.5
  rows: float = 0.8


# Trees between two looks at the validation split.
EVERY = 50


@dataclasses.dataclass
class Booster:
  """A trained booster, which scores kernels as `scoring.Ranker` does.

  Attributes:
    model: lightgbm.Booster.
    reading: of the train kernels.
    settings: as given.
    best: trees that are used.
    seconds: of the training alone.
  """
  model: Any
  reading: Reading
  settings: Settings
  best: int
  seconds: float

  def score_all(self, kernels: Iterable[Kernel], what: str = ''
                ) -> Iterator[tuple[Kernel, scoring.Scores]]:
    """Each kernel with its scores, float64 [configs]: lower is faster.

    `what` is there because `Ranker` has it.
    """
    del what
    for kernel in kernels:
      yield kernel, scoring.Scores(
          self.model.predict(table([kernel], self.reading),
                             num_iteration=self.best, num_threads=1),
          scoring.first_copies(kernel.config_feat))

  @property
  def task(self) -> Any:
    """As a `Ranker` has it."""
    return TILE

  @property
  def leaves(self) -> int:
    """Leaves of all trees in use: numbers that were fitted."""
    trees = self.model.dump_model(num_iteration=self.best)['tree_info']
    return sum(tree['num_leaves'] for tree in trees)


def targets(kernels: Iterable[Kernel]) -> np.ndarray:
  """log2 runtime less its mean over the kernel, a number a configuration."""
  runtimes = [np.log2(kernel.runtime_rel) for kernel in kernels]
  return np.concatenate([each - each.mean() for each in runtimes])


def weights(kernels: Iterable[Kernel]) -> np.ndarray:
  """Fast configurations count most: by the inverse of their slowdown."""
  return np.concatenate([kernel.runtime_rel.min() / kernel.runtime_rel
                         for kernel in kernels])


def lightgbm():
  """The module.

  Raises:
    UserError: it is not installed.
  """
  try:
    import lightgbm as module
  except ImportError as error:
    raise UserError(
        f'{NAME} is not installed ({error}); {how_to_install("dev")}, '
        'or leave it out of --models') from error
  return module


def fit(train: list[Kernel], valid: list[Kernel], settings: Settings,
        seed: int = 0) -> Booster:
  """Grows the trees on `train`, and keeps as many as rank `valid` best.

  In one thread: LightGBM's threads wait for one another, so beside other work
  several take far longer than one.

  Raises:
    UserError: LightGBM is not installed.
  """
  lgb, reading = lightgbm(), reading_of(train)
  data = lgb.Dataset(table(train, reading), targets(train),
                     weight=weights(train))
  begin = time.perf_counter()
  model = lgb.train({
      'objective': 'regression', 'num_leaves': settings.leaves,
      'learning_rate': settings.rate, 'min_data_in_leaf': settings.least,
      'feature_fraction': settings.columns, 'bagging_fraction': settings.rows,
      'bagging_freq': 1, 'seed': seed, 'num_threads': 1,
      'deterministic': True, 'force_col_wise': True, 'verbosity': -1,
  }, data, num_boost_round=settings.trees)
  seconds = time.perf_counter() - begin
  best = _best_number(model, valid, reading, settings.trees)
  return Booster(model, reading, settings, best, seconds)


def _best_number(model, valid: list[Kernel], reading: Reading,
                 trees: int) -> int:
  """The multiple of `EVERY` whose trees have the highest mean OPA on `valid`.
  """
  from tpu_graphs_ext.engine import metrics
  rows = table(valid, reading)
  ends = np.cumsum([kernel.num_configs for kernel in valid])[:-1]
  scores, opas = np.zeros(len(rows)), {}
  for start in range(0, trees, EVERY):
    count = min(EVERY, trees - start)
    scores += model.predict(rows, start_iteration=start, num_iteration=count,
                            raw_score=True, num_threads=1)
    each = [metrics.pair_agreement(kernel.runtime_rel, part)[0]
            for kernel, part in zip(valid, np.split(scores, ends))]
    defined = [opa for opa in each if not np.isnan(opa)]
    opas[start + count] = np.mean(defined) if defined else 0.0
  return max(opas, key=opas.get)
