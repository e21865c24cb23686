"""A model's weights alone, and the model that comes with the package."""

import json
import os
import pathlib

import numpy as np
import pytest

from support import saved_run
from tpu_graphs_ext import cli
from tpu_graphs_ext.engine import artifacts, scoring, weights_only
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.serving.cost_model import CostModel


@pytest.fixture
def pretrained(saved_model_dir, tmp_path, monkeypatch):
  """The package with `saved_model_dir` as its own model."""
  folder = tmp_path / 'pretrained'
  monkeypatch.setattr(artifacts, 'PRETRAINED_FOLDER', str(folder))
  return pathlib.Path(weights_only.write(saved_model_dir, str(folder)))


def weights_of(model_dir):
  return dict(np.load(model_dir / 'weights.npz'))


def test_a_compact_model_gives_the_same_scores(saved_model_dir, tmp_path):
  made = weights_only.write(saved_model_dir, str(tmp_path))
  assert os.path.basename(made) == os.path.basename(saved_model_dir)
  assert sorted(os.listdir(made)) == ['weights.npz']
  one, other = map(scoring.load_ranker, (saved_model_dir, made))
  for kernel in saved_run.KERNELS:
    np.testing.assert_array_equal(one.scores(kernel), other.scores(kernel))
  # A compact model is written again as it is.
  again = weights_only.write(made, str(tmp_path / 'again'))
  assert (pathlib.Path(again) / 'weights.npz').read_bytes() == (
      pathlib.Path(made) / 'weights.npz').read_bytes()


def test_verbs_and_python_without_a_model_take_the_packages(
    pretrained, saved_model_dir, tmp_path, capsys):
  path, = [kernel.save(str(tmp_path)) for kernel in saved_run.KERNELS[:1]]
  printed = []
  for flags in ([], ['--dir=pretrained'], [f'--dir={saved_model_dir}']):
    assert cli.main(['rank', *flags, f'--data={path}', '--json']) == 0
    printed.append(json.loads(capsys.readouterr().out))
  assert printed[0] == printed[1] == printed[2]
  assert cli.main(['evaluate', f'--data={path}', '--json']) == 0
  assert json.loads(capsys.readouterr().out)['model_dir'] == 'pretrained'
  model = CostModel.load()
  assert model.name == 'pretrained'
  assert [choice.index for choice in model.rank(path).choices] == [
      choice['index'] for choice in printed[0][0]['choices']]


def test_an_installation_without_a_model(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(artifacts, 'PRETRAINED_FOLDER', str(tmp_path))
  assert cli.main(['rank', '--data=x.npz']) == 1
  assert 'has no pretrained model; name one that you trained, as --dir ' in (
      capsys.readouterr().err)


@pytest.mark.parametrize('change', ['fewer', 'other shape'])
def test_another_models_py_refuses_the_packages_model(pretrained, change):
  arrays = weights_of(pretrained)
  last = max(arrays)
  if change == 'fewer':
    del arrays[last]
  else:
    arrays[last] = np.zeros(arrays[last].shape + (1,), np.float32)
  np.savez_compressed(pretrained / 'weights.npz', **arrays)
  with pytest.raises(UserError, match=r'another version of models\.py'):
    scoring.load_ranker('pretrained')


def test_a_model_of_another_version_is_refused_by_the_version_it_needs(
    saved_model_dir, tmp_path):
  made = pathlib.Path(weights_only.write(saved_model_dir, str(tmp_path)))
  arrays = weights_of(made)
  del arrays[max(arrays)]
  np.savez_compressed(made / 'weights.npz', **arrays)
  info = artifacts.load_run(str(made)).info
  artifacts.save_run_file(
      {**info, 'versions': {'tpu_graphs_ext': '0.0.9'}}, str(tmp_path))
  with pytest.raises(
      UserError, match=r'trained with tpu_graphs_ext 0\.0\.9 and needs'):
    scoring.load_ranker(str(made))


def test_damaged_weights(pretrained):
  path = pretrained / 'weights.npz'
  arrays, content = weights_of(pretrained), path.read_bytes()
  path.write_bytes(content[:len(content) // 2])
  with pytest.raises(UserError, match='cannot be read as a saved Keras model'):
    scoring.load_ranker(str(pretrained))
  first = min(arrays)
  for wrong in (np.full(arrays[first].shape, np.nan, np.float32),
                np.zeros(arrays[first].shape, np.int32)):
    np.savez_compressed(path, **{**arrays, first: wrong})
    with pytest.raises(UserError, match=f'{first} (has values that are not '
                       'finite|is of int32)'):
      scoring.load_ranker(str(pretrained))
