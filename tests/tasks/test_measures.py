"""Measures of a program by hand, and kinds of kernels by their opcodes."""

import numpy as np
import pytest

from support import tiny_layouts
from tpu_graphs_ext.data import programs, schema
from tpu_graphs_ext.engine.scoring import Scores
from tpu_graphs_ext.tasks import LAYOUT, evaluations


def test_all_measures_of_one_program(tmp_path):
  arrays = tiny_layouts.program('a', configs=4)
  arrays['config_runtime'] = np.array([400, 100, 300, 200])
  np.savez(tmp_path / 'a.npz', **arrays)
  program = programs.open_program(str(tmp_path / 'a.npz'))
  # The order 3, 1, 2, 0: one pair is wrong, (1, 3).
  result = LAYOUT.evaluation.row_of(
      program, Scores(np.float32([4, 2, 3, 1]), np.arange(4)), ks=(1, 2, 100))
  assert result['kendall'] == pytest.approx(4 / 6)
  assert result['opa'] == pytest.approx(5 / 6)
  assert [result[f'slowdown_{k}'] for k in (1, 2, 100)] == [1.0, 0.0, 0.0]
  assert result['random_1'] == pytest.approx(1.5)  # (0 + 1 + 2 + 3) / 4.
  # Equal scores stand in the order of the file, and no pair is right in OPA.
  tied = LAYOUT.evaluation.row_of(
      program, Scores(np.zeros(4, np.float32), np.arange(4)), ks=(1,))
  assert tied['opa'] == 0 and tied['kendall'] == pytest.approx(-2 / 6)


KINDS = {
    'parameter parameter convolution': 'convolution',
    'parameter parameter dot tanh reduce': 'convolution',
    'parameter parameter parameter add multiply reduce': 'reduction',
    'parameter constant reduce-window': 'reduction',
    'parameter copy': 'copy',
    'parameter constant pad slice concatenate tuple': 'copy',
    'parameter broadcast convert': 'element-wise',
    'parameter parameter compare select transpose': 'element-wise',
    'parameter sort': 'other',
    # The sum that joins what is scattered is not element-wise work.
    'parameter parameter add parameter parameter parameter scatter': 'other'}


def kind_of(*opcodes: int) -> str:
  return evaluations.kind_of(np.array(opcodes, np.uint8))


def test_kinds():
  for names, kind in KINDS.items():
    opcodes = [schema.OPCODES[name] for name in names.split()]
    assert kind_of(*opcodes) == kind_of(*opcodes[::-1]) == kind, names
  assert kind_of(schema.OPCODES['parameter'], 255) == 'other'
  assert {kind_of(number) for number in schema.OPCODE_NAMES} == set(
      evaluations.KINDS)
  listed = [name for names in evaluations._OPCODES.values() for name in names]
  assert len(listed) == len(set(listed)) and set(listed) < set(schema.OPCODES)
