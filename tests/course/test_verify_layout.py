"""Verifying layout hand-ins: what needs no checkout."""

import numpy as np
import pytest

from tpu_graphs_ext import cli
from tpu_graphs_ext.course import checkout, verify_layout
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError


def test_without_a_checkout_it_says_what_to_name(monkeypatch, tmp_path):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  with pytest.raises(UserError, match='--root names no checkout'):
    verify_layout.verify_layout(str(tmp_path / 'model_1'))


@pytest.mark.parametrize('verb', ['verify', 'package'])
def test_the_verbs_know_the_task(monkeypatch, tmp_path, capsys, verb):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  out = ['--out', str(tmp_path / 'x.zip')] if verb == 'package' else []
  assert cli.main([verb, '--task', 'layout', '--model_dir',
                   str(tmp_path / 'model_1'), *out]) == 1
  assert 'name one, or set TPU_GRAPHS_ROOT' in capsys.readouterr().err


def tiny_checkout(folder) -> str:
  for name in ('tiles_train.py', checkout.MODELS_PY):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('')
  return str(folder)


@pytest.mark.parametrize('args, said', [
    ({}, 'is a model of the tile task; leave --task layout out'),
    ({'keep_nodes': 5}, 'its source must be xla or nlp; it is None'),
    ({'keep_nodes': 5, 'source': 'xla', 'search': 'random'},
     'lack max_configs'),
])
def test_run_files_that_are_of_something_else(tmp_path, args, said):
  run = {'args': {'model': 'ResModel', 'model_kwargs_json': '{}', 'configs': 4,
                  **args}, 'train_curve': {}}
  artifacts.save_run_file(run, str(tmp_path))
  run_path, = tmp_path.glob('run_*.jsonz')
  name = run_path.name[len('run_'):-len('.jsonz')]
  verdict = verify_layout.verify_layout(
      str(tmp_path / f'model_{name}'), root=tiny_checkout(tmp_path / 'root'))
  assert not verdict.ok
  assert any(said in fault for fault in verdict.faults), verdict.text()


def test_the_hash_of_a_layout_run_does_not_depend_on_its_folder():
  args = {'model': 'ResModel', 'keep_nodes': 5, 'out_dir': 'here'}
  assert artifacts.train_hash(args) == artifacts.train_hash(
      {**args, 'out_dir': 'there'})
  assert artifacts.task_of(args) == 'layout'
  del args['keep_nodes']
  assert artifacts.task_of(args) == 'tile'
  assert artifacts.train_hash(args) != artifacts.train_hash(
      {**args, 'out_dir': 'there'})


def test_runtimes_follow_the_scores_and_rounding_makes_them_equal():
  scores = np.array([3.0, -1.0, 2.0, 2.0 + 1e-6, 5.0], np.float32)
  np.testing.assert_array_equal(
      verify_layout.as_runtimes(scores),
      [1_002_000, 1_000_000, 1_001_000, 1_001_000, 1_003_000])
  assert set(verify_layout.as_runtimes(np.zeros(4))) == {1_000_000}
