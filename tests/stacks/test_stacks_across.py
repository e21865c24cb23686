"""A model trained on one stack is the same model on the other.

Needs a second Python whose environment has the other stack, named by
TPU_GRAPHS_EXT_OTHER_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest

from support import one_stack, tiny_kernels
from support.places import PYTHONPATH, SUPPORT
from tpu_graphs_ext.stacks import versions

VARIABLE = 'TPU_GRAPHS_EXT_OTHER_PYTHON'
pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def across(tmp_path_factory) -> list[dict]:
  """What both stacks say of the models that were trained here and there.

  Each is {'stack': its name, a folder of models: what `one_stack.said_of`
  returns}.
  """
  other_python = os.environ.get(VARIABLE)
  if not other_python:
    pytest.skip(f'needs a Python with the other stack, named by {VARIABLE}, '
                'which is not set')
  folder = tmp_path_factory.mktemp('across')
  data_root = str(tiny_kernels.write_data_root(folder / 'data'))
  here, there = str(folder / 'here'), str(folder / 'there')
  environment = {key: value for key, value in os.environ.items()
                 if key != 'TF_USE_LEGACY_KERAS'}
  environment['PYTHONPATH'] = PYTHONPATH
  with subprocess.Popen(
      [other_python, str(SUPPORT / 'one_stack.py'), data_root, there, here],
      env=environment, stdin=subprocess.PIPE) as process:
    one_stack.train_all(data_root, here)  # Both at once.
    process.communicate(b'trained', timeout=1200)
  assert process.returncode == 0
  with open(os.path.join(there, 'said.json'), encoding='utf-8') as file:
    theirs = json.load(file)
  return [{'stack': versions.stack_name(), **{
      out: one_stack.said_of(data_root, out) for out in (there, here)}}, theirs]


def test_both_say_the_same(across):
  """Scores to 1e-5 of their size; the same errors and predictions."""
  stacks, *folders = ([said[key] for said in across] for key in across[0])
  assert set(stacks) == {'classic', 'current'}
  for ours, theirs in folders:
    for name in one_stack.MODELS:
      our, their = ours[name], theirs[name]
      size = max(np.abs(scores).max() for scores in our['scores'])
      for scores, their_scores in zip(our['scores'], their['scores']):
        np.testing.assert_allclose(
            scores, their_scores, rtol=0, atol=1e-5 * size)
      assert len(our['predictions']) == 6  # What `write_data_root` makes.
      assert our['predictions'] == their['predictions']
      # The mean over kernels is rounded differently by NumPy 1 and 2.
      assert our['errors'] == pytest.approx(their['errors'], rel=1e-12)
