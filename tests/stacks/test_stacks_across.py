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
from support.places import PROJECT, SUPPORT, TESTS
from tpu_graphs_ext.stacks import versions

VARIABLE = 'TPU_GRAPHS_EXT_OTHER_PYTHON'

every_model = pytest.mark.parametrize('name', one_stack.MODELS)


@pytest.fixture(scope='module')
def other_python() -> str:
  path = os.environ.get(VARIABLE)
  if not path:
    pytest.skip(f'needs a Python with the other stack, named by {VARIABLE}, '
                'which is not set')
  return path


@pytest.fixture(scope='module')
def across(other_python, tmp_path_factory) -> dict:
  """What both stacks say of the models that were trained here and there.

  Returns:
    {'here' or 'there', where trained: {'here' or 'there', who speaks: what
    `one_stack.said_of` returns}, 'stack': the other's name}.
  """
  folder = tmp_path_factory.mktemp('across')
  data_root = str(tiny_kernels.write_data_root(folder / 'data'))
  here, there = str(folder / 'here'), str(folder / 'there')
  one_stack.train_all(data_root, here)
  environment = {key: value for key, value in os.environ.items()
                 if key != 'TF_USE_LEGACY_KERAS'}
  environment['PYTHONPATH'] = os.pathsep.join([str(PROJECT), str(TESTS)])
  subprocess.run(
      [other_python, str(SUPPORT / 'one_stack.py'), data_root, there,
       here], env=environment, check=True, timeout=1200)
  with open(os.path.join(there, 'said.json'), encoding='utf-8') as file:
    said = json.load(file)
  return {
      'stack': said['stack'],
      'here': {'here': one_stack.said_of(data_root, here),
               'there': said['others']},
      'there': {'here': one_stack.said_of(data_root, there),
                'there': said['own']}}


def test_the_other_python_has_the_other_stack(across):
  assert {across['stack'], versions.stack_name()} == {'classic', 'current'}


@pytest.mark.parametrize('trained', ['here', 'there'])
@every_model
def test_both_say_the_same(across, name, trained):
  """Scores to 1e-5 of their size; the same errors and predictions."""
  ours, theirs = (across[trained][who][name] for who in ('here', 'there'))
  assert list(ours['scores']) == list(theirs['scores'])
  size = max(np.abs(scores).max() for scores in ours['scores'].values())
  assert size > 0
  for tile_id, scores in ours['scores'].items():
    np.testing.assert_allclose(scores, theirs['scores'][tile_id], rtol=0,
                               atol=1e-5 * size)
  assert len(ours['predictions']) == 6  # What `write_data_root` makes.
  assert ours['predictions'] == theirs['predictions']
  # The mean over kernels is rounded differently by NumPy 1 and 2.
  assert ours['errors'] == pytest.approx(theirs['errors'], rel=1e-12)
