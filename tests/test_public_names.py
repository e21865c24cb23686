"""The names that programs may rely on, and what they refuse."""

import inspect
import pathlib
from collections.abc import Sequence
from typing import Optional

import numpy as np
import pytest

import tpu_graphs_ext
from tpu_graphs_ext.engine.settings import checked
from tpu_graphs_ext.errors import UserError

FUNCTIONS = [tpu_graphs_ext.CostModel.load.__func__, *(
    getattr(tpu_graphs_ext, name) for name in tpu_graphs_ext.__all__
    if name.islower()), tpu_graphs_ext.CostModel.rank]
NEEDED = {'scores': {}, 'model_dirs': ['x'], 'model_dir': 'x', 'out': 'x',
          'settings': tpu_graphs_ext.TrainSettings()}
# What arguments do not take, by their names; those of no value have many forms.
WRONG = {name: values for row, values in {
    'top top_k': (-3, 0, 2.0, True, '5', [2], np.float32(2)),
    'top_configs': (-3, 0, 2.5, False, [], 100_001, 10**20),
    'ks': (5, '15', [], [0], [-1], [1.5], [True], ['1'], [None]),
    'data out tpu jax_python name': (None, 3, b'x', ['x']),
    'model_dir': (None, 3, b'x', ['x'], ''),
    'model_dirs': ('x', 5, None, [None], {'x': 1}), 'foreign': (None, 'x', [1]),
    'loading settings': (None, {}, 'x', tpu_graphs_ext.LoadSettings),
    'scores': (None, [1]), 'further': (None, [5]), 'progress': (5, 'x'),
    'vmem_limit': (-1, 0, float('nan'), float('inf'), '64', True),
    'self cls kernel kernels source shapes bounds blocks': ()}.items()
         for name in row.split()}


def test_every_name_is_there_and_no_other():
  for name in tpu_graphs_ext.__all__:
    value = getattr(tpu_graphs_ext, name)
    assert value.__name__ == name and value.__doc__
    assert vars(tpu_graphs_ext)[name] is value  # Looked up once.
  assert set(tpu_graphs_ext._HOMES) == set(tpu_graphs_ext.__all__)
  with pytest.raises(AttributeError, match="has no attribute 'CostModell'"):
    _ = tpu_graphs_ext.CostModell


@pytest.mark.parametrize('function', FUNCTIONS, ids=lambda each: each.__name__)
def test_what_the_command_line_refuses_is_refused(function):
  parameters = inspect.signature(function).parameters
  needed = {name: NEEDED.get(name) for name, parameter in parameters.items()
            if parameter.default is parameter.empty}
  for name in parameters:
    for value in WRONG[name]:
      rule = ' is empty; ' if value == '' else r'=.*: must be \S+( \S|$)'
      with pytest.raises(UserError, match=f'^{name}{rule}'):
        function(**{**needed, name: value})


def test_what_means_the_same_is_taken():
  @checked
  def taken(path: str, ks: Optional[Sequence[int]] = None, top: int = 5):
    return path, ks, top

  assert repr(taken(pathlib.Path('a'), (k for k in [5, np.int64(1)]),
                    np.int8(3))) == repr(('a', [5, 1], 3))
