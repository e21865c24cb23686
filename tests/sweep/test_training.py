"""Trials that are trainings, of a tiny model, in this process."""

import dataclasses
import json

import pytest
import tensorflow as tf

from support import (
  tiny_kernels,
  tiny_layout_models,
  tiny_layouts,
  tiny_models,
)
from tpu_graphs_ext.engine import artifacts, callbacks
from tpu_graphs_ext.report import runs
from tpu_graphs_ext.sweep import grid, pool, study, training, trials


@pytest.fixture(scope='module')
def data_root(tmp_path_factory):
  return str(tiny_kernels.write_data_root(
      tmp_path_factory.mktemp('data'), num_train=8, num_valid=4, num_test=2))


@pytest.fixture
def trial(data_root, tmp_path, monkeypatch):
  # Keras writes for seconds what takes a moment to train.
  def save(model, path, **unused):
    tf.train.Checkpoint(model=model).write(f'{path}/variables/variables')

  monkeypatch.setattr(tf.keras.Model, 'save', save)
  monkeypatch.setattr(training, '_parameters', lambda _: 7)
  return trials.Trial('ab' * 8, 'tile', grid.Configuration(
      'TinyRanker', {'width': 3}, {
          'models_py': tiny_models.__file__, 'epochs': 3, 'batch': 2,
          'configs': 6, 'cache_dir': ''}), 5, data_root,
                      str(tmp_path), None)


def test_a_trial_is_an_ordinary_run(trial):
  state, result = training.run(trial)
  assert (state, result['epochs'], result['parameters']) == (
      study.FINISHED, 3, 7)
  values = result['values']
  assert set(values) == {'opa', 'top1', 'top5', 'top10'}
  info = artifacts.read_run_file(f'{trial.out}/run_{result["run"]}.jsonz')
  curve = info['train_curve']['val_opa']
  assert values['opa'] == max(curve) == curve[result['best_epoch'] - 1]
  assert info['seed'] == 5 and info['args']['model'] == 'TinyRanker'
  found, problems = runs.find([trial.out])
  assert [run.name for run in found] == [result['run']] and not problems


@pytest.mark.slow
def test_a_trial_that_is_broken_off_is_resumed(trial, monkeypatch):
  _, whole = training.run(dataclasses.replace(trial, key='cd' * 8))
  with monkeypatch.context() as patch:
    asked = iter(range(100))
    # Twice an epoch: after its steps, and at its end.
    patch.setattr(pool, 'is_wanted', lambda: next(asked) < 3)
    with pytest.raises(KeyboardInterrupt):
      training.run(trial)
  epochs = []
  began = callbacks.Record.on_epoch_begin
  monkeypatch.setattr(callbacks.Record, 'on_epoch_begin', lambda self, epoch,
                      logs=None: (epochs.append(epoch), began(self, epoch)))
  state, result = training.run(trial)
  assert state == study.FINISHED
  assert epochs and epochs[0] > 0  # The first was not done again.
  assert result['values'] == pytest.approx(whole['values'], abs=1e-5)
  del epochs[:]
  assert training.run(trial)[1]['run'] == result['run']
  assert not epochs  # Its end is known.


def test_a_run_that_is_in_use_is_waited_for(trial, monkeypatch):
  from tpu_graphs_ext.engine import resume, train
  calls = []

  def run(settings, unused_callbacks):
    calls.append(settings.resume)
    if len(calls) < 3:
      raise resume.InUseError('another process is training this run')
    return 'done'

  monkeypatch.setattr(train, 'train', run)
  monkeypatch.setattr(training, '_PAUSE_SECONDS', 0)
  assert training._trained(trial) == (None, 'done')
  assert calls == [True, True, True]


@pytest.mark.slow
def test_poor_trials_end_early(trial):
  pytest.importorskip('optuna', reason='needs the extra [scale]')
  journal = study.Journal(trial.out, mends=True)
  good, poor = (journal.begin(dataclasses.replace(
      trial, key=key * 16, prune=grid.Prune(1, 2)), None) for key in 'ab')
  curve = study.Curve(good)
  assert not curve.add(1, 1.1)  # No trial's OPA is that high.
  state, result = training.run(poor)
  assert (state, result['epochs']) == (study.STOPPED, 1)
  assert 'top5' in result['values']  # It was measured all the same.
  assert study.Curve(poor).is_poor and not study.Curve(good).is_poor
  assert not study.Curve(good).add(1, 0.0)  # Known: it was resumed.
  assert journal.end(poor, state, result)['state'] == study.STOPPED
  assert study.Journal(trial.out).rows()['b' * 16]['run'] == result['run']


@pytest.mark.slow
def test_trials_of_the_layout_task(tmp_path):
  data = tmp_path / 'data'
  tiny_layouts.write_collection(str(data))
  settings = tiny_layout_models.settings(data, tmp_path)
  given = {name: getattr(settings, name) for name in (
      'models_py', 'epochs', 'batch', 'configs', 'cache_dir')}
  grid_path = tmp_path / 'grid.json'
  grid_path.write_text(json.dumps({
      'task': 'layout', 'models': [settings.model], 'settings': given,
      'data_roots': [str(data)], 'goal': 'kendall'}))
  space = grid.read(str(grid_path))
  configuration, = space.configurations()
  trial, = trials.trials_of(space, str(tmp_path / 'out'), configuration)
  state, result = training.run(trial)
  assert state == study.FINISHED and result['parameters'] > 0
  assert {'opa', 'kendall', 'top1', 'top10'} <= set(result['values'])
