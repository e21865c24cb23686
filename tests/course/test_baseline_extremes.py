"""The unchanged tiles_train.py on numbers at the edges of what files hold.

Run with `TPU_GRAPHS_ROOT=/path/to/tpu_graphs pytest -m 'baseline and survive'`.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import math

import numpy as np
import pytest

from support import extreme_kernels
from support import model_checks as checks
from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.engine import artifacts, predictions_csv

pytestmark = [pytest.mark.baseline, pytest.mark.survive]


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> str:
  """A data root of extreme kernels."""
  root = tmp_path_factory.mktemp('extreme') / 'data'
  train = extreme_kernels.training_kernels()
  blank = [dataclasses.replace(
      kernel, runtime_ns=np.zeros_like(kernel.runtime_ns),
      normalizer_ns=np.ones_like(kernel.normalizer_ns))
           for kernel in extreme_kernels.kernels_to_rank()]
  for split, kernels in (('train', train), ('valid', train), ('test', blank)):
    (root / split).mkdir(parents=True)
    for kernel in kernels:
      kernel.save(str(root / split))
  return str(root)


@pytest.fixture(scope='module')
def copy(checkout_root, tmp_path_factory) -> str:
  """A working copy of the baseline with our models.py."""
  return checkout.working_copy(
      checkout_root,
      str(tmp_path_factory.mktemp('extreme_copy') / 'tpu_graphs'),
      load_models.models_module().__file__)


@pytest.mark.parametrize(
    'name', ['MyEarlyJoinSAGE', 'EarlyJoinSAGE', 'EarlyJoinGAT'])
def test_extreme_kernels_train_and_rank(copy, data, tmp_path, name):
  out = tmp_path / 'out'
  out.mkdir()
  checkout.run_script(
      copy, ['tiles_train.py', f'--model={name}', '--epochs=3', '--batch=2',
             '--configs=5', f'--data_root={data}', f'--out_dir={out}',
             f'--cache_dir={tmp_path / "cache"}',
             f'--model_kwargs_json={json.dumps(checks.SMALL.get(name, {}))}'],
      str(out / 'log'))
  model_dir, = glob.glob(f'{out}/model_*')
  run = artifacts.load_run(model_dir).info
  for name, curve in run['train_curve'].items():
    assert all(map(math.isfinite, curve)), name
  assert all(map(math.isfinite, run['final_error']['val'].values()))
  results, = glob.glob(f'{out}/results_*.csv')
  ranked = {kernel.tile_id: kernel.num_configs
            for kernel in extreme_kernels.kernels_to_rank()
            if kernel.num_configs > 1}  # The baseline leaves out the others.
  rows = {name[len(predictions_csv.TILE):]: indices
          for name, indices in predictions_csv.read(results).items()}
  assert rows == run['test_predictions'] and set(rows) == set(ranked)
  for tile_id, count in ranked.items():
    best = rows[tile_id][:count]
    assert sorted(set(best)) == sorted(best) and max(best) < count, tile_id
