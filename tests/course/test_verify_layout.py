"""Verifying layout hand-ins: what needs no checkout."""

import numpy as np
import pytest

from tpu_graphs_ext import cli
from tpu_graphs_ext.course import checkout, grade_layouts
from tpu_graphs_ext.engine import artifacts


def test_without_a_checkout_it_says_what_to_name(monkeypatch, tmp_path, capsys):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  for verb in (['verify'], ['package', '--out', str(tmp_path / 'x.zip')]):
    assert cli.main([*verb, '--task', 'layout', '--model_dir',
                     str(tmp_path / 'model_1')]) == 1
    assert 'name one, or set TPU_GRAPHS_ROOT' in capsys.readouterr().err


@pytest.mark.parametrize('args, said', [
    ({}, 'belongs to a model of the tile task; leave --task layout out'),
    ({'keep_nodes': 5, 'source': 'xla', 'search': 'random'},
     'lack max_configs'),
    ({'keep_nodes': 5, 'source': 'xla', 'search': 'random', 'max_configs': 2},
     'has no folder train, valid, test')])
def test_what_cannot_be_graded(tmp_path, args, said):
  grader = grade_layouts.LayoutGrader({'args': args}, str(tmp_path), '', False)
  assert said in grader.faults[0]
  assert grader.args is None


def test_the_hash_of_a_layout_run_does_not_depend_on_its_folder():
  args = {'model': 'ResModel', 'keep_nodes': 5, 'out_dir': 'here'}
  assert artifacts.train_hash(args) == artifacts.train_hash(
      {**args, 'out_dir': 'there'})
  del args['keep_nodes']
  assert artifacts.train_hash(args) != artifacts.train_hash(
      {**args, 'out_dir': 'there'})


def test_runtimes_follow_the_scores_and_rounding_makes_them_equal():
  scores = np.array([3.0, -1.0, 2.0, 2.0 + 1e-6, 5.0], np.float32)
  np.testing.assert_array_equal(
      grade_layouts.as_runtimes(scores),
      [1_002_000, 1_000_000, 1_001_000, 1_001_000, 1_003_000])
  assert set(grade_layouts.as_runtimes(np.zeros(4))) == {1_000_000}
