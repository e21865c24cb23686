"""Finding runs, whatever else lies there, and grouping them."""

import gzip
import os
import pathlib

import pytest

from support.tiny_runs import run_info, write_run
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import TEMPORARY
from tpu_graphs_ext.report import runs


def names(found):
  return [(run.model, run.seed) for run in found]


def test_a_folder_a_run_file_and_a_model_folder_name_the_same_run(tmp_path):
  path = write_run(tmp_path, run_info(), with_model=True)
  model_dir = str(tmp_path / os.path.basename(path).replace(
      'run_', 'model_').replace('.jsonz', ''))
  for given in ([str(tmp_path)], [path], [model_dir], [model_dir + '/'],
                [str(tmp_path), path, model_dir]):
    (run,), problems = runs.find(given)
    assert (run.run_path, run.model_dir.rstrip('/')) == (path, model_dir)
    assert not problems


def test_runs_are_found_at_any_depth_and_sorted_by_model(tmp_path):
  write_run(tmp_path / 'a' / 'deep', run_info('Zeta'), with_model=True)
  write_run(tmp_path / 'b', run_info('Alpha'), with_model=True)
  found, problems = runs.find([str(tmp_path)])
  assert names(found) == [('Alpha', 1), ('Zeta', 1)]
  assert not problems
  # But paths stay in the order in which they are given.
  found, _ = runs.find([str(tmp_path / 'a'), str(tmp_path / 'b')])
  assert names(found) == [('Zeta', 1), ('Alpha', 1)]


def test_a_run_file_alone_is_a_run_and_is_said_to_be_alone(tmp_path):
  path = write_run(tmp_path, run_info())
  (run,), (problem,) = runs.find([path])
  assert run.model_dir is None
  assert problem.startswith(f'{path}: its model folder is not beside it')


def put(folder, name, content=b''):
  path = pathlib.Path(folder) / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(content)
  return path


def cut(folder):
  """A run file that was copied by half."""
  path = pathlib.Path(write_run(folder, run_info('Other')))
  path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize('spoil, said', [
    (lambda folder: (folder / 'bad').mkdir(), None),
    (lambda folder: put(folder, 'bad/saved_model.pb'), None),
    (lambda folder: (folder / 'model_0123').mkdir(),
     'model_0123: its run file'),
    (cut, 'cannot be read as a run file'),
    (lambda folder: put(folder, 'run_x.jsonz', b'hello'),
     'run_x.jsonz: cannot be read as a run file'),
    (lambda folder: put(folder, 'run_x.jsonz', gzip.compress(b'{"args": 3}')),
     'run_x.jsonz: cannot be read as a run file'),
    (lambda folder: put(folder, 'run_x.jsonz', gzip.compress(
        b'{"args": {"lr": 1}}')), 'its args lack model, model_kwargs_json'),
    (lambda folder: (folder / f'model_ab.01234567{TEMPORARY}').mkdir(),
     'a folder that was never finished; remove it'),
    (lambda folder: (folder / 'resume_ab').mkdir(),
     'resume_ab: left by a training that is not finished'),
    (lambda folder: write_run(folder, {**run_info('Other'), 'final_error': {}},
                              with_model=True),
     'is not finished; of it is here what it had done by epoch 3'),
])
def test_what_is_no_run_gets_one_message_and_the_rest_is_read(
    tmp_path, spoil, said):
  write_run(tmp_path, run_info(), with_model=True)
  spoil(tmp_path)
  found, problems = runs.find([str(tmp_path)])
  assert ('TinyRanker', 1) in names(found)
  if said:
    assert sum(said in problem for problem in problems) == 1
  # A run file without its model is said to be one, besides.
  assert len(problems) == bool(said)


@pytest.mark.parametrize('files, said', [
    ([], 'it is empty'),
    (['saved_model.pb', 'fingerprint.pb'],
     'it has fingerprint.pb, saved_model.pb. Name the --out_dir'),
    (list('abcdefg'), 'it has a, b, c, d, e, ....')])
def test_a_folder_without_runs_is_refused_with_what_it_has(
    tmp_path, files, said):
  for name in files:
    put(tmp_path, name)
  with pytest.raises(UserError) as error:
    runs.find([str(tmp_path)])
  assert 'there is no run to report' in str(error.value)
  assert f'{tmp_path}: has no run, which is a folder model_<hash>' in str(
      error.value)
  assert said in str(error.value)


def test_a_path_that_is_not_there_does_not_stop_the_others(tmp_path):
  path = write_run(tmp_path, run_info(), with_model=True)
  found, (problem,) = runs.find([path, str(tmp_path / 'no')])
  assert len(found) == 1
  assert problem.startswith(f'{tmp_path}/no: no such file or folder')


# ------------------------------------------------------------------ grouping


def grouped(tmp_path, *infos):
  for number, info in enumerate(infos):
    write_run(tmp_path / str(number), info, with_model=True)
  found, _ = runs.find([str(tmp_path / str(number))
                        for number in range(len(infos))])
  return runs.grouped(found)


def test_seeds_and_places_make_no_group(tmp_path):
  one, = grouped(tmp_path, run_info(seed=2, out_dir='a', results_csv='b'),
                 run_info(seed=1, out_dir='c', results_csv='d'))
  assert [run.seed for run in one.runs] == [1, 2]
  assert one.name == 'TinyRanker'


def test_flags_and_arguments_make_groups_that_say_how_they_differ(tmp_path):
  groups = grouped(
      tmp_path, run_info(), run_info(learning_rate=0.1),
      run_info(kwargs='{"width": 8}'), run_info('Other'))
  assert [group.name for group in groups] == [
      'TinyRanker, learning_rate=0.01', 'TinyRanker, learning_rate=0.1',
      'TinyRanker, width=8, learning_rate=0.01', 'Other']


def test_mean_and_deviation_over_seeds(tmp_path):
  group, = grouped(tmp_path, run_info(), run_info(seed=2), run_info(seed=3))
  # Deviations of 1, 2, 3 from 2: 1, 0, 1; over n - 1 = 2.
  assert group.spread([1.0, 2.0, 3.0]) == (2.0, 1.0)
  assert group.spread([1.0, None, None]) == (1.0, None)
  assert group.spread([None] * 3) == (None, None)


def test_no_two_groups_have_one_name(tmp_path):
  # Both are cut to equal texts.
  groups = grouped(tmp_path, run_info(note='x' * 30 + 'a'),
                   run_info(note='x' * 30 + 'b'))
  first = f'TinyRanker, note={"x" * 23}…'
  assert [group.name for group in groups] == [f'{first} (1)', f'{first} (2)']


def test_long_arguments_are_cut():
  assert runs.shown({'node': [0] * 140, 'config': [0] * 24}) == 'given'
  assert runs.shown('x' * 60) == 'x' * 47 + '…'
  assert runs.shown(0.5) == '0.5'


def test_a_curve_of_unlike_lengths_is_only_what_is_whole():
  info = run_info()
  info['train_curve']['val_opa'] = [0.5]
  info['train_curve']['train_opa'] = ['much']
  run = runs.Run('run_x.jsonz', info, {}, None)
  assert set(run.curve) == {'epoch', 'train_loss', 'val_loss'}
  assert run.best_epoch is None
  assert runs.Run('x', {**info, 'train_curve': {}}, {}, None).curve == {}


def test_the_name_is_the_hash():
  run = runs.Run(os.path.join('a', 'run_0123.jsonz'), run_info(), {}, None)
  assert run.name == '0123'
