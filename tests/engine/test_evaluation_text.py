"""Tables, JSON and CSV of measures that are set by hand."""

import csv
import json
import math

import pytest

from tpu_graphs_ext import errors
from tpu_graphs_ext.engine import results
from tpu_graphs_ext.tasks import tile_results
from tpu_graphs_ext.tasks.tile_results import Evaluation

# Of four kernels: kind, slowdown of top 1, of the default, expected of one.
KERNELS = {
    'a_0': ('convolution', 0.1, 0.3, 0.5),
    'a_1': ('copy', 0.3, 0.3, 0.5),
    'b_0': ('convolution', 0.1, 0.1, 0.5),
    'b_1': ('copy', 0.3, 0.1, 0.5),
}


def evaluation_of(name, more=0.0, kernels=KERNELS):
  """Top-1 slowdowns are as above and `more`; those of top 3 are 0."""
  rows = results.table({
      'tile_id': tile_id, 'program': tile_id[0], 'kind': kind, 'configs': 7,
      'rankable': True, 'repeats': 0, 'slowdown_1': top + more,
      'slowdown_3': 0.0, 'slowdown_kept_1': top + more, 'slowdown_kept_3': 0.0,
      'random_1': blind, 'random_3': 0.2, 'default': default, 'opa': 0.5,
      'kendall': math.nan}
                       for tile_id, (kind, top, default, blind)
                       in kernels.items())
  return Evaluation(name, 'folder', rows)


def cells_of(text, name):
  """Cells of the last row of this name."""
  line = [line for line in text.splitlines() if line.startswith(name)][-1]
  return [cell.strip() for cell in line[len(name):].split('  ')
          if cell.strip()]


def test_means_by_kind():
  text = evaluation_of('model_x').text()
  assert cells_of(text, 'kind of kernel') == [
      'kernels', 'top-1 %', 'top-3 %', 'OPA', 'tau']
  assert cells_of(text, 'convolution') == [
      '2', '10.00 [10.00, 10.00]', '0.00 [0.00, 0.00]', '0.500', '-']
  assert cells_of(text, 'copy') == [
      '2', '30.00 [30.00, 30.00]', '0.00 [0.00, 0.00]', '0.500', '-']
  assert text.index('convolution') < text.index('copy')


def test_model_default_and_random_with_intervals():
  text = evaluation_of('model_x').text()
  # Means of four draws of 0.1 or 0.3 each: all four are 0.1 with chance
  # 1 / 16, so 95 % reach from end to end.
  assert cells_of(text, 'the model (micro)') == [
      '20.00 [10.00, 30.00]', '0.00 [0.00, 0.00]']
  # Both programs have the mean 0.2.
  assert cells_of(text, 'the model (macro)') == [
      '20.00 [20.00, 20.00]', '0.00 [0.00, 0.00]']
  assert cells_of(text, 'the default tile') == 2 * ['20.00 [10.00, 30.00]']
  assert cells_of(text, 'a random choice') == [
      '50.00 [50.00, 50.00]', '20.00 [20.00, 20.00]']
  # Pairs: -0.2, 0, 0, 0.2. All four the lowest: 1 / 256; the mean of three
  # of those and a 0 is -0.15: 4 * 2 / 256 = 3.1 % in all lie at or below.
  assert cells_of(text, 'model - default')[0] == '0.00 [-15.00, 15.00]'
  # Above -0.3 and below -0.5 + 0.3; here end to end again.
  assert cells_of(text, 'model - random') == [
      '-30.00 [-40.00, -20.00]', '-20.00 [-20.00, -20.00]']


def test_no_number_is_minus_zero():
  one, other = evaluation_of('model_x'), evaluation_of('model_y', more=1e-6)
  block = tile_results._of_several([one, other])
  assert cells_of(block, '1 - 2')[0] == '0.00 [0.00, 0.00]'


def test_kernels_on_request():
  one = evaluation_of('model_x')
  assert 'a_0' not in one.text()
  lines = one.text(by_kernel=True).split('\n\n')[-1].splitlines()
  assert lines[0].split('  ')[0] == 'kernel'
  assert [line.split()[0] for line in lines[1:]] == [
      'a_1', 'b_1', 'a_0', 'b_0']
  assert lines[1].split() == [
      'a_1', 'copy', '7', '30.00', '0.00', '30.00', '50.00', '0.500', '-']


def test_several_models_are_compared():
  evaluations = [evaluation_of('model_x'), evaluation_of('model_y', more=0.05),
                 evaluation_of('model_z')]
  text = Evaluation.texts(evaluations)
  assert text.count('micro (all kernels)  ') == 3
  block = text[text.index('3 models on folder, 4 kernels'):]
  assert '\nmodel 2: model_y\n' in block
  assert cells_of(block, 'model 2 ')[0] == '25.00 [15.00, 35.00]'
  # Every kernel of the first is 5 points better: no doubt, though each has a
  # wide interval.
  assert cells_of(block, '1 - 2')[0] == '-5.00 [-5.00, -5.00]'
  assert cells_of(block, '1 - 3')[0] == '0.00 [0.00, 0.00]'
  assert cells_of(block, '2 - 3')[0] == '5.00 [5.00, 5.00]'
  assert cells_of(block, '2 - 3')[-2:] == ['0.000 [0.000, 0.000]', '-']


def test_one_kernel_has_no_interval():
  one = evaluation_of('model_x', kernels={'a_0': KERNELS['a_0']})
  assert cells_of(one.text(), 'the model (micro)') == ['10.00', '0.00']
  content = json.loads(json.dumps(one.to_json(), allow_nan=False))
  assert content['micro']['interval']['slowdown'] == {'1': None, '3': None}
  assert content['against']['random']['1'] == {
      'mean': pytest.approx(-0.4), 'interval': None}


def test_json_has_kinds_intervals_and_differences():
  one, other = evaluation_of('model_x'), evaluation_of('model_y', more=0.05)
  content = json.loads(
      json.dumps(results.to_json([one, other]), allow_nan=False))
  assert [part['model_dir'] for part in content] == ['model_x', 'model_y']
  assert content[0]['kinds']['copy']['slowdown'] == {'1': 0.3, '3': 0.0}
  micro = content[0]['micro']
  assert micro['interval']['slowdown']['1'] == pytest.approx([0.1, 0.3])
  assert micro['interval']['kendall'] is None
  assert micro['default'] == pytest.approx(0.2)
  assert micro['random'] == {'1': 0.5, '3': pytest.approx(0.2)}
  assert content[0]['macro']['interval']['slowdown']['1'] == pytest.approx(
      [0.2, 0.2])
  assert content[0]['against']['default']['1']['mean'] == pytest.approx(0)
  difference, = content[1]['differences']
  assert difference['to'] == 'model_x'
  assert difference['slowdown']['1'] == {
      'mean': pytest.approx(0.05), 'interval': pytest.approx([0.05, 0.05])}
  assert difference['kendall'] == {'mean': None, 'interval': None}
  assert 'differences' not in results.to_json([one])


def test_csv_has_a_row_a_kernel_and_model(tmp_path):
  path = tmp_path / 'sub' / 'e.csv'
  evaluations = [evaluation_of('model_x'), evaluation_of('model_y', more=0.5)]
  Evaluation.CSV.write(str(path), results.to_csv(evaluations))
  rows = list(csv.DictReader(path.open(newline='')))
  assert [(row['model_dir'], row['tile_id']) for row in rows] == [
      (name, kernel) for name in ('model_x', 'model_y') for kernel in KERNELS]
  assert rows[4] == {
      'model_dir': 'model_y', 'data': 'folder', 'tile_id': 'a_0',
      'program': 'a', 'kind': 'convolution', 'configs': '7',
      'rankable': 'True', 'repeats': '0', 'slowdown_1': '0.6',
      'slowdown_3': '0.0', 'slowdown_kept_1': '0.6', 'slowdown_kept_3': '0.0',
      'random_1': '0.5', 'random_3': '0.2', 'default': '0.3', 'opa': '0.5',
      'kendall': ''}
  # Its own is replaced.
  Evaluation.CSV.write(str(path), results.to_csv(evaluations[:1]))
  assert path.read_text().count('\n') == 5


def test_csv_replaces_no_other_file(tmp_path):
  path = tmp_path / 'mine.csv'
  path.write_text('precious\n')
  with pytest.raises(errors.UserError, match='is no CSV of evaluate'):
    Evaluation.CSV.check(str(path))
  assert path.read_text() == 'precious\n'
