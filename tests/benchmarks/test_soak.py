"""Neither memory nor open files grow in a process that works for long."""

import os
import sys

import pandas
import pytest

from support.places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import soak

pytestmark = pytest.mark.skipif(
    not os.path.isdir('/proc/self/fd'), reason='needs /proc')


def rows(phase, mib, open_files):
  return pandas.DataFrame({
      'phase': phase, 'step': range(1, len(mib) + 1), 'mib': mib,
      'open_files': open_files})


def test_growth_is_found(tmp_path):
  flat = [rows(phase, [100] * 20, [9] * 20)
          for phase in ('evaluate', 'predict')]
  steady = rows('train', [50, 90, *[100, 103] * 9], [5, 7, *[9] * 18])
  assert not soak.faults(pandas.concat([steady, *flat]), settled=4)
  growing = rows('train', [*range(100, 300, 10)], [*range(5, 25)])
  assert soak.faults(pandas.concat([growing, *flat]), settled=4) == [
      'train: 110.0 MiB more memory', 'train: 11 more open files']
  soak.write(tmp_path, pandas.concat([steady, *flat]))
  lines = (tmp_path / 'soak.md').read_text().splitlines()
  assert '| train | 10 | 103 | 9 |' in lines
  assert '| predict | 20 | 100 | 9 |' in lines
  assert '</svg>' in (tmp_path / 'soak.svg').read_text()


@pytest.mark.survive
def test_long_runs_do_not_grow(tmp_path):
  found = soak.soak(str(tmp_path / 'soak'))
  assert (found['phase'] == 'train').sum() > 100
  assert not soak.faults(found)
