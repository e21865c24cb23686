"""Run files and model folders: paths, round trips, every way to be wrong."""

import contextlib
import copy
import dataclasses
import gzip
import json
import math
import os
import pathlib
import shutil
import subprocess
import types

import numpy as np
import pytest

from run_scripts.pretrained import save_weights_only
from support import (
  eager_training,
  saved_run,
  tiny_handin,
  tiny_kernels,
  tiny_models,
)
from tpu_graphs_ext import cli, files
from tpu_graphs_ext.analytic import candidates
from tpu_graphs_ext.engine import artifacts, scoring, train
from tpu_graphs_ext.engine import pretrained as names
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, kernel_sources
from tpu_graphs_ext.serving import tile_search
from tpu_graphs_ext.serving.cost_model import CostModel
from tpu_graphs_ext.tasks import TILE
from tpu_graphs_ext.tasks.tile import LoadSettings

RUN_INFO = {'args': {'model': 'M', 'model_kwargs_json': '{}', 'configs': 2}}


@pytest.fixture(scope='module')
def trained(data_root, tmp_path_factory):
  return eager_training.trained(
      data_root, tmp_path_factory.mktemp('trained'), epochs=1)


@pytest.fixture
def copied(trained, tmp_path):
  """(model folder, run file) of a copy that a test may spoil."""
  shutil.copytree(os.path.dirname(trained.model_dir), tmp_path / 'out')
  return (tmp_path / 'out' / os.path.basename(trained.model_dir),
          tmp_path / 'out' / os.path.basename(trained.run_path))


def load(model_dir, **changes):
  return scoring.load_ranker(str(model_dir), LoadSettings(**{
      'models_py': tiny_models.__file__, 'data_root': '/nowhere',
      'cache_dir': '', **changes}))


def test_hash_and_paths(monkeypatch, tmp_path):
  # printf '{"a": 1, "b": "x"}' | md5sum
  for args in ({'a': 1, 'b': 'x'}, {'b': 'x', 'a': 1}):
    assert TILE.train_hash(args) == '4f5f4713d180fb0cb1041f7caf4faaaa'
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path))
  for spelling in ('model_abc', 'model_abc/', './model_abc//', '~/model_abc',
                   str(tmp_path / 'model_abc')):
    assert artifacts.run_path_of(spelling) == str(tmp_path / 'run_abc.jsonz')
  # The baseline's scripts replace every '/model_' of the path.
  assert artifacts.run_path_of('/model_zoo/model_abc/') == (
      '/model_zoo/run_abc.jsonz')


def test_a_run_file_of_the_baseline_needs_the_data(trained, copied):
  kernel = tiny_kernels.chain()
  ranker = load(trained.model_dir)
  assert ranker.num_ops == trained.run_info['num_ops']
  assert len(ranker.model.trainable_variables) == 7
  model_dir = tiny_handin.change_run(copied[0], tiny_handin.as_baseline)
  data_root = trained.run_info['settings']['data_root']
  np.testing.assert_array_equal(
      load(model_dir, data_root=data_root).scored(kernel).given,
      ranker.scored(kernel).given)
  with pytest.raises(UserError, match=(
      r'does not exist.*; --data_root must name the data that .*trained')):
    load(model_dir)
  # One train kernel has 3 configurations, so training left it out.
  stored, train_only, everything = (
      load(trained.model_dir, stats=stats, data_root=data_root).stats.to_json()
      for stats in ('run', 'train', 'all'))
  assert stored == train_only != everything


def test_folders_that_are_not_a_model(trained, copied):
  model_dir, run_path = copied
  with gzip.open(run_path) as file:
    run = json.load(file)
  with pytest.raises(UserError, match=(
      'there is no such model folder; name one that exists')):
    load(model_dir.parent / 'model_x')
  with pytest.raises(UserError, match=(r"named model_<hash>.*got 'out'")):
    load(model_dir.parent)
  run_path.write_bytes(b'not gzip')
  with pytest.raises(UserError, match='cannot be read as a run file'):
    load(model_dir)
  other = copy.deepcopy(run)
  other['args']['epochs'] += 1
  run_path.write_bytes(gzip.compress(json.dumps(other).encode()))
  with pytest.raises(UserError, match='holds another run: its args have'):
    load(model_dir)
  # A name given by hand has no hash to compare.
  model_dir.rename(model_dir.parent / 'model_mine')
  run_path.with_name('run_mine.jsonz').write_bytes(
      gzip.compress(json.dumps(other).encode()))
  load(model_dir.parent / 'model_mine')


def test_models_of_another_run_file(copied):
  model_dir = copied[0]
  for change, message in (
      (lambda run: run['args'].update(model_kwargs_json='{"width": 5}'),
       r'variable 0 has the shape \(60, 4\), but must have \(60, 5\) in '
       'TinyRanker built for num_ops=60'),
      (lambda run: run.update(num_ops=61), r'built for num_ops=61')):
    model_dir = tiny_handin.change_run(model_dir, change)
    with pytest.raises(UserError, match=message):
      load(model_dir)


STATS = {'minimum': [0.0, 1.0], 'maximum': [1.0, 1.0]}
GOOD = {**RUN_INFO, 'num_ops': 3,
        'feature_stats': {'node': STATS, 'config': STATS}}
WRONG = [
    ({'model': None}, {}, 'its model must be text; it is None'),
    ({'configs': True}, {}, 'its configs must be a whole number from 1'),
    ({}, {'opcodes': [1.0]}, 'its opcodes must be a list of whole numbers'),
    ({}, {'settings': []}, 'its settings must be an object'),
    ({}, {'settings': {'data_root': 1}}, 'its data_root must be text'),
    ({'data_root': 1}, {}, 'its data_root must be text'),
    ({'model': ''}, {}, "its model must be text; it is ''"),
    ({}, {'train_curve': {'a': [True]}}, 'must be lists of numbers by name'),
    ({}, {'final_error': {'val': 1}}, 'must be numbers by split and number'),
    ({}, {'models_py': {'sha256': 1}}, 'its models_py must be texts by name'),
    ({}, {'num_ops': 65537}, 'its num_ops must be a whole number from 1 to'),
    ({}, {'feature_stats': {}}, 'statistics cannot be read'),
    *(({}, {'feature_stats': {'node': {**STATS, **wrong}, 'config': STATS}},
       'minimum and maximum must be lists of finite')
      for wrong in ({'minimum': [0.0]}, {'maximum': [1, math.nan]},
                    {'maximum': [-1.0, 1.0]}))]


def test_a_run_file_is_not_trusted(tmp_path):
  for run in (RUN_INFO, GOOD):
    assert artifacts.read_run_file(
        artifacts.save_run_file(run, str(tmp_path), TILE)) == run
  with pytest.raises(UserError, match=r'its num_ops must be .* it is None'):
    artifacts.read_run_file(artifacts.save_run_file(
        {**RUN_INFO, 'feature_stats': GOOD['feature_stats']}, str(tmp_path),
        TILE))
  for args, changes, message in WRONG:
    run = {**GOOD, **changes, 'args': {**GOOD['args'], **args}}
    path = artifacts.save_run_file(run, str(tmp_path), TILE)
    with pytest.raises(UserError, match=f'run_.*jsonz: .*{message}'):
      artifacts.read_run_file(path)


def test_an_old_model_that_stepped_aside_comes_back(copied):
  """The process was killed between two renames."""
  model_dir, _ = copied
  model_dir.rename(f'{model_dir}.0123abcd.aside{files.TEMPORARY}')
  load(model_dir)


def test_full_disk_keeps_the_last_good_model(trained, tmp_path):
  disk = tmp_path / 'disk'
  disk.mkdir()
  if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=2m', 'none', disk],
                    capture_output=True).returncode:
    pytest.skip('needs the right to mount a small disk')
  try:
    good = tiny_handin.copy_run(trained.model_dir, disk)
    kernel = tiny_kernels.chain()
    scores = load(good).scored(kernel).given
    full = disk / 'full'
    with contextlib.suppress(OSError), full.open('wb', buffering=0) as file:
      while True:
        file.write(bytes(4096))
    with pytest.raises(UserError, match=r'cannot be written.*No space left'):
      train.train(tiny_models.tiny_settings(
          trained.run_info['settings']['data_root'], disk, epochs=1))
    model = types.SimpleNamespace(save=lambda path, **_: pathlib.Path(
        path, 'saved_model.pb').write_bytes(bytes(10 ** 6)))
    with pytest.raises(UserError, match=r'cannot be written.*free some space'):
      artifacts.save_run(model, trained.run_info, str(disk), TILE)
    np.testing.assert_array_equal(load(good).scored(kernel).given, scores)
    assert not [name for name in os.listdir(disk) if name.endswith('.tmp')]
  finally:
    subprocess.run(['umount', disk], check=True)


# ------------------------------------------- weights only, the package's model


@pytest.fixture
def pretrained(saved_model_dir, tmp_path, monkeypatch):
  """The package with `saved_model_dir` as its own model of a TPU v3."""
  folder = tmp_path / 'pretrained'
  monkeypatch.setattr(names, 'FOLDER', str(folder))
  return pathlib.Path(
      save_weights_only(saved_model_dir, str(folder / 'v3'), 'v3'))


def test_weights_only_give_the_same_scores(saved_model_dir, tmp_path):
  made = save_weights_only(saved_model_dir, str(tmp_path))
  args = artifacts.load_run(made, TILE).info['args']
  assert args == {**artifacts.load_run(saved_model_dir, TILE).info['args'],
                  'out_dir': '~/out/tpugraphs_tiles', 'results_csv': ''}
  assert sorted(os.listdir(made)) == ['weights.npz']
  whole, other = (scoring.load_ranker(model_dir, LoadSettings())
                  for model_dir in (saved_model_dir, made))
  for kernel in saved_run.KERNELS:
    np.testing.assert_array_equal(
        whole.scored(kernel).given, other.scored(kernel).given)


def test_verbs_and_python_without_a_model_take_the_packages(
    pretrained, saved_model_dir, tmp_path, capsys):
  path = saved_run.KERNELS[0].save(str(tmp_path))
  printed = []
  for flags in ([], ['--dir=pretrained'], [f'--dir={saved_model_dir}']):
    assert cli.main(['rank', *flags, f'--data={path}', '--json']) == 0
    printed.append(json.loads(capsys.readouterr().out))
  assert printed[0] == printed[1] == printed[2]
  assert CostModel.load().name == 'pretrained'


def test_a_generation_with_its_own_model_takes_it(
    pretrained, saved_model_dir, tmp_path, capsys, monkeypatch):
  save_weights_only(saved_model_dir, os.path.join(names.FOLDER, 'v6e'), 'v6e')
  model = CostModel.load(tpu='TPU v6 lite')
  assert model.name == 'pretrained:v6e'
  assert model.__getstate__() == ('pretrained:v6e', LoadSettings())
  for name, tpu, rule in (
      ('pretrained', 'v9', "'v9' is not a TPU generation"),
      ('out/model_a', 'v9', "'v9' is not a TPU generation"),
      ('pretrained:v6e', 'v3', "tpu='v3': chooses .* leave it out to load "
       'pretrained:v6e')):
    with pytest.raises(UserError, match=rule):
      CostModel.load(name, tpu=tpu)
  assert cli.main(['evaluate', '--tpu=v9', f'--dir={saved_model_dir}']) == 1
  assert "'v9' is not a TPU generation" in capsys.readouterr().err
  assert cli.main(['evaluate', '--task=layout', '--dir=pretrained']) == 1
  assert 'is a model of another task than layout' in capsys.readouterr().err
  loaded = []

  def load(name, _):
    loaded.append(name)
    return dataclasses.replace(model._ranker, name=name)

  for module in 'engine.scoring', 'tasks.api':
    monkeypatch.setattr(f'tpu_graphs_ext.{module}.load_ranker', load)
  data = tmp_path / 'data' / 'valid'
  kernel = saved_run.KERNELS[0]
  dataclasses.replace(  # Whose bounds suit no tensor in elements.
      kernel, config_feat=0 * kernel.config_feat).save(str(data))

  def evaluated(*flags):
    assert cli.main(['evaluate', *flags, f'--data={data}', '--json']) == 0
    return json.loads(capsys.readouterr().out)

  for flags, name in (
      (['--tpu=v6e'], 'pretrained:v6e'),
      (['--tpu=v6e', '--dir=pretrained:v3'], 'pretrained:v3')):
    assert evaluated(*flags)['model_dir'] == name
  several = f'--dir=pretrained,{saved_model_dir}'
  assert [row['model_dir'] for row in evaluated(several, '--tpu=v6e')] == [
      'pretrained:v6e', saved_model_dir]
  # Sample data say what they were compiled for.
  (tmp_path / 'data' / 'sample_data.json').write_text(
      '{"settings": {"tpu": "v6e"}}')
  assert evaluated()['model_dir'] == 'pretrained:v6e'
  del loaded[:]
  # Of a single tile, which is one whatever bounds count.
  monkeypatch.setattr(candidates, 'MOST_COMBINATIONS', 2**16)
  path = dataclasses.replace(kernel, config_feat=features.config_features(
      [], kernel.num_configs * [[1, 1]])).save(str(data))
  for flags in (['--tpu=v6e', path], ['--dir=pretrained:v6e', path],
                [f'--data={data}']):
    assert cli.main(['rank', *flags]) == 0
    assert 'not checked' not in capsys.readouterr().out
  assert cli.main(['rank', path]) == 0
  kernel.save(str(tmp_path / 'data' / 'test'))
  assert cli.main(['predict', f'--data_root={data.parent}',
                   f'--out={tmp_path}/a.csv']) == 0
  assert loaded == 3 * ['pretrained:v6e'] + ['pretrained', 'pretrained:v6e']


def test_a_program_for_another_generation_than_the_models_is_said(pretrained):
  ranker = scoring.load_ranker('pretrained', LoadSettings())
  source = kernel_sources.Source('f', [], ['note'], [], 'v6e')
  assert tile_search.notes_of(ranker, source) == [
      'note', 'ranked by the model of a TPU v3; not checked for v6e']
  os.mkdir(os.path.join(names.FOLDER, 'v6e'))
  has_own = 'has its own: --dir pretrained, or in Python CostModel.load(tpu='
  assert tile_search.notes_of(ranker, source)[1] == (
      f"ranked by the model of a TPU v3; v6e {has_own}'v6e')")
  for tpu in 'v3', '':
    assert tile_search.notes_of(
        ranker, dataclasses.replace(source, tpu=tpu)) == ['note']
  # A v3's model has no generation in its name.
  assert tile_search.notes_of(
      dataclasses.replace(ranker, tpu='v6e'),
      dataclasses.replace(source, tpu='v3'))[1] == (
          f"ranked by the model of a TPU v6e; v3 {has_own}'v3')")
  assert tile_search.notes_of(
      ranker, dataclasses.replace(source, tpu='v4')) == [
          'note', 'legal tiles and analytic time for a TPU v4 are inferred '
          "from other generations' and not checked",
          'ranked by the model of a TPU v3; not checked for v4']


def test_weights_that_do_not_fit_models_py(pretrained):
  path = pretrained / 'weights.npz'
  arrays = dict(np.load(path))
  first, last = min(arrays), max(arrays)
  without = {name: arrays[name] for name in arrays.keys() - {last}}
  wild = {**arrays, first: np.full_like(arrays[first], np.nan)}
  for content, message in ((without, r'models\.py belongs to another model'),
                           (wild, 'finite floats')):
    np.savez_compressed(path, **content)
    with pytest.raises(UserError, match=message):
      scoring.load_ranker('pretrained', LoadSettings())
  np.savez_compressed(path, **{first: arrays[first]})
  artifacts.save_run_file(
      {**artifacts.load_run('pretrained', TILE).info,
       'versions': {'tpu_graphs_ext': '0.0.9'}}, str(pretrained.parent), TILE)
  with pytest.raises(UserError, match=r'with tpu_graphs_ext 0\.0\.9; this is'):
    scoring.load_ranker('pretrained', LoadSettings())
