"""The layout task's quick start: its parts, and all of it on tiny programs."""

import os
import sys
import types

import numpy as np
import pytest

from support import tiny_layouts
from tpu_graphs_ext import quickstart, quickstart_layout
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sample import write_layouts


def write_tiny(out):
  """Stands in for the sample data: programs of 20 configurations."""
  for split, number in (('train', 3), ('valid', 1), ('test', 1)):
    for i in range(number):
      arrays = tiny_layouts.program(f'{split} {i}', configs=20)
      parts = {split: arrays['config_runtime']}
      if split == 'test':
        parts = {'test': 0 * arrays['config_runtime'],
                 'test_labelled': arrays['config_runtime']}
      for name, runtime in parts.items():
        folder = os.path.join(out, 'xla', 'random', name)
        os.makedirs(folder, exist_ok=True)
        np.savez(os.path.join(folder, f'{split}_{i}.npz'),
                 **{**arrays, 'config_runtime': runtime})
  return types.SimpleNamespace(text=lambda: 'tiny data')


def test_without_a_checkout_it_says_so(tmp_path):
  with pytest.raises(UserError, match='TPU_GRAPHS_ROOT names no checkout'):
    quickstart_layout.run(str(tmp_path), 1, None)
  assert not os.listdir(tmp_path)


def test_the_flag_chooses_the_task(monkeypatch, capsys, tmp_path):
  calls = []
  monkeypatch.setattr(quickstart, 'find_baseline', lambda out: 'root')
  monkeypatch.setattr(quickstart_layout, 'run', lambda *args: (
      calls.append(args) or 'done'))
  for more, epochs in (([], quickstart_layout.EPOCHS), (['--epochs=3'], 3)):
    monkeypatch.setattr(sys, 'argv', [
        'quickstart', '--task=layout', f'--out={tmp_path}', *more])
    assert quickstart.main() == 0
    assert calls.pop() == (str(tmp_path), epochs, 'root')
  assert capsys.readouterr().out == 'done\ndone\n'


def test_the_table():
  table = quickstart_layout.comparison(
      'Title', {'ModelA': [0.5, 0.25, 0.125, 0.0]}).splitlines()
  assert table[0] == 'Title'
  assert table[1].split() == ['tau', 'top-1', 'top-10', 'top-100']
  assert table[2].split() == [
      'ModelA', '0.500', '25.00', '%', '12.50', '%', '0.00', '%']


def test_hidden_labels_are_those_of_the_labelled_test_split(tmp_path):
  data, hidden = str(tmp_path / 'data'), str(tmp_path / 'hidden')
  write_tiny(data)
  quickstart_layout.hide_labels(data, hidden)
  path = os.path.join(hidden, 'xla', 'random', 'test_export', 'secret',
                      'test_0.npz')
  with np.load(path) as stored:
    assert str(stored['input_file']) == 'test_0.npz'
    np.testing.assert_array_equal(
        stored['config_runtime'],
        tiny_layouts.program('test 0', configs=20)['config_runtime'])


@pytest.mark.baseline
def test_all_of_it(monkeypatch, tmp_path, capsys):
  root = checkout.find()
  if root is None:
    pytest.skip(f'needs a checkout of the baseline, named by '
                f'{checkout.ROOT_VARIABLE}, which is not set')
  monkeypatch.setattr(write_layouts, 'write_layout_data', write_tiny)
  text = quickstart_layout.run(str(tmp_path), 1, root)
  table = capsys.readouterr().out
  for name in quickstart_layout.MODELS:
    assert f'\n{name}' in table
  for line in text.splitlines():
    if line.startswith(('model:', 'predictions:')):
      assert os.path.exists(line.split()[1])
