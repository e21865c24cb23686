"""Listing the top tiles of a kernel."""

import dataclasses

import numpy as np

from support import tiny_kernels
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import duplicate_configs, rank

GIVEN = np.array([0.5, -1.0, 0.25, 2.0], np.float32)
SCORES = duplicate_configs.Scores(GIVEN, np.arange(4))


def tiled_kernel():
  """Four configurations with output tiles, the second with a kernel tile."""
  kernel = tiny_kernels.make_kernel(num_configs=4)
  config_feat = np.zeros([4, len(schema.CONFIG_FEATURES)], np.float32)
  column = schema.CONFIG_COLUMN
  config_feat[:, column['output_bounds_0']] = [1, 16, 8, 4]
  config_feat[:, column['output_bounds_1']] = [2, 32, 0, 5]
  config_feat[1, column['kernel_bounds_0']] = 3
  config_feat[1, column['kernel_bounds_2']] = 7  # 0 in between is kept.
  config_feat[:, column['output_bounds_sum']] = 99  # No bound.
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


def test_text():
  ranking = rank.ranking_of(tiled_kernel(), SCORES, 2)
  assert ranking.text() == '\n'.join([
      'tiny_net_0: 3 nodes, 4 configurations',
      '  place config     score  output_bounds    kernel_bounds    '
      '  runtime_ns over best',
      '      1      1   -1.0000  16x32            3x0x7            '
      '         250   150.0 %',
      '      2      2    0.2500  8                -                '
      '         200   100.0 %'])


def test_a_repetition_comes_last_with_the_score_of_its_tile():
  given = np.array([0.5, -1.0, 3.0, 2.0], np.float32)  # The model says so too.
  scores = duplicate_configs.Scores(given, np.array([0, 1, 1, 3]))
  ranking = rank.ranking_of(tiled_kernel(), scores, 4)
  assert [(choice.index, choice.score) for choice in ranking.choices] == [
      (1, -1.0), (0, 0.5), (3, 2.0), (2, -1.0)]


def test_unmeasured_kernel_has_no_times():
  kernel = dataclasses.replace(
      tiled_kernel(), runtime_ns=np.zeros(4, np.int64),
      normalizer_ns=np.ones(4, np.int64))
  ranking = rank.ranking_of(kernel, SCORES, 1)
  assert ranking.choices[0].runtime_ns is None
  assert ranking.choices[0].slowdown is None
  assert ranking.text().endswith('            -         -')


def test_fewer_configs_than_asked_for_and_identical_ones():
  kernel = tiny_kernels.identical_configs()
  alike = duplicate_configs.Scores(GIVEN, np.zeros(4, np.int64))
  ranking = rank.ranking_of(kernel, alike, 9)
  assert [choice.index for choice in ranking.choices] == [0, 1, 2, 3]
  assert len(ranking.choices) == 4  # No padding here.
  assert not ranking.rankable
  assert 'all configurations are identical' in ranking.text()
  assert ranking.to_json()['choices'][0]['output_bounds'] == []
