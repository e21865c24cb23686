"""Presets of training settings, for `train --recipe`.

A setting that is given wins. Imports no TensorFlow.
"""

from __future__ import annotations

from typing import Any

from tpu_graphs_ext.errors import UserError, did_you_mean

DEFAULT = 'default'

# The first is the baseline's. All have the same settings, in one order.
RECIPES: dict[str, dict[str, Any]] = {
    DEFAULT: {
        'epochs': 100, 'early_stop': 20, 'lr': 1e-3,
        'lr_schedule': 'constant', 'list_size': 0, 'members': 1},
    'quick': {
        'epochs': 18, 'early_stop': 0, 'lr': 2e-3,
        'lr_schedule': 'cosine', 'list_size': 32, 'members': 1},
    'best': {
        'epochs': 70, 'early_stop': 15, 'lr': 2e-3,
        'lr_schedule': 'cosine', 'list_size': 32, 'members': 3},
}


def recipe(name: str) -> dict[str, Any]:
  """The settings of a recipe, by the names of the fields of `TrainSettings`.

  Raises:
    UserError: there is no such recipe.
  """
  if name not in RECIPES:
    hint = did_you_mean(str(name), list(RECIPES))
    raise UserError(
        f'--recipe={name}: there is no such recipe; {hint}'
        f'{" " if hint else ""}the recipes are {", ".join(RECIPES)}')
  return RECIPES[name]


def values_of(setting: str) -> str:
  """What recipes give a setting, for its help."""
  return '; '.join(f'{name}: {settings[setting]}'
                   for name, settings in RECIPES.items())
