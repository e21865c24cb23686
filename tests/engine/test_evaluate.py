"""Measures, tables, JSON and CSV of kernels whose scores are set by hand."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest

from support import tiny_kernels
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.engine import evaluate, results
from tpu_graphs_ext.tasks import TILE, evaluations
from tpu_graphs_ext.tasks.evaluations import Evaluation


def kernel_of(tile_id, first_column, runtime_ns, **changes):
  kernel = tiny_kernels.make_kernel(tile_id, num_configs=len(runtime_ns))
  config_feat = np.zeros_like(kernel.config_feat)
  config_feat[:, 0] = first_column
  return dataclasses.replace(kernel, **{
      'config_feat': config_feat, 'runtime_ns': np.array(runtime_ns, np.int64),
      'normalizer_ns': np.ones(len(runtime_ns), np.int64), **changes})


def measured(*kernels, keep_repeats=False, ks=None):
  """The score of a configuration is minus its first column."""
  scores = {kernel.tile_id: -kernel.config_feat[:, 0] for kernel in kernels}
  return evaluate.measure(
      evaluate.ForeignRanker('x', TILE, scores, keep_repeats=keep_repeats),
      Partition.from_kernels(kernels), 'test', ks)


def slowdowns(summary, measure='slowdown'):
  return results.nested(summary.means)[measure]


@pytest.fixture
def evaluation():
  return Evaluation('model_x', 'folder', measured(
      # Order by score: 2, 1, 0. Top-1: 30 / 10 - 1 = 2. All pairs wrong.
      kernel_of('net_a_0', [0, 1, 2], [10, 20, 30]),
      # Order 0, 1. Top-1: 0. The only pair right.
      kernel_of('net_a_1', [1, 0], [10, 40]),
      # Identical: order of the file. Top-1: 15 / 10 - 1 = 0.5. Ties: wrong.
      kernel_of('net_b_0', [5, 5], [15, 10]),
      # Six: order 5 .. 0, top-1: 60 / 10 - 1 = 5, top-5: 20 / 10 - 1 = 1.
      kernel_of('0123456789abcdef', range(6), [10, 20, 30, 40, 50, 60])))


def test_means_over_kernels_and_programs(evaluation):
  assert slowdowns(evaluation.micro) == {
      '1': pytest.approx((2 + 0 + 0.5 + 5) / 4), '5': 0.25, '10': 0.0}
  # Tau is undefined where all scores are equal: that kernel is left out.
  assert evaluation.micro['kendall'] == pytest.approx((-1 + 1 - 1) / 3)
  assert evaluation.rankable['opa'] == pytest.approx(1 / 3)
  assert {name: summary['slowdown_1']
          for name, summary in evaluation.programs.items()} == {
      evaluations.NO_PROGRAM: 5.0, 'net_a': 1.0, 'net_b': 0.5}
  assert evaluation.macro['slowdown_1'] == pytest.approx((5 + 1 + 0.5) / 3)


def test_table_says_which_number_is_which(evaluation):
  text = Evaluation.texts([evaluation], by_problem=True)
  assert text.splitlines()[0] == 'model_x on folder'
  for name, expected in (
      ('net_a', '2 100.00 0.00 0.00 0.500 0.000'),
      ('net_b', '1 50.00 0.00 0.00 0.000 -'),
      ('macro (mean over programs)', '4 216.67 33.33 0.00 0.167 -0.500'),
      ('micro (rankable kernels)', '3 233.33 33.33 0.00 0.333 -0.333')):
    row, *_ = [line for line in text.splitlines() if line.startswith(name)]
    assert row[len(name):].split() == expected.split()
  # The kernels, with the worst first choices first.
  listed = [text.rindex(name) for name in (
      '0123456789abcdef', 'net_a_0', 'net_b_0', 'net_a_1')]
  assert listed == sorted(listed)


def test_json_is_strict(evaluation):
  content = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
  assert content['micro']['slowdown']['1'] == 1.875
  assert content['programs']['net_b']['kendall'] is None
  assert content['kernels']['net_b_0'] == {
      'program': 'net_b', 'kind': 'element-wise', 'configs': 2,
      'rankable': False, 'repeats': 0, 'opa': 0.0, 'kendall': None,
      'slowdown': {'1': 0.5, '5': 0.0, '10': 0.0},
      'slowdown_kept': {'1': 0.5, '5': 0.0, '10': 0.0},
      # One of 15 and 10: 12.5. All normalizers are 1: no time of the default.
      'random': {'1': 0.25, '5': 0.0, '10': 0.0}, 'default': None}


def test_duplicates_come_last_or_stay():
  # The second tile is listed five times more.
  kernel = kernel_of('net_a_0', [3, 9, 9, 9, 9, 9, 9, 1],
                     [30, 80, 81, 82, 83, 84, 85, 20])
  last = Evaluation('model_x', 'folder', measured(kernel))
  # Picks 1, 0, 7, 2, 3: the best of five is the best of all, 20. With the
  # duplicates kept they are 1 ... 5: 80 / 20 - 1 = 3.
  assert slowdowns(last.micro) == {'1': 3.0, '5': 0.0, '10': 0.0}
  assert slowdowns(last.micro, 'slowdown_kept')['5'] == 3.0
  # Duplicates share the score of their tile: of 28 pairs the 6 of tiles 0 and
  # 1, those of 1 and 7, and that of 0 and 7 are wrong, and 15 ties are. Tau:
  # -13 / sqrt(28 (28 - 15)).
  assert last.micro['opa'] == 0.0
  content = last.to_json()
  assert content['keep_repeats'] is False
  assert content['kernels']['net_a_0']['repeats'] == 5
  kept = Evaluation('model_x', 'folder', measured(kernel, keep_repeats=True),
                    True)
  assert slowdowns(kept.micro) == {'1': 3.0, '5': 3.0, '10': 0.0}
  assert kept.to_json()['keep_repeats'] is True


def test_default_tile_random_choice_and_kind():
  # Twice the tile 8, which took 40 and 30: tiles 40 and 20, mean 30. With
  # duplicates in their places 40, 30, 20: the same mean. The default took 25.
  kernel = kernel_of(
      'a_0', [8, 8, 1], [40, 30, 20], normalizer_ns=np.full(3, 25),
      node_opcode=np.array([63, 26, 63], np.uint8))  # With a convolution.
  result, = measured(kernel, ks=(1, 2)).to_dict('records')
  assert result['kind'] == 'convolution'
  assert result['default'] == pytest.approx(25 / 20 - 1)
  assert (result['slowdown_1'], result['slowdown_2']) == (
      pytest.approx(1.0), 0.0)
  assert (result['random_1'], result['random_2']) == (
      pytest.approx(30 / 20 - 1), 0.0)
  # 30 / 30 = 1 beats 20 / 10 = 2: choosing index 1 is twice as slow.
  result, = measured(kernel_of(
      'a_0', [0, 1], [30, 20], normalizer_ns=np.array([30, 10]))
                     ).to_dict('records')
  assert result['slowdown_1'] == pytest.approx(1.0)


def test_kernels_without_labels(caplog):
  both = Partition.from_kernels([kernel_of('good_0', [0, 1], [1, 2]),
                                 kernel_of('blank_0', [0, 1], [0, 0])])
  kept = evaluate.labelled(both, 'here', TILE)
  assert kept.names == ['good_0']
  assert 'left out 1 of 2 kernels' in caplog.text


# ------------------------------------------------------ intervals, models

# Of four kernels: kind, slowdown of top 1, of the default, expected of one.
KERNELS = {
    'a_0': ('convolution', 0.1, 0.3, 0.5),
    'a_1': ('copy', 0.3, 0.3, 0.5),
    'b_0': ('convolution', 0.1, 0.1, 0.5),
    'b_1': ('copy', 0.3, 0.1, 0.5),
}


def evaluation_of(name, more=0.0):
  """Top-1 slowdowns are as above and `more`; those of top 3 are 0."""
  return Evaluation(name, 'folder', results.table({
      'tile_id': tile_id, 'program': tile_id[0], 'kind': kind, 'configs': 7,
      'rankable': True, 'repeats': 0, 'slowdown_1': top + more,
      'slowdown_3': 0.0, 'slowdown_kept_1': top + more, 'slowdown_kept_3': 0.0,
      'random_1': blind, 'random_3': 0.2, 'default': default, 'opa': 0.5,
      'kendall': math.nan}
      for tile_id, (kind, top, default, blind) in KERNELS.items()))


def cells_of(text, name):
  """Cells of the last row of this name."""
  line = [line for line in text.splitlines() if line.startswith(name)][-1]
  return [cell.strip() for cell in line[len(name):].split('  ') if cell.strip()]


def test_intervals_by_kind_and_beside_other_choices():
  text = Evaluation.texts([evaluation_of('model_x')])
  assert cells_of(text, 'convolution') == ['2', '10.00', '0.00', '0.500', '-']
  assert cells_of(text, 'mean of 4 kernels') == [
      'top-1 %', 'top-3 %', 'OPA', 'tau']
  # Means of four draws of 0.1 or 0.3 each: all four are 0.1 with probability
  # 1 / 16, so 95 % reach from end to end.
  assert cells_of(text, 'x  ') == [
      '20.00 [10.00, 30.00]', '0.00 [0.00, 0.00]', '0.500 [0.500, 0.500]', '-']
  assert cells_of(text, 'the default tile') == [
      *2 * ['20.00 [10.00, 30.00]'], '-', '-']
  assert cells_of(text, 'a random choice')[:2] == [
      '50.00 [50.00, 50.00]', '20.00 [20.00, 20.00]']


def test_several_models_are_compared():
  evaluations = [
      dataclasses.replace(evaluation_of(folder, more), model=model)
      for folder, more, model in (('model_x', 0.0, 'A'), ('model_y', 0.05, 'B'),
                                  ('model_z', 1e-6, 'C'))]
  text = Evaluation.texts(evaluations)
  assert text.count('micro (all kernels)  ') == 3
  assert cells_of(text, 'B  ')[0] == '25.00 [15.00, 35.00]'
  # The difference is the same in each kernel, whatever the kernels.
  assert cells_of(text, 'A - B')[0] == '-5.00 [-5.00, -5.00]'
  assert cells_of(text, 'A - C')[0] == '0.00 [0.00, 0.00]'  # Not -0.00.
  assert cells_of(text, 'B - C')[-2:] == ['0.000 [0.000, 0.000]', '-']
  assert results.names_of([evaluations[0], *(
      dataclasses.replace(evaluation, model='B')
      for evaluation in evaluations[1:])]) == ['A', 'B y', 'B z']
  for folders in (['pretrained:v5e', 'pretrained:v6e'], ['a/s.npz', 'b/s.npz']):
    assert results.names_of([
        dataclasses.replace(evaluations[0], model_dir=folder)
        for folder in folders]) == [f'A {folder}' for folder in folders]
  content = json.loads(
      json.dumps(results.to_json(evaluations[:2]), allow_nan=False))
  assert [part['model_dir'] for part in content] == ['model_x', 'model_y']
  assert content[0]['kinds']['copy']['slowdown'] == {'1': 0.3, '3': 0.0}
  interval = content[0]['micro']['interval']
  assert interval['slowdown']['1'] == pytest.approx([0.1, 0.3])
  assert interval['kendall'] is None
  difference, = content[1]['differences']
  assert difference['to'] == 'model_x'
  assert difference['slowdown']['1'] == {
      'mean': pytest.approx(0.05), 'interval': pytest.approx([0.05, 0.05])}
  assert difference['kendall'] == {'mean': None, 'interval': None}


def test_csv_has_a_row_a_kernel_and_model(tmp_path):
  path = tmp_path / 'sub' / 'e.csv'
  evaluations = [evaluation_of('model_x'), evaluation_of('model_y', more=0.5)]
  Evaluation.CSV.write(str(path), results.to_csv(evaluations))
  rows = list(csv.DictReader(path.open(newline='')))
  assert [(row['model_dir'], row['tile_id']) for row in rows] == [
      (name, kernel) for name in ('model_x', 'model_y') for kernel in KERNELS]
  assert (rows[4]['slowdown_1'], rows[4]['kendall']) == ('0.6', '')
  # It knows its own file by the first line.
  Evaluation.CSV.write(str(path), results.to_csv(evaluations[:1]))
  assert path.read_text().count('\n') == 5
