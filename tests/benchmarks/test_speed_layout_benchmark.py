"""The layout task's speed benchmark: its table, not times."""

import argparse
import sys

import numpy as np
import pytest

from support import tiny_layouts
from support.places import BENCHMARKS
from tpu_graphs_ext.course import checkout

sys.path.insert(0, str(BENCHMARKS))

import speed_layout


@pytest.fixture
def path(tmp_path):
  path = str(tmp_path / 'tiny.npz')
  np.savez(path, **tiny_layouts.program('tiny', 50, 7, 24))
  return path


def test_medians_and_their_ratio(path):
  def answer(seconds):
    part = {'seconds': seconds, 'processor seconds': 2 * seconds,
            'memory': 60.0}
    return {'ranking': part, 'training': part}

  text = speed_layout.markdown(
      argparse.Namespace(file=path, repeats=3, most_configs=20), {
          'baseline': [answer(seconds) for seconds in (9.0, 10.0, 50.0)],
          'ours': [answer(seconds) for seconds in (2.0, 1.0, 3.0)]}, 1e-6)
  assert '| ranking, time | 10 s | 2 s | 5 |' in text
  assert '| training, processor time | 20 s | 4 s | 5 |' in text
  assert 'tiny.npz`: 50 nodes, 7 configurable, 20 of 24 conf' in text


def test_without_a_file_or_a_checkout(monkeypatch, capsys):
  monkeypatch.setattr(checkout, 'find', lambda: '/')
  assert speed_layout.main(['none.npz']) == 1
  assert 'no such file' in capsys.readouterr().err


@pytest.mark.baseline
def test_both_sides_have_the_same_scores(path, tmp_path):
  if checkout.find() is None:
    pytest.skip(f'needs {checkout.ROOT_VARIABLE}')
  out = tmp_path / 'results' / 'speed.md'
  out.parent.mkdir()
  assert speed_layout.main([path, '--repeats=1', f'--out={out}']) == 0
  difference = out.read_text().split('Largest difference of a score: ')[1]
  assert float(difference.split()[0]) < 1e-5
