"""Whether all models, arguments and settings of a grid can be trained at all.

Every value is tried by itself: a name by asking the model's class, a setting
by making the settings. What only a model can tell of a value's worth, as that
a width must be positive, is seen when its trial starts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError, did_you_mean
from tpu_graphs_ext.sweep.grid import SETTINGS, Grid, ModelSpace


def check(grid: Grid) -> None:
  """Raises a UserError that names the file and the key."""
  for place, model in enumerate(grid.models):
    where = f'models[{place}]'
    _check_model(grid, model, where)
    _check_settings(grid, model, where)


def models_py_of(task: str, settings: dict[str, Any]) -> str:
  """The file that a configuration's model is of.

  Args:
    task: 'tile' or 'layout'.
    settings: flags that are given.
  """
  return settings.get('models_py', '') or load_models.models_path(task)


def _check_model(grid: Grid, model: ModelSpace, where: str) -> None:
  chosen = {name: values.extremes()[0]
            for name, values in model.settings.items()}
  models_py = chosen.get('models_py', '')
  if grid.task == 'layout':
    models_py = models_py_of(grid.task, chosen)
  try:
    cls = load_models.model_class(model.name, models_py)
  except UserError as error:
    text = str(error).replace('--model: ', '')
    raise UserError(f'{grid.path}: {where}: {text}') from error
  allowed, takes_any = load_models.constructor_arguments(cls)
  for name in model.kwargs:
    if name not in allowed and not takes_any:
      key = f'{where}.kwargs' if f'kwargs.{name}' in model.own else 'kwargs'
      hint = did_you_mean(name, list(allowed), 1, cutoff=0.4)
      raise UserError(
          f'{grid.path}: {key}.{name}: {model.name} has no such argument; '
          f'{hint}{" " if hint else ""}it takes {", ".join(allowed)}')


def _check_settings(grid: Grid, model: ModelSpace, where: str) -> None:
  settings_class = SETTINGS[grid.task]
  types = {field.name: field for field in dataclasses.fields(settings_class)}
  for name, values in model.settings.items():
    key = f'{where}.settings' if f'settings.{name}' in model.own else 'settings'
    for value in values.extremes():
      problem = _wrong_type(types[name].type, value)
      choices = types[name].metadata['choices']
      if not problem and choices and value not in choices:
        hint = did_you_mean(str(value), list(choices))
        problem = f'one of {", ".join(choices)}{"; " if hint else ""}{hint}'
      if problem:
        raise UserError(f'{grid.path}: {key}.{name}: must be {problem}; got '
                        f'{value!r}')
      try:
        settings_class(**{name: value})
      except UserError as error:
        raise UserError(f'{grid.path}: {key}.{name}: {error}') from error


def _wrong_type(wanted: str, value: Any) -> str:
  """What a value must be that it is not, or ''.

  Args:
    wanted: the annotation of a field, as 'Optional[int]'.
    value: read from JSON.
  """
  kinds = {'int': ((int,), 'a whole number'), 'str': ((str,), 'a text'),
           'float': ((int, float), 'a number'),
           'bool': ((bool,), 'true or false')}
  allowed, name = kinds[wanted.replace('Optional[', '').rstrip(']')]
  return '' if type(value) in allowed else name
