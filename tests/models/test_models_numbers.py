"""Scores and weights stay numbers, whatever numbers the files hold."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest
import tensorflow as tf

from support import extreme_kernels, tiny_kernels
from support import model_checks as checks
from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import compiled_model
from tpu_graphs_ext.tasks import tile_batches
from tpu_graphs_ext.tasks.tile import TrainSettings

NAMES = [
    *(name for name in load_models.model_names()
      if name != 'AnalyticTileModel'),
    *(name + checks.RAW for name in load_models.model_names()
      if load_models.takes(name, 'feature_stats'))]
TRAIN = Partition.from_kernels(extreme_kernels.training_kernels())
STATS = FeatureStats.of_partition(TRAIN)

configs_of = operator.attrgetter('num_configs')


def scored(model: tf.keras.Model) -> None:
  """Kernels with as many configurations at once, which is faster."""
  for number, kernels in itertools.groupby(
      sorted(extreme_kernels.kernels_to_rank(), key=configs_of), configs_of):
    kernels = list(kernels)
    scores = model(tile_batches.graph_tensor(tile_batches.batch_arrays(
        kernels, np.tile(np.arange(number), (len(kernels), 1)), STATS)))
    assert scores.shape == (len(kernels), number)
    for kernel, row in zip(kernels, scores):
      assert np.isfinite(row).all(), kernel.tile_id


def trained(name: str, epochs: int) -> None:
  """Three steps an epoch with the losses of the baseline's flags."""
  model = checks.make(name, stats=STATS)
  load_models.create_variables(
      model, tile_batches.kernel_graph(TRAIN[0], STATS))
  model.compile(
      loss=compiled_model.CombinedLoss(TrainSettings().weighted_losses),
      optimizer=tf.keras.optimizers.Adam(1e-3, clipnorm=1e-3))
  history = model.fit(tile_batches.training_dataset(
          TRAIN, STATS, batch_size=2, num_configs=5, seed=1),
      epochs=epochs, verbose=0)
  assert np.isfinite(history.history['loss']).all()
  for variable in model.trainable_variables:
    assert np.isfinite(variable.numpy()).all(), variable.name
  scored(model)


def test_untrained_scores_are_numbers():
  for name in NAMES:
    model = checks.make(name, stats=STATS)
    scored(model)


@pytest.mark.survive
@pytest.mark.parametrize('name', NAMES)
def test_fifty_steps_on_extreme_kernels(name):
  trained(name, epochs=17)


@pytest.mark.survive
@pytest.mark.parametrize('name', NAMES)
def test_twenty_thousand_configurations(name):
  kernel = tiny_kernels.learnable_kernel(
      'many_0', np.random.default_rng(2), 20_000)
  model = checks.make(name, stats=STATS)
  scores = checks.scores(model, kernel, STATS)
  assert scores.shape == (20_000,) and np.isfinite(scores).all()
