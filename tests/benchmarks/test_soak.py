"""Neither memory nor open files grow in a process that works for long."""

import os
import sys

import pytest

from support.places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import soak

pytestmark = pytest.mark.skipif(
    not os.path.isdir('/proc/self/fd'), reason='needs /proc')


def rows(phase, mib, open_files):
  return [soak.Row(phase, step, *values)
          for step, values in enumerate(zip(mib, open_files), 1)]


def test_growth_is_found(tmp_path):
  flat = [row for phase in ('evaluate', 'predict')
          for row in rows(phase, [100] * 20, [9] * 20)]
  steady = rows('train', [50, 90, *[100, 103] * 9], [5, 7, *[9] * 18])
  assert not soak.faults(steady + flat, settled=4, most_mib=20)
  growing = rows('train', range(100, 300, 10), range(5, 25))
  found = soak.faults(growing + flat, settled=4, most_mib=20)
  assert found == ['train: 110.0 MiB more memory', 'train: 11 more open files']
  soak.write(str(tmp_path / 'x.csv'), growing)
  assert soak.read(str(tmp_path / 'x.csv')) == growing
  lines = soak.table(steady + flat).splitlines()
  assert '| train | 10 | 103 | 9 |' in lines
  assert '| predict | 20 | 100 | 9 |' in lines
  soak.draw(str(tmp_path / 'x.svg'), steady + flat)
  assert '</svg>' in (tmp_path / 'x.svg').read_text()


@pytest.mark.survive
def test_long_runs_do_not_grow(tmp_path):
  found = soak.soak(str(tmp_path / 'soak'), epochs=200, kernels=500, calls=20)
  assert len([row for row in found if row.phase == 'train']) > 100
  assert not soak.faults(found, settled=10, most_mib=20)
