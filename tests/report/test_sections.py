"""Sections of the page, with results that are written by hand."""

import math
import os

import numpy as np

from support import tiny_kernels
from support.tiny_runs import run_info
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import duplicate_configs, results
from tpu_graphs_ext.report import (
  measure,
  overview,
  page,
  runs,
  slowdowns,
  summary,
)


def result(tile_id, slowdown, program='net', configs=20, **changes):
  return {
      'tile_id': tile_id, 'program': program, 'kind': 'copy',
      'configs': configs, 'rankable': True, 'repeats': 0,
      'slowdown_1': slowdown, 'slowdown_5': slowdown / 2, 'slowdown_10': 0.0,
      'random_1': 2.0, 'random_5': 1.0, 'random_10': 0.5, 'default': 0.1,
      'opa': 0.9, 'kendall': 0.8, **changes}


class FixedRanker:
  """Thinks that the last configuration is the fastest."""

  def score_all(self, partition, what):
    for kernel in partition:
      yield kernel, duplicate_configs.Scores(
          -np.arange(kernel.num_configs, dtype=np.float32),
          np.arange(kernel.num_configs))


def measurements(*of_runs, constants=({},)):
  """Groups of one run each, each a list of slowdowns at top-1."""
  groups = [runs.Group(f'Model{number}', [
      runs.Run(f'run_{number}.jsonz', run_info(f'Model{number}'), {}, 'm')])
            for number in range(len(of_runs))]
  of_group = {
      group.name: [measure.Measured(
          group.runs[0],
          results.table(result(f'net_{i}', value, f'net{i % 2}')
                        for i, value in enumerate(values)),
          FixedRanker(), constants[number % len(constants)])]
      for number, (group, values) in enumerate(zip(groups, of_runs))}
  kernels = Partition.from_kernels([
      tiny_kernels.make_kernel(f'net_{i}', num_configs=20)
      for i in range(len(of_runs[0]))])
  return measure.Measurements('here', kernels, groups, of_group)


def test_worst_and_best_kernels_of_each_group():
  found = measurements([0.0, 0.5, 0.1, 0.2], [0.3, 0.0, 0.0, 0.9])
  chosen = measure.chosen_kernels(found, 1)
  assert {one.kernel.tile_id: one.roles for one in chosen} == {
      'net_3': {'Model1': 'worst'}, 'net_0': {'Model0': 'best'},
      'net_1': {'Model0': 'worst', 'Model1': 'best'}}
  # The worst of all comes first; scores are of the groups concerned.
  assert chosen[0].kernel.tile_id == 'net_3'
  assert chosen[0].scores['Model1'].order[0] == 19
  assert set(chosen[1].scores) == {'Model0', 'Model1'}


def test_kernels_that_nothing_can_rank_are_not_shown():
  rows = results.table([
      result('a', 5.0, rankable=False), result('b', 1.0),
      result('c', 0.0, configs=3), result('d', 0.2)])
  assert measure._ends(rows, 1) == [('worst', [1]), ('best', [3])]
  assert measure._ends(rows, 9) == [('worst', [1, 3, 2]), ('best', [])]


def tables(blocks):
  """All tables of a section, those of figures and folds too."""
  for block in blocks:
    if isinstance(block, page.Table):
      yield block
    elif isinstance(block, page.Figure):
      yield from [block.table] if block.table else []
    elif isinstance(block, (page.Row, page.Fold)):
      yield from tables(block.blocks)


def cells(section, row):
  return next(rest for table in tables(section.blocks)
              for first, *rest in table.rows if first == row)


def test_means_by_program_and_what_they_are_held_against():
  section = slowdowns.by_program(measurements([0.0, 0.5, 0.2, 0.7]))
  # net0 has kernels 0 and 2, net1 the others; default 10 %, random 200 %.
  kernels, own, default, random = cells(section, 'net0')
  assert (kernels, own.split(' ')[0]) == ('2', '10.00')
  assert default == '10.00 [10.00 to 10.00]'
  assert random.startswith('200.00')
  assert cells(section, 'net1')[1].startswith('60.00')
  assert cells(section, 'all kernels')[1].startswith('35.00')


def test_of_many_programs_the_common_are_drawn(monkeypatch):
  monkeypatch.setattr(slowdowns, 'MOST_PROGRAMS', 1)
  found = measurements([0.0] * 5)
  found.of_group['Model0'][0].rows['program'] = ['a', 'b', 'c', 'b', 'a']
  section = slowdowns.by_program(found)
  svg = section.blocks[1].blocks[0].svg
  assert 'a (2)' in svg and 'the other programs (3)' in svg
  assert 'b (2)' not in svg and cells(section, 'b')[0] == '2'


def test_distribution_over_kernels():
  section = slowdowns.distribution(measurements([0.0, 0.04, 0.2, 1.0]))
  # At the best 1 of 4, within 5 % 2 of 4; median (4 + 20) / 2.
  assert cells(section, 'Model0')[:3] == ['25.0', '50.0', '12.00']
  assert cells(section, 'Model0')[-1] == '100.00'
  assert cells(section, 'default tile')[2] == '10.00'


def test_paired_differences():
  section = slowdowns.differences(measurements([0.1, 0.2, 0.3],
                                               [0.2, 0.3, 0.4]))
  # Ten points in every kernel: the interval has no width.
  assert cells(section, f'Model0 {page.MINUS} Model1')[0] == (
      f'{page.MINUS}10.00 [{page.MINUS}10.00 to {page.MINUS}10.00]')
  assert cells(section, f'Model0 {page.MINUS} default tile')[0].startswith(
      '10.00')


def test_many_groups_are_compared_with_the_best():
  section = slowdowns.differences(measurements(*[[0.1 * i] * 2
                                                 for i in (3, 2, 1, 4, 5)]))
  pairs = {row[0] for table in tables(section.blocks) for row in table.rows}
  assert pairs == {
      *(f'Model2 {page.MINUS} Model{other}' for other in (0, 1, 3, 4)),
      *(f'Model{own} {page.MINUS} default tile' for own in range(5))}


def test_constants_beside_where_they_started():
  section = overview.constants(measurements(
      [0.0], [0.0], constants=({'launch_ns': (200.0, 300.0),
                                'own_ns': (None, 4.0)}, {})))
  assert cells(section, 'launch_ns') == [
      '200', '300', f'{page.TIMES} 1.5', 'time of a kernel that does nothing']
  assert cells(section, 'own_ns')[:2] == [page.NOTHING, '4']


def test_the_summary_names_the_winner_and_how_certain_that_is(monkeypatch):
  monkeypatch.setattr(os.path, 'getmtime', lambda path: 0.0)
  found = measurements([0.2, 0.3, 0.4], [0.1, 0.2, 0.3])
  section = summary.summary(found)
  assert section.title == ('Model1 wins: 10.00 percentage points less '
                           'slowdown than Model0')
  facts = dict(section.blocks[0].blocks[0].pairs)
  assert '10.00 to 10.00, all of it above 0' in facts['Certainty']
  assert facts['Data'] == '3 labelled kernels of 2 programs: here'
  assert '1970' in facts['Trained'] and 'somewhere' in facts['Trained']
  table, = tables(section.blocks)
  assert [row[0] for row in table.rows] == [
      'Model1', 'Model0', 'default tile', 'random tiles']
  # One group alone is held against the default tile, here 10 %.
  assert summary.summary(measurements([0.3, 0.3])).title == (
      'default tile beats Model0: 20.00 percentage points less slowdown')


def test_verdicts():
  assert summary.verdict('A', 'B', (1.0, -0.5, 2.0), 'points')[0] == (
      'No clear winner: A has 1.00 points than B')
  title, certainty = summary.verdict('A', 'B', (1.0, math.nan, math.nan), 'x')
  assert title == 'A leads: 1.00 x than B' and 'no interval' in certainty


def test_one_kernel_and_one_run_are_enough():
  found = measurements([0.5])
  for section in (slowdowns.by_program(found), slowdowns.distribution(found),
                  slowdowns.differences(found), overview.runs(found),
                  overview.learning_curves(found.groups)):
    assert 'nan' not in str([table.rows for table in tables(section.blocks)])
