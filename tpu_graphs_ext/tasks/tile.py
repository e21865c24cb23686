"""The tile task: kernels whose tiles are to be ranked.

Its settings and its one object, `TILE`, which import TensorFlow, NumPy and data
only when they are used: the command line needs them for --help.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine.settings import (
  DEFAULT_RECIPE,
  RECIPES,
  TOP_CONFIGS,
  Checked,
  Loading,
  Training,
  as_in,
  setting,
)
from tpu_graphs_ext.engine.task import Splits
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import shipped

if TYPE_CHECKING:
  import tensorflow as tf
  import tensorflow_gnn as tfgnn

  from tpu_graphs_ext.data.kernel import Kernel, Partition
  from tpu_graphs_ext.data.normalize import FeatureStats
  from tpu_graphs_ext.sample.write import Summary

DATA_ROOT = '~/data/tpugraphs/npz/tile/xla'
CACHE_DIR = '~/data/tpugraphs/cache/tile'
LOSS_NAMES = ('ListMLELoss', 'PairwiseHingeLoss', 'MSE')
# Ten steps in one call of TensorFlow take a tenth less time, but AutoGraph then
# traces the step twice, which takes as long as hundreds of steps.
_STEPS_PER_CALL, _FEW_STEPS = 10, 2000

_ENSEMBLE = 'EnsembleRanker'
# Arguments of an ensemble, not of its members, and their values for a model
# that has no such argument.
_OF_ALL = {'objective': 'flags', 'averaging': 0.0}
# What `--recipe best` trains members with: on its long lists it ranks better.
_BEST_OBJECTIVES = {'listmle_fastest_first': 'listmle_and_slowdown'}


_PRESETS = '; '.join(' '.join([f'{name}:', *(
    f'--{key} {value}' for key, value in values.items())])
                     for name, values in RECIPES.items())


@dataclasses.dataclass(frozen=True)
class TrainSettings(Training):
  """Settings of training in the tile task.

  The recipe fills in what is None; `dataclasses.replace` keeps those values.
  """
  epochs: Optional[int] = as_in(Training, 'epochs', default=None)
  early_stop: Optional[int] = as_in(Training, 'early_stop', default=None)
  lr: Optional[float] = as_in(Training, 'lr', default=None)
  lr_schedule: Optional[str] = as_in(Training, 'lr_schedule', default=None)
  model: str = as_in(Training, 'model', default='EarlyJoinSAGE')
  out_dir: str = as_in(Training, 'out_dir', default='~/out/tpugraphs_tiles')
  data_root: str = as_in(Training, 'data_root', default=DATA_ROOT)
  cache_dir: str = as_in(Training, 'cache_dir', default=CACHE_DIR)
  eval_every: int = setting(
      5, 'has no effect, as in the baseline: every epoch is validated')
  losses: str = setting(
      'ListMLELoss:1,MSE:0.02',
      f'comma-separated name:weight of {", ".join(LOSS_NAMES)}; a model with '
      'its own loss, such as MyEarlyJoinSAGE, ignores them')
  recipe: str = setting(
      DEFAULT_RECIPE, f'preset for the flags you leave out ({_PRESETS})',
      tuple(RECIPES))
  list_size: Optional[int] = setting(
      None, 'draw this many configurations from each kernel if that is '
      'more than --configs; small kernels repeat theirs', least=0)
  members: Optional[int] = setting(
      None, 'number of ensemble members trained together; their scores '
      'are averaged (EnsembleRanker)', least=1)
  tiles: str = setting(
      '', 'what tile bounds count; empty: the train kernels show it',
      ('', 'elements', 'layout'))

  ARGS = (
      'epochs', 'eval_every', 'batch_size', 'configs', 'early_stop', 'losses',
      'learning_rate', 'clip_norm', 'model', 'model_kwargs_json', 'test_mode',
      'out_dir', 'results_csv', 'validate_batches', 'run_id')

  def __post_init__(self):
    super().__post_init__()
    for name, value in RECIPES[self.recipe].items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, value)
    _ = self.weighted_losses

  @functools.cached_property
  def weighted_losses(self) -> list[tuple[str, float]]:
    """(name, weight) pairs, from `losses`."""
    try:
      pairs = [(name, float(weight)) for name, weight in (
          part.strip().split(':') for part in self.losses.split(','))]
    except ValueError:
      pairs = [('', 0)]
    if any(name not in LOSS_NAMES or not 0 < weight < math.inf
           for name, weight in pairs):
      raise UserError(f'--losses={self.losses[:200]}: must be losses of '
                      f'{", ".join(LOSS_NAMES)}, each with a positive weight, '
                      'as in ListMLELoss:1,MSE:0.02')
    return pairs


@dataclasses.dataclass(frozen=True)
class LoadSettings(Loading):
  """Settings for loading a trained model of the tile task."""
  STATS = ('run', 'train', 'all')

  data_root: str = as_in(TrainSettings, 'data_root')
  cache_dir: str = as_in(TrainSettings, 'cache_dir')
  stats: str = as_in(
      Loading, 'stats', choices=STATS, help='statistics to normalise features '
      'by; run: those in the run file, or if it has none, as train; train: of '
      'the train kernels with at least --configs configurations, as in '
      "training; all: of all train kernels, as the baseline's evaluation and "
      'prediction scripts do')
  keep_repeats: bool = setting(
      False, "rank duplicate configurations by the model's scores, as the "
      "baseline's scripts do; otherwise they come last")


@dataclasses.dataclass(frozen=True)
class StatsSettings(Checked):
  """Kernels whose statistics `stats` prints, as a trainer's flags."""
  data_root: str = as_in(TrainSettings, 'data_root')
  configs: int = as_in(Training, 'configs')
  model_kwargs_json: str = as_in(Training, 'model_kwargs_json')
  cache_dir: str = as_in(TrainSettings, 'cache_dir')
  toy_data: bool = as_in(Training, 'toy_data')
  tiles: str = as_in(TrainSettings, 'tiles')


class TileTask(shipped.ShippedTask):
  """Ranks the tiles of a kernel."""
  name, problem, choices = 'tile', 'kernel', 'tiles'
  training, loading = TrainSettings, LoadSettings
  models_file = load_models.models_path()
  csv_name, csv_configs = 'predictions_model_output.csv', TOP_CONFIGS
  csv_id, test_configs = 'tile:xla:', 10
  scored_at_once = 8
  has_duplicates = True

  about = 'tiles of kernels'
  sources = 'folder of .npz files, one .npz or a .pb'
  has_pretrained = has_small_steps = has_geometry = has_groups = True
  compared_by = ('slowdown',)
  baseline_models = os.path.join(
      'tpu_graphs', 'baselines', 'tiles', 'models.py')
  sample_flags = ('kernels', 'tpu', 'seed')

  def read(self, path: str, loading: LoadSettings) -> Partition:
    """The kernels of a folder of .npz files, of one, of tuning data (.pb), or
    of a table of measured tiles (.csv, see `hlo.featurize.measured_kernels`).
    """
    from tpu_graphs_ext.data import read
    if path.endswith(('.pb', '.csv')):
      from tpu_graphs_ext.data.kernel import Partition
      from tpu_graphs_ext.hlo import featurize, tuning
      read_kernels = (tuning.read_tile_kernels if path.endswith('.pb')
                      else featurize.measured_kernels)
      return Partition.from_kernels(read_kernels(os.path.expanduser(path)))
    return read.read_kernels(path, cache_dir=loading.cache_dir,
                             limit=read.TOY_FILES if loading.toy_data else None)

  def statistics(self, args: Mapping[str, Any],
                 loading: LoadSettings) -> tuple[FeatureStats, int]:
    """By all train kernels with `--stats=all`, else as in training by those
    with `args['configs']` configurations or more.
    """
    from tpu_graphs_ext.data import read
    from tpu_graphs_ext.data.normalize import FeatureStats
    dataset = read.read_dataset(
        loading.data_root, cache_dir=loading.cache_dir,
        toy_data=loading.toy_data,
        min_train_configs=-1 if loading.stats == 'all' else args['configs'])
    return FeatureStats.of_partition(dataset.train), dataset.num_ops

  def prepared(self, settings: TrainSettings) -> tuple[TrainSettings, Splits]:
    """The settings, with `members` as one ensemble, and the data.

    There must be enough kernels of `configs` configurations for a batch.
    """
    import numpy as np

    from tpu_graphs_ext.data import read
    from tpu_graphs_ext.data.normalize import FeatureStats
    from tpu_graphs_ext.tasks import feature_stats

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
    return settings, Splits(data.train, validated, data.valid, data.test,
                            data.num_ops, stats)

  def compiled_model(self, settings: TrainSettings,
                     splits: Splits) -> tf.keras.Model:
    """The model with the losses of `settings`."""
    from tpu_graphs_ext.engine import compiled_model
    steps = len(splits.train) // settings.batch
    is_short = settings.epochs * steps < _FEW_STEPS
    return compiled_model.model(
        settings, splits.num_ops, self.sample_graph(splits.stats),
        compiled_model.CombinedLoss(settings.weighted_losses), steps,
        steps_per_call=1 if is_short else _STEPS_PER_CALL)

  def datasets(
      self, settings: TrainSettings, splits: Splits, seed: int,
      first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Batches of `batch` kernels with labels float32 [batch, drawn_configs].

    Configurations are drawn anew in each epoch, those to validate on once.
    """
    from tpu_graphs_ext.tasks import tile_batches
    sizes = dict(batch_size=settings.batch, num_configs=settings.drawn_configs,
                 least_configs=settings.configs, seed=seed)
    return tile_batches.training_dataset(
        splits.train, splits.stats, first_epoch=first_epoch, **sizes
    ), tile_batches.training_dataset(
        splits.validated, splits.stats, anew=False, **sizes).cache()

  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    """A kernel of one node, with two tiles of the least of all features."""
    import numpy as np

    from tpu_graphs_ext.data.kernel import Kernel
    from tpu_graphs_ext.tasks import tile_batches
    return tile_batches.kernel_graph(
        Kernel(
            tile_id='sample', node_feat=stats.node.minimum[np.newaxis],
            node_opcode=np.zeros(1, np.uint8),
            edge_index=np.zeros((0, 2), np.int64),
            config_feat=np.tile(stats.config.minimum, (2, 1)),
            runtime_ns=np.ones(2, np.int64),
            normalizer_ns=np.ones(2, np.int64)), stats)

  def graphs(self, problem: Kernel,
             stats: FeatureStats) -> Iterator[tfgnn.GraphTensor]:
    """One graph, whose node set `config` is float32 [configs, columns]."""
    from tpu_graphs_ext.tasks import tile_batches
    yield tile_batches.kernel_graph(problem, stats)

  def in_known_features(self, problem: Kernel, stats: FeatureStats) -> Kernel:
    """The kernel with known element types; see `tile_batches`."""
    from tpu_graphs_ext.tasks import tile_batches
    return tile_batches.with_known_types(problem, stats)

  def has_args(self, args: Mapping[str, Any]) -> bool:
    """Whether `tiles_train.py` wrote them: `layout_train.py` cuts programs."""
    return 'keep_nodes' not in args

  def write_sample(self, out: str, **flags: Any) -> Summary:
    """Kernels of Google's TPU compiler; see `sample.write`."""
    from tpu_graphs_ext.sample import write
    return write.write_sample_data(out, **flags)


def with_members(settings: TrainSettings) -> TrainSettings:
  """The settings with `members` of the model as one `EnsembleRanker`.

  For an ensemble, sets its number of copies. Raises UserError if there is no
  such model, or the models.py has no ensembles.
  """
  cls = load_models.model_class(settings.model, settings.models_py)
  if settings.members == 1:
    return settings
  kwargs = dict(settings.model_kwargs)
  if settings.model != _ENSEMBLE:
    if _ENSEMBLE not in load_models.model_names(settings.models_py):
      raise UserError(
          f'--members={settings.members}: {settings.models_file} has no '
          f'{_ENSEMBLE}, which trains them together; give --members 1')
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


TILE = TrainSettings.task = LoadSettings.task = StatsSettings.task = TileTask()
