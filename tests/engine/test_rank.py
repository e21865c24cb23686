"""The first choices of a model, listed and as a CSV."""

import dataclasses

import numpy as np
import pytest

from support import eager_training, tiny_kernels, tiny_models
from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.engine import rank, scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import api
from tpu_graphs_ext.tasks.tile import LoadSettings

GIVEN = np.array([0.5, -1.0, 0.25, 2.0], np.float32)
SCORES = scoring.Scores(GIVEN, np.arange(4))


def tiled_kernel():
  """Four configurations with output tiles, the second with a kernel tile."""
  kernel = tiny_kernels.make_kernel(num_configs=4)
  config_feat = np.zeros([4, len(schema.CONFIG_FEATURES)], np.float32)
  column = {name: i for i, name in enumerate(schema.CONFIG_FEATURES)}
  config_feat[:, column['output_bounds_0']] = [1, 16, 8, 4]
  config_feat[:, column['output_bounds_1']] = [2, 32, 0, 5]
  config_feat[1, column['kernel_bounds_0']] = 3
  config_feat[1, column['kernel_bounds_2']] = 7  # 0 in between is kept.
  config_feat[:, column['output_bounds_sum']] = 99  # Not a bound.
  return dataclasses.replace(
      kernel, config_feat=config_feat,
      runtime_ns=np.array([300, 250, 200, 100]),
      normalizer_ns=np.array([100, 100, 100, 100]))


def test_choices_in_order_with_their_tiles_and_times():
  ranking = rank.ranking_of(tiled_kernel(), SCORES, 2)
  assert ranking.rankable and ranking.configs == 4 and ranking.nodes == 3
  assert ranking.choices == [
      # 250 / 100 - 1 = 1.5, 200 / 100 - 1 = 1.
      rank.Choice(1, -1.0, [16, 32], [3, 0, 7], 250, 1.5),
      rank.Choice(2, 0.25, [8], [], 200, 1.0)]
  assert [line.split() for line in ranking.text().splitlines()] == [
      'tiny_net_0: 3 nodes, 4 configurations'.split(),
      'place config score output_bounds kernel_bounds runtime us over best'
      .split(),
      '1 1 -1.0000 16x32 3x0x7 0.250 150.00 %'.split(),
      '2 2 0.2500 8 - 0.200 100.00 %'.split()]


def test_scores_of_all_are_gathered_once(monkeypatch):
  """Else the time grows with the square of 100,000 choices."""
  gathered = []
  of_tiles = scoring.Scores.of_tiles.fget
  monkeypatch.setattr(scoring.Scores, 'of_tiles', property(
      lambda scores: gathered.append(1) or of_tiles(scores)))
  assert len(rank.ranking_of(tiled_kernel(), SCORES, None).choices) == 4
  assert len(gathered) == 2  # For their order, and for the choices.


def test_problems_without_tiles():
  ranking = rank.Ranking('table', 1, None, 2, True, [rank.Choice(1, 0.5)])
  assert ranking.text().splitlines()[1:] == [
      'place  config   score  runtime us  over best',
      '1           1  0.5000           -          -']
  assert ranking.to_json() == {
      'tile_id': 'table', 'nodes': 1, 'configs': 2, 'rankable': True,
      'choices': [{'index': 1, 'score': 0.5, 'runtime_ns': None,
                   'slowdown': None}]}
  program = dataclasses.replace(ranking, configurable=1)
  assert list(program.to_json()) == [
      'name', 'nodes', 'configurable', 'configs', 'choices']


def test_unmeasured_and_identical_configurations():
  kernel = dataclasses.replace(
      tiled_kernel(), runtime_ns=np.zeros(4, np.int64),
      normalizer_ns=np.ones(4, np.int64))
  ranking = rank.ranking_of(kernel, SCORES, 1)
  assert ranking.choices[0].runtime_ns is ranking.choices[0].slowdown is None
  assert ranking.text().endswith('  -          -')
  alike = scoring.Scores(GIVEN, np.zeros(4, np.int64))
  ranking = rank.ranking_of(tiny_kernels.identical_configs(), alike, 9)
  assert [choice.index for choice in ranking.choices] == [0, 1, 2, 3]
  assert not ranking.rankable
  assert '4 configurations, all identical' in ranking.text()
  single = dataclasses.replace(ranking, configs=1)
  assert ' 1 configuration\n' in single.text()
  assert ranking.to_json()['choices'][0]['output_bounds'] == []


# ---------------------------------------------------------------- predictions


def test_predictions_equal_those_made_in_training(
    data_root, tmp_path, monkeypatch):
  monkeypatch.setattr(read, 'TOY_FILES', 12)  # Of 24.
  trained = eager_training.trained(
      data_root, tmp_path / 'out', epochs=1, toy_data=True)

  def predicted(root, **changes):
    path = api.predict(
        trained.model_dir, out=str(tmp_path / 'p.csv'), loading=LoadSettings(
            data_root=str(root), cache_dir='',
            models_py=tiny_models.__file__), **changes)
    with open(path, encoding='utf-8', newline='') as file:
      return file.read()

  best = trained.run_info['test_predictions']
  assert len(best) == 6
  # Trained on toy data, predicted on the whole: the run's own statistics.
  for count in (5, 10):
    rows = ''.join(f'\ntile:xla:{name},{";".join(map(str, indices[:count]))}'
                   for name, indices in best.items())
    assert predicted(data_root, top_configs=count) == 'ID,TopConfigs' + rows
  (tmp_path / 'p.csv').unlink()
  with pytest.raises(UserError, match='test: does not exist'):
    predicted(tmp_path / 'nowhere')
  assert not (tmp_path / 'p.csv').exists()
