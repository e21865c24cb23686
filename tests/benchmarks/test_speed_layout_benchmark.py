"""The layout task's speed benchmark: its rows and tables, not times."""

import csv
import sys

import numpy as np
import pytest

from support import tiny_layouts
from support.places import BENCHMARKS
from tpu_graphs_ext.baseline import checkout

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
  rows = speed_layout._compared('ranking', {
      'baseline': [{'seconds': s, 'peak': 400.0} for s in (9.0, 10.0, 50.0)],
      'ours': [{'seconds': s, 'peak': 100.0} for s in (2.0, 1.0, 3.0)]})
  values = {each['measure']: each['value'] for each in rows}
  assert values['all ranked, baseline over ours'] == 5.0
  assert values['peak of the process, baseline over ours'] == 4.0


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
  assert rows['training', 'a step, ours'] > 0
