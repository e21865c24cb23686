"""Makes `import tensorflow` give what the baseline and this package need.

TensorFlow 2.15 is left as it is. From 2.16 on
  * `tf.keras` is Keras 3, which TF-GNN cannot use, unless TF_USE_LEGACY_KERAS
    is 1 before TensorFlow is imported; then it is Keras 2, from tf_keras;
  * `tensorflow_ranking` imports `tensorflow.estimator`, which is gone, in
    modules that nobody uses here; a stub has what the import needs;
  * saved models have a field that Keras 2.15 cannot read; it is left out;
  * two libraries log while they load, whatever TF_CPP_MIN_LOG_LEVEL says.

`install` adds a finder that does each when its module is imported.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

from tpu_graphs_ext.errors import UserError

KERAS_VARIABLE = 'TF_USE_LEGACY_KERAS'


class KerasVersionError(UserError, ImportError):
  """`tf.keras` is Keras 3 where Keras 2 is needed."""


class _Finder:
  """Changes how the modules in `_LOADING` and `_silent` are loaded."""

  def find_spec(self, name, path=None, target=None):
    load, is_silent = _LOADING.get(name), name in _silent
    if not (load or is_silent) or not _is_current():
      return None
    specs = (other.find_spec(name, path, target)
             for other in sys.meta_path if other is not self)
    spec = next(filter(None, specs), None)
    if spec is None:
      return None
    # A loader is made anew for each spec, so this changes no other module.
    if is_silent:
      spec.loader.create_module = _silently(spec.loader.create_module)
    else:
      execute = spec.loader.exec_module
      spec.loader.exec_module = lambda module: load(execute, module)
    return spec


finder = _Finder()


def install() -> None:
  """Prepares the imports that are still to come; a second call does nothing."""
  if finder in sys.meta_path:
    return
  sys.meta_path.insert(0, finder)
  if 'tensorflow' in sys.modules and _is_current():
    # Not too late as long as nobody has used tf.keras.
    os.environ.setdefault(KERAS_VARIABLE, '1')


_silent: set[str] = set()  # Modules whose libraries may not log; `quieten`.


def quieten() -> None:
  """Hides what TensorFlow's C++ code logs, from now on.

  What matters is raised as an exception. `sys.stderr` becomes a copy of the
  same file, which stays open while the libraries that always log are loaded; so
  call it only in a process that this package starts.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  # Python has no stderr, or one in memory.
  with contextlib.suppress(AttributeError, OSError):
    if sys.stderr.fileno() == 2:
      sys.stderr = os.fdopen(os.dup(2), 'w', 1, sys.stderr.encoding,
                             sys.stderr.errors)
      _silent.update(f'tensorflow.python.{name}' for name in (
          'platform._pywrap_cpu_feature_guard',
          'profiler.internal._pywrap_profiler_plugin'))


def _silently(function):
  def call(*arguments):
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
      return function(*arguments)
    finally:
      os.dup2(kept, 2)
      os.close(kept)

  return call


def _is_current() -> bool:
  from tpu_graphs_ext.stacks import versions
  return versions.stack_name() == 'current'


def _load_tensorflow(execute, module) -> None:
  os.environ.setdefault(KERAS_VARIABLE, '1')  # What the user set stays.
  ignore_saving_warning()
  execute(module)


def ignore_saving_warning() -> None:
  """Drops the warning, of no use, that saving a graph model gives."""
  warnings.filterwarnings(
      'ignore', 'Encoding a StructuredValue with type tensorflow_gnn',
      UserWarning)


def _load_gnn(execute, module) -> None:
  """Also lets Keras 2.15, which has no `optional`, read models saved here."""
  require_keras_2(module.__name__)
  import tensorflow as tf
  layer_class = tf.keras.layers.InputLayer
  whole_config = layer_class.get_config

  def get_config(layer):
    config = whole_config(layer)
    if config.get('optional') is False:
      del config['optional']
    return config

  layer_class.get_config = get_config
  execute(module)


class _ModeKeys:
  TRAIN, EVAL, PREDICT = 'train', 'eval', 'infer'


def _load_ranking(execute, module) -> None:
  require_keras_2(module.__name__)
  try:
    execute(module)
  except ImportError as error:
    if 'estimator' not in str(error):
      raise
    import importlib
    for parent_name in ('tensorflow', 'tensorflow.compat.v1'):
      parent, name = importlib.import_module(parent_name), (
          f'{parent_name}.estimator')
      if not hasattr(parent, 'estimator'):
        parent.estimator = sys.modules[name] = type(sys)(name, 'A stub.')
        parent.estimator.ModeKeys = _ModeKeys
    execute(module)


_LOADING = {'tensorflow': _load_tensorflow, 'tensorflow_gnn': _load_gnn,
            'tensorflow_ranking': _load_ranking}


def require_keras_2(module: str) -> None:
  """Raises KerasVersionError if tf.keras is Keras 3, or tf_keras is missing."""
  import tensorflow as tf
  try:
    home = tf.keras.Model.__module__
  except ImportError as error:
    home = f'cannot be imported ({error})'
  if home.startswith('tf_keras'):
    return
  minor = '.'.join(tf.__version__.split('.')[:2])
  raise KerasVersionError(
      f'{module} needs Keras 2, but tf.keras of TensorFlow {tf.__version__} is '
      f'{home} with {KERAS_VARIABLE}={os.environ.get(KERAS_VARIABLE)}; start '
      'Python again (in a notebook, restart the runtime) after pip install '
      f'"tf_keras=={minor}.*", with that variable unset or 1, and import '
      'tpu_graphs_ext before tensorflow')
