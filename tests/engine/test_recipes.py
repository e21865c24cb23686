"""Recipes fill in what is not given, and are recorded."""

import dataclasses

import pytest

from tpu_graphs_ext.cli import app, flags
from tpu_graphs_ext.engine import recipes
from tpu_graphs_ext.engine.settings import TrainSettings
from tpu_graphs_ext.errors import UserError

# The baseline's own flags.
BASELINE = {'epochs': 100, 'early_stop': 20, 'lr': 1e-3}


def test_without_a_recipe_it_is_the_baselines_training():
  settings = TrainSettings()
  assert {name: getattr(settings, name) for name in BASELINE} == BASELINE
  assert settings.lr_schedule == 'constant'
  assert settings.drawn_configs == settings.configs == 10
  assert settings.members == 1


@pytest.mark.parametrize('name', recipes.RECIPES)
def test_a_recipe_fills_in_what_is_not_given(name):
  settings = dataclasses.asdict(TrainSettings(recipe=name))
  assert settings['recipe'] == name
  assert recipes.RECIPES[name].items() <= settings.items()
  assert None not in (settings[key] for key in recipes.RECIPES[name])


@pytest.mark.parametrize('name', recipes.RECIPES)
def test_recipes_have_the_same_settings(name):
  assert list(recipes.RECIPES[name]) == list(recipes.RECIPES['default'])


def test_what_is_given_comes_first_even_where_it_is_the_default():
  assert recipes.RECIPES['quick']['epochs'] != BASELINE['epochs']
  settings = TrainSettings(recipe='quick', **BASELINE)
  assert {name: getattr(settings, name) for name in BASELINE} == BASELINE
  assert settings.lr_schedule == recipes.RECIPES['quick']['lr_schedule']


def test_flags_come_before_the_recipe():
  args = app.parse(['train', '--recipe=best', '--epochs=7'])
  assert flags.given(args, TrainSettings) == TrainSettings(
      recipe='best', epochs=7)


def test_an_unknown_recipe_is_refused_with_the_nearest():
  with pytest.raises(
      UserError, match=r'--recipe=quik: there is no such recipe; did you mean '
      r'quick\? the recipes are default, quick, best'):
    TrainSettings(recipe='quik')


@pytest.mark.parametrize('wrong, message', [
    ({'members': 0}, '--members=0: must be at least 1'),
    ({'list_size': -1}, '--list_size=-1: must be at least 0'),
    ({'lr_schedule': 'linear'}, '--lr_schedule=linear: must be constant or'),
])
def test_bad_settings_of_a_recipe(wrong, message):
  with pytest.raises(UserError, match=message):
    TrainSettings(recipe='best', **wrong)


def test_unlike_settings_that_the_baseline_lacks_give_unlike_runs():
  ids = [TrainSettings(seed=1, **own).baseline_args()['run_id'] for own in (
      {}, {'list_size': 32}, {'lr_schedule': 'cosine', 'members': 2})]
  assert ids == [
      'seed1', 'seed1_list_size=32', 'seed1_lr_schedule=cosine_members=2']
  assert TrainSettings(
      run_id='mine', members=2).baseline_args()['run_id'] == 'mine'
