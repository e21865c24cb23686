"""Traces that others recorded, none of which is in this repository.

TPU_GRAPHS_TRACES names a folder that holds them, at any depth: for example
tests/data of facebookresearch/HolisticTraceAnalysis, and the unpacked
et_replay/tests/inputs of facebookresearch/param.
"""

import os
import pathlib

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import analysis, hardware, launches

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


def groups_of(found):
  return {(group.kind, group.phase): group for group in found.groups}


@pytest.mark.slow
def test_sums_hold_for_every_trace(folder):
  """Any traces; files of other kinds must be refused in one line."""
  tried = 0
  for path in sorted(folder.rglob('*.json*')):
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
      continue
    try:
      found = analysis.analyse(str(path), None, 'v100')
    except UserError as error:
      assert '\n' not in str(error) and path.name in str(error)
      continue
    tried += 1
    if not found.trace.timed:
      continue
    part = found.part
    for device, busy in found.busy_us.items():
      assert busy + sum(found.idle_us[device].values()) == pytest.approx(
          part.duration_us, abs=0.1)
    if part.activities:
      assert found.measured_us == pytest.approx(
          sum(work.duration_us for work in part.activities))
    assert sum(row.work for row in found.rows) == len(part.activities)
    assert all(call.self_us >= -1e-3 for call in part.calls)
  assert tried


def test_dlrm_on_a_v100(folder):
  """A training step of DLRM with TorchRec: FBGEMM lookups with Adagrad and
  dense ones, with shapes, a Tesla V100, step 10, batches of 16: worker 0 of
  param's dlrm_kineto.tar.gz."""
  found = analysis.analyse(find(folder, 'worker0_step_12.*.pt.trace.json'), 10)
  assert found.hardware.name == 'v100'
  assert found.attributed == len(found.part.activities) == 261
  groups = groups_of(found)
  assert groups['fully connected', 'forward'].calls == 7
  assert groups['embedding', 'forward'].calls == 2
  assert groups['embedding', 'backward'].calls == 2
  # All of it is too small to take as long as a kernel does.
  assert found.total.ratio < 0.1
  rows = [row for row in found.rows if row.kind == 'embedding']
  assert {row.price.sizes for row in rows} == {
      '3 tables of 13346867 x 16, 128 bags of 2.0',
      '2 tables of 3 x 16, 16 bags of 1.0'}


def test_the_same_step_as_an_execution_trace(folder):
  """The execution trace of the same program: dlrm_eg_0.json of param's
  dlrm_pytorch_et.tar.gz."""
  found = analysis.analyse(find(folder, 'dlrm_eg_0.json'), None, 'v100')
  groups = groups_of(found)
  assert groups['fully connected', 'forward'].calls == 7
  assert groups['fully connected', 'backward'].calls == 13
  assert groups['embedding', 'backward'].calls == 2
  assert groups['concat', 'forward'].calls == 6
  assert found.total.measured_us is None


def test_a_large_recommendation_model_on_an_a100(folder):
  """Six steps with shapes, FBGEMM lookups with row-wise Adagrad, an A100:
  trace_diff/control/control.json.gz of HolisticTraceAnalysis."""
  path = find(folder, 'control.json.gz')
  found = analysis.analyse(path, 1010)
  assert found.hardware.name == 'a100-40gb'
  assert found.attributed == len(found.part.activities) == 1575
  groups = groups_of(found)
  # Large ones move what the formula says; dense small ones do not.
  assert 0.9 < groups['embedding', 'backward'].ratio < 1.1
  assert groups['batched product', 'forward'].calls == 5
  with pytest.raises(UserError, match=r'its steps are: 1009, 1010, .*1014$'):
    analysis.analyse(path, 7)


def test_calibrated_on_three_steps_predicted_on_the_next(folder, tmp_path):
  """The same trace."""
  path, learned = find(folder, 'control.json.gz'), tmp_path / 'hw.json'
  learned.write_text(hardware.to_json(
      analysis.calibrated(path, range(1009, 1012))))
  found = analysis.analyse(path, range(1012, 1015), str(learned))
  total = found.total
  assert total.mean_error < 0.25 and total.geometric_error < 0.12
  assert total.measured_us / (
      found.measured_us - found.communication_us) > 0.8
  predicted, _, measured = found.replayed
  assert abs(predicted / measured - 1) < 0.08


def test_a_trace_without_work_of_a_gpu(folder):
  """A trace of the host alone: rank_non_gpu.json.gz of
  HolisticTraceAnalysis."""
  found = analysis.analyse(find(folder, 'rank_non_gpu.json.gz'), None, 'v100')
  assert found.on_cpu and not found.groups
  assert any('no work of a GPU' in note for note in found.notes)
  assert launches.steps_of(found.trace).keys() == {1009}
