"""The only place that knows where models.py is and which models it has."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tpu_graphs_ext.errors import UserError


def models_path(task: str = 'tile') -> str:
  """The package's models.py of a task, found without importing TensorFlow."""
  return os.path.join(
      os.path.dirname(os.path.abspath(__file__)),
      {'tile': 'models.py', 'layout': 'layout_models.py'}[task])


def models_module(models_py: str = ''):
  """The package's models.py, or the file of that path, or a UserError."""
  if not models_py:
    from tpu_graphs_ext import models
    return models
  path = os.path.abspath(os.path.expanduser(models_py))
  if path == models_path('layout'):  # Imported only once.
    from tpu_graphs_ext import layout_models
    return layout_models
  if not os.path.isfile(path):
    raise UserError(
        f'--models_py: no file {path}; give the path of a models.py')
  name = 'models_' + str(abs(hash(path)))
  if name not in sys.modules:
    # It loads a source with any ending, such as models.py.backup.
    loader = importlib.machinery.SourceFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    try:
      loader.exec_module(module)
    except (Exception, SystemExit) as error:
      raise UserError(
          f'--models_py: {path} cannot be imported '
          f'({type(error).__name__}: {error}); mend the file') from error
    sys.modules[name] = module
  return sys.modules[name]


def model_names(models_py: str = '') -> list[str]:
  """Names of the public model classes, in the order of the file."""
  import tensorflow as tf
  module = models_module(models_py)
  return [name for name, value in vars(module).items()
          if inspect.isclass(value) and issubclass(value, tf.keras.Model)
          and value.__module__ == module.__name__ and not name.startswith('_')]


def model_class(name: str, models_py: str = '') -> type:
  """The model class of that name, or a UserError."""
  names = model_names(models_py)
  if name not in names:
    file = os.path.basename(str(models_module(models_py).__file__))
    raise UserError(f'--model: there is no model {name!r} in {file}; the '
                    f'models are {", ".join(names)}')
  return getattr(models_module(models_py), name)


def constructor_arguments(cls: type) -> tuple[dict[str, Any], bool]:
  """Keywords of a model with their defaults, and whether it takes others too.

  A constructor with **kwargs passes them to the next class, which knows them.
  """
  import tensorflow as tf
  allowed = {}
  for base in cls.__mro__:
    if base is tf.keras.Model:
      break
    if '__init__' not in vars(base):
      continue
    parameters = inspect.signature(base.__init__).parameters
    allowed = {**parameters, **allowed}  # A subclass's default goes first.
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD
                    for parameter in parameters.values())
    if not takes_any:
      break
  return {name: parameter.default for name, parameter in allowed.items()
          if name not in ('self', 'num_configs', 'num_ops')
          and parameter.kind is not inspect.Parameter.VAR_KEYWORD}, takes_any


def class_taking(name: str, arguments: Iterable[str],
                 models_py: str = '') -> type:
  """The class of a model; raises UserError unless it takes the arguments."""
  cls = model_class(name, models_py)
  allowed, takes_any = constructor_arguments(cls)
  for key in arguments:
    if key not in allowed and (
        not takes_any or key in ('num_configs', 'num_ops')):
      raise UserError(f'--model_kwargs_json: {name} has no argument {key!r}; '
                      f'it takes {", ".join(allowed)}')
  return cls


def takes(name: str, argument: str, models_py: str = '') -> bool:
  """Whether a model's constructor has an argument of that name."""
  return argument in constructor_arguments(model_class(name, models_py))[0]


def create_variables(model, graph) -> None:
  """Creates the variables of a new model, or raises a UserError."""
  configs = config_feats(graph)
  with _as_user_errors(type(model).__name__):
    if hasattr(model, '_create_for'):  # Needs no trace, unlike a call.
      model._create_for(
          graph.node_sets['op']['feats'].shape[-1], configs.shape[-1])
    else:
      model.forward(graph, int(configs.shape[-2]))


def config_feats(graph):
  """Features [..., configs, columns] of a graph of either task."""
  name = 'nconfig' if 'nconfig' in graph.node_sets else 'config'
  return graph.node_sets[name]['feats']


@contextlib.contextmanager
def _as_user_errors(name: str) -> Iterator[None]:
  """Reports why a model refuses its arguments, or that it is too large."""
  import tensorflow as tf
  try:
    yield
  except (MemoryError, OverflowError, tf.errors.ResourceExhaustedError,
          tf.errors.InvalidArgumentError) as error:
    reason = (str(error).strip().splitlines() or [''])[0][:300]
    raise UserError(
        f'--model_kwargs_json: {name} cannot be made ({type(error).__name__}: '
        f'{reason}); give smaller numbers, such as a lower hidden_dim'
    ) from error
  except (TypeError, ValueError, SystemExit) as error:
    raise UserError(f'--model_kwargs_json: {name}: {error}') from error


def build(name: str, num_configs: int, num_ops: int, kwargs: dict[str, Any],
          models_py: str = '', graph=None):
  """Makes the model, as `tiles_train.py` does from its flags.

  Args:
    name: class name of the model.
    num_configs: configurations of each kernel in training.
    num_ops: number of opcodes.
    kwargs: constructor arguments, from `--model_kwargs_json`.
    models_py: see `models_module`.
    graph: if given, the variables are created from it.

  Raises UserError for what the model or its constructor refuses.
  """
  cls = class_taking(name, kwargs, models_py)
  with _as_user_errors(name):
    model = cls(num_configs, num_ops, **kwargs)
  if graph is not None:
    create_variables(model, graph)
  return model
