"""The sweep of operators, on the CPU: TPU_GRAPHS_EXT_TORCH_PYTHON names a
Python that has PyTorch."""

import os
import pathlib
import subprocess

import pytest

from tpu_graphs_ext.traces import kineto

SCRIPT = pathlib.Path(__file__).parents[2] / 'run_scripts/record_sweep.py'
PYTHON = os.environ.get('TPU_GRAPHS_EXT_TORCH_PYTHON')


@pytest.mark.skipif(not PYTHON, reason='needs TPU_GRAPHS_EXT_TORCH_PYTHON')
def test_every_kind_of_operator_runs_and_is_read(tmp_path):
  path = tmp_path / 'sweep.json.gz'
  said = subprocess.run(
      [PYTHON, SCRIPT, path, '--device', 'cpu', '--share', '0.02'], text=True,
      capture_output=True, check=True).stdout
  assert 'did not run' not in said and 'recorded in' in said
  assert os.listdir(tmp_path) == ['sweep.json.gz']
  trace = kineto.read(str(path))
  assert {*trace.sweep} == {'operator', 'runtime'}
  names = {call.name for call in trace.calls}
  assert names >= {
      'aten::mm', 'aten::bmm', 'aten::_embedding_bag', 'aten::sum', 'aten::cat',
      'aten::native_layer_norm', 'aten::convolution_backward', 'aten::copy_',
      'aten::_foreach_add_', 'aten::scaled_dot_product_attention'}
