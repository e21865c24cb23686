"""Several of a model, trained together, in one artifact."""

from __future__ import annotations

import dataclasses
import json

from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine.settings import TrainSettings
from tpu_graphs_ext.errors import UserError

_ENSEMBLE = 'EnsembleRanker'
# Arguments that an ensemble has in place of its members, and what they are
# where a model has no such argument.
_OF_ALL = {'objective': 'flags', 'averaging': 0.0}


def joined(settings: TrainSettings) -> TrainSettings:
  """The settings, in which `members` of the model are one `EnsembleRanker`.

  Its scores are the mean of theirs. An ensemble that is trained itself has
  each of its own members as often.

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
