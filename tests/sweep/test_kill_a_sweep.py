"""A sweep on two Dask workers, of which one is killed, as is the sweep, twice.

Real processes and trainings, of a tiny model.
"""

import json
import os

import pytest

from support import fake_trials, kill_a_sweep, tiny_kernels, tiny_models
from support.places import PROJECT, TESTS

pytestmark = pytest.mark.slow
pytest.importorskip('distributed', reason='needs the extra [scale]')
pytest.importorskip('optuna', reason='needs the extra [scale]')


def test_it_is_finished_and_nothing_is_done_again(tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(PROJECT), str(TESTS)]))
  data = tiny_kernels.write_data_root(
      tmp_path / 'data', num_train=8, num_valid=4, num_test=2)
  grid = fake_trials.write_grid(
      tmp_path, str(data), tiny_models.__file__,
      settings={'models_py': tiny_models.__file__, 'epochs': 3, 'batch': 2,
                'configs': 6, 'cache_dir': ''})
  found = kill_a_sweep.run(tmp_path, grid, (1, 2, 4))
  assert found['code'] == 0 and found['states'] == ['finished'] * 6, (
      json.dumps(found) + (tmp_path / 'sweep.log').read_text())
  assert found['started more than once'] >= 1  # Those that were under way.
  assert not found['done again']
  text = (tmp_path / 'out' / 'leaderboard.md').read_text()
  assert '6 trials: 6 finished.' in text
