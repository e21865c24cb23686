"""The sample data of the layout task: on disk, and of one program."""

import dataclasses
import os
import pathlib

import numpy as np
import pytest

from tpu_graphs_ext import cli
from tpu_graphs_ext.analytic.layout_cost import LayoutConstants
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.data import check, schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import layout_choices, protos
from tpu_graphs_ext.sample import layouts, programs, write_layouts
from tpu_graphs_ext.sample.write_layouts import LayoutSampleSettings

_programs_of = write_layouts._programs
COLLECTIONS = [(source, search) for source in ('xla', 'nlp')
               for search in ('default', 'random')]


def smallest(source, split) -> programs.Program:
  return min((program for program in programs.load()
              if (program.source, program.split) == (source, split)),
             key=lambda program: len(program.module))


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
  """(settings, summary) of a program in each split of each source."""
  patch = pytest.MonkeyPatch()
  patch.setattr(write_layouts, '_programs', lambda source, split, seed: [
      smallest(source, split)])
  settings = LayoutSampleSettings(
      str(tmp_path_factory.mktemp('layouts') / 'data'), most_configs=40,
      workers=1)
  yield settings, write_layouts.write_layout_data(settings)
  patch.undo()


def arrays_of(path) -> dict:
  with np.load(path) as stored:
    return dict(stored)


def files_in(folder) -> dict:
  return {path.relative_to(folder).as_posix(): path.read_bytes()
          for path in pathlib.Path(folder).rglob('*') if path.is_file()}


# --- The folder --------------------------------------------------------------


@pytest.mark.parametrize('source, search', COLLECTIONS)
def test_files_pass_the_checks_of_the_layout_task(tiny, source, search):
  folder = os.path.join(tiny[0].out, source, search)
  report = check.check_data(folder, 'layout')
  assert report.ok, report.text()
  assert {split: counts['kernels'] for split, counts in report.counts.items()
          } == {'train': 1, 'valid': 1, 'test': 1}
  assert sorted(os.listdir(folder)) == [
      'test', 'test_labelled', 'train', 'valid']


def test_both_searches_have_the_same_programs(tiny):
  for source in ('xla', 'nlp'):
    for split in ('train', 'valid', 'test', 'test_labelled'):
      names = [sorted(os.listdir(os.path.join(
          tiny[0].out, source, search, split)))
               for search in ('default', 'random')]
      assert names[0] == names[1]


def test_labels_of_test_are_blanked_and_kept_aside(tiny):
  folder = os.path.join(tiny[0].out, 'nlp', 'random')
  name, = os.listdir(os.path.join(folder, 'test'))
  assert len(name) == 32 + len('.npz')
  hidden, full = (arrays_of(os.path.join(folder, split, name))
                  for split in ('test', 'test_labelled'))
  assert not hidden['config_runtime'].any()
  assert (full['config_runtime'] > 0).all()
  for field in schema.LAYOUT_FIELDS:
    assert full[field.name].dtype == field.dtype
    if field.name != 'config_runtime':
      np.testing.assert_array_equal(hidden[field.name], full[field.name])


def test_same_settings_are_not_written_twice_and_give_the_same_bytes(
    tiny, tmp_path):
  settings, summary = tiny
  again = write_layouts.write_layout_data(settings)
  assert again.reused and again.collections == summary.collections
  assert 'already there' in again.text()
  other = dataclasses.replace(settings, out=str(tmp_path / 'again'))
  write_layouts.write_layout_data(other)
  assert files_in(other.out) == files_in(settings.out)


def test_text_sets_real_files_beside_and_says_modelled(tiny):
  text = tiny[1].text()
  assert 'runtimes are modelled' in text and 'real files' in text
  assert 'xla:default' in text and 'nlp:random' in text
  assert text.count('2,026') == 1


def test_a_folder_with_something_else_is_left_alone(tmp_path):
  (tmp_path / 'xla').mkdir()
  with pytest.raises(UserError, match="holds 'xla', which is not sample"):
    write_layouts.write_layout_data(LayoutSampleSettings(str(tmp_path)))


@pytest.mark.parametrize('field, value', [
    ('programs', 6), ('most_configs', 1), ('seed', -1), ('workers', 0)])
def test_settings_are_checked(field, value):
  with pytest.raises(UserError, match=f'{field} is {value}; it must be'):
    LayoutSampleSettings('out', **{field: value})


@pytest.mark.parametrize('flags, said', [
    (['--task', 'layout', '--kernels', '70'], '--kernels is of the tile task'),
    (['--task', 'layout', '--noise'], '--noise is of the tile task'),
    (['--programs', '7'], '--programs is of the layout task'),
])
def test_flags_of_the_other_task(capsys, tmp_path, flags, said):
  assert cli.main(['sample-data', '--out', str(tmp_path / 'd'), *flags]) == 1
  assert said in capsys.readouterr().err
  assert not (tmp_path / 'd').exists()


def test_seed_and_count_choose_programs():
  names = {seed: [program.name for program in _programs_of(
      'xla', 'train', seed)] for seed in (0, 1)}
  assert names[0] != names[1] and sorted(names[0]) == sorted(names[1])
  assert len(names[0]) >= 10


def test_a_damaged_file_of_the_package_is_named(tmp_path):
  path = tmp_path / 'programs.xz'
  path.write_bytes(b'no programs')
  with pytest.raises(UserError, match='install the package again'):
    programs.load(str(path))


# --- One program -------------------------------------------------------------


@pytest.fixture(scope='module')
def module():
  return protos.as_module(smallest('xla', 'train').module)


def graph_of(module, search, configs=200, **constants):
  return layouts.sample_graph(
      module, 'p', search, configs, LayoutConstants(**constants), 5)


@pytest.mark.parametrize('search', layouts.SEARCHES)
def test_layouts_are_options_of_their_nodes(module, search):
  graph = graph_of(module, search)
  choices = layout_choices.layout_choices(module)
  assert graph.node_config_ids.tolist() == [c.node for c in choices]
  groups = schema.LAYOUT_CONFIG_GROUPS.values()
  for place, choice in enumerate(choices):
    asked = {tuple(tuple(int(d) for d in row[columns] if d >= 0)
                   for columns in groups)
             for row in graph.node_config_feat[:, place]}
    assert asked <= {tuple(option) for option in choice.options}
  # The first is the compiler's own.
  assert [tuple(int(d) for d in row[:6] if d >= 0)
          for row in graph.node_config_feat[0]] == [
              choice.options[0].output for choice in choices]


def test_nodes_with_the_same_options_are_configured_alike(module):
  feats = graph_of(module, 'random').node_config_feat
  choices = layout_choices.layout_choices(module)
  groups = len({choice.group for choice in choices})
  columns = {feats[:, place].tobytes() for place in range(len(choices))}
  assert len(columns) == groups < len(choices)


def test_a_search_finds_faster_layouts_than_chance(module):
  searched, random = (
      graph_of(module, search, noise=0.0).config_runtime
      for search in layouts.SEARCHES)
  assert np.median(searched) < np.median(random)
  assert searched[0] == random[0]
  assert np.median(searched[100:]) < np.median(searched[1:13])


def test_equal_layouts_differ_by_noise_alone(module):
  quiet, noisy = (graph_of(module, 'default', noise=noise)
                  for noise in (0.0, 1e-3))
  flat = quiet.node_config_feat.reshape(200, -1)
  _, first, group = np.unique(
      flat, axis=0, return_index=True, return_inverse=True)
  group = group.reshape(-1)
  assert len(first) < 200  # The search comes back to the same ones.
  np.testing.assert_array_equal(
      quiet.config_runtime, quiet.config_runtime[first][group])
  assert len(set(noisy.config_runtime)) > len(first)


def test_a_program_without_a_choice_is_none():
  entry = protos.HloComputationProto(id=1, name='entry', root_id=2)
  entry.instructions.add(id=2, name='p', opcode='parameter')
  module = protos.HloModuleProto(entry_computation_id=1)
  module.computations.append(entry)
  assert graph_of(module, 'random') is None


# --- The baseline ------------------------------------------------------------

READ = '''
import sys
from absl import flags
from tpu_graphs.baselines.layout import data
flags.FLAGS(['read'])
partitions = data.get_npz_dataset(
    sys.argv[1], min_train_configs=4, cache_dir=sys.argv[2])
for name in ('train', 'validation', 'test'):
  graphs = list(getattr(partitions, name).iter_graph_tensors())
  print('READ', name, len(graphs), *(
      graph.node_sets['g']['runtimes'].shape[1] for graph in graphs))
'''


@pytest.mark.baseline
def test_the_baselines_unchanged_reader_takes_them(tiny, tmp_path):
  root = checkout.find()
  if root is None:
    pytest.skip('needs a checkout of the baseline, named by '
                f'{checkout.ROOT_VARIABLE}, which is not set')
  copy = checkout.working_copy(root, str(tmp_path / 'tpu_graphs'))
  with open(os.path.join(copy, 'read_layouts.py'), 'w') as file:
    file.write(READ)
  log = str(tmp_path / 'read.log')
  checkout.run_script(copy, [
      'read_layouts.py', os.path.join(tiny[0].out, 'nlp', 'default'),
      str(tmp_path / 'cache')], log)
  with open(log) as file:
    read = [line.split() for line in file if line.startswith('READ')]
  assert [words[1:3] for words in read] == [
      ['train', '1'], ['validation', '1'], ['test', '1']]
  folder = os.path.join(tiny[0].out, 'nlp', 'default')
  name, = os.listdir(os.path.join(folder, 'test'))
  configs = len(arrays_of(os.path.join(folder, 'test', name))['config_runtime'])
  assert read[2][3] == str(configs)
