"""The baseline's unchanged layout_train.py with our layout models in place.

Run with `TPU_GRAPHS_ROOT=/path/to/tpu_graphs pytest -m baseline`. Everything
happens in copies; the checkout stays as it is.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from support import baseline_scripts, eager_training, model_checks, tiny_layouts
from tpu_graphs_ext import layout_models
from tpu_graphs_ext.data import programs
from tpu_graphs_ext.engine import (
  artifacts,
  metrics,
  predictions_csv,
  scoring,
  train,
)
from tpu_graphs_ext.tasks import LAYOUT
from tpu_graphs_ext.tasks.layout import (
  LayoutLoadSettings,
  LayoutTrainSettings,
)

pytestmark = pytest.mark.baseline


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> str:
  return tiny_layouts.write_collection(
      str(tmp_path_factory.mktemp('layout') / 'npz'))


@pytest.fixture(scope='module')
def swapped(checkout_root, tmp_path_factory) -> str:
  """A working copy with our models in place of the layout task's."""
  return baseline_scripts.swapped(
      checkout_root, tmp_path_factory.mktemp('swapped'), LAYOUT)


SMALL = {'hidden_dim': 8}


@pytest.mark.parametrize('name', list(layout_models._MODELS))
def test_the_unchanged_script_runs_to_its_predictions(
    swapped, data, tmp_path, name):
  model_dir = baseline_scripts.train(
      swapped, 'layout_train.py', data, tmp_path, '--configs=6', '--batch=2',
      '--source=xla', '--search=random', '--keep_nodes=30', f'--model={name}',
      f'--model_kwargs_json={json.dumps(SMALL)}')
  run = artifacts.read_run_file(artifacts.run_path_of(model_dir))
  for curve in ('train_loss', 'val_loss', 'train_opa', 'val_opa'):
    assert np.isfinite(run['train_curve'][curve]).all()
  rows = predictions_csv.read(glob.glob(f'{tmp_path}/out/results_*.csv')[0])
  assert set(rows) == {'layout:xla:random:test_0', 'layout:xla:random:test_1'}
  for order in rows.values():
    assert sorted(order) == list(range(12))
  saved = tf.keras.models.load_model(model_dir, compile=False)
  made = getattr(layout_models, name)(6, tiny_layouts.NUM_OPS, **SMALL)
  made(tiny_layouts.graph(
      [tiny_layouts.program(f'train {i}', 40 + 5 * i, 5 + i)
       for i in range(4)]))
  shapes = [[tuple(weight.shape) for weight in model.trainable_variables][1:]
            for model in (saved, made)]
  assert shapes[0] == shapes[1]  # All but the opcodes', whose number differs.
  # What the script trained, this package's host loads, and ranks alike.
  ranker = scoring.load_ranker(model_dir, LayoutLoadSettings(
      data_root=data, cache_dir=''))
  for program in programs.read_programs(f'{data}/xla/random/test'):
    scores = ranker.scored(program).given
    order = rows[f'layout:xla:random:{program.name}']
    assert (np.diff(scores[order]) > -1e-4).all()  # But for rounding.
  statistics = [weight for weight in saved.trainable_variables
                if 'feature_stats' in weight.name]
  assert len(statistics) == (name == 'MyLayoutSAGE')
  for weight in statistics:  # Read from what the script reads.
    columns = tiny_layouts.bounds(
        [tiny_layouts.program(f'train {i}', 40 + 5 * i, 5 + i)
         for i in range(4)])
    for row, side in enumerate(('minimum', 'maximum')):
      np.testing.assert_array_equal(
          weight[row], columns['node'][side] + columns['config'][side])


def test_the_organisers_script_measures_what_our_host_trained(
    swapped, data, tmp_path):
  """On the configurations that it draws of a program by its name."""
  with open(f'{swapped}/tpu_graphs/baselines/layout/eval_indices/'
            'xla_random.json', encoding='utf-8') as file:
    drawn = json.load(file)
  name = min(drawn, key=lambda name: max(drawn[name]))
  root = str(tmp_path / 'npz')
  shutil.copytree(data, root)
  for path in glob.glob(f'{root}/xla/random/valid/*.npz'):
    os.remove(path)
  np.savez_compressed(
      f'{root}/xla/random/valid/{name}.npz',
      **tiny_layouts.program(name, configs=max(drawn[name]) + 1))
  with eager_training.eager_steps(whole=True):
    run = train.train(LayoutTrainSettings(
        model='LayoutGCN', model_kwargs_json=json.dumps(SMALL), epochs=1,
        configs=6, batch=2, data_root=root, cache_dir=str(tmp_path / 'ours'),
        out_dir=str(tmp_path / 'out')))
  baseline_scripts.run(swapped, [
      'layout_evaluate.py', f'--dirs={run.model_dir}', f'--data_root={root}',
      f'--cache_dir={tmp_path}/cache', '--batch=2000'], f'{tmp_path}/log')
  (path,) = glob.glob(f'{tmp_path}/out/validation_results_*_sample.csv')
  with open(path, encoding='utf-8') as lines:
    _, (graph, *theirs) = csv.reader(lines)
  ranker = scoring.load_ranker(run.model_dir, LayoutLoadSettings(
      data_root=root, cache_dir=str(tmp_path / 'ours')))
  program = programs.read_programs(f'{root}/xla/random/valid')[0]
  scores = ranker.scored(program).given[drawn[name]]
  runtime = program.runtime_ns[drawn[name]]
  assert graph == name
  np.testing.assert_allclose(
      [float(value) for value in theirs],
      [metrics.pair_agreement(runtime, scores)[1],
       *(metrics.slowdown_of(runtime, np.argsort(scores, kind='stable')[:k])
         for k in (1, 10, 100))],
      atol=1e-3)  # Scores that are all but equal may change places.


@pytest.mark.parametrize('kwargs', [
    {}, {'adj_normalization': 'asym', 'mlp_layers': 3, 'num_gnns': 3},
    {'dropout': 'dropout', 'hidden_dim': 16}, {'dropout': 'fullgraph'},
    {'num_gnns': 0, 'mlp_layers': 1, 'hidden_activation': 'relu'},
], ids=str)
@pytest.mark.parametrize('segmented', [False, True])
def test_same_weights_give_the_same_scores_losses_and_gradients(
    their_models, kwargs, segmented):
  tf.keras.utils.set_random_seed(1)  # No state at the bend of leaky_relu.
  programs = [tiny_layouts.program('a'), tiny_layouts.program('b', 60, 9)]
  selected = [np.arange(40) < 25, np.arange(60) > 30] if segmented else None
  graph = tiny_layouts.graph(programs, selected=selected)
  theirs = their_models('layout').ResModel(12, tiny_layouts.NUM_OPS, **kwargs)
  ours = layout_models.ResModel(12, tiny_layouts.NUM_OPS, **kwargs)
  theirs(graph)
  ours(graph)
  model_checks.copy_weights(ours, theirs)
  scores, losses, gradients = zip(
      *(scored(model, graph) for model in (ours, theirs)))
  np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-5)
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)
  for got, want in zip(*gradients):
    np.testing.assert_allclose(got, want, rtol=0,
                               atol=1e-4 * np.abs(want).max() + 1e-6)
  np.testing.assert_allclose(
      ours.forward(graph, 12), theirs.forward(graph, 12), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(
      ours.forward(graph, 12, backprop=False),
      theirs.forward(graph, 12, dropout='fullgraph'), rtol=1e-5, atol=1e-5)


def scored(model, graph) -> tuple:
  """(scores, regularization, gradients of both together)."""
  with tf.GradientTape() as tape:
    scores = model(graph)
    loss = tf.add_n(model.losses)
    total = loss + tf.reduce_sum(tf.sin(3 * scores))
  return scores.numpy(), float(loss), [
      tf.convert_to_tensor(gradient).numpy()
      for gradient in tape.gradient(total, model.trainable_variables)]
