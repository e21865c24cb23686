"""The measures of a program, against values worked out by hand."""

import numpy as np
import pytest

from support import tiny_layouts
from tpu_graphs_ext.data import programs
from tpu_graphs_ext.engine.scoring import Scores
from tpu_graphs_ext.tasks import layout_results


def test_all_measures_of_one_program(tmp_path):
  arrays = tiny_layouts.program('a', configs=4)
  arrays['config_runtime'] = np.array([400, 100, 300, 200])
  np.savez(tmp_path / 'a.npz', **arrays)
  program = programs.open_program(str(tmp_path / 'a.npz'))
  # The order 3, 1, 2, 0: one pair is wrong, (1, 3).
  result = layout_results.row_of(
      program, Scores(np.float32([4, 2, 3, 1]), np.arange(4)), ks=(1, 2, 100))
  assert result['kendall'] == pytest.approx(4 / 6)
  assert result['opa'] == pytest.approx(5 / 6)
  assert [result[f'slowdown_{k}'] for k in (1, 2, 100)] == [1.0, 0.0, 0.0]
  assert result['random_1'] == pytest.approx(1.5)  # (0 + 1 + 2 + 3) / 4.
  assert [result[name] for name in ('nodes', 'configurable', 'configs')] == [
      40, 6, 4]
  # Equal scores stand in the order of the file, and no pair is right in OPA.
  tied = layout_results.row_of(
      program, Scores(np.zeros(4, np.float32), np.arange(4)))
  assert tied['opa'] == 0 and tied['kendall'] == pytest.approx(-2 / 6)
