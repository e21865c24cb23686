"""LightGBM on columns made by hand: what a user would try instead of a network.

A row is one configuration of one kernel. Its columns, in groups:

  root, max, sum   the 140 node features of the root, the largest and the sum
                   over the kernel's nodes
  opcodes          how many nodes have each opcode
  bounds           the 24 columns of the configuration
  extents          of the tiled tensor and of a product's second operand
  trips            ceil(extent / bound), and their products
  remainders       extent mod bound, and trips * bound / extent: what the last
                   tiles of an axis cover in vain
  minor            bound, extent and trips again, by place in memory instead of
                   by axis: most minor first

All are log2(1 + |x|) with the sign of x, but for the second remainder, which
is log2. What is tiled: the output of a convolution or dot, with its last
operand as the second; else the root; where that has another rank than the
bounds, the operand of a reduction.

Tile bounds of the public files count layout tiles, by physical dimension. Data
of other machines may count elements, or go by logical dimension; which it is
(see `Reading`) is taken from the train kernels. LightGBM comes with
`pip install -e ".[dev]"` in a clone.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import duplicate_configs
from tpu_graphs_ext.engine import task as tasks
from tpu_graphs_ext.errors import UserError, how_to_install
from tpu_graphs_ext.hlo import layout

# In the CSV and the tables.
NAME = 'LightGBM'

GROUPS = ('root', 'max', 'sum', 'opcodes', 'bounds', 'extents', 'trips',
          'remainders', 'minor')

_DIMS = schema.MAX_DIMS
_PRODUCTS = [schema.OPCODES[name] for name in ('convolution', 'dot')]
_REDUCE = schema.OPCODES['reduce']


# --- Columns -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Reading:
  """What tile bounds mean.

  Attributes:
    in_elements: they count elements; else layout tiles.
    logical: bound i is of dimension i; else of the i-th in memory, most major
      first.
  """
  in_elements: bool = False
  logical: bool = False

  def extents(self, node: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Extents of one node by axis of the bounds, and the axes minor first.

    Args:
      node: float32 [140], its features.

    Returns:
      float64 [rank], in what bounds count; the places of the axes in it.
    """
    rank = rank_of(node)
    sizes = node[schema.NODE_GROUPS['shape_dimensions']][:rank]
    physical = layout.physical_dims(
        node[schema.NODE_GROUPS['layout_minor_to_major']][:rank], rank)
    units = np.ones(rank)
    if not self.in_elements:
      units[physical] = layout.layout_units(sizes[physical])
    extents = np.ceil(sizes / units)
    if self.logical:
      return extents, physical[::-1]
    return extents[physical], list(range(rank))[::-1]


READINGS = tuple(Reading(*flags)
                 for flags in itertools.product((False, True), repeat=2))


def rank_of(node: np.ndarray) -> int:
  """Dimensions of a node's output: sizes are positive, the rest is 0."""
  sizes = node[schema.NODE_GROUPS['shape_dimensions']][:_DIMS]
  return int((sizes > 0).sum())


def reading_of(kernels: Iterable[Kernel]) -> Reading:
  """The reading under which most largest bounds are whole extents."""
  hits = np.zeros(len(READINGS))
  for kernel in kernels:
    for node, bounds in _tiled(kernel):
      largest = bounds.max(0)
      for number, reading in enumerate(READINGS):
        extents, _ = reading.extents(node)
        rank = len(extents)
        hits[number] += ((extents == largest[:rank]) & (extents > 1)).sum()
  # The first is the public files'; it wins a tie.
  return READINGS[int(hits.argmax())]


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


def columns(kernel: Kernel, reading: Reading,
            without: Iterable[str] = ()) -> dict[str, np.ndarray]:
  """Group -> float32 [configs, columns of the group]; see the module.

  Raises:
    UserError: there is no group of a name in `without`.
  """
  unknown = set(without) - set(GROUPS)
  if unknown:
    raise UserError(f'there are no columns {", ".join(sorted(unknown))!r}; '
                    f'choose from {", ".join(GROUPS)}')
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
  return {name: groups[name].astype(np.float32)
          for name in GROUPS if name not in without}


def _axis_columns(node: np.ndarray, bounds: np.ndarray,
                  reading: Reading) -> dict[str, np.ndarray]:
  """Group -> float64 [configs, columns] of one tiled tensor."""
  own, minor_first = reading.extents(node)
  rank = len(own)
  extents = np.zeros_like(bounds)
  extents[:, :rank] = own
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


def column_names(without: Iterable[str] = ()) -> list[str]:
  """Names of the columns, in order: `<group>.<column>`."""
  axes = [f'{tensor}_{axis}' for tensor in ('output', 'kernel')
          for axis in [*range(_DIMS), 'product']]
  places = [f'{tensor}_{what}_{place}' for tensor in ('output', 'kernel')
            for what in ('bound', 'extent', 'trips') for place in range(_DIMS)]
  remainders = [f'{tensor}_{what}_{axis}' for tensor in ('output', 'kernel')
                for what in ('mod', 'waste') for axis in range(_DIMS)]
  names = {
      **{pool: schema.NODE_FEATURES for pool in ('root', 'max', 'sum')},
      'opcodes': [schema.OPCODE_NAMES.get(number, 'unknown')
                  for number in range(schema.NUM_OPCODES)],
      'bounds': schema.CONFIG_FEATURES, 'extents': axes, 'trips': axes,
      'remainders': remainders, 'minor': places}
  return [f'{group}.{name}' for group in GROUPS if group not in without
          for name in names[group]]


# --- Training ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Settings:
  """How the trees are grown; defaults were chosen on `valid` of measured tiles.

  Attributes:
    objective: 'regression' of log2 runtime less its mean over the kernel, or
      'lambdarank' or 'rank_xendcg' of `LEVELS` grades of it.
    trees: at most; the best multiple of `EVERY` by OPA on the validation split
      is kept.
    leaves, rate, least, columns, rows, l2: LightGBM's num_leaves,
      learning_rate, min_data_in_leaf, feature_fraction, bagging_fraction (of
      every tree) and lambda_l2.
    focus: a regression weighs each configuration by its slowdown to the power
      of minus this.
    without: groups of columns that are left out.
  """
  objective: str = 'regression'
  trees: int = 1500
  leaves: int = 127
  rate: float = 0.05
  least: int = 20
  columns: float = 0.5
  rows: float = 0.8
  l2: float = 0.0
  focus: float = 1.0
  without: tuple[str, ...] = ()

  @classmethod
  def of(cls, given: dict[str, Any]) -> Settings:
    """From keyword arguments out of JSON.

    Raises:
      UserError: one of them is no setting.
    """
    known = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(given) - known)
    if unknown:
      raise UserError(f'{NAME} has no setting {unknown[0]!r}; choose from '
                      f'{", ".join(sorted(known))}')
    return cls(**{key: tuple(value) if isinstance(value, list) else value
                  for key, value in given.items()})


# Trees between two looks at the validation split.
EVERY = 50
# Grades of a ranking objective: of equal width in log2 of the slowdown.
LEVELS = 31
# log2 of the slowdown beyond which all is graded alike.
_WORST = 3.0


@dataclasses.dataclass
class Booster:
  """A trained booster, which scores kernels as `scoring.Ranker` does.

  Attributes:
    model: lightgbm.Booster.
    reading: of the train kernels.
    settings: as given.
    best: trees that are used.
    curve: (trees, OPA on the validation split).
    seconds: of the training alone.
  """
  model: Any
  reading: Reading
  settings: Settings
  best: int
  curve: list[tuple[int, float]]
  seconds: float

  def scores(self, kernel: Kernel) -> np.ndarray:
    """float64 [configs]: lower is faster."""
    return self.model.predict(
        table([kernel], self.reading, self.settings.without),
        num_iteration=self.best, num_threads=1)

  def score_all(self, kernels: Iterable[Kernel], what: str = ''
                ) -> Iterator[tuple[Kernel, duplicate_configs.Scores]]:
    """Each kernel with its scores; `what` is for equality with `Ranker`."""
    del what
    for kernel in kernels:
      yield kernel, duplicate_configs.Scores(
          self.scores(kernel),
          duplicate_configs.first_copies(kernel.config_feat))

  @property
  def task(self) -> Any:
    """As a `Ranker` has it."""
    return tasks.find('tile')

  @property
  def leaves(self) -> int:
    """Leaves of all trees in use: numbers that were fitted."""
    trees = self.model.dump_model(num_iteration=self.best)['tree_info']
    return sum(tree['num_leaves'] for tree in trees)


def table(kernels: Iterable[Kernel], reading: Reading,
          without: Iterable[str] = ()) -> np.ndarray:
  """float32 [configs of all kernels, columns]."""
  return np.concatenate([
      np.concatenate(list(columns(kernel, reading, without).values()), 1)
      for kernel in kernels])


def targets(kernels: Iterable[Kernel], objective: str) -> np.ndarray:
  """What is learned, a number a configuration; see `Settings.objective`."""
  found = []
  for kernel in kernels:
    runtime = np.log2(kernel.runtime_rel)
    if objective == 'regression':
      found.append(runtime - runtime.mean())
    else:
      slower = np.minimum((runtime - runtime.min()) / _WORST, 1)
      found.append(np.round((LEVELS - 1) * (1 - slower)))
  return np.concatenate(found)


def weights(kernels: Iterable[Kernel], focus: float) -> np.ndarray:
  """How much each configuration counts; see `Settings.focus`."""
  return np.concatenate([
      (kernel.runtime_rel / kernel.runtime_rel.min()) ** -focus
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
        seed: int = 0, threads: int = 1) -> Booster:
  """Grows the trees on `train`, and keeps as many as rank `valid` best.

  Raises:
    UserError: LightGBM is not installed.
  """
  lgb = lightgbm()
  reading = reading_of(train)
  ranks = settings.objective != 'regression'
  data = lgb.Dataset(
      table(train, reading, settings.without),
      targets(train, settings.objective),
      weight=weights(train, settings.focus) if settings.focus else None,
      group=[kernel.num_configs for kernel in train] if ranks else None)
  begin = time.perf_counter()
  model = lgb.train(_parameters(settings, seed, threads), data,
                    num_boost_round=settings.trees)
  seconds = time.perf_counter() - begin
  if ranks:
    model = _Negated(model)
  curve = _curve(model, valid, reading, settings, threads)
  best = max(curve, key=lambda point: point[1])[0]
  return Booster(model, reading, settings, best, curve, seconds)


class _Negated:
  """A model whose highest score was best, so that the lowest is."""

  def __init__(self, model):
    self._model = model

  def predict(self, *args, **kwargs):
    return -self._model.predict(*args, **kwargs)

  def __getattr__(self, name):
    return getattr(self._model, name)


def _parameters(settings: Settings, seed: int, threads: int) -> dict[str, Any]:
  return {
      'objective': settings.objective, 'num_leaves': settings.leaves,
      'learning_rate': settings.rate, 'min_data_in_leaf': settings.least,
      'feature_fraction': settings.columns, 'bagging_fraction': settings.rows,
      'bagging_freq': 1, 'lambda_l2': settings.l2, 'seed': seed,
      'num_threads': threads, 'deterministic': True, 'force_col_wise': True,
      'verbosity': -1, 'label_gain': list(range(LEVELS))}


def _curve(model, valid: list[Kernel], reading: Reading, settings: Settings,
           threads: int) -> list[tuple[int, float]]:
  """(trees, mean OPA on `valid`), every `EVERY` trees."""
  rows = table(valid, reading, settings.without)
  ends = np.cumsum([kernel.num_configs for kernel in valid])[:-1]
  scores, curve = np.zeros(len(rows)), []
  for start in range(0, settings.trees, EVERY):
    count = min(EVERY, settings.trees - start)
    scores += model.predict(rows, start_iteration=start, num_iteration=count,
                            raw_score=True, num_threads=threads)
    curve.append((start + count, _mean_opa(valid, np.split(scores, ends))))
  return curve


def _mean_opa(kernels: list[Kernel], scores: list[np.ndarray]) -> float:
  """Over the kernels that have runtimes to tell apart; 0 if none has."""
  from tpu_graphs_ext.engine import metrics
  each = [metrics.ordered_pair_accuracy(kernel.runtime_rel, own)
          for kernel, own in zip(kernels, scores)]
  defined = [opa for opa in each if not np.isnan(opa)]
  return float(np.mean(defined)) if defined else 0.0
