"""Finding runs, whatever else lies there, and grouping them."""

import gzip
import math
import os
import pathlib

import pytest

from support.tiny_runs import run_info, write_run
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import runs


def test_all_names_of_a_training(tmp_path):
  path = write_run(tmp_path, run_info(), with_model=True)
  model_dir = path.replace('run_', 'model_').replace('.jsonz', '')
  for paths in ([str(tmp_path)], [path], [model_dir + '/'],
                [str(tmp_path), path, model_dir]):
    (run,), problems = runs.find(paths)
    assert (run.run_path, run.model_dir.rstrip('/')) == (path, model_dir)
    assert not problems


def test_runs_are_found_at_any_depth_and_sorted_by_model(tmp_path):
  write_run(tmp_path / 'a' / 'deep', run_info('Zeta'), with_model=True)
  write_run(tmp_path / 'b', run_info('Alpha'), with_model=True)
  # But paths stay in the order in which they are given.
  for folders, expected in (([''], 'AZ'), (['a', 'b'], 'ZA')):
    runs_there, problems = runs.find([str(tmp_path / name) for name in folders])
    assert ''.join(run.model[0] for run in runs_there) == expected
    assert not problems


def put(folder, name, content=b''):
  path = pathlib.Path(folder) / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(content)


SPOILED = [
    (lambda folder: put(folder, 'bad/saved_model.pb'), None),
    (lambda folder: put(folder, 'run_x.jsonz', gzip.compress(b'{"args"')),
     'run_x.jsonz: cannot be read as a run file'),
    (lambda folder: put(folder, 'run_x.jsonz', gzip.compress(
        b'{"args": {"lr": 1}}')), 'its model must be text; it is None'),
    (lambda folder: put(folder, 'resume_ab/run_x.jsonz', b'hello'), None),
    (lambda folder: put(folder, 'model_x/saved_model.pb'),
     'run_x.jsonz: cannot be read (No such file or directory); copy'),
    # What a killed training leaves.
    (lambda folder: put(folder, 'model_x.1a.tmp/saved_model.pb'), None),
    (lambda folder: write_run(folder, {**run_info('Other'), 'final_error': {}},
                              with_model=True),
     'is not finished; this is its state at epoch 3'),
    (lambda folder: write_run(
        folder, {**run_info('Other'), 'final_error': {}, 'settings': {}},
        with_model=True), "the baseline's trainer cannot continue one"),
    (lambda folder: write_run(
        folder, {**run_info('Other'), 'train_curve': {
            'val_loss': [math.nan, 1e308], 'val_opa': [None, 0.5]}},
        with_model=True), 'its val_loss have no finite value, so they are not'),
    (lambda folder: write_run(folder, run_info('Other')),
     'its model folder is not beside it'),
]


def test_what_is_no_run_gets_one_message_and_the_rest_is_read(tmp_path):
  for number, (spoil, said) in enumerate(SPOILED):
    folder = tmp_path / str(number)
    write_run(folder, run_info(), with_model=True)
    spoil(folder)
    runs_there, problems = runs.find([str(folder), str(tmp_path / 'no')])
    assert 'TinyRanker' in [run.model for run in runs_there]
    assert f'{tmp_path}/no: cannot be read (No such file' in problems.pop()
    # A run file without its model is said to be one, besides.
    assert len(problems) == bool(said) and (said or '') in ''.join(problems)
  put(tmp_path, 'empty/a')
  with pytest.raises(UserError, match=r'there is no run to report; name the '
                     r'--out_dir.*\n.*: has no file run_<hash>\.jsonz'):
    runs.find([str(tmp_path / 'empty')])


def test_runs_of_both_tasks_do_not_compare(tmp_path):
  write_run(tmp_path, run_info())
  write_run(tmp_path, run_info(keep_nodes=5, source='xla', search='random'))
  with pytest.raises(UserError, match='of two tasks, layout and tile; name'):
    runs.find([str(tmp_path)])


# ------------------------------------------------------------------ grouping


def grouped(tmp_path, *infos):
  for number, info in enumerate(infos):
    write_run(tmp_path / str(number), info, with_model=True)
  runs_there, _ = runs.find([str(tmp_path / str(number))
                        for number in range(len(infos))])
  return runs.grouped(runs_there)


def test_groups_have_all_seeds_and_names_that_say_how_they_differ(tmp_path):
  groups = grouped(
      tmp_path, run_info(seed=2, out_dir='a', results_csv='b'),
      run_info(seed=1, out_dir='c', results_csv='d'),
      run_info(learning_rate=0.1), run_info(kwargs='{"width": 8}'),
      run_info('Other'))
  assert [run.info['seed'] for run in groups[0].runs] == [1, 2]
  assert [group.name for group in groups] == [
      'TinyRanker, learning_rate=0.01', 'TinyRanker, learning_rate=0.1',
      'TinyRanker, width=8, learning_rate=0.01', 'Other']


def test_settings_that_the_baseline_lacks_tell_groups_apart(tmp_path):
  groups = grouped(tmp_path, *(
      {**run_info(seed=seed), 'settings': {
          'lr_schedule': schedule, 'list_size': size}}
      for seed, schedule, size in (
          (1, 'cosine', 0), (2, 'constant', 0), (3, 'constant', 32))))
  assert [group.name for group in groups] == [
      'TinyRanker, list_size=0, lr_schedule=cosine',
      'TinyRanker, list_size=0, lr_schedule=constant',
      'TinyRanker, list_size=32, lr_schedule=constant']


def test_no_two_groups_have_one_name(tmp_path):
  for name, notes in (('long', ['x' * 60, 'x' * 61]), (
      'stats', [{'node': 1, 'config': 2}, {'node': 1, 'config': 3}])):
    first, second = grouped(tmp_path / name, *(
        run_info(note=note) for note in notes))
    assert first.name == f'TinyRanker {first.runs[0].name[:8]}'
    assert first.name != second.name
  for names in (('model_1', 'model_2'), ('a/model_1', 'b/model_1')):
    both = [runs.Run(f'{name.replace("model", "run_experiment")}.jsonz',
                     run_info(note='x' * (60 + number)), None)
            for number, name in enumerate(names)]
    first, second = runs.grouped(both)
    assert first.name != second.name
    assert len({*runs.short_names(both).values()}) == 2


def test_a_run_that_is_removed_meanwhile_keeps_its_time(tmp_path):
  path = write_run(tmp_path, run_info())
  os.utime(path, (0, 1e9))
  (run,), _ = runs.find([str(tmp_path)])
  os.remove(path)
  assert run.record([1])['written'].startswith('2001-09-0')


def test_of_a_damaged_curve_nothing_is_read(tmp_path):
  info = run_info()
  run = runs.Run(write_run(tmp_path, info), info, None)
  assert run.curve['val_loss'].to_dict() == {1: 3.5, 2: 3.25, 3: 3.0}
  record = run.record([1, 5])
  assert (record['best_epoch'], record['epochs']) == (3, 3)
  assert (record['final_5'], record['minutes']) == (0.25, 1.0)
  for damaged in ({}, {'val_opa': ['much']}, {'val_opa': [1], 'epoch': [1, 2]}):
    assert runs.Run('x', {**info, 'train_curve': damaged}, None).curve.empty
