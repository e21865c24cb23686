"""Scores and weights stay numbers, whatever numbers the files hold."""

from __future__ import annotations

import dataclasses
import itertools
import operator

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks as checks
from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import compiled_model
from tpu_graphs_ext.tasks import tile_batches
from tpu_graphs_ext.tasks.tile import TrainSettings

NAMES = [
    *(name for name in load_models.model_names()
      if name != 'AnalyticTileModel'),
    *(name + checks.RAW for name in load_models.model_names()
      if load_models.takes(name, 'feature_stats'))]
HUGE = 1e30


def training_kernels() -> list[Kernel]:
  """Kernels to train on, with columns that are hard to scale.

  Of nodes and configurations: column 1 reaches 1e30, column 2 is negative,
  column 3 is constant, column 4 is constant but in one row. Runtimes run from
  1 to 1e12 ns, or are all equal; one kernel is a single node without edges.
  """
  rng = np.random.default_rng(0)
  kernels = [tiny_kernels.learnable_kernel(f'net_{i}', rng, 12)
             for i in range(6)]
  kernels.append(tiny_kernels.one_node(num_configs=12))
  kernels[0].runtime_ns[:] = np.logspace(0, 12, 12)
  kernels[1].runtime_ns[:] = 7
  kernels[2].normalizer_ns[:] = 10 ** 12
  for kernel in kernels:
    for features in (kernel.node_feat, kernel.config_feat):
      features[:, 1] = 0
      features[:, 2] *= -1
      features[:, 3] = 5
      features[:, 4] = 1
  for features in (kernels[0].node_feat, kernels[0].config_feat):
    features[0, 1] = HUGE
    features[1, 4] = 2
  return kernels


def kernels_to_rank() -> list[Kernel]:
  """Kernels with values far outside of what was trained on."""
  usual = tiny_kernels.learnable_kernel('usual_0', np.random.default_rng(1), 12)
  changed = [dataclasses.replace(
          usual, tile_id=f'all_{value:g}_0',
          node_feat=np.full_like(usual.node_feat, value),
          config_feat=np.full_like(usual.config_feat, value))
      for value in (HUGE, -HUGE, 0)]
  mixed = dataclasses.replace(
      usual, tile_id='mixed_0', node_feat=usual.node_feat.copy(),
      config_feat=usual.config_feat.copy())
  mixed.node_feat[::2] *= -1e20
  mixed.config_feat[::3] *= 1e25
  return [usual, *changed, mixed, tiny_kernels.one_node(),
          tiny_kernels.no_edges(), tiny_kernels.one_config(),
          tiny_kernels.identical_configs()]


TRAIN = Partition.from_kernels(training_kernels())
STATS = FeatureStats.of_partition(TRAIN)

configs_of = operator.attrgetter('num_configs')


def scored(model: tf.keras.Model) -> None:
  """Kernels with as many configurations at once, which is faster."""
  for number, kernels in itertools.groupby(
      sorted(kernels_to_rank(), key=configs_of), configs_of):
    kernels = list(kernels)
    scores = model(checks.batch_of(kernels, STATS, number))
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
