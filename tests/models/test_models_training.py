"""Every new model through the package's own host on small sample data."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine import train
from tpu_graphs_ext.sample import write
from tpu_graphs_ext.tasks.tile import TrainSettings

pytestmark = pytest.mark.slow

# The baseline's five are as good as they are.
BASELINE = {'EarlyJoinSAGE', 'LateJoinSAGE', 'EarlyJoinResGCN',
            'LateJoinResGCN', 'MLP'}


@pytest.fixture(scope='module')
def data_root(tmp_path_factory):
  out = str(tmp_path_factory.mktemp('sample') / 'data')
  write.write_sample_data(
      write.SampleDataSettings(out=out, kernels=120))
  return out


@pytest.mark.parametrize('name', [
    name for name in load_models.model_names() if name not in BASELINE])
def test_two_epochs_without_nan_rank_better_than_chance(
    monkeypatch, data_root, tmp_path, name):
  if name != 'EnsembleRanker':  # Of the others, the contract saves each.
    monkeypatch.setattr(
        tf.keras.Model, 'save',
        lambda unused_self, path, **_: None)
  result = train.train(TrainSettings(
      model=name, epochs=2, lr=1e-2, batch=2, seed=1, cache_dir='',
      data_root=data_root, out_dir=str(tmp_path)))
  curve = result.run_info['train_curve']
  assert len(curve['epoch']) == 2
  assert all(np.isfinite(values).all() for values in curve.values())
  # By chance: 0.5, give or take 0.03 for 17 lists of 10 configurations.
  assert max(curve['val_opa']) > 0.6
