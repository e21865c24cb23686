"""Measures of kernels whose scores are set by hand."""

import dataclasses
import json
import math

import numpy as np
import pytest

from support import tiny_kernels
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import (
  duplicate_configs,
  evaluate,
  results,
  scoring,
  task,
)
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_results


class ByFirstColumn:
  """Scores a configuration with minus its first column."""

  task = task.find('tile')

  def __init__(self, keep_repeats=False):
    self._keep_repeats = keep_repeats

  def score_all(self, partition, what):
    for kernel in partition:
      yield kernel, duplicate_configs.Scores(
          -kernel.config_feat[:, 0], duplicate_configs.first_copies(kernel.config_feat),
          self._keep_repeats)


def kernel_of(tile_id, first_column, runtime_ns):
  kernel = tiny_kernels.make_kernel(tile_id, num_configs=len(runtime_ns))
  config_feat = np.zeros_like(kernel.config_feat)
  config_feat[:, 0] = first_column
  return dataclasses.replace(
      kernel, config_feat=config_feat,
      runtime_ns=np.array(runtime_ns, np.int64),
      normalizer_ns=np.ones(len(runtime_ns), np.int64))


def slowdowns(summary, measure='slowdown'):
  return results.nested(summary.means)[measure]


def measured(*arguments, **ks):
  return evaluate.measure(*arguments, **ks).to_dict('records')


@pytest.fixture
def evaluation():
  kernels = [
      # Order by score: 2, 1, 0. Top-1: 30 / 10 - 1 = 2. All pairs wrong.
      kernel_of('net_a_0', [0, 1, 2], [10, 20, 30]),
      # Order 0, 1. Top-1: 0. The only pair right.
      kernel_of('net_a_1', [1, 0], [10, 40]),
      # Identical: order of the file. Top-1: 15 / 10 - 1 = 0.5. Ties: wrong.
      kernel_of('net_b_0', [5, 5], [15, 10]),
      # Six: order 5 .. 0, top-1: 60 / 10 - 1 = 5, top-5: 20 / 10 - 1 = 1.
      kernel_of('0123456789abcdef', range(6), [10, 20, 30, 40, 50, 60]),
  ]
  return tile_results.Evaluation('model_x', 'folder', evaluate.measure(
      ByFirstColumn(), Partition.from_kernels(kernels), 'test'))


def test_micro_is_the_mean_over_all_kernels(evaluation):
  micro = evaluation.micro
  assert micro.problems == 4
  assert slowdowns(micro) == {
      '1': pytest.approx((2 + 0 + 0.5 + 5) / 4), '5': 0.25, '10': 0.0}
  assert micro['opa'] == (0 + 1 + 0 + 0) / 4
  # Tau is undefined where all scores are equal: that kernel is left out.
  assert micro['kendall'] == pytest.approx((-1 + 1 - 1) / 3)


def test_rankable_leaves_out_identical_configs(evaluation):
  rankable = evaluation.rankable
  assert rankable.problems == 3
  assert rankable['slowdown_1'] == pytest.approx((2 + 0 + 5) / 3)
  assert rankable['opa'] == pytest.approx(1 / 3)


def test_macro_is_the_mean_over_programs(evaluation):
  assert {name: summary['slowdown_1']
          for name, summary in evaluation.programs.items()} == {
      tile_results.NO_PROGRAM: 5.0, 'net_a': 1.0, 'net_b': 0.5}
  assert evaluation.macro['slowdown_1'] == pytest.approx((5 + 1 + 0.5) / 3)


def test_table_says_which_number_is_which(evaluation):
  lines = evaluation.text().splitlines()
  assert lines[0] == 'model_x on folder'
  assert lines[2].split() == [
      'kernels', 'top-1', '%', 'top-5', '%', 'top-10', '%', 'OPA', 'tau']
  assert [line.split()[-6:] for line in lines[3:9]] == [
      ['1', '500.00', '100.00', '0.00', '0.000', '-1.000'],
      ['2', '100.00', '0.00', '0.00', '0.500', '0.000'],
      ['1', '50.00', '0.00', '0.00', '0.000', '-'],
      ['4', '216.67', '33.33', '0.00', '0.167', '-0.500'],
      ['4', '187.50', '25.00', '0.00', '0.250', '-0.333'],
      ['3', '233.33', '33.33', '0.00', '0.333', '-0.333']]
  text = evaluation.text()
  assert "micro (all kernels) is the baseline's number." in text
  assert '1 of 4 kernels cannot be ranked' in text


def test_json_is_strict(evaluation):
  content = json.loads(
      json.dumps(evaluation.to_json(), allow_nan=False))
  assert content['micro']['slowdown']['1'] == 1.875
  assert content['programs']['net_b']['kendall'] is None
  assert content['kernels']['net_b_0'] == {
      'program': 'net_b', 'kind': 'element-wise', 'configs': 2,
      'rankable': False, 'repeats': 0, 'opa': 0.0, 'kendall': None,
      'slowdown': {'1': 0.5, '5': 0.0, '10': 0.0},
      'slowdown_kept': {'1': 0.5, '5': 0.0, '10': 0.0},
      # One of 15 and 10: 12.5. All normalizers are 1: no time of the default.
      'random': {'1': 0.25, '5': 0.0, '10': 0.0}, 'default': None}


def with_repeats(keep_repeats=False):
  """An evaluation of a kernel that has its second tile five times more."""
  kernels = [kernel_of('net_a_0', [3, 9, 9, 9, 9, 9, 9, 1],
                       [30, 80, 81, 82, 83, 84, 85, 20])]
  return tile_results.Evaluation('model_x', 'folder', evaluate.measure(
      ByFirstColumn(keep_repeats), Partition.from_kernels(kernels), 'test'),
                             keep_repeats)


def test_distinct_picks_and_what_they_gain():
  evaluation = with_repeats()
  micro = evaluation.micro
  # Picks 1, 0, 7, 2, 3: the best of five is the best of all, 20. With the
  # repetitions kept they are 1 ... 5: 80 / 20 - 1 = 3.
  assert slowdowns(micro) == {'1': 3.0, '5': 0.0, '10': 0.0}
  assert slowdowns(micro, 'slowdown_kept') == {'1': 3.0, '5': 3.0, '10': 0.0}
  # Repetitions share the score of their tile: of 28 pairs the 6 of tiles 0 and
  # 1, those of 1 and 7, and that of 0 and 7 are wrong, and 15 ties are. Tau:
  # -13 / sqrt(28 (28 - 15)).
  assert micro['opa'] == 0.0
  assert evaluation.rows['repeats'].tolist() == [5]
  content = evaluation.to_json()
  assert content['keep_repeats'] is False
  assert content['micro']['slowdown_kept'] == {'1': 3.0, '5': 3.0, '10': 0.0}
  assert content['kernels']['net_a_0']['repeats'] == 5
  lines = evaluation.text().splitlines()
  assert lines[5].split()[-6:] == [
      '1', '300.00', '0.00', '0.00', '0.000', '-0.681']
  assert lines[6].split() == [
      'micro', '(repetitions', 'kept)', '1', '300.00', '300.00', '0.00',
      '0.000', '-0.681']
  assert lines[9] == ('micro (all kernels) with --keep_repeats is the '
                      "baseline's number.")
  assert lines[10].startswith('5 of 8 configurations repeat another')


def test_keeping_repetitions_gives_the_models_own_order():
  evaluation = with_repeats(keep_repeats=True)
  assert slowdowns(evaluation.micro) == {'1': 3.0, '5': 3.0, '10': 0.0}
  assert evaluation.to_json()['keep_repeats'] is True
  assert 'repeti' not in evaluation.text()
  assert "\nmicro (all kernels) is the baseline's number." in evaluation.text()


def test_runtimes_are_divided_by_their_normalizers():
  # 30 / 30 = 1 beats 20 / 10 = 2: choosing index 1 is twice as slow.
  kernel = kernel_of('a_0', [0, 1], [30, 20])
  kernel = dataclasses.replace(kernel, normalizer_ns=np.array([30, 10]))
  result, = measured(
      ByFirstColumn(), Partition.from_kernels([kernel]), 'test')
  assert result['slowdown_1'] == pytest.approx(1.0)


def test_default_tile_random_choice_and_kind():
  # Twice the tile 8, which took 40 and 30: tiles 40 and 20, mean 30. With
  # repetitions in their places 40, 30, 20: the same mean. The default took 25.
  kernel = dataclasses.replace(
      kernel_of('a_0', [8, 8, 1], [40, 30, 20]),
      node_opcode=np.array([63, 26, 63], np.uint8),  # With a convolution.
      normalizer_ns=np.full(3, 25))
  result, = measured(
      ByFirstColumn(), Partition.from_kernels([kernel]), 'test', ks=(1, 2))
  assert result['kind'] == 'convolution'
  assert result['default'] == pytest.approx(25 / 20 - 1)
  assert (result['slowdown_1'], result['slowdown_2']) == (
      pytest.approx(1.0), 0.0)
  assert (result['random_1'], result['random_2']) == (
      pytest.approx(30 / 20 - 1), 0.0)
  kept, = measured(
      ByFirstColumn(keep_repeats=True), Partition.from_kernels([kernel]),
      'test', ks=(2,))
  # {40, 30}, {40, 20}, {30, 20}: mean of the least 70 / 3.
  assert kept['random_2'] == pytest.approx(70 / 3 / 20 - 1)


def test_equal_runtimes_have_no_order():
  result, = measured(
      ByFirstColumn(),
      Partition.from_kernels([kernel_of('a_0', [0, 1], [7, 7])]), 'test')
  assert result['slowdown_1'] == 0.0
  assert math.isnan(result['opa']) and math.isnan(result['kendall'])


def test_unlabelled_kernels_are_left_out_where_others_have_labels(caplog):
  blank = kernel_of('blank_0', [0, 1], [0, 0])
  good = kernel_of('good_0', [0, 1], [1, 2])
  both, tile = Partition.from_kernels([blank, good]), task.find('tile')
  assert evaluate.labelled(both, 'here', tile).tile_ids == ['good_0']
  assert [record.message for record in caplog.records] == [
      'here: left out 1 of 2 kernels without labels (all runtimes are 0): '
      'blank_0']
  with pytest.raises(UserError, match=r'here: 1 of 2 kernels have no labels .*'
                     r'first blank_0; .*tpu-graphs-ext predict'):
    evaluate.require_labels(both, 'here', tile)
  with pytest.raises(UserError, match='here: 1 of 1 kernels have no labels'):
    evaluate.labelled(Partition.from_kernels([blank]), 'here', tile)
  with pytest.raises(UserError, match='bad_0: config_runtime row 1 is 0'):
    Partition.from_kernels([kernel_of('bad_0', [0, 1], [5, 0])])


class FixedModel:
  """Returns what it is told to."""

  def __init__(self, scores):
    self._scores = np.array(scores, np.float32)
    self.opcodes = None

  def forward(self, graph, num_configs):
    self.opcodes = graph.node_sets['op']['op'].numpy().tolist()
    return self._scores


def ranker_of(scores, kernel, num_ops=256):
  from tpu_graphs_ext.data.normalize import FeatureStats
  stats = FeatureStats.of_partition(Partition.from_kernels([kernel]))
  return scoring.Ranker(FixedModel(scores), stats, num_ops, name='model_x')


def test_scores_must_have_one_number_a_config_and_be_finite():
  kernel = tiny_kernels.make_kernel(num_configs=2)
  with pytest.raises(UserError, match=r'model_x: forward gave scores of shape '
                     r'\(1, 3\) for tiny_net_0; it must be \(1, 2\)'):
    ranker_of([[1, 2, 3]], kernel).scores(kernel)
  with pytest.raises(UserError, match='1 of the 2 scores of tiny_net_0'):
    ranker_of([[1, math.nan]], kernel).scores(kernel)


def test_opcodes_beyond_the_embedding_count_as_unknown(caplog):
  kernel = tiny_kernels.make_kernel(num_configs=2)  # Opcodes 2, 3, 4.
  ranker = ranker_of([[1, 2]], kernel, num_ops=4)
  (_, scores), = ranker.score_all(Partition.from_kernels([kernel]), 'test')
  np.testing.assert_array_equal(scores.given, [1, 2])
  assert ranker.model.opcodes == [2, 3, 0]
  assert [record.message for record in caplog.records] == [
      'there are opcodes up to 4, but model_x was trained on data with opcodes '
      'below 4; nodes with others count as opcode 0']
  ranker_of([[1, 2]], kernel, num_ops=5).scores(kernel)
  assert len(caplog.records) == 1


def test_other_columns_are_refused():
  kernel = tiny_kernels.make_kernel(num_configs=2)
  narrow = tiny_kernels.make_kernel(num_configs=2, config_width=7)
  with pytest.raises(UserError, match=r'config_feat has 7 columns, but .* 24'):
    next(ranker_of([[1, 2]], kernel).score_all(
        Partition.from_kernels([narrow]), 'test'))
