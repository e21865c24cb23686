"""A run that is broken off goes on as if nothing had been."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from support import eager_training, kill_and_resume, tiny_kernels, tiny_models
from tpu_graphs_ext.engine import (
  callbacks,
  origin,
  resume,
  saved_weights,
  scoring,
  train,
)
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks.tile import LoadSettings


@pytest.fixture
def untraced():
  with eager_training.eager_steps():
    yield


def broken_off(settings, epochs: int) -> None:
  """Trains until Ctrl-C during the epoch after so many."""
  def interrupt(epoch, unused_logs):
    if epoch == epochs:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    train.train(settings, [
        tf.keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)])


def test_same_seed_same_bytes_whole_or_in_parts(
    data_root, tmp_path, untraced):
  def settings(out):
    return tiny_models.tiny_settings(
        data_root, tmp_path / out, model='LateJoinGCN', models_py='',
        model_kwargs_json=json.dumps({  # It averages its weights.
            'hidden_dim': 8, 'node_rounds': 1, 'head_layers': 1,
            'objective': 'flags'}),
        epochs=2, batch=10, lr_schedule='cosine', list_size=8, resume=True)

  whole = train.train(settings('whole'))
  broken_off(settings(r'[a]\parts'), 1)  # TensorFlow sees a pattern in it.
  parts = train.train(settings(r'[a]\parts'))
  for key in ('train_curve', 'final_error', 'test_predictions', 'seed'):
    assert parts.run_info[key] == whole.run_info[key]
  for ours, expected in zip(
      *(saved_weights.read(run.model_dir) for run in (parts, whole))):
    np.testing.assert_array_equal(ours[1], expected[1], err_msg=ours[0])


def test_a_loop_of_resume_ends_with_the_report_of_the_finished_run(
    data_root, tmp_path, monkeypatch, untraced, caplog):
  caplog.set_level('INFO')
  settings = tiny_models.tiny_settings(
      data_root, tmp_path / 'out', epochs=1, seed=None, resume=True)
  broken_off(settings, 0)
  assert 'starting a new one' in caplog.text
  result = train.train(settings)
  seed = result.run_info['seed']
  assert result.run_info['settings']['seed'] is None

  # The weights started from the drawn seed, though no epoch had been saved.
  whole = train.train(tiny_models.tiny_settings(
      data_root, tmp_path / 'whole', epochs=1, seed=seed))
  assert whole.run_info['train_curve'] == result.run_info['train_curve']

  def fit(*unused_args, **unused_kwargs):
    raise SystemExit('is trained already')

  monkeypatch.setattr(tf.keras.Model, 'fit', fit)
  os.remove(result.csv_path)
  again = train.train(settings)
  assert again.run_info == json.loads(json.dumps(result.run_info))
  assert again.csv_path is None
  with pytest.raises(SystemExit, match='is trained already'):
    train.train(tiny_models.tiny_settings(
        data_root, tmp_path / 'out', epochs=1, seed=None, resume=True, lr=0.02))


def test_a_run_killed_before_it_saves_its_model_is_saved(
    data_root, tmp_path, monkeypatch, untraced):
  settings = tiny_models.tiny_settings(
      data_root, tmp_path / '[1]', epochs=1, resume=True)

  def killed(unused_self):
    raise OSError

  with monkeypatch.context() as patched, pytest.raises(OSError):
    patched.setattr(callbacks.Epochs, '_save', killed)
    train.train(settings)
  assert not list(tmp_path.glob('*/model_*'))
  result = train.train(settings)  # Without a further epoch.
  scoring.load_ranker(
      result.model_dir, LoadSettings(models_py=tiny_models.__file__))
  assert resume.finished_run(settings, origin.of_training(settings))
  relative = dataclasses.replace(settings, data_root=os.path.relpath(data_root))
  assert resume.finished_run(relative, origin.of_training(relative))
  other = dataclasses.replace(settings, epochs=7)
  assert not resume.finished_run(other, origin.of_training(other))


def test_one_run_is_trained_by_one_process_at_a_time(data_root, tmp_path):
  settings = tiny_models.tiny_settings(
      data_root, tmp_path, results_csv=str(tmp_path / 'r.csv'))
  with resume.ResumeFolder(settings).held():
    with pytest.raises(UserError, match='another process is training this run'):
      train.train(settings)
    other = dataclasses.replace(settings, seed=2)
    with resume.ResumeFolder(other).held():
      assert len(list(tmp_path.glob('resume_*'))) == 2


def test_only_what_a_run_wrote_is_removed(data_root, tmp_path):
  settings = tiny_models.tiny_settings(
      data_root, tmp_path / 'out', results_csv=str(tmp_path / 'r.csv'))
  folder = resume.ResumeFolder(settings)
  path, model = pathlib.Path(folder.path), pathlib.Path(folder.model_dir)
  (path / 'ckpt-2_temp').mkdir(parents=True)
  written = ['ckpt-1.index', 'ckpt-1.data-00000-of-00001', 'checkpoint',
             'checkpoint.tmp0123', 'ckpt-2_temp/part-00000-of-00001',
             'started.json.01234567.tpu_graphs_ext.tmp']
  users = ['notes.txt', 'my_checkpoint', 'ckpt-1.index.backup', 'started.txt']
  for name in (*written, *users):
    (path / name).write_text(name)
  with folder.held():
    assert sorted(os.listdir(path)) == sorted([*users, 'started.json'])
    folder.is_over = True
  assert sorted(os.listdir(path)) == sorted(users)
  model.mkdir()
  (model / 'saved_model.pb').write_text('old')
  with folder.held():
    pass
  (model / 'notes.txt').write_text('mine')
  with pytest.raises(UserError, match=r"holds 'notes\.txt', which this comma"):
    train.train(settings)
  assert sorted(os.listdir(model)) == ['notes.txt', 'saved_model.pb']


@pytest.mark.parametrize('name', ['path', 'model_dir'])
def test_links_are_not_followed(data_root, tmp_path, name):
  settings = tiny_models.tiny_settings(
      data_root, tmp_path / 'out', results_csv=str(tmp_path / 'r.csv'))
  documents = tmp_path / 'documents'
  documents.mkdir()
  for document in ('started.json', 'saved_model.pb'):
    (documents / document).write_text('mine')
  link = getattr(resume.ResumeFolder(settings), name)
  (tmp_path / 'out').mkdir()
  os.symlink(documents, link)
  with pytest.raises(UserError, match='is a link'):
    train.train(settings)
  assert len(os.listdir(documents)) == 2 and os.path.islink(link)


def test_a_changed_start_is_not_resumed(data_root, tmp_path, caplog):
  settings = tiny_models.tiny_settings(
      data_root, tmp_path, seed=None, resume=True)
  folder = resume.ResumeFolder(settings)
  with folder.held():
    pass
  assert not resume.ResumeFolder(settings).is_new
  path = pathlib.Path(folder.path) / 'started.json'
  content = path.read_text()
  changes = {'seed': -1}, {'milliseconds': '../x'}
  for text in (content[:40], '[1]', *(
      json.dumps({**json.loads(content), **change}) for change in changes)):
    path.write_text(text)
    caplog.clear()
    assert resume.ResumeFolder(settings).is_new
    assert f'{folder.path}: cannot be resumed (' in caplog.text


@pytest.mark.survive
@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
@pytest.mark.parametrize('half', ['1', '2'])  # Which two processes share.
def test_fifty_kills_at_random_moments(tmp_path, half):
  kills = 25
  tiny_kernels.write_data_root(tmp_path / 'data')
  done = subprocess.run(
      [sys.executable, kill_and_resume.__file__, str(tmp_path), str(kills),
       half], check=True, capture_output=True, text=True)
  reports = [json.loads(line) for line in done.stdout.splitlines()]
  killed = [report for report in reports if 'killed' in report]
  assert sum(len(report['killed']) for report in killed) == kills
  assert all(report['codes'][-1] == 0 for report in reports)
  assert {report['model'] for report in killed} == set(kill_and_resume.MODELS)
  assert all(report['difference'] <= kill_and_resume.TOLERANCE
             for report in killed), killed
