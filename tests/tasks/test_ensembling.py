"""Several of a model become one ensemble, which trains like each of them."""

import numpy as np
import pytest

from support import tiny_kernels, tiny_models
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE, tile
from tpu_graphs_ext.tasks.tile import TrainSettings


def joined(model, **changes):
  settings = tile.with_members(TrainSettings(model=model, members=3, **changes))
  assert settings.model == 'EnsembleRanker'
  return settings.model_kwargs


def test_members_keep_their_arguments_and_the_ensemble_has_their_loss():
  settings = TrainSettings(model='MLP')
  assert tile.with_members(settings) is settings
  assert joined(
      'MyEarlyJoinSAGE',
      model_kwargs_json='{"hidden_dim": 8, "averaging": 0.5}') == {
          'members': {'MyEarlyJoinSAGE': {'hidden_dim': 8}},
          'objective': 'listmle_fastest_first', 'averaging': 0.5, 'copies': 3}
  best = joined('MyEarlyJoinSAGE', recipe='best')
  assert best['objective'] == 'listmle_and_slowdown'
  assert joined('EarlyJoinSAGE', recipe='best')['objective'] == 'flags'
  # The baseline's have the loss of the flags, and average nothing.
  assert joined('EarlyJoinSAGE') == {
      'members': {'EarlyJoinSAGE': {}}, 'objective': 'flags', 'averaging': 0.0,
      'copies': 3}
  # Each member of an ensemble is multiplied.
  assert joined(
      'EnsembleRanker', model_kwargs_json='{"members": {"MLP": {}}}') == {
          'members': {'MLP': {}}, 'copies': 3}


def test_a_models_py_without_ensembles_or_that_model():
  for name, said in (
      ('TinyRanker', 'tiny_models.py has no EnsembleRanker, .*; give --'),
      ('TinyRankr', "there is no model 'TinyRankr'")):
    with pytest.raises(UserError, match=said):
      joined(name, models_py=tiny_models.__file__)


def test_members_are_compiled_as_one_model(tmp_path):
  root = tiny_kernels.write_data_root(tmp_path / 'data', num_test=2)
  settings = TrainSettings(
      model='MLP', members=2, model_kwargs_json='{"hidden_dim": 4}', seed=1,
      lr_schedule='cosine', list_size=50, configs=6, batch=5,
      data_root=str(root), cache_dir='')
  task = settings.task
  prepared, splits = task.prepared(settings)
  args = prepared.baseline_args()
  assert args['model'] == 'EnsembleRanker' and args['configs'] == 6
  assert args['run_id'] == 'seed1_lr_schedule=cosine_list_size=50_members=2'
  model, kernel = task.compiled_model(prepared, splits), tiny_kernels.chain()
  whole, first, second = (
      scoring.Ranker(
          part, splits.stats, splits.num_ops, TILE).scored(kernel).given
      for part in (model, *model._members))
  assert np.abs(first - second).max() > 0
  assert len(whole) == kernel.num_configs
