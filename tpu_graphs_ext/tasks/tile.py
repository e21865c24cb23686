"""The tile task: kernels whose tiles are to be ranked."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import (
  compiled_model,
  evaluate,
  metrics,
  predictions_csv,
  results,
  settings,
  task,
)
from tpu_graphs_ext.engine.scoring import Scores
from tpu_graphs_ext.engine.settings import LoadSettings, TrainSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import feature_stats, tile_batches

# Training steps in one call of TensorFlow: they are short.
STEPS_PER_CALL = 10

_ENSEMBLE = 'EnsembleRanker'
# Arguments of an ensemble, not of its members, and their values for a model
# that has no such argument.
_OF_ALL = {'objective': 'flags', 'averaging': 0.0}
# What `--recipe best` trains members with: on its long lists it ranks better.
_BEST_OBJECTIVES = {'listmle_fastest_first': 'listmle_and_slowdown'}

# Hidden test kernels are named by a hash alone.
NO_PROGRAM = '(no program name)'
KINDS = ('convolution', 'reduction', 'element-wise', 'copy', 'other')
_OPCODES = {kind: frozenset(names.split()) for kind, names in {
    'convolution': 'convolution dot',
    'reduction': '''
reduce reduce-window select-and-scatter batch-norm-training batch-norm-grad
''',
    # As XLA's HloInstruction::IsElementwise has them, and normalisation with
    # given means, which XLA expands to such.
    'element-wise': '''
abs add and atan2 batch-norm-inference bitcast-convert cbrt ceil clamp compare
complex convert cosine count-leading-zeros divide exponential
exponential-minus-one floor imag is-finite log log-plus-one logistic map
maximum minimum multiply negate not or popcnt power real reduce-precision
remainder rng round-nearest-afz round-nearest-even rsqrt select shift-left
shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert
subtract tan tanh tuple-select xor
''',
    # They change the place or the number of copies of a value, or are
    # structure.
    'copy': '''
add-dependency after-all async-done async-start async-update bitcast broadcast
call concatenate constant copy copy-done copy-start domain dynamic-reshape
dynamic-slice dynamic-update-slice fusion gather get-dimension-size
get-tuple-element iota opt-barrier pad parameter reshape reverse
set-dimension-size slice trace transpose tuple
'''}.items()}


def kind_of(node_opcode: np.ndarray) -> str:
  """The first of `KINDS` that applies to a kernel of opcodes uint8 [nodes].

  Other: sorts, scatters, random bits, custom calls, unknown opcodes.
  """
  names = {schema.OPCODE_NAMES.get(number) for number in set(
      node_opcode.tolist())}
  for kind in ('convolution', 'reduction'):
    if names & _OPCODES[kind]:
      return kind
  names -= _OPCODES['copy']
  if not names:
    return 'copy'
  return 'element-wise' if names <= _OPCODES['element-wise'] else 'other'


def row_of(kernel: Kernel, scores: Scores,
           ks: Sequence[int] = metrics.TOP_KS) -> dict[str, Any]:
  """Measures of one labelled kernel with a model's scores.

  Returns:
    tile_id: its name.
    program: the program that it was cut from, or `NO_PROGRAM`.
    kind: one of `KINDS`.
    configs: number of configurations.
    rankable: whether any two configurations differ in their features.
    repeats: number of duplicates of an earlier one.
    slowdown_<k>: `metrics.slowdown_of` the first k to try.
    slowdown_kept_<k>: the same if duplicates come right after their tile.
    random_<k>: the expected slowdown of k tiles drawn at random.
    default: slowdown of the compiler's default tile; below 0 where that is
      faster than all that are listed. NaN where its time is not stored.
    opa: ordered pair accuracy of the tiles' scores, which duplicates share;
      of the model's own with `keep_repeats`. NaN where all runtimes are equal.
    kendall: their tau-b; NaN where all runtimes or all scores are equal.
  """
  runtime = kernel.runtime_rel
  last = scores.repeats & (not scores.keep_repeats)
  kept = np.argsort(scores.of_tiles, kind='stable')
  opa, kendall = metrics.pair_agreement(
      runtime, scores.given if scores.keep_repeats else scores.of_tiles)
  return {
      'tile_id': kernel.tile_id,
      'program': kernel.program if '_' in kernel.tile_id else NO_PROGRAM,
      'kind': kind_of(kernel.node_opcode),
      'configs': kernel.num_configs,
      'rankable': kernel.is_rankable,
      'repeats': int(scores.repeats.sum()),
      **{f'slowdown_{k}': metrics.slowdown_of(runtime, scores.order[:k])
         for k in ks},
      **{f'slowdown_kept_{k}': metrics.slowdown_of(runtime, kept[:k])
         for k in ks},
      **{f'random_{k}': metrics.random_slowdown(runtime, last, k)
         for k in ks},
      'default': (float(1 / runtime.min() - 1)
                  if (kernel.normalizer_ns != 1).any() else math.nan),
      'opa': opa, 'kendall': kendall}


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation(results.Results):
  """Measures of all kernels of one source, by one model; see `row_of`.

  Three means of the same kernels:
    micro    over kernels: the number that the baseline's trainer reports, with
             duplicates in their places if `keep_repeats`.
    rankable micro without kernels whose configurations are all identical.
    macro    over programs, of the mean over a program's kernels.
  Each has intervals, over kernels or, for macro, over programs.
  """
  NAME, PROBLEMS = 'tile_id', 'kernels'
  CSV = files.Output(
      '--csv', 'model_dir,data,tile_id,program,kind,configs,rankable,repeats',
      'CSV of evaluate')
  INTERVALS = ('slowdown', 'random', 'default', 'opa', 'kendall')
  COMPARED = ('slowdown', 'opa', 'kendall')
  ABOUT = ('kind', 'configs')
  LISTED = ('slowdown', 'default', *results.SCORES)

  @property
  def micro(self) -> results.Summary:
    """Means over all kernels: `micro['slowdown_5']`, `micro['opa']`."""
    return self.mean

  @functools.cached_property
  def rankable(self) -> results.Summary:
    """Means over the kernels whose configurations differ in their features."""
    rows = self.rows[self.rows['rankable']]
    return results.Summary(rows, len(rows))

  @functools.cached_property
  def programs(self) -> dict[str, results.Summary]:
    """Program -> micro over its kernels, sorted by name."""
    return self._grouped('program')

  @functools.cached_property
  def kinds(self) -> dict[str, results.Summary]:
    """Kind -> micro over its kernels, in the order of `KINDS`."""
    found = self._grouped('kind')
    return {kind: found[kind] for kind in KINDS if kind in found}

  def _grouped(self, column: str) -> dict[str, results.Summary]:
    return {name: results.Summary(rows, len(rows))
            for name, rows in self.rows.groupby(column)}

  @functools.cached_property
  def macro(self) -> results.Summary:
    """Means over the programs' means."""
    return results.Summary(results.table(
        summary.means for summary in self.programs.values()), len(self.rows))


  def to_json(self) -> dict[str, Any]:
    return {
        'model_dir': self.model_dir,
        'data': self.data,
        'keep_repeats': self.keep_repeats,
        **{name: self.summary_json(getattr(self, name))
           for name in ('micro', 'rankable', 'macro')},
        **{name: {group: self.summary_json(summary)
                  for group, summary in getattr(self, name).items()}
           for name in ('programs', 'kinds')},
        # The model's slowdown minus that of one tile whatever k is, or of k.
        'against': {
            other: {str(k): results.difference_json(*self.mean.minus(
                f'slowdown_{k}', self.mean, other + of_k.format(k)))
                    for k in self.ks}
            for other, of_k in (('default', ''), ('random', '_{}'))},
        'kernels': self.problems_json()}

  def groups(self) -> list[tuple[str, results.Summary]]:
    return [*self.programs.items(), *self.kinds.items(),
            ('macro (mean over programs)', self.macro),
            ('micro (rankable kernels)', self.rankable),
            ('micro (all kernels)', self.micro)]

  def other_choices(self) -> list[tuple[str, ...]]:
    default, random = (
        results.cells(self.micro, [measure], self.ks, intervals=True)
        for measure in ('default', 'random'))
    return [('the default tile', *len(self.ks) * default, '-', '-'),
            ('a random choice', *random, '-', '-')]


class TileTask(task.Task):
  """See `Task`."""
  name, problem = 'tile', 'kernel'
  loading = LoadSettings
  evaluation, row_of = Evaluation, staticmethod(row_of)
  top_ks = metrics.TOP_KS
  final = (('slowdown', 'final_error'),)
  csv_name, csv_configs = settings.CSV_NAME, settings.TOP_CONFIGS
  csv_id, csv_end = predictions_csv.TILE, ''
  test_configs = 10
  scored_at_once = 8
  config_table = 'config_feat'
  has_duplicates = True

  def read(self, path: str, loading: LoadSettings) -> Partition:
    if path.endswith('.pb'):
      from tpu_graphs_ext.hlo import tuning  # Few need it.
      return Partition.from_kernels(
          tuning.read_tile_kernels(os.path.expanduser(path)))
    return read.read_kernels(path, cache_dir=loading.cache_dir,
                             limit=read.TOY_FILES if loading.toy_data else None)

  def statistics(self, args: Mapping[str, Any],
                 loading: LoadSettings) -> tuple[FeatureStats, int]:
    dataset = read.read_dataset(
        loading.data_root, cache_dir=loading.cache_dir,
        toy_data=loading.toy_data,
        min_train_configs=-1 if loading.stats == 'all' else args['configs'])
    return FeatureStats.of_partition(dataset.train), dataset.num_ops

  def prepared(self, settings: TrainSettings) -> tuple[
      TrainSettings, task.Splits]:
    # Cheap checks first: a wrong name must not wait for the data.
    settings = with_members(settings)
    takes_stats = load_models.takes(
        settings.model, feature_stats.ARGUMENT, settings.models_file)
    if settings.tiles and not takes_stats:
      raise UserError(f'--tiles={settings.tiles}: {settings.model} does not '
                      f'see what tiles count; leave the flag out')
    data = read.read_dataset(
        settings.data_root, min_train_configs=settings.configs,
        cache_dir=settings.cache_dir, toy_data=settings.toy_data)
    validated = data.valid
    if settings.validate_batches >= 0:
      # As the baseline: 5 % more kernels than the batches hold, for those that
      # drop out because they have too few configurations.
      count = int(settings.validate_batches * settings.batch * 1.05)
      validated = validated.select(np.arange(min(count, len(validated))))
    stats = FeatureStats.of_partition(data.train)
    if settings.test_mode == 'metrics':
      evaluate.require_labels(
          data.test, os.path.join(settings.data_root, 'test'), self)
    for split, kernels in (('train', data.train), ('valid', validated)):
      usable = int((kernels.num_configs >= settings.configs).sum())
      if usable < settings.batch:
        raise UserError(
            f'{os.path.join(settings.data_root, split)}: only {usable} of '
            f'{len(kernels)} kernels have at least --configs='
            f'{settings.configs} configurations, fewer than one --batch='
            f'{settings.batch}; lower --batch or --configs')
    if takes_stats:
      settings = feature_stats.given_to_model(
          settings, feature_stats.of_kernels(stats, data.every_train))
    return settings, task.Splits(
        **vars(data), validated=validated, stats=stats)

  def compiled_model(self, settings: TrainSettings,
                     splits: task.Splits) -> tf.keras.Model:
    return compiled_model.model(
        settings, splits.num_ops, self.sample_graph(splits.stats),
        compiled_model.CombinedLoss(settings.weighted_losses),
        steps=len(splits.train) // settings.batch,
        steps_per_call=STEPS_PER_CALL)

  def datasets(
      self, settings: TrainSettings, splits: task.Splits, seed: int,
      first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    sizes = dict(batch_size=settings.batch, num_configs=settings.drawn_configs,
                 least_configs=settings.configs, seed=seed)
    return tile_batches.training_dataset(
        splits.train, splits.stats, first_epoch=first_epoch, **sizes
    ), tile_batches.training_dataset(
        splits.validated, splits.stats, anew=False, **sizes).cache()

  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    return tile_batches.kernel_graph(
        Kernel(
            tile_id='sample', node_feat=stats.node.minimum[np.newaxis],
            node_opcode=np.zeros(1, np.uint8),
            edge_index=np.zeros((0, 2), np.int64),
            config_feat=stats.config.minimum[np.newaxis],
            runtime_ns=np.ones(1, np.int64),
            normalizer_ns=np.ones(1, np.int64)), stats)

  def graphs(self, problem: Kernel,
             stats: FeatureStats) -> Iterable[tfgnn.GraphTensor]:
    return [tile_batches.kernel_graph(problem, stats)]

  def all_graphs(self, problems: Partition, stats: FeatureStats
                 ) -> Iterable[Iterable[tfgnn.GraphTensor]]:
    # Made ahead of use.
    return ([graph] for graph in tile_batches.kernel_graphs(problems, stats))

  def config_rows(self, problem: Kernel,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    return [problem.config_feat]


def with_members(settings: TrainSettings) -> TrainSettings:
  """The settings with `members` of the model as one `EnsembleRanker`.

  Of an ensemble, each member is multiplied. Raises UserError if there is no
  such model, or the models.py has no ensembles.
  """
  cls = load_models.model_class(settings.model, settings.models_py)
  if settings.members == 1:
    return settings
  kwargs = dict(settings.model_kwargs)
  if settings.model != _ENSEMBLE:
    load_models.model_class(_ENSEMBLE, settings.models_py)
    defaults = load_models.constructor_arguments(cls)[0]
    of_all = {name: kwargs.pop(name, defaults.get(name, default))
              for name, default in _OF_ALL.items()}
    if settings.recipe == 'best' and 'objective' not in settings.model_kwargs:
      of_all['objective'] = _BEST_OBJECTIVES.get(
          of_all['objective'], of_all['objective'])
    kwargs = {'members': {settings.model: kwargs}, **of_all}
  return dataclasses.replace(
      settings, model=_ENSEMBLE, model_kwargs_json=json.dumps(
          {**kwargs, 'copies': settings.members}))


TASK = TileTask()
