"""What makes a trial another one, and what is known of it later."""

import shutil

import pytest

from support import fake_trials, tiny_models
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid, trials
from tpu_graphs_ext.sweep.grid import Configuration


@pytest.fixture(scope='module')
def data_root(tmp_path_factory):
  return fake_trials.write_data(tmp_path_factory.mktemp('data'))


@pytest.fixture
def key(data_root, tmp_path):
  """Returns a function: the key of one trial, with changes."""
  def of(root=data_root, out='/out', kwargs=(), prune=None, models_py=None,
         seed=0, **settings):
    settings['models_py'] = str(models_py or tiny_models.__file__)
    space = grid.Grid('g.json', 'tile', (), (seed,), (str(root),), prune=prune)
    trial, = trials.trials_of(
        space, out, Configuration('TinyRanker', dict(kwargs), settings))
    return trial.key

  return of


def test_what_decides_the_training_makes_another_trial(key, tmp_path):
  copy = tmp_path / 'models.py'
  shutil.copy(tiny_models.__file__, copy)
  copy.write_text(copy.read_text() + '\n# Changed.\n')
  keys = [key(), key(seed=1), key(kwargs={'width': 3}), key(epochs=7),
          key(recipe='quick'), key(prune=grid.Prune()), key(models_py=copy)]
  assert len(set(keys)) == len(keys)


def test_what_does_not_decide_it_makes_none(key, tmp_path, data_root):
  moved = tmp_path / 'moved'
  shutil.copytree(data_root, moved)
  # 100 is the default.
  assert {key(root=moved), key(out='/other'), key(cache_dir='/c'),
          key(epochs=100)} == {key()}


def test_other_data_make_another_trial(key, tmp_path, data_root):
  other = tmp_path / 'other'
  shutil.copytree(data_root, other)
  file, = (other / 'valid').glob('*.npz')
  file.rename(other / 'train' / file.name)
  assert key(root=other) != key()
  with pytest.raises(UserError, match=r'has no \.npz files, so nothing can be'):
    key(root=tmp_path / 'nowhere')


def test_a_trial_says_what_train_needs(data_root):
  trial = trials.Trial('0123456789abcdef', 'tile', Configuration(
      'MLP', {'hidden_dim': 8}, {'lr': 0.12345}), 3, data_root, '/out', None)
  settings = trial.settings()
  assert settings.model_kwargs == {'hidden_dim': 8} and settings.resume
  assert (settings.lr, settings.seed, settings.out_dir) == (0.12345, 3, '/out')
  # Else two data roots would be one run.
  args = settings.baseline_args()
  assert args['results_csv'] == '/out/predictions_0123456789abcdef.csv'


def test_a_row_in_a_line():
  assert trials.describe({
      'model': 'MLP', 'kwargs': {'hidden_dim': 8}, 'seed': 3, 'settings': {
          'lr': 0.12345, 'cache_dir': '/c', 'recipe': 'quick'}}) == (
              'MLP hidden_dim=8 lr=0.1235 recipe=quick seed=3')
