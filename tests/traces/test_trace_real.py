"""Traces that others recorded, none of which is in this repository.

TPU_GRAPHS_TRACES names a folder that holds those of docs/traces.md, unpacked.
"""

import os
import pathlib

import pytest

from tpu_graphs_ext.traces import analysis, kineto, replay

VARIABLE = 'TPU_GRAPHS_TRACES'
V100 = 'rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz'
KNOWN = 'communication_as_recorded_us'


def find(name):
  """The first file of that name, or pattern."""
  paths = sorted(pathlib.Path(os.environ.get(VARIABLE, 'none')).rglob(name))
  if not paths:
    pytest.skip(f'needs {name} in a folder of traces, named by {VARIABLE}')
  return str(paths[0])


@pytest.mark.parametrize('name, steps, other, others, bounds, step', [
    # The next steps of an A100 and of two V100.
    ('control/control.json.gz', range(1009, 1012), 'control/control.json.gz',
     range(1012, 1015), (25, 12, 8), 'predicted_us'),
    ('test/test.json.gz', range(1009, 1012), 'test/test.json.gz',
     range(1012, 1015), (25, 12, 8), 'predicted_us'),
    (V100, range(101, 104), V100, range(104, 106), (25, 12, 8), 'predicted_us'),
    # Other workers of the training of DLRM on eight V100.
    *(('worker0_step_12.*.pt.trace.json', None,
       f'worker{worker}_step_12.*.pt.trace.json', None, (45, 25, 20), KNOWN)
      for worker in range(1, 8))])
def test_errors(name, steps, other, others, bounds, step):
  """In percent: mean and geometric error by kernel, and of a step's time."""
  result = analysis.compared(
      find(other), others, analysis.calibrated(find(name), steps))
  total = analysis.summary(result.kernels).loc[analysis.ALL]
  ratio = result.step[step] / result.step['measured_us']
  assert 100 * total.mean_error <= bounds[0]
  assert 100 * total.geometric_error <= bounds[1]
  assert 100 * abs(ratio - 1) <= bounds[2]


@pytest.mark.parametrize('name, steps', [
    ('control/control.json.gz', range(1012, 1015)),
    ('test/test.json.gz', range(1009, 1012)),
    ('test/test.json.gz', range(1012, 1015)),
    # Graphs, and 161 ms of work that is launched but not done.
    ('negative_queue*/rank0.json.gz', range(553, 555))])
def test_a_step_is_right_when_its_kernels_are(name, steps):
  trace = kineto.steps_of(kineto.read(find(name)), steps)
  predicted, measured, *_ = replay.replay(
      trace, replay.host_of(trace),
      {each: each.duration_us for each in trace.work})
  assert predicted == pytest.approx(measured, rel=0.01)
