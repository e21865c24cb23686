"""docs/foreign.md: its model in PyTorch Geometric, where that is installed."""

import os
import subprocess
import sys

import numpy as np
import pytest

import tpu_graphs_ext
from support import tiny_kernels
from support.places import PROJECT


@pytest.mark.slow
def test_the_model_runs_and_is_measured(tmp_path):
  python = os.environ.get('TPU_GRAPHS_EXT_PYG_PYTHON') or sys.executable
  if subprocess.run([python, '-c', 'import torch_geometric'],
                    capture_output=True, check=False).returncode:
    pytest.skip('needs torch_geometric here, or a Python that has it in '
                'TPU_GRAPHS_EXT_PYG_PYTHON')
  root = tiny_kernels.write_data_root(tmp_path / 'data')
  out = tmp_path / 'scores.npz'
  subprocess.run([python, str(PROJECT / 'docs/my_pyg.py'), str(root), str(out),
                  '1'], check=True)
  evaluation = tpu_graphs_ext.measure(str(root / 'valid'), dict(np.load(out)))
  assert evaluation.rows['opa'].between(0, 1).all() and len(evaluation.rows) > 5
