"""The layout task's speed benchmark: its rows and tables, not times."""

import csv
import sys

import numpy as np
import pytest

from support import tiny_layouts
from support.places import BENCHMARKS
from tpu_graphs_ext.course import checkout

sys.path.insert(0, str(BENCHMARKS))

import speed_layout


def row(part, value, **changes):
  return {'part': part, 'file': 'a', 'measure': 'time', 'value': value,
          'unit': 's', 'machine': 'm', 'versions': 'v', 'remark': '',
          **changes}


def test_a_part_that_is_measured_again_replaces_its_rows(tmp_path):
  folder = str(tmp_path)
  speed_layout.write_results(folder, [row('ranking', 1.0),
                                      row('ranking', 9.0, file='b')])
  speed_layout.write_results(folder, [row('training', 2.0)])
  speed_layout.write_results(folder, [row('ranking', 3.0, remark='busy')])
  with open(tmp_path / 'speed_layout.csv') as file:
    rows = list(csv.DictReader(file))
  assert [(each['part'], each['file'], each['value']) for each in rows] == [
      ('ranking', 'b', '9'), ('training', 'a', '2'), ('ranking', 'a', '3')]
  table = (tmp_path / 'speed_layout.md').read_text()
  assert '## a' in table and '## b' in table and 'm; v; busy' in table


def test_medians_and_their_ratio():
  def answer(seconds, peak, taken):
    return {'seconds': seconds, 'processor': 2 * seconds, 'peak': peak,
            'taken': taken}

  rows = speed_layout._compared('ranking', {
      'baseline': [answer(s, 400.0, 60.0) for s in (9.0, 10.0, 50.0)],
      'ours': [answer(s, 100.0, 5.0) for s in (2.0, 1.0, 3.0)]})
  values = {each['measure']: each['value'] for each in rows}
  assert values['all ranked, baseline over ours'] == 5.0
  assert values['all ranked, processor time, ours'] == 4.0
  assert values['peak of the process, baseline over ours'] == 4.0
  assert values['peak beyond what it had before, baseline over ours'] == 12.0


def test_scores_in_float64_are_those_of_our_model():
  import tensorflow as tf

  from tpu_graphs_ext import layout_models
  tf.keras.utils.set_random_seed(1)
  graph = tiny_layouts.graph([tiny_layouts.program('tiny', 20, 4, 3)])
  model = layout_models._ResModel(3, tiny_layouts.NUM_OPS, 4, hidden_dim=6)
  model.forward(graph, 3)  # Makes the variables.
  for weight in model.trainable_variables:  # Biases are 0 at first.
    weight.assign(tf.random.normal(weight.shape, stddev=0.3))
  scores = model.forward(graph, 3)
  np.testing.assert_allclose(
      speed_layout._exact(model, graph), scores[0], rtol=1e-4, atol=1e-5)


def test_differences_are_parts_of_the_largest_score(tmp_path):
  for name, scores in (('ours', [1.0, 2.0, -4.0]), ('exact', [1.0, 2.2]),
                       ('baseline', [1.0, 2.4, -4.0])):
    np.save(tmp_path / f'{name}.npy', scores)
  rows = speed_layout._differences(str(tmp_path))
  assert {row['measure']: pytest.approx(row['value']) for row in rows} == {
      'largest score': 4, 'largest difference': 0.1,
      'from float64, baseline': 0.05,
      'from float64, ours': 0.05}


@pytest.mark.parametrize('arguments, said', [
    (['none.npz'], 'no such file'),
    ([__file__, '--parts=rankin'], "there is no part 'rankin'"),
])
def test_what_cannot_be_meant(monkeypatch, capsys, tmp_path, arguments, said):
  monkeypatch.setattr(checkout, 'find', lambda: '/')
  assert speed_layout.main([*arguments, f'--out={tmp_path}']) == 1
  assert said in capsys.readouterr().err


def test_without_a_checkout(monkeypatch, capsys):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  assert speed_layout.main(['x.npz']) == 1
  assert checkout.ROOT_VARIABLE in capsys.readouterr().err


@pytest.mark.baseline
def test_both_sides_have_the_same_scores(tmp_path):
  if checkout.find() is None:
    pytest.skip(f'needs {checkout.ROOT_VARIABLE}')
  path = str(tmp_path / 'tiny.npz')
  np.savez(path, **tiny_layouts.program('tiny', 50, 7, 24))
  assert speed_layout.main(
      [path, '--repeats=1', f'--out={tmp_path}/results']) == 0
  with open(tmp_path / 'results' / 'speed_layout.csv') as file:
    rows = {(each['part'], each['measure']): float(each['value'])
            for each in csv.DictReader(file)}
  assert rows['scores', 'largest difference'] < 1e-5
  assert rows['scores', 'from float64, ours'] < 1e-5
  assert rows['scores', 'from float64, baseline'] < 1e-5
  assert rows['training', 'a step, ours'] > 0
  assert rows['training', 'a step, processor time, ours'] > 0
