"""Training, evaluating, predicting and ranking with a small layout model."""

import dataclasses
import gzip
import json
import os
import types

import numpy as np
import pytest

from support import tiny_layout_models
from tpu_graphs_ext import cli
from tpu_graphs_ext.data import programs
from tpu_graphs_ext.engine import (
  artifacts,
  callbacks,
  evaluate,
  predictions_csv,
  results,
  scoring,
)
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import LAYOUT, api, layout_batches
from tpu_graphs_ext.tasks.layout import (
  LayoutLoadSettings,
  LayoutTrainSettings,
)


@pytest.fixture(scope='module')
def data_root(layout_run):
  return layout_run[1]


@pytest.fixture(scope='module')
def trained(layout_run):
  return layout_run[0]


@pytest.fixture(scope='module')
def loading(data_root):
  return LayoutLoadSettings(
      data_root=data_root, cache_dir='', models_py=tiny_layout_models.__file__)


@pytest.fixture(scope='module')
def ranker(trained, loading):
  return scoring.load_ranker(trained.model_dir, loading)


def test_the_run_file_is_the_baselines_and_more(trained, data_root):
  with gzip.open(trained.run_path) as file:
    run = json.load(file)
  assert run == trained.run_info
  assert set(run['args']) == {
      'source', 'search', 'model', 'model_kwargs_json', 'epochs', 'batch_size',
      'configs', 'max_configs', 'early_stop', 'keep_nodes', 'learning_rate',
      'clip_norm', 'out_dir', 'results_csv', 'validate_batches', 'run_id'}
  assert set(run['final_error']['val']) == {'1', '10', '100'}
  assert -1 <= run['final_kendall']['val'] <= 1
  curve = run['train_curve']
  assert curve['epoch'] == [0, 1, 2] and np.isfinite(curve['val_loss']).all()
  assert 'test_predictions' not in run
  # The folder of the hash is not part of it, as in the baseline.
  name = os.path.basename(trained.model_dir)
  assert name == 'model_' + LAYOUT.train_hash({**run['args'], 'out_dir': ''})


def test_the_csv_has_every_configuration_of_every_test_program(
    trained, ranker, loading, tmp_path):
  rows = predictions_csv.read(trained.csv_path)
  assert set(rows) == {'layout:xla:random:test_0', 'layout:xla:random:test_1'}
  for name, order in rows.items():
    program, = [candidate for candidate in ranker.read(loading, 'test')[1]
                if name.endswith(candidate.name)]
    assert order == np.argsort(
        ranker.scored(program).given, kind='stable').tolist()
  again = api.predict(
      trained.model_dir, out=str(tmp_path / 'p.csv'), loading=loading)
  with open(again, 'rb') as new, open(trained.csv_path, 'rb') as old:
    content = new.read()
    assert content == old.read() and content.endswith(b'\n')


def test_chunks_of_configurations_change_nothing(
    ranker, data_root, monkeypatch):
  program = programs.read_programs(f'{data_root}/xla/random/valid')[0]
  whole = ranker.scored(program).given
  seen = []

  def forward(graph, num_configs):
    seen.append(num_configs)
    return type(ranker.model).forward(ranker.model, graph, num_configs)

  monkeypatch.setattr(ranker.model, 'forward', forward)
  # 5 configurable nodes: 5 configurations have this many numbers.
  monkeypatch.setattr(layout_batches, 'SCORED_FLOATS', 5 * 5 * 18)
  np.testing.assert_allclose(ranker.scored(program).given, whole, rtol=1e-5)
  assert seen == [5, 5, 2]


def test_evaluations_of_two_models_and_their_difference(
    trained, ranker, data_root, loading, tmp_path):
  straight, again = api.evaluate_all(2 * [trained.model_dir], loading=loading)
  assert straight.to_json() == again.to_json()
  reverse = types.SimpleNamespace(
      forward=lambda *inputs: -ranker.model.forward(*inputs))
  turned = LAYOUT.evaluation('reverse', straight.data, evaluate.measure(
      dataclasses.replace(ranker, model=reverse),
      programs.read_programs(straight.data), 'valid'))
  assert trained.run_info['final_kendall']['val'] == straight.mean['kendall']
  assert trained.run_info['final_error']['val'] == {
      str(k): straight.mean[f'slowdown_{k}'] for k in straight.ks}
  content = results.to_json([straight, turned])
  mean = content[0]['differences'][0]['kendall']['mean']
  assert mean == pytest.approx(2 * straight.mean['kendall']) and mean
  json.dumps(content, allow_nan=False)
  text = LAYOUT.evaluation.texts([straight, turned])
  assert f'{straight.mean["kendall"]:.3f}' in text and (
      f'\n{straight.model} - reverse  ' in text)
  LAYOUT.evaluation.CSV.write(
      str(tmp_path / 'e.csv'), results.to_csv([straight, turned]))
  assert (tmp_path / 'e.csv').read_text().count('\n') == 5


@pytest.mark.slow
def test_resuming_changes_nothing(trained, data_root, tmp_path, monkeypatch):
  """Ctrl-C in the second of three epochs, then --resume."""
  def interrupt(self, batch, logs=None):
    if self._epoch == 1:
      raise KeyboardInterrupt

  with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
    patched.setattr(callbacks.StopOnNaN, 'on_train_batch_end', interrupt)
    tiny_layout_models.trained(data_root, tmp_path, epochs=3)
  again = tiny_layout_models.trained(data_root, tmp_path, epochs=3, resume=True)
  for key in ('train_curve', 'final_error', 'final_kendall', 'final_opa'):
    assert again.run_info[key] == trained.run_info[key], key
  with open(again.csv_path) as new, open(trained.csv_path) as old:
    assert new.read() == old.read()
  names = sorted(name.split('_')[0] for name in os.listdir(tmp_path))
  assert names == ['model', 'results', 'run']
  reported = tiny_layout_models.trained(  # As it is finished.
      data_root, tmp_path, epochs=3, resume=True)
  assert reported.text() == again.text()


def test_settings_and_data_that_cannot_be_used(data_root, tmp_path):
  for most in -1, LayoutTrainSettings.configs:
    assert LayoutTrainSettings(max_configs=most).max_configs == most
  for changes, message in (
      ({'source': 'tpu'}, '--source=tpu: must be xla or nlp'),
      ({'keep_nodes': 0}, '--keep_nodes=0: must be -1'),
      ({'max_configs': 3}, '--max_configs=3: must be -1')):
    with pytest.raises(UserError, match=message):
      LayoutTrainSettings(**changes)
  for changes, message in (
      ({'configs': 13}, 'none of 4 programs has 13 or more'),
      ({'source': 'nlp'}, 'nlp/random/train, valid and test. Name'),
      ({'test_mode': 'metrics'}, 'random/test: 2 of 2 programs have no')):
    with pytest.raises(UserError, match=message):
      tiny_layout_models.trained(data_root, tmp_path, **changes)
    assert not os.listdir(tmp_path)


def test_a_run_of_a_collection_that_is_no_text(trained, tmp_path):
  info = {**trained.run_info, 'args': {**trained.run_info['args'], 'source': 1}}
  with pytest.raises(UserError, match='its source must be text'):
    artifacts.check_run(
        artifacts.save_run_file(info, str(tmp_path), LAYOUT), info, LAYOUT)


def test_the_commands_print_what_the_functions_give(
    trained, data_root, capsys, tmp_path):
  flags = ['--task', 'layout', '--data_root', data_root, '--cache_dir',
           str(tmp_path / 'cache'), '--models_py', tiny_layout_models.__file__,
           '--dir', trained.model_dir]
  assert cli.main(['evaluate', *flags, '--json', '--top_k', '2']) == 0
  printed = json.loads(capsys.readouterr().out)
  assert list(printed['mean']['slowdown']) == ['2']
  out = str(tmp_path / 'p.csv')
  assert cli.main(['predict', *flags, '--out', out]) == 0
  assert capsys.readouterr().out.strip() == out
  assert cli.main(['evaluate', *flags, '--data',
                   f'{data_root}/xla/random/test']) == 1
  assert '2 of 2 programs have no labels' in capsys.readouterr().err
