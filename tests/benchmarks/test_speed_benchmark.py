"""The speed benchmark: its kernels, its parts and its tables, not times."""

import csv
import sys

from support.places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import speed


def row(value, **changes):
  return {'part': 'memory', 'subject': 'NetA', 'case': 'configs 10',
          'measure': 'time', 'value': value, 'unit': 'ms',
          'date': '2026-01-02', 'machine': 'm', 'versions': 'v', **changes}


def test_a_part_measured_again_replaces_its_rows(tmp_path):
  speed.write_results(str(tmp_path), [
      row(1.0), row(2.0, case='a case of older code'),
      row(4.0, part='loading')])
  speed.write_results(str(tmp_path), [row(3.0)])
  with open(tmp_path / 'speed.csv') as file:
    found = [(each['part'], each['case'], each['value'])
             for each in csv.DictReader(file)]
  assert found == [('loading', 'configs 10', '4'),
                   ('memory', 'configs 10', '3')]
  assert '| NetA | configs 10 | time | 3 | ms |' in (
      tmp_path / 'speed.md').read_text()


def test_wrong_flags(capsys, monkeypatch):
  monkeypatch.setattr(speed.checkout, 'find', lambda: 'a checkout')
  assert speed.main(['--parts', 'rankin']) == 1
  assert "no part 'rankin'; choose from ranking" in capsys.readouterr().err
