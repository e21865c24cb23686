"""Several of a model become one ensemble, which trains like each of them."""

import numpy as np
import pytest

from support import eager_training, tiny_kernels, tiny_models
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.engine.settings import TrainSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import ensembling


def joined(model, **changes):
  settings = ensembling.joined(TrainSettings(model=model, members=3, **changes))
  assert settings.model == 'EnsembleRanker'
  return settings.model_kwargs


def test_one_member_is_the_model_itself():
  settings = TrainSettings(model='MLP')
  assert ensembling.joined(settings) is settings


def test_members_keep_their_arguments_and_the_ensemble_has_their_loss():
  assert joined(
      'MyEarlyJoinSAGE',
      model_kwargs_json='{"hidden_dim": 8, "averaging": 0.5}') == {
          'members': {'MyEarlyJoinSAGE': {'hidden_dim': 8}},
          'objective': 'listmle_fastest_first', 'averaging': 0.5, 'copies': 3}
  # The baseline's have the loss of the flags, and average nothing.
  assert joined('EarlyJoinSAGE') == {
      'members': {'EarlyJoinSAGE': {}}, 'objective': 'flags', 'averaging': 0.0,
      'copies': 3}


def test_an_ensemble_has_each_of_its_members_as_often():
  assert joined(
      'EnsembleRanker', model_kwargs_json='{"members": {"MLP": {}}}') == {
          'members': {'MLP': {}}, 'copies': 3}


def test_a_models_py_without_ensembles_is_told():
  with pytest.raises(
      UserError, match=r'--members=3: there is no EnsembleRanker in '
      r'.*tiny_models\.py to hold them; give --members=1'):
    joined('TinyRanker', models_py=tiny_models.__file__)
  with pytest.raises(UserError, match='no model'):
    joined('TinyRankr', models_py=tiny_models.__file__)


def test_members_are_trained_saved_and_loaded_as_one_artifact(tmp_path):
  """With a recipe's other settings; no kernel has so long a list."""
  root = tiny_kernels.write_data_root(tmp_path / 'data', num_test=2)
  result = eager_training.trained(
      root, tmp_path / 'out', model='MLP', models_py='', epochs=1, members=2,
      model_kwargs_json='{"hidden_dim": 4}', lr_schedule='cosine', list_size=50)
  args = result.run_info['args']
  assert args['model'] == 'EnsembleRanker' and args['configs'] == 6
  assert args['run_id'] == 'seed1_lr_schedule=cosine_list_size=50_members=2'
  settings = result.run_info['settings']
  assert (settings['members'], settings['recipe']) == (2, 'default')
  ranker = scoring.load_ranker(result.model_dir)
  kernel = tiny_kernels.chain()
  first, second = (
      scoring.Ranker(member, ranker.stats, ranker.num_ops).scores(kernel)
      for member in ranker.model._members)
  assert np.abs(first - second).max() > 0
  assert len(ranker.scores(kernel)) == kernel.num_configs
