"""Stands in for `tensorflow.estimator` while `tensorflow_ranking` is imported.

TensorFlow 2.16 removed estimators. TensorFlow Ranking still imports them in
modules that nobody uses here, and takes default arguments from `ModeKeys`.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable

# The real module has these two names.
NAMES = ('tensorflow.estimator', 'tensorflow.compat.v1.estimator')


class NoEstimatorError(AttributeError):
  """Something of `tensorflow.estimator` was really used."""


class _Stub(types.ModuleType):
  """A module that refuses everything but the names of the modes."""

  class ModeKeys:
    TRAIN, EVAL, PREDICT = 'train', 'eval', 'infer'

  def __getattr__(self, name: str):
    raise NoEstimatorError(
        f'{self.__name__}.{name} does not exist: TensorFlow has no estimators '
        'since version 2.16. Use Keras, or the classic stack of '
        'tpu_graphs_ext, whose TensorFlow 2.15 still has them')


def execute_with_stub(execute: Callable[[types.ModuleType], None],
                      module: types.ModuleType) -> None:
  """Runs a module's code, and once more with the stub if estimators are gone.

  Args:
    execute: the `exec_module` of the module's loader.
    module: the module, which stays the same object.

  Raises:
    ImportError: one that is not about estimators.
  """
  try:
    execute(module)
  except ImportError as error:
    if 'estimator' not in str(error):
      raise
    for name in NAMES:
      parent = importlib.import_module(name.rpartition('.')[0])
      if not hasattr(parent, 'estimator'):
        parent.estimator = sys.modules[name] = _Stub(name)
    execute(module)
