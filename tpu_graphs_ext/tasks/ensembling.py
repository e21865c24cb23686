"""Several members of a model, trained together, in one artifact."""

from __future__ import annotations

import dataclasses
import json

from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine.settings import TrainSettings
from tpu_graphs_ext.errors import UserError

_ENSEMBLE = 'EnsembleRanker'
# Arguments of an ensemble, not of its members, and their values for a model
# that has no such argument.
_OF_ALL = {'objective': 'flags', 'averaging': 0.0}


def joined(settings: TrainSettings) -> TrainSettings:
  """The settings with `members` of the model as one `EnsembleRanker`.

  Its scores are their mean. Of an ensemble, each member is multiplied.

  Raises:
    UserError: there is no such model, or the models.py has no ensembles.
  """
  cls = load_models.model_class(settings.model, settings.models_py)
  if settings.members == 1:
    return settings
  if _ENSEMBLE not in load_models.model_names(settings.models_py):
    raise UserError(
        f'--members={settings.members}: there is no {_ENSEMBLE} in '
        f'{settings.models_py} to hold them; give --members=1')
  kwargs = dict(settings.model_kwargs)
  if settings.model != _ENSEMBLE:
    defaults = load_models.constructor_arguments(cls)[0]
    of_all = {name: kwargs.pop(name, defaults.get(name, default))
              for name, default in _OF_ALL.items()}
    kwargs = {'members': {settings.model: kwargs}, **of_all}
  return dataclasses.replace(
      settings, model=_ENSEMBLE, model_kwargs_json=json.dumps(
          {**kwargs, 'copies': settings.members}))
