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
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import artifacts, callbacks
from tpu_graphs_ext.report import runs
from tpu_graphs_ext.sweep import grid, pool, trial_run, trials


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
  monkeypatch.setattr(trial_run, '_parameters', lambda _: 7)
  return trials.Trial('ab' * 8, 'tile', grid.Configuration(
      'TinyRanker', {'width': 3}, {
          'models_py': tiny_models.__file__, 'epochs': 3, 'batch': 2,
          'configs': 6, 'cache_dir': ''}), 5, data_root,
                      str(tmp_path), None)


def test_a_trial_is_an_ordinary_run_that_is_known_later(trial, monkeypatch):
  record = trial_run.run(trial)
  assert record == trials.read(trial.out, trial.key)
  assert (record.state, record.attempts, record.epochs) == (
      trials.FINISHED, 1, 3)
  assert set(record.values) == {'opa', 'top1', 'top5', 'top10'}
  info = artifacts.read_run_file(f'{trial.out}/run_{record.run}.jsonz')
  curve = info['train_curve']['val_opa']
  assert record.values['opa'] == max(curve) == curve[record.best_epoch - 1]
  assert info['seed'] == 5 and info['args']['model'] == 'TinyRanker'
  found, problems = runs.find([trial.out])
  assert [run.name for run in found] == [record.run] and not problems
  # Its end is known, so nothing is trained.
  monkeypatch.setattr(trial_run, '_trained', None)
  assert trial_run.run(trial) == record


@pytest.mark.slow
def test_a_trial_that_is_broken_off_is_resumed(trial, monkeypatch):
  whole = trial_run.run(dataclasses.replace(trial, key='cd' * 8))
  with monkeypatch.context() as patch:
    asked = iter(range(100))
    # Twice an epoch: after its steps, and at its end.
    patch.setattr(pool, 'is_wanted', lambda: next(asked) < 3)
    with pytest.raises(KeyboardInterrupt):
      trial_run.run(trial)
  assert trials.read(trial.out, trial.key).state == trials.STARTED
  epochs = []
  began = callbacks.KeepBest.on_epoch_begin
  monkeypatch.setattr(callbacks.KeepBest, 'on_epoch_begin', lambda self, epoch,
                      logs=None: (epochs.append(epoch), began(self, epoch)))
  record = trial_run.run(trial)
  assert (record.state, record.attempts) == (trials.FINISHED, 2)
  assert epochs and epochs[0] > 0  # The first was not done again.
  assert record.values == pytest.approx(whole.values, abs=1e-5)


def test_a_failure_is_raised_and_then_written(trial):
  bad = dataclasses.replace(trial, configuration=dataclasses.replace(
      trial.configuration, kwargs={'width': 3, 'nan_from_step': 1}))
  with pytest.raises(UserError, match='the loss became nan') as caught:
    trial_run.run(bad)
  record = trial_run.failed(bad, str(caught.value))
  assert trials.read(trial.out, trial.key) == record
  assert record.state == trials.FAILED and record.attempts == 1


def test_a_run_that_is_in_use_is_waited_for(trial, monkeypatch):
  from tpu_graphs_ext.host import resume, train
  calls = []

  def run(settings, unused_task):
    calls.append(settings.resume)
    if len(calls) < 3:
      raise resume.InUseError('another process is training this run')
    return 'done'

  monkeypatch.setattr(train, 'run', run)
  monkeypatch.setattr(trial_run, '_PAUSE_SECONDS', 0)
  assert trial_run._trained(trial, resume=False) == (None, 'done')
  assert calls == [False, True, True]


@pytest.mark.slow
def test_poor_trials_end_early(trial):
  pytest.importorskip('optuna', reason='needs the extra [scale]')
  from tpu_graphs_ext.sweep import pruning
  good, poor = (dataclasses.replace(
      trial, key=key * 16, prune=grid.Prune(1, 2)) for key in 'ab')
  curve = pruning.Curve(good)
  assert not curve.add(1, 1.1)  # No trial's OPA is that high.
  record = trial_run.run(poor)
  assert (record.state, record.epochs) == (trials.STOPPED, 1)
  assert 'top5' in record.values  # It was measured all the same.
  again = pruning.Curve(poor)
  assert again.is_poor and not pruning.Curve(good).is_poor
  assert not curve.add(1, 0.0)  # Known: it was resumed.
  curve.end()


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
  trial, = trials.Maker(space, str(tmp_path / 'out')).trials(configuration)
  record = trial_run.run(trial)
  assert record.state == trials.FINISHED
  assert {'opa', 'kendall', 'top1', 'top10'} <= set(record.values)
  assert record.parameters > 0
