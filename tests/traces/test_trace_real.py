"""Traces that others recorded, none of which is in this repository.

TPU_GRAPHS_TRACES names a folder that holds them, at any depth: for example
tests/data of facebookresearch/HolisticTraceAnalysis, and the unpacked
et_replay/tests/inputs of facebookresearch/param.
"""

import os
import pathlib

import pytest

from tpu_graphs_ext.traces import analysis

VARIABLE = 'TPU_GRAPHS_TRACES'
# Beyond it a file takes more than some seconds.
MOST_BYTES = 2_000_000


@pytest.fixture(scope='module')
def folder():
  given = os.environ.get(VARIABLE, '')
  if not given or not pathlib.Path(given).is_dir():
    pytest.skip(f'needs a folder of traces; {VARIABLE} names none')
  return pathlib.Path(given)


def find(folder, name):
  """The first file of that name, or pattern."""
  found = sorted(folder.rglob(name))
  if not found:
    pytest.skip(f'needs {name}, which {VARIABLE} does not hold')
  return str(found[0])


# Bounds, in percent: of the mean and the geometric error by kernel, and of the
# time of a step.
SAME_TRACE, OTHER_TRACE = (25, 12, 8), (45, 25, 20)


def check(found, bounds, step='predicted_us'):
  total = analysis.summary(found.kernels).loc[analysis.ALL]
  assert 100 * total.mean_error <= bounds[0]
  assert 100 * total.geometric_error <= bounds[1]
  ratio = found.step[step] / found.step['measured_us']
  assert 100 * abs(ratio - 1) <= bounds[2]
  assert found.coverage > 0.99  # At least 80 % were asked for.


@pytest.mark.parametrize('name, first, last', [
    ('trace_diff/control/control.json.gz', 1009, 1014),
    ('trace_diff/test/test.json.gz', 1009, 1014),
    ('rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz', 101, 105)])
def test_calibrated_on_three_steps_predicted_on_the_next(
    folder, name, first, last):
  """trace_diff (an A100, a V100) and ns_resolution_trace (a V100) of
  HolisticTraceAnalysis."""
  path = find(folder, name)
  learned = analysis.calibrated(path, range(first, first + 3))
  check(analysis.compared(path, range(first + 3, last + 1), learned),
        SAME_TRACE)


def test_calibrated_on_one_worker_predicted_on_others(folder):
  """Training of DLRM on eight V100: param's dlrm_kineto.tar.gz."""
  learned = analysis.calibrated(
      find(folder, 'worker0_step_12.*.pt.trace.json'))
  assert learned.source.endswith('Tesla V100-SXM2-32GB, steps 10-10')
  paths = [find(folder, f'worker{worker}_step_12.*.pt.trace.json')
           for worker in range(8)]
  for path in paths[1:]:
    check(analysis.compared(path, None, learned), OTHER_TRACE,
          'communication_as_recorded_us')
