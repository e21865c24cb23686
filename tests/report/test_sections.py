"""Sections of the page, with results that are written by hand."""

import re

import numpy as np

from support import tiny_kernels
from support.tiny_runs import Page, run_info
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.host import distinct, results
from tpu_graphs_ext.report import measure, overview, runs, slowdowns


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
      yield kernel, distinct.Scores(
          -np.arange(kernel.num_configs, dtype=np.float32),
          np.arange(kernel.num_configs))


def measurements(*of_runs, constants=({},)):
  """Groups of one run each, each a list of slowdowns at top-1."""
  groups = [runs.Group(chr(65 + number), f'Model{number}', [
      runs.Run(f'run_{number}.jsonz', run_info(f'Model{number}'), {}, 'm')])
            for number in range(len(of_runs))]
  of_group = {
      group.letter: [measure.Measured(
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
      'net_3': {'B': 'worst'}, 'net_1': {'A': 'worst', 'B': 'best'},
      'net_0': {'A': 'best'}}
  # The worst of all comes first; scores are of the groups concerned.
  assert chosen[0].kernel.tile_id == 'net_3'
  assert chosen[0].scores['B'].order[0] == 19
  assert set(chosen[1].scores) == {'A', 'B'}


def test_kernels_that_nothing_can_rank_are_not_shown():
  rows = results.table([
      result('a', 5.0, rankable=False), result('b', 1.0),
      result('c', 0.0, configs=3), result('d', 0.2)])
  assert measure._ends(rows, 1) == [('worst', [1]), ('best', [3])]
  assert measure._ends(rows, 9) == [('worst', [1, 3, 2]), ('best', [])]


def cells(content, row):
  found = re.search(
      f'<th scope="row">{re.escape(row)}</th>(.*?)</tr>', content)[1]
  return re.findall(r'<td[^>]*>(.*?)</td>', found)


def test_means_by_program_and_what_they_are_held_against():
  content = slowdowns.by_program(measurements([0.0, 0.5, 0.2, 0.7]))
  # net0 has kernels 0 and 2, net1 the others; default 10 %, random 200 %.
  kernels, own, default, random = cells(content, 'net0')
  assert (kernels, own.split(' ')[0]) == ('2', '10.00')
  assert default.startswith('10.00 [10.00 to 10.00]')
  assert random.startswith('200.00')
  assert cells(content, 'net1')[1].startswith('60.00')
  assert cells(content, 'all kernels')[1].startswith('35.00')


def test_of_many_programs_the_common_are_drawn(monkeypatch):
  monkeypatch.setattr(slowdowns, 'MOST_PROGRAMS', 1)
  found = measurements([0.0] * 5)
  found.of_group['A'][0].rows['program'] = ['a', 'b', 'c', 'b', 'a']
  content = slowdowns.by_program(found)
  assert 'a (2)' in content and 'the other programs (3)' in content
  assert 'b (2)' not in content and cells(content, 'b')[0] == '2'


def test_distribution_over_kernels():
  content = slowdowns.distribution(measurements([0.0, 0.04, 0.2, 1.0]))
  # At the best 1 of 4, within 5 % 2 of 4; median (4 + 20) / 2.
  assert cells(content, 'A: Model0')[:3] == ['25.0', '50.0', '12.00']
  assert cells(content, 'A: Model0')[-1] == '100.00'
  assert cells(content, 'default tile')[2] == '10.00'


def test_paired_differences():
  content = slowdowns.differences(measurements([0.1, 0.2, 0.3],
                                               [0.2, 0.3, 0.4]))
  # Ten points in every kernel: the interval has no width.
  assert cells(content, f'A: Model0 {chr(0x2212)} B: Model1')[0] == (
      f'{chr(0x2212)}10.00 [{chr(0x2212)}10.00 to {chr(0x2212)}10.00]')
  assert cells(content, f'A: Model0 {chr(0x2212)} default tile')[0].startswith(
      '10.00')


def test_many_groups_are_compared_with_the_best():
  content = slowdowns.differences(measurements(*[[0.1 * i] * 2
                                                 for i in (3, 2, 1, 4, 5)]))
  pairs = set(re.findall(r'<th scope="row">(\w): \w+ . (default|\w)', content))
  assert pairs == {('C', other) for other in 'ABDE'} | {
      (letter, 'default') for letter in 'ABCDE'}


def test_constants_beside_where_they_started():
  content = overview.constants(measurements(
      [0.0], [0.0], constants=({'launch_ns': (200.0, 300.0),
                                'own_ns': (None, 4.0)}, {})))
  assert cells(content, 'launch_ns') == [
      '200', '300', f'{chr(0xd7)} 1.5', 'time of a kernel that does nothing']
  assert cells(content, 'own_ns')[:2] == [chr(0x2013), '4']
  assert 'Model1' not in content


def test_one_kernel_and_one_run_are_enough():
  found = measurements([0.5])
  for section in (slowdowns.by_program, slowdowns.distribution,
                  slowdowns.differences, overview.runs,
                  lambda found: overview.learning_curves(found.groups)):
    page = Page(section(found))
    assert not page.unclosed and 'nan' not in page.text
