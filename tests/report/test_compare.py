"""Sections of the page, of results that are written by hand, and its parts."""

import dataclasses
import os
import sys
import warnings

import numpy as np
import pytest

from support import feature_tiles, tiny_hlo, tiny_kernels
from support.tiny_runs import Page, run_info
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.engine import results, scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import compare, kernels, page, report, runs
from tpu_graphs_ext.tasks import TILE


def result(tile_id, slowdown, program='net', configs=20, **changes):
  return {
      'tile_id': tile_id, 'program': program, 'kind': 'copy',
      'configs': configs, 'rankable': True, 'repeats': 0,
      'slowdown_1': slowdown, 'slowdown_5': slowdown / 2, 'slowdown_10': 0.0,
      'random_1': 2.0, 'random_5': 1.0, 'random_10': 0.5, 'default': 0.1,
      'opa': 0.9, 'kendall': 0.8, **changes}


class FixedRanker:
  """Thinks that the last configuration is the fastest."""

  def scored(self, kernel):
    places = np.arange(kernel.num_configs)
    return scoring.Scores(-places.astype(np.float32), places)


def comparison(*of_runs, **changes):
  """Groups of one run each, each a list of slowdowns at top-1."""
  groups = {}
  for number, values in enumerate(of_runs):
    info = run_info(f'Model{number}')
    groups[f'Model{number}'] = [compare.Measured(
        runs.Run(f'run_{number}.jsonz', info, 'm'), FixedRanker(),
        results.table(result(f'net_{i}', value, f'net{i % 2}', **changes)
                      for i, value in enumerate(values)))]
  problems = Partition.from_kernels([
      tiny_kernels.make_kernel(f'net_{i}', num_configs=20)
      for i in range(len(of_runs[0]))])
  return compare.Comparison(TILE, 'here', problems, groups)


LOOKS = compare.looks_of([f'Model{number}' for number in range(5)], TILE)


def cells(table, row):
  return next(rest for first, *rest in table.rows if first == row)


def number(cell):
  return float(cell.split(' ')[0].replace(page.MINUS, '-'))


def test_worst_and_best_kernels_of_each_group(undrawn):
  compared = comparison([0.0, 0.5, 0.1, 0.2], [0.3, 0.0, 0.1, 0.9])
  # The worst of all comes first.
  assert list(kernels.chosen(compared, 1).items()) == [
      (3, {'Model1': 'worst'}), (1, {'Model0': 'worst', 'Model1': 'best'}),
      (0, {'Model0': 'best'})]
  section = kernels.section(compared, 1, LOOKS)
  assert section['unit'] == 'layout tiles'
  first, second, _ = section['kernels']
  assert first['title'] == 'net_3: worst of Model1 (90.0 %)'
  assert 'opcodes: 1 ' in first['text'] and len(second['figures']) == 2
  # The last configuration is tried first.
  assert cells(first['tiles'], 'configuration')[1] == 19
  assert cells(first['tiles'], 'place that Model1 predicts')[1] == 1
  # Kernels that nothing can rank, and those of few tiles, are not the best.
  rows = results.table([
      result('a', 5.0, rankable=False), result('b', 1.0),
      result('c', 0.0, configs=3), result('d', 0.2)])
  assert kernels.ends(rows, 1) == ([1], [3])
  assert kernels.ends(rows, 9) == ([1, 3, 2], [])


def test_costs_of_an_elementwise_kernel():
  # f32 [256, 512] is 32 x 4 layout tiles of 8 x 128; it is read and written.
  # Of 8 x 2: 4 x 2 steps of 64 * 256 * 4 bytes in and out. Of 5 x 4: 7 steps,
  # which are 35 rows of layout tiles instead of 32.
  kernel = feature_tiles.kernel_of_module(
      tiny_hlo.elementwise([256, 512]), [[1, 1], [8, 2], [5, 4]])
  costs = {title: row for title, *row in kernels.cost_rows(kernel, [1, 2])}
  assert costs['steps'] == ['8', '7'] and costs['padding'] == ['0 %', '9 %']
  assert costs['bytes moved'][0] == '1.0 MiB'


def test_means_by_program_and_distribution(undrawn):
  compared = comparison([0.0, 0.5, 0.2, 0.7])
  table = compare.by(compared, 'program', LOOKS)['tables'][0]
  # net0 has kernels 0 and 2, net1 the others; default 10 %, random 200 %.
  kernels_of, *means = cells(table, 'net0')
  assert (kernels_of, *map(number, means)) == ('2', 10, 10, 200)
  assert number(cells(table, 'all kernels')[1]) == 35
  assert compare.by(compared, 'kind', LOOKS) == {}  # There is one kind.
  # Median (20 + 50) / 2; 90 % at 50 + .7 * 20.
  measure, values = next(iter(compared.values.items()))
  assert compare.distribution(values, measure, LOOKS).said.startswith(
      'Model0: median 35.00 %, 90 % within 64.0 %, worst 70.0 %; default tile: '
      'median 10.00 %')


def test_a_long_legend_leaves_room_for_the_curves():
  compared = comparison(*[[0.0, 0.5]] * 14)
  measure, values = next(iter(compared.values.items()))
  looks = compare.looks_of([f'Model{number}' for number in range(14)], TILE)
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    compare.distribution(values, measure, looks)


def test_names_stand_in_figures_as_they_are():
  compared = comparison([0.0, 0.5], [0.1, 0.4], [0.2, 0.3])
  names = '_mine', r'a$\bad$', '模型'
  compared = dataclasses.replace(compared, groups=dict(zip(
      names, compared.groups.values())))
  measure, values = next(iter(compared.values.items()))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    svg = compare.distribution(
        values, measure, compare.looks_of(names, TILE)).svg
  assert all(f'{name}<' in svg for name in names)


def test_paired_differences():
  table = compare.differences(comparison([0.1, 0.2, 0.3], [0.2, 0.3, 0.4]))
  # Ten points in every kernel: the interval has no width.
  minus = page.MINUS
  assert cells(table, f'Model0 {minus} Model1')[0] == (
      f'{minus}10.0 [{minus}10.0\u00a0to\u00a0{minus}10.0]')
  assert number(cells(table, f'Model0 {minus} default tile')[0]) == 10


def test_the_headline():
  # Both are behind the default tile, which has 10 % everywhere.
  title, certainty = compare.headline(comparison([.2, .3, .4], [.3, .4, .5]))
  assert title == ('Model0 has 10.0 percentage points less slowdown at top-1 '
                   'than Model1; the default tile is still 20.0 points faster')
  assert certainty.startswith(
      '95 % interval of the difference: 10.0 to 10.0. Model0 minus the default '
      'tile: 20.0 [10.0\u00a0to\u00a030.0] points. Groups of a single run')
  for runs_of, title, certainty in (
      ([[0, 0, .1], [0, .1, 0]], 'No clear winner: Model0 has 0.00 percentage '
       'points less slowdown at top-1 than Model1', 'It includes 0, so this'),
      ([[np.nan], [.1]], 'Model1 and Model0 have no top-1 % to compare',
       'All scores of one of them, or all runtimes, are equal.'),
      ([[.3, .3]], 'The default tile wins: 20.0 percentage points less',
       'Groups of a single run'),
      ([[.05]], 'No clear winner: Model0 has 5.00 percentage points less '
       'slowdown at top-1 than the default tile', 'too few problems')):
    headline = compare.headline(comparison(*runs_of))
    assert headline[0].startswith(title) and certainty in headline[1]


def test_tables_of_runs(monkeypatch, undrawn):
  monkeypatch.setattr(os.path, 'getmtime', lambda path: 0.0)
  infos = [run_info(seed=seed, top1=seed / 10) for seed in (1, 2, 3)]
  groups = [runs.Group('Mine', [runs.Run(f'run_{i}.jsonz', info, None)
                                for i, info in enumerate(infos)])]
  section = report.runs_section(
      groups, None, LOOKS | compare.looks_of(['Mine'], TILE))
  # Nothing was measured: mean and deviation of 10, 20 and 30 % in run files.
  groups = dict(zip(section['groups'].columns, ['Mine', *cells(
      section['groups'], 'Mine')]))
  assert (groups['runs'], groups['epochs'], groups['top-1 %, run file']) == (
      3, '3 ± 0', '20.0 ± 10.00')
  assert 'Runs: 3; written: 1970' in section['trained']
  assert [row[2] for row in section['runs'].rows] == ['1', '2', '3']
  assert cells(section['flags'], 'learning_rate') == ['same', '0.01']
  assert 'nan' not in str(section)


def test_curves_without_a_number_are_left_out():
  curves = {'train_loss': [3.0, 1.0], 'val_loss': [np.nan, np.nan],
            'val_opa': [None, None]}
  groups = [runs.Group('Mine', [runs.Run(
      'run_1.jsonz', {**run_info(), 'train_curve': curves}, None)])]
  looks = compare.looks_of(['Mine'], TILE)
  loss, = report.learning_curves(groups, looks)
  assert loss.said == 'training: 3 at first, 1 at epoch 2, 1 at best'
  curves['train_loss'] = [np.inf, 1e308]
  groups = [runs.Group('Mine', [runs.Run(
      'run_1.jsonz', {**run_info(), 'train_curve': curves}, None)])]
  assert report.learning_curves(groups, looks) == []


# ------------------------------------------------------------------- the page


def test_without_its_packages_there_is_one_clear_error(monkeypatch):
  monkeypatch.setitem(sys.modules, 'jinja2', None)
  with pytest.raises(UserError, match=r'pip install -e \"\.\[report\]\"'):
    page.require_packages()


def test_numbers_as_text():
  nan = float('nan')
  assert [page.number(value) for value in (-1.234, -0.001, 12.34, 265.14)] == [
      page.MINUS + '1.23', '0.00', '12.3', '265']
  assert page.number(nan) == page.number(None) == page.NOTHING
  assert page.spread(1.0, nan) == '1.00'
  assert page.spread(1.0, 0.25) == '1.00 ± 0.25'
  assert page.interval(1.5, 1.0, 2.0) == '1.50 [1.00\u00a0to\u00a02.00]'
  assert page.interval(1.5, nan, nan) == '1.50'


def test_text_of_files_is_escaped():
  svg = page.svg(lambda axes: axes.plot([1, 2, 3], [1, 3, 2]))
  evil = page.Table('<i>', ('a&b',), [('<script>',)])
  content = page.render(
      comparison=None, noun='kernel', choices='tiles', by_slowdown=True,
      problems=['<u>'],
      kernels=None, trained='', curves=[page.Figure('A & "B"', 'said', svg)],
      groups=evil, runs=evil, flags=evil)
  read = Page(content)
  assert not read.unclosed and read.counts['img'] == 1
  assert not {'script', 'i', 'b', 'u'} & set(read.counts)
  assert '<script>' in read.text and '<u>' in read.text
