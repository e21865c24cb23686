"""Run files and model folders: paths, round trips, every way to be wrong."""

import contextlib
import copy
import gzip
import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from support import eager_training, tiny_kernels, tiny_models
from tpu_graphs_ext.engine import artifacts, run_file, scoring, train
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import write_file

DROPPED = object()  # In place of a value.
RUN_INFO = {'args': {'model': 'M', 'model_kwargs_json': '{}', 'configs': 2}}


class FakeModel:
  """Saves a folder with one file, and may break off half-way."""

  def __init__(self, content: str, breaks: bool = False):
    self._content = content
    self._breaks = breaks

  def save(self, path, save_format):
    assert save_format == 'tf'
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, 'saved_model.pb'), 'w') as file:
      file.write(self._content)
    if self._breaks:
      raise KeyboardInterrupt


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp('trained')
  root = tiny_kernels.write_data_root(folder / 'data')
  return eager_training.trained(root, folder / 'out', epochs=1)


@pytest.fixture
def copied(trained, tmp_path):
  """(model folder, run file) of a copy that a test may spoil."""
  shutil.copytree(os.path.dirname(trained.model_dir), tmp_path / 'out')
  return (tmp_path / 'out' / os.path.basename(trained.model_dir),
          tmp_path / 'out' / os.path.basename(trained.run_path))


def rewrite(copied, change):
  """Changes the run's content, and the names to its new hash."""
  model_dir, run_path = copied
  with gzip.open(run_path) as file:
    run = json.load(file)
  change(run)
  run_path.unlink()
  artifacts.save_run_file(run, str(model_dir.parent))
  return model_dir.rename(artifacts.model_path(
      str(model_dir.parent), artifacts.train_hash(run['args'])))


def load(model_dir, **changes):
  return scoring.load_ranker(str(model_dir), LoadSettings(**{
      'models_py': tiny_models.__file__, 'data_root': '/nowhere',
      'cache_dir': '', **changes}))


def test_hash_does_not_depend_on_the_order_of_keys():
  # printf '{"a": 1, "b": "x"}' | md5sum
  for args in ({'a': 1, 'b': 'x'}, {'b': 'x', 'a': 1}):
    assert artifacts.train_hash(args) == '4f5f4713d180fb0cb1041f7caf4faaaa'


def test_run_path_of_any_spelling(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path))
  expected = str(tmp_path / 'run_abc.jsonz')
  for spelling in ('model_abc', 'model_abc/', './model_abc//', '~/model_abc',
                   str(tmp_path / 'model_abc')):
    assert artifacts.run_path_of(spelling) == expected
  # The baseline's scripts replace every '/model_' of the path.
  assert artifacts.run_path_of('/model_zoo/model_abc/') == (
      '/model_zoo/run_abc.jsonz')


def test_save_and_load_a_run(tmp_path):
  model_dir, run_path = artifacts.save_run(
      FakeModel('one'), RUN_INFO, str(tmp_path / 'new' / 'folder'))
  assert artifacts.load_run(model_dir + '/').info == RUN_INFO
  first = (tmp_path / 'new' / 'folder').joinpath(run_path).read_bytes()
  artifacts.save_run_file(RUN_INFO, str(tmp_path / 'new' / 'folder'))
  with open(run_path, 'rb') as file:
    assert file.read() == first  # No clock in the file.


def test_interrupted_save_keeps_the_old_model_and_no_remains(tmp_path):
  model_dir, run_path = artifacts.save_run(
      FakeModel('old'), RUN_INFO, str(tmp_path))
  with pytest.raises(KeyboardInterrupt):
    artifacts.save_run(
        FakeModel('new', breaks=True), RUN_INFO, str(tmp_path))
  with open(os.path.join(model_dir, 'saved_model.pb')) as file:
    assert file.read() == 'old'
  assert sorted(os.listdir(tmp_path)) == sorted(
      [os.path.basename(model_dir), os.path.basename(run_path)])


def test_interrupted_replacement_puts_the_old_model_back(
    tmp_path, monkeypatch):
  model_dir = artifacts.save_run(FakeModel('old'), RUN_INFO, str(tmp_path))[0]
  rename = os.rename
  calls = []

  def second_fails(source, target):
    calls.append(target)
    if len(calls) == 2:
      raise KeyboardInterrupt
    rename(source, target)

  monkeypatch.setattr(os, 'rename', second_fails)
  with pytest.raises(KeyboardInterrupt):
    artifacts.save_run(FakeModel('new'), RUN_INFO, str(tmp_path))
  with open(os.path.join(model_dir, 'saved_model.pb')) as file:
    assert file.read() == 'old'
  assert len(os.listdir(tmp_path)) == 2


def test_second_save_replaces_the_whole_folder(tmp_path):
  model_dir = artifacts.save_run(FakeModel('old'), RUN_INFO, str(tmp_path))[0]
  open(os.path.join(model_dir, 'stale'), 'w').close()
  artifacts.save_run(FakeModel('new'), RUN_INFO, str(tmp_path))
  assert os.listdir(model_dir) == ['saved_model.pb']


def test_loaded_variables_equal_the_saved(trained):
  ranker = load(trained.model_dir)
  assert ranker.num_ops == trained.run_info['num_ops']
  assert len(ranker.model.trainable_variables) == 7


def test_a_run_file_of_the_baseline_needs_the_data(trained, copied):
  # The baseline's run files have these four keys and no more.
  def as_baseline(run):
    for key in list(run):
      if key not in ('train_curve', 'final_error', 'args', 'test_predictions'):
        del run[key]

  kernel = tiny_kernels.chain()
  expected = load(trained.model_dir).scores(kernel)
  model_dir = rewrite(copied, as_baseline)
  data_root = trained.run_info['settings']['data_root']
  np.testing.assert_array_equal(
      load(model_dir, data_root=data_root).scores(kernel), expected)
  with pytest.raises(UserError, match=r'/nowhere.*does not exist'):
    load(model_dir)


def test_stats_of_all_kernels_differ_from_those_of_training(trained):
  # One train kernel has 3 configurations, so training left it out.
  data_root = trained.run_info['settings']['data_root']
  stored, train_only, everything = (
      load(trained.model_dir, stats=stats, data_root=data_root).stats.to_json()
      for stats in ('run', 'train', 'all'))
  assert stored == train_only != everything


def test_missing_folder_names_the_models_that_are_there(copied):
  model_dir, _ = copied
  with pytest.raises(UserError, match=(
      f'there is no such model folder. Models in .*: {model_dir.name}')):
    load(model_dir.parent / 'model_x')
  with pytest.raises(UserError, match=(
      f"named model_<hash>.*got 'out'. Models in .*: {model_dir.name}")):
    load(model_dir.parent)


def test_missing_run_file(copied):
  model_dir, run_path = copied
  run_path.unlink()
  with pytest.raises(UserError, match=f'run file .*{run_path.name} is missing'):
    load(model_dir)


@pytest.mark.parametrize('content', [
    b'not gzip', *(gzip.compress(text, mtime=0) for text in (
        b'not json', b'[1]', b'{"a": 1}')),
    gzip.compress(b'{"args": {}}', mtime=0)[:-5]])
def test_damaged_run_file(copied, content):
  model_dir, run_path = copied
  run_path.write_bytes(content)
  with pytest.raises(UserError, match='cannot be read as a run file'):
    load(model_dir)


def test_run_file_without_needed_args(copied):
  model_dir, run_path = copied
  run_path.write_bytes(gzip.compress(b'{"args": {"model": "M"}}'))
  with pytest.raises(UserError, match='lack model_kwargs_json, configs'):
    load(model_dir)


@pytest.mark.parametrize('text, message', [
    ('{width: 1}', 'is not JSON'), ('[1]', 'must be a JSON object'),
    (None, 'is not JSON')])
def test_run_file_whose_model_arguments_are_no_object(copied, text, message):
  model_dir = rewrite(
      copied, lambda run: run['args'].update(model_kwargs_json=text))
  with pytest.raises(UserError, match=f'run_.*jsonz: .*{message}'):
    load(model_dir)


def test_run_file_of_another_run(copied):
  model_dir, run_path = copied
  with gzip.open(run_path) as file:
    run = json.load(file)
  other = copy.deepcopy(run)
  other['args']['epochs'] += 1
  run_path.write_bytes(gzip.compress(json.dumps(other).encode()))
  with pytest.raises(UserError, match='holds another run: its args have'):
    load(model_dir)
  # A name given by hand has no hash to compare.
  model_dir.rename(model_dir.parent / 'model_mine')
  run_path.rename(run_path.parent / 'run_mine.jsonz')
  load(model_dir.parent / 'model_mine')


def test_model_of_other_arguments(copied):
  model_dir = rewrite(
      copied, lambda run: run['args'].update(model_kwargs_json='{"width": 5}'))
  with pytest.raises(UserError, match=(
      r'variable 0 \(.*\) has shape \(60, 4\), but in TinyRanker built for '
      r'num_ops=60, 137 node and 23 config columns it has \(60, 5\)')):
    load(model_dir)


def test_model_of_other_num_ops(copied):
  model_dir = rewrite(copied, lambda run: run.update(num_ops=61))
  with pytest.raises(UserError, match=r'\(60, 4\), but in .*num_ops=61'):
    load(model_dir)


def test_another_model(copied):
  model_dir = rewrite(
      copied, lambda run: run['args'].update(model='LateJoinSAGE'))
  with pytest.raises(UserError, match=r'holds 7 variables, but LateJoinSAGE'):
    load(model_dir, models_py='')


def test_model_that_models_py_does_not_have(trained):
  with pytest.raises(UserError, match="no model 'TinyRanker'"):
    load(trained.model_dir, models_py='')


@pytest.mark.parametrize('spoil', [
    lambda folder: (folder / 'saved_model.pb').unlink(),
    lambda folder: (folder / 'saved_model.pb').write_bytes(b'\x00' * 100),
    lambda folder: shutil.rmtree(folder / 'variables'),
])
def test_damaged_model_folder(copied, spoil):
  spoil(copied[0])
  with pytest.raises(UserError, match='cannot be read as a saved Keras model'):
    load(copied[0])


STATS = {'minimum': [0.0, 1.0], 'maximum': [1.0, 1.0]}
GOOD = {**RUN_INFO, 'num_ops': 3,
        'feature_stats': {'node': STATS, 'config': STATS}}


def test_a_sound_run_file_of_either_trainer():
  for run in (RUN_INFO, GOOD):
    run_file.check('r', run)


@pytest.mark.parametrize('args, changes, message', [
    ({'model': None}, {}, 'its model must be a name; it is None'),
    ({'model': ''}, {}, 'its model must be a name'),
    ({'configs': '2'}, {}, 'its configs must be a whole number from 1'),
    ({'configs': True}, {}, 'its configs must be a whole number from 1'),
    ({'configs': 0}, {}, 'its configs must be a whole number from 1'),
    ({'model_kwargs_json': '{'}, {}, 'is not JSON'),
    ({'model_kwargs_json': '[' * 10 ** 5}, {}, 'is not JSON'),
    ({'model_kwargs_json': 3}, {}, 'is not JSON, but a int'),
    ({}, {'num_ops': 10 ** 12}, 'its num_ops must be a whole number from 1 to'),
    ({}, {'num_ops': 2.5}, 'its num_ops must be a whole number'),
    ({}, {'num_ops': None}, 'its num_ops must be a whole number'),
    ({}, {'num_ops': DROPPED}, 'its num_ops must be there'),
    ({}, {'opcodes': {}}, 'its opcodes must be a list of whole numbers'),
    ({}, {'opcodes': [1.0]}, 'its opcodes must be a list of whole numbers'),
    ({}, {'settings': []}, 'its settings must be an object'),
    ({}, {'test_predictions': [1]}, 'its test_predictions must be an object'),
    ({}, {'feature_stats': {}}, 'statistics cannot be read'),
    ({}, {'feature_stats': {'node': STATS, 'config': {
        **STATS, 'minimum': [0.0]}}}, 'have different lengths'),
    ({}, {'feature_stats': {'node': {'minimum': [], 'maximum': []},
                            'config': STATS}}, 'of node must be'),
    ({}, {'feature_stats': {'node': {**STATS, 'maximum': [1.0, math.nan]},
                            'config': STATS}}, 'must be a list of finite'),
    ({}, {'feature_stats': {'node': {**STATS, 'maximum': [-1.0, 1.0]},
                            'config': STATS}}, 'of node must be of .* least'),
])
def test_a_run_file_is_not_trusted(tmp_path, args, changes, message):
  run = {**GOOD, **changes, 'args': {**GOOD['args'], **args}}
  run = {key: value for key, value in run.items() if value is not DROPPED}
  path = artifacts.save_run_file(run, str(tmp_path))
  with pytest.raises(UserError, match=f'run_.*jsonz: .*{message}') as caught:
    artifacts.read_run_file(path)
  assert len(str(caught.value)) < 800


@pytest.mark.parametrize('text', [
    '[' * 10 ** 5, '{"args": []}', '{"args": 3}', '{"args": null}', '"args"'])
def test_a_run_file_without_arguments(tmp_path, text):
  path = tmp_path / 'run_x.jsonz'
  path.write_bytes(gzip.compress(text.encode()))
  with pytest.raises(UserError, match=r'run_x\.jsonz: '):
    artifacts.read_run_file(str(path))


def test_a_run_file_that_unpacks_to_more_than_any(tmp_path, monkeypatch):
  monkeypatch.setattr(artifacts, '_MOST_BYTES', 100)
  path = artifacts.save_run_file(GOOD, str(tmp_path))
  with pytest.raises(UserError, match='more than 100 bytes'):
    artifacts.read_run_file(path)


def test_killed_between_the_renames_the_old_model_comes_back(copied):
  model_dir, _ = copied
  script = f'''
import os, signal
from tpu_graphs_ext import files
rename = os.rename
def killed(source, target):
  rename(source, target)
  os.kill(os.getpid(), signal.SIGKILL)
os.rename = killed
with files.new_folder({str(model_dir)!r}):
  pass
'''
  subprocess.run([sys.executable, '-c', script])
  assert not model_dir.exists()
  load(model_dir)


def test_full_disk_keeps_the_last_good_model(trained, tmp_path):
  disk = tmp_path / 'disk'
  disk.mkdir()
  if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=2m', 'none', disk],
                    capture_output=True).returncode:
    pytest.skip('needs the right to mount a small disk')
  try:
    root = trained.run_info['settings']['data_root']
    settings = tiny_models.tiny_settings(root, disk, epochs=1)
    with eager_training.eager_steps():
      good = train.train(settings)
    kernel = tiny_kernels.chain()
    scores = load(good.model_dir).scores(kernel)
    full = disk / 'full'
    with contextlib.suppress(OSError), full.open('wb', buffering=0) as file:
      while True:
        file.write(bytes(4096))
    with pytest.raises(UserError, match=r'cannot be written.*No space left'):
      train.train(settings)
    with pytest.raises(UserError, match=r'cannot be written.*free some space'):
      artifacts.save_run(FakeModel('x' * 10 ** 6), good.run_info, str(disk))
    np.testing.assert_array_equal(load(good.model_dir).scores(kernel), scores)
    assert not [name for name in os.listdir(disk) if name.endswith('.tmp')]
  finally:
    subprocess.run(['umount', disk], check=True)


def test_write_file_where_a_folder_cannot_be_made(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot be written'):
    write_file(str(tmp_path / 'file' / 'x.csv'), b'')
