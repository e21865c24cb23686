"""Stands in for `tensorflow.estimator` while `tensorflow_ranking` is imported.

TensorFlow 2.16 took estimators away. TensorFlow Ranking still imports them in
modules that nobody uses here, and takes default arguments from their
`ModeKeys`. The stub has these three names and nothing else.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable

# The real module goes by these two names.
NAMES = ('tensorflow.estimator', 'tensorflow.compat.v1.estimator')


class NoEstimatorError(AttributeError):
  """Something of `tensorflow.estimator` was really used."""


class ModeKeys:
  """The names of an estimator's modes, as they were."""
  TRAIN = 'train'
  EVAL = 'eval'
  PREDICT = 'infer'


class _Stub(types.ModuleType):
  """A module that refuses everything but `ModeKeys`."""

  def __init__(self, name: str):
    super().__init__(name, 'Estimators are gone from TensorFlow.')
    self.ModeKeys = ModeKeys

  def __getattr__(self, name: str):
    raise NoEstimatorError(
        f'{self.__name__}.{name} does not exist: TensorFlow has no estimators '
        'since version 2.16. Use Keras, or the classic stack of '
        'tpu_graphs_ext, whose TensorFlow 2.15 still has them')


def execute_with_stub(execute: Callable[[types.ModuleType], None],
                      module: types.ModuleType) -> None:
  """Runs a module's code, and once more with the stub if estimators lack.

  Args:
    execute: the `exec_module` of the module's loader.
    module: the module, which stays the same object.

  Raises:
    ImportError: as it came, where it is not about estimators.
  """
  try:
    execute(module)
  except ImportError as error:
    if 'estimator' not in str(error):
      raise
    put_in_place()
    execute(module)


def put_in_place() -> None:
  """Adds the stub to TensorFlow under both names, where they are missing."""
  for name in NAMES:
    parent_name, _, attribute = name.rpartition('.')
    parent = importlib.import_module(parent_name)
    if not hasattr(parent, attribute):
      sys.modules[name] = _Stub(name)
      setattr(parent, attribute, sys.modules[name])
