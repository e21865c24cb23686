"""The speed benchmark: its kernels, its parts and its tables, not times."""

import csv
import sys

import pytest

from support.places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import speed
import speed_parts


def row(value, **changes):
  return {'part': 'memory', 'subject': 'NetA', 'case': 'configs 10',
          'measure': 'time', 'value': value, 'unit': 'ms',
          'date': '2026-01-02', 'machine': 'm', 'versions': 'v', **changes}


def test_kernels_have_the_sizes_of_the_collection():
  kernels = speed_parts.like_the_collection(12)
  nodes = [kernel.num_nodes for kernel in kernels]
  configs = sorted(kernel.num_configs for kernel in kernels)
  # Quantiles 1/24 and 13/24: 2 + 5 * (1/24) / 0.05 and, between 37 and 58,
  # 37 + 21 * (13/24 - 0.5) / 0.25.
  assert nodes[0] == round(2 + 5 * (1 / 24) / 0.05)
  assert nodes[6] == round(37 + 21 * (13 / 24 - 0.5) / 0.25)
  # 25 * 400^(1/24) and 25 * 400^(23/24).
  assert (configs[0], configs[-1]) == (32, 7790)
  assert 1.0 <= sum(kernel.num_edges for kernel in kernels) / sum(nodes) <= 1.1
  for kernel in kernels:
    consumer, producer = kernel.edge_index.T
    assert (consumer > producer).all()
    assert set(consumer) == set(range(1, kernel.num_nodes))  # Connected.


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


@pytest.mark.parametrize('root', ['', 'a checkout'])
def test_wrong_flags(capsys, monkeypatch, root):
  monkeypatch.setattr(speed.checkout, 'find', lambda: root)
  assert speed.main(['--parts', 'rankin']) == 1
  assert ("no part 'rankin'; choose from ranking" if root else
          'names no checkout of the baseline') in capsys.readouterr().err
