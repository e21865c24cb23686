"""The page, from runs that were trained to its last section."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

from support import tiny_kernels, tiny_models
from support.tiny_runs import Page, run_info, write_run
from tpu_graphs_ext import cli
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import distinct, evaluate, train
from tpu_graphs_ext.host.settings import LoadSettings
from tpu_graphs_ext.report import measure, overview, report, runs, slowdowns

SECTIONS = ['Runs', 'Learning curves', 'Slowdown by program',
            'Slowdown by kind of kernel', 'Distribution over kernels',
            'Differences between runs', 'Single kernels']


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder of three runs in two groups, and their data."""
  folder = tmp_path_factory.mktemp('runs')
  root = tiny_kernels.write_data_root(folder / 'data')
  # Programs and kinds that differ, so that both sections are there.
  kernel = tiny_kernels.learnable_kernel(
      'other_net_0', np.random.default_rng(1), 14)
  kernel.node_opcode[:] = 13
  kernel.save(str(root / 'valid'))
  for changes in ({'seed': 1}, {'seed': 2},
                  {'model_kwargs_json': '{"width": 2}'}):
    train.train(tiny_models.tiny_settings(root, folder / 'out', **changes))
  return folder


@pytest.fixture(scope='module')
def content(trained):
  return made([trained / 'out'], trained / 'report.html')


def made(paths, out, **changes):
  loading = LoadSettings(models_py=tiny_models.__file__, cache_dir='')
  path = report.report([str(path) for path in paths], out=str(out),
                       loading=loading, **changes)
  assert path == str(out)
  return pathlib.Path(out).read_text(encoding='utf-8')


def titles(content):
  return re.findall(r'<h2>(.*?)</h2>', content)


def test_every_section_is_there(content):
  assert titles(content) == SECTIONS  # No model of these has constants.
  assert 'A: TinyRanker, ' not in content.split('<h2>')[0]
  page = Page(content)
  assert not page.unclosed
  assert len(page.ids) == len(set(page.ids))
  assert {target[1:] for target in page.targets} <= set(page.ids)


def test_it_needs_nothing_else(content):
  page = Page(content)
  assert page.outside == ['data:,']
  assert 'script' not in page.counts
  assert not re.search(r'url\((?!#)|@import|https?://(?!www\.w3\.org/)',
                       content)


def test_figures_have_words_and_numbers(content):
  page = Page(content)
  # OPA, a loss a group; three each of programs, kinds, distributions,
  # differences; and for each kernel a graph and what concerns it.
  scatters = len(set(re.findall(r'id="(kernel-\d+-[A-Z])-t"', content)))
  kernels = page.counts['article']
  assert 4 <= kernels <= 8 and scatters >= kernels
  assert page.counts['svg'] == 1 + 2 + 12 + kernels + scatters
  assert content.count('<title') - 1 == page.counts['svg']
  assert page.counts['desc'] == page.counts['svg']
  assert content.count('tabindex="0"') == content.count('role="region"')


def test_numbers_are_those_of_evaluate(trained, content):
  found, problems = runs.find([str(trained / 'out')])
  assert not problems
  group, = (group for group in runs.grouped(found) if len(group.runs) == 2)
  tops = [evaluate.evaluate(run.model_dir, str(trained / 'data' / 'valid'),
                            loading=LoadSettings(
                                models_py=tiny_models.__file__)
                            ).micro.slowdown[5] for run in group.runs]
  shown = f'{100 * np.mean(tops):.2f} ± {100 * np.std(tops, ddof=1):.2f}'
  row = re.search(f'<th scope="row">{re.escape(group.name)}</th>.*?</tr>',
                  content)[0]
  assert f'>{shown}</td>' in row


def test_equal_runs_give_equal_pages(trained, content):
  again = made([trained / 'out'], trained / 'again.html')
  assert again == content


def test_the_command(trained, capsys):
  out = trained / 'by_command.html'
  flags = [f'--models_py={tiny_models.__file__}', '--cache_dir=',
           '--kernels=0', f'--out={out}']
  assert cli.main(['report', str(trained / 'out'), *flags]) == 0
  assert capsys.readouterr().out == f'{out}\n'
  assert titles(out.read_text()) == SECTIONS[:-1]
  assert cli.main(['report', str(trained / 'data'), *flags]) == 1
  said = capsys.readouterr().err
  assert said.startswith('error: there is no run to report:\n')
  assert said.count('\n') == 2


def test_kernels_without_labels_are_left_out_and_named(
    trained, tmp_path, caplog):
  for path in sorted((trained / 'data' / 'valid').glob('*.npz'))[:4]:
    Kernel.load(str(path)).save(str(tmp_path / 'some'))
  blank = tiny_kernels.learnable_kernel(
      'blank_0', np.random.default_rng(0), 12)
  dataclasses.replace(blank, runtime_ns=0 * blank.runtime_ns).save(
      str(tmp_path / 'some'))
  content = made([trained / 'out'], tmp_path / 'r.html',
                 data=str(tmp_path / 'some'))
  said = '1 of 5 kernels have no labels'
  assert said in content and said in caplog.text
  assert 'of 4 labelled kernels' in ' '.join(Page(content).text.split()) or (
      '4 labelled kernels' in content)
  assert 'Slowdown by program' in titles(content)


@pytest.mark.parametrize('data, said', [
    ('test', 'none of its 6 kernels has labels'),
    ('no_such_folder', 'no such file or folder')])
def test_without_labelled_kernels_the_rest_is_made(
    trained, tmp_path, data, said):
  content = made([trained / 'out'], tmp_path / 'r.html',
                 data=str(trained / 'data' / data))
  assert titles(content) == SECTIONS[:2]
  assert content.count(said) == 1


def test_a_run_that_cannot_be_loaded_leaves_the_others(trained, tmp_path):
  """An unknown model, with and without its folder; curves are there still."""
  write_run(tmp_path, run_info('NoSuchModel'), with_model=True)
  write_run(tmp_path, run_info('Gone', epochs=7))
  content = made([trained / 'out', tmp_path], tmp_path / 'r.html',
                 num_kernels=1, data=str(trained / 'data' / 'valid'))
  assert titles(content) == SECTIONS
  # It names the nearest models and how the class is looked for.
  assert content.count("there is no model &#x27;NoSuchModel&#x27;") == 1
  assert content.count('its model folder is not beside it') == 1
  assert 'C: NoSuchModel' in content and 'Loss of D: Gone by epoch' in content


def test_another_file_is_not_replaced(trained, tmp_path):
  path = tmp_path / 'mine.html'
  path.write_text('<html>mine</html>')
  with pytest.raises(UserError, match='is no report of this package'):
    made([trained / 'out'], path)
  assert path.read_text() == '<html>mine</html>'


# ----------------------------------------------- parts, with results by hand


def result(tile_id, slowdown, program='net', configs=20, **changes):
  return evaluate.KernelResult(**{
      'tile_id': tile_id, 'program': program, 'kind': 'copy',
      'configs': configs, 'rankable': True, 'repeats': 0,
      'slowdown': {1: slowdown, 5: slowdown / 2, 10: 0.0},
      'slowdown_kept': {1: 0.0, 5: 0.0, 10: 0.0},
      'random': {1: 2.0, 5: 1.0, 10: 0.5}, 'default': 0.1, 'opa': 0.9,
      'kendall': 0.8, **changes})


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
          group.runs[0], [result(f'net_{i}', value, f'net{i % 2}')
                          for i, value in enumerate(values)],
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
  results = [result('a', 5.0, rankable=False), result('b', 1.0),
             result('c', 0.0, configs=3), result('d', 0.2)]
  assert measure._ends(results, 1) == [('worst', [1]), ('best', [3])]
  assert measure._ends(results, 9) == [('worst', [1, 3, 2]), ('best', [])]


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
  names = ['a', 'b', 'c', 'b', 'a']
  own = found.of_group['A'][0]
  own.results[:] = [dataclasses.replace(one, program=name)
                    for one, name in zip(own.results, names)]
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
  pairs = set(re.findall(r'<th scope="row">(\w): \w+ . (\w|default)', content))
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
                  overview.learning_curves):
    page = Page(section(found))
    assert not page.unclosed and 'nan' not in page.text
