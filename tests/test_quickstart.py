"""What quickstart.sh prints, and all of it on tiny programs."""

import shlex
import shutil

import pytest

from support import tiny_layouts
from tpu_graphs_ext import quickstart
from tpu_graphs_ext.cli import app
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.sample.write import Summary
from tpu_graphs_ext.tasks import LAYOUT, TILE


def test_the_next_commands_can_be_pasted(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(quickstart.sys, 'executable',
                      f'{tmp_path}/.venv/bin/python')
  (tmp_path / 'out/a b/models/model_0123456789').mkdir(parents=True)
  out = f'{tmp_path}/out/a b'
  text = quickstart.closing_text(
      TILE, f'{out}/models/model_0123456789', f'{out}/p.csv',
      f'{out}/data', '/real.pb')
  lines = [line[2:] for line in text.splitlines() if line.startswith('  ')]
  assert len(lines) == 3
  for line in lines:
    command, *words = shlex.split(line)
    assert command == '.venv/bin/tpu-graphs-ext'
    args = app.parse(words)
    assert args.data_root == 'out/a b/data'
  args = app.parse(shlex.split(lines[0])[1:])
  assert (args.dir, args.data) == ('out/a b/models/model_0123456789',
                                   '/real.pb')


def write_tiny(unused_task, data) -> Summary:
  """Stands in for the sample data: programs of 20 configurations."""
  tiny_layouts.write_collection(data, train=2, configs=20)
  shutil.copytree(f'{data}/xla/random/valid',
                  f'{data}/xla/random/test_labelled')
  return Summary(data, {}, False)


@pytest.mark.slow
@pytest.mark.parametrize('with_baseline', [
    False, pytest.param(True, marks=pytest.mark.baseline)])
def test_all_of_the_layout_task(monkeypatch, tmp_path, capsys, with_baseline):
  root = checkout.find() if with_baseline else None
  if with_baseline and not root:
    pytest.skip(f'{checkout.ROOT_VARIABLE} names no checkout of the baseline')
  monkeypatch.setattr(quickstart, 'find_baseline', lambda unused_out: root)
  monkeypatch.setattr(type(LAYOUT), 'write_sample', write_tiny)
  task = LAYOUT
  text = quickstart.run(task, str(tmp_path), 1)
  table = capsys.readouterr().out
  for name in task.quickstart.models:
    assert f'\n{name}' in table
  assert '\na random choice' in table
  assert (tmp_path / 'layout_predictions.csv').read_text().count('layout:') == 2
  assert 'evaluate --task layout --dir ' in text
