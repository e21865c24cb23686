"""What makes a trial another one, and trials that train a tiny model here."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from support import (
  fake_trials,
  tiny_kernels,
  tiny_layout_models,
  tiny_layouts,
  tiny_models,
)
from tpu_graphs_ext.engine import artifacts, callbacks, saved_weights
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid, pool, trials
from tpu_graphs_ext.sweep.grid import Configuration


@pytest.fixture
def key(tmp_path):
  """Returns a function: the key of one trial, with changes."""
  small_root = fake_trials.write_data(tmp_path / 'data')

  def of(root=small_root, out='/out', kwargs=(), prune=None,
         models_py=tiny_models.__file__, seed=0, **settings):
    settings['models_py'] = str(models_py)
    space = grid.Grid(['TinyRanker'], seeds=[seed], data_root=str(root),
                      prune=prune)
    trial, = trials.trials_of(
        space, out, Configuration('TinyRanker', dict(kwargs), settings))
    return trial.key

  return of


def test_what_makes_another_trial(key, tmp_path):
  models_py = tmp_path / 'models.py'
  models_py.write_text(
      pathlib.Path(tiny_models.__file__).read_text() + '\n# Changed.\n')
  moved, other = (shutil.copytree(tmp_path / 'data', tmp_path / name)
                  for name in ('moved', 'other'))
  file, = (other / 'valid').glob('*.npz')
  file.rename(other / 'train' / file.name)
  keys = [key(), key(seed=1), key(kwargs={'width': 3}), key(epochs=7),
          key(recipe='quick'), key(prune=True), key(models_py=models_py),
          key(root=other)]
  assert len(set(keys)) == len(keys)
  # Where things are does not.
  assert {key(root=moved), key(out='/other'), key(cache_dir='/c')} == {key()}
  with pytest.raises(UserError, match=r'has no \.npz files, so nothing can be'):
    key(root=tmp_path / 'nowhere')


# ------------------------------------------------------------------- trainings


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
  monkeypatch.setattr(
      saved_weights, 'read', lambda _: [('weight', np.zeros(7))])
  return trials.Trial('ab' * 8, 'tile', Configuration(
      'TinyRanker', {'width': 3}, {
          'models_py': tiny_models.__file__, 'epochs': 3, 'batch': 2,
          'configs': 6, 'cache_dir': ''}), 5, data_root, str(tmp_path), None)


def test_a_trial_is_an_ordinary_run(trial):
  # Else two data roots would be one run.
  assert trial.settings().baseline_args()['results_csv'] == (
      f'{trial.out}/predictions_{trial.key}.csv')
  state, result = trials.run(trial)
  assert (state, result['epochs'], result['parameters']) == (
      trials.FINISHED, 3, 7)
  values = result['values']
  assert set(values) == {'opa', 'top1', 'top5', 'top10'}
  info = artifacts.read_run_file(f'{trial.out}/run_{result["run"]}.jsonz')
  curve = info['train_curve']['val_opa']
  assert values['opa'] == max(curve) == curve[result['best_epoch'] - 1]
  assert info['seed'] == 5 and info['args']['model'] == 'TinyRanker'


@pytest.mark.slow
def test_a_trial_that_is_broken_off_is_resumed(trial, monkeypatch):
  _, whole = trials.run(dataclasses.replace(trial, key='cd' * 8))
  epochs = []
  began = callbacks.Record.on_epoch_begin
  monkeypatch.setattr(callbacks.Record, 'on_epoch_begin', lambda self, epoch,
                      logs=None: (epochs.append(epoch), began(self, epoch)))
  with monkeypatch.context() as patch:
    patch.setattr(pool, 'is_wanted', lambda: 1 not in epochs)
    with pytest.raises(KeyboardInterrupt):
      trials.run(trial)
  del epochs[:]
  state, result = trials.run(trial)
  assert state == trials.FINISHED
  assert epochs and epochs[0] > 0  # The first was not done again.
  assert result['values'] == pytest.approx(whole['values'], abs=1e-5)
  del epochs[:]
  assert trials.run(trial)[1]['run'] == result['run']
  assert not epochs  # Its end is known.


@pytest.mark.slow
def test_poor_trials_end_early(trial):
  pytest.importorskip('optuna', reason='needs the extra [scale]')
  tried = grid.Grid(['TinyRanker'], goal='top5',
                    prune={'min_epochs': 1, 'factor': 2})
  studied = trials.opened(tried, trial.out)
  begun = []
  for key in 'ab':
    asked = studied.ask()
    asked.set_user_attr('trial', {
        'key': key * 16, **dataclasses.asdict(trial.configuration),
        'seed': trial.seed, 'data_root': trial.data_root})
    begun.append(dataclasses.replace(
        trial, key=key * 16, prune=tried.prune, study=tried.study_name,
        number=asked.number))
  good, poor = begun
  assert not trials.is_poor(good, 1, 1.1)  # No trial's OPA is that high.
  state, result = trials.run(poor)
  assert (state, result['epochs']) == (trials.STOPPED, 1)
  assert 'top5' in result['values']  # It was measured all the same.
  # A sweep that was killed before it noted this asks again.
  assert trials.is_poor(poor, 1, 0.5)
  assert trials.run(poor)[0] == trials.STOPPED
  trials.end(studied, poor.number, {**result, 'state': state}, None)
  row = trials.rows(trial.out)['b' * 16]
  assert (row['state'], row['run']) == (trials.STOPPED, result['run'])


@pytest.mark.slow
def test_trials_of_the_layout_task(tmp_path):
  data = tmp_path / 'data'
  tiny_layouts.write_collection(str(data))
  settings = tiny_layout_models.settings(data, tmp_path)
  space = grid.Grid(
      [settings.model], 'layout', data_root=str(data), goal='kendall',
      settings={name: getattr(settings, name) for name in (
          'models_py', 'epochs', 'batch', 'configs', 'cache_dir')})
  configuration, = space.configurations()
  trial, = trials.trials_of(space, str(tmp_path / 'out'), configuration)
  state, result = trials.run(trial)
  assert state == trials.FINISHED and result['parameters'] > 0
  assert {'opa', 'kendall', 'top1', 'top10'} <= set(result['values'])
