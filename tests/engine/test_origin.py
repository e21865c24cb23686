"""A run keeps its models.py and knows its data: edits of either are noticed."""

import dataclasses
import hashlib
import pathlib

import pytest

from support import eager_training, tiny_kernels, tiny_models
from tpu_graphs_ext.engine import artifacts, origin, resume
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import runs
from tpu_graphs_ext.tasks import api
from tpu_graphs_ext.tasks.tile import LoadSettings

SOURCE = pathlib.Path(tiny_models.__file__).read_text()
SCORES = 'self._head(hidden)'  # The edit keeps the variables.


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('origin')
  tiny_kernels.write_data_root(folder / 'data')
  (folder / 'models.py').write_text(SOURCE)
  (folder / 'reversed.py').write_text(SOURCE.replace(SCORES, f'-{SCORES}'))
  return folder


@pytest.fixture(scope='module')
def trained(folder):
  return eager_training.trained(
      folder / 'data', folder / 'out', epochs=1,
      models_py=str(folder / 'models.py'))


@pytest.fixture
def edited(folder):
  """models.py, edited after the training."""
  path = folder / 'models.py'
  path.write_text((folder / 'reversed.py').read_text())
  yield path
  path.write_text(SOURCE)


def loading(folder, models_py='') -> LoadSettings:
  return LoadSettings(data_root=str(folder / 'data'), cache_dir='',
                      models_py=str(models_py))


def opa(folder, model_dir, models_py='') -> float:
  return api.evaluate(model_dir, loading=loading(folder, models_py)).mean['opa']


def test_a_run_keeps_its_code_and_sums(folder, trained):
  digest = hashlib.sha256(SOURCE.encode()).hexdigest()
  assert trained.run_info['models_py'] == {
      'file': str(folder / 'models.py'), 'sha256': digest}
  assert (pathlib.Path(trained.model_dir) / origin.COPY
          ).read_bytes() == SOURCE.encode()
  data = trained.run_info['data']
  assert data.keys() == {'train', 'valid', 'test'}
  assert data['valid'] == origin.sum_of(str(folder / 'data/valid'))
  assert len(set(data.values())) == 3 and '' not in data.values()


def test_its_own_code_ranks_after_an_edit(folder, trained, edited, caplog):
  caplog.set_level('INFO', 'tpu_graphs_ext')
  before = opa(folder, trained.model_dir)
  assert f'its copy is used, {trained.model_dir}/{origin.COPY}' in caplog.text
  assert opa(folder, trained.model_dir, edited) == pytest.approx(1 - before)
  assert 'was trained with another models.py than' in caplog.text
  ranked = api.rank(trained.model_dir, loading=loading(folder))
  other = api.rank(trained.model_dir, loading=loading(folder, edited))
  assert [place.index for place in ranked[0].choices] != [
      place.index for place in other[0].choices]


def test_the_same_code_is_used_in_silence(folder, trained, caplog):
  opa(folder, trained.model_dir, folder / 'models.py')
  assert 'models.py' not in caplog.text


def test_a_copy_from_elsewhere_is_not_run(
    folder, trained, tmp_path, monkeypatch, caplog):
  """Only its user may say that it should be: it is code."""
  monkeypatch.setenv('XDG_DATA_HOME', str(tmp_path))
  run = artifacts.load_run(trained.model_dir, loading(folder).task)
  copy = origin.copy_of(trained.model_dir)
  assert origin.models_file_of(
      trained.model_dir, run.info, loading(folder)) != copy
  assert f'{copy}, is not run' in caplog.text
  assert origin.models_file_of(
      trained.model_dir, run.info, loading(folder, copy)) == copy
  for _ in range(2):
    origin.remember(SOURCE.encode())
  known = (tmp_path / 'tpu_graphs_ext/trained_with').read_text()
  assert known == run.info['models_py']['sha256'] + '\n'
  assert origin.models_file_of(
      trained.model_dir, run.info, loading(folder)) == copy
  (tmp_path / 'file').touch()
  monkeypatch.setenv('XDG_DATA_HOME', str(tmp_path / 'file'))
  origin.remember(SOURCE.encode())  # Nowhere to write: nothing happens.


def test_a_copy_that_was_changed(folder, trained, tmp_path):
  copy = pathlib.Path(trained.model_dir) / origin.COPY
  with pytest.raises(UserError, match=f'{origin.COPY}: is not the models.py'):
    try:
      copy.write_text('x = 1')
      opa(folder, trained.model_dir)
    finally:
      copy.write_text(SOURCE)


def test_a_run_without_a_copy_takes_the_package_s(folder, trained, caplog):
  """As of before, and of the baseline's trainer."""
  run = artifacts.load_run(trained.model_dir, loading(folder).task)
  info = {**run.info, 'models_py': {}, 'data': {}}
  path = loading(folder).models_file
  assert origin.models_file_of('/no', info, loading(folder)) == path
  assert 'models.py' not in caplog.text
  assert origin.models_file_of('/no', run.info, loading(folder)) == path
  assert 'was trained with another models.py' in caplog.text


def test_other_data_is_named(folder, trained, tmp_path, caplog):
  root = tiny_kernels.write_data_root(tmp_path / 'data', seed=3)
  api.evaluate(trained.model_dir, loading=LoadSettings(
      data_root=str(root), cache_dir=''))
  assert 'was trained with other files in the split valid' in caplog.text


# --------------------------------------------------------------- --resume


def test_resume_asks_for_code_and_data(folder, trained, edited, tmp_path):
  settings = tiny_models.tiny_settings(
      folder / 'data', folder / 'out', epochs=1,
      models_py=str(folder / 'models.py'))
  assert not resume.finished_run(settings, origin.of_training(settings))
  changed = resume.ResumeFolder(settings).path
  edited.write_text(SOURCE)
  assert resume.ResumeFolder(settings).path != changed
  same = origin.of_training(settings)
  assert resume.finished_run(settings, same)
  info = {**same.info, 'data': {**same.info['data'], 'train': 'other'}}
  other = dataclasses.replace(same, info=info)
  assert not resume.finished_run(settings, other)
  assert origin.key(same.info) != origin.key(other.info)


# ------------------------------------------------------------ several files


def test_each_model_may_have_a_file(folder, trained, tmp_path):
  dirs = [trained.model_dir, trained.model_dir]
  paths = [folder / 'models.py', folder / 'reversed.py']
  mine, reverse = api.evaluate_all(dirs, loading=loading(
      folder, ','.join(map(str, paths))))
  assert reverse.mean['opa'] == pytest.approx(1 - mine.mean['opa'])
  with pytest.raises(UserError, match='names 3 files for 2 models; name one'):
    api.evaluate_all(dirs, loading=loading(folder, 'a.py,b.py,c.py'))
  runs_there, _ = runs.find(dirs[:1], [str(paths[1])])
  assert runs_there[0].models_py == str(paths[1])
  assert runs_there[0].flags['models.py'] == trained.run_info[
      'models_py']['sha256'][:8]
