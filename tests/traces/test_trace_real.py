"""Traces that others recorded, none of which is in this repository.

TPU_GRAPHS_TRACES names a folder that holds those of docs/traces.md, unpacked.
Errors of predictions are measured by benchmarks/traces.py.
"""

import os
import pathlib

import pytest

from tpu_graphs_ext.traces import kineto, replay

VARIABLE = 'TPU_GRAPHS_TRACES'


def find(name):
  """The first file of that name, or pattern."""
  paths = sorted(pathlib.Path(os.environ.get(VARIABLE, 'none')).rglob(name))
  if not paths:
    pytest.skip(f'needs {name} in a folder of traces, named by {VARIABLE}')
  return str(paths[0])


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
