"""Every broken link between a trained model and its grade, named."""

import importlib
import os
import pathlib
import runpy
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from support import eager_training, tiny_handin, tiny_kernels
from tpu_graphs_ext.course import sandbox, steps, verify
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE

STUDENT = tiny_handin.STUDENT
IMPORT = 'import tensorflow as tf\n'
SCORES = 'return tf.squeeze(self._head(hidden), -1)'
UNSTEADY = STUDENT.replace(
    SCORES, f'scores = {SCORES[7:]}\n'
    '    return scores + tf.random.normal(tf.shape(scores))')
LEAKING = STUDENT.replace(SCORES, f'''{SCORES} + tf.cast(tf.reshape(
        graph.node_sets['config']['runtimes'], feats.shape[:2]), tf.float32)''')
REVERSED = STUDENT.replace(SCORES, f'return -{SCORES[7:]}')
WITH_NAN = STUDENT.replace(SCORES, f"return float('nan') * {SCORES[7:]}")
ONE_MORE = STUDENT.replace(
    SCORES, f'hidden = self._more(hidden)\n    {SCORES}').replace(
        '    self._nan_from_step =', '    self._more = tf.keras.layers.Dense(\n'
        '        width, use_bias=False)\n    self._nan_from_step =')
SEALED = '''import os
os.environ['PATH'] = '/nowhere'
assert 'MY_TOKEN' not in os.environ
try:
  exec('import tpu_graphs_ext')
except ImportError:
  pass
else:
  raise AssertionError
'''


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('verify')
  tiny_handin.write_data(folder / 'data', num_test=12)
  return folder


def trained(folder, name: str, source: str = STUDENT, **changes) -> str:
  """Model folder of a run with that models.py; trains once."""
  out = folder / name
  if not out.exists():
    eager_training.trained(changes.pop('data_root', folder / 'data'), out, **{
            'whole': True, 'epochs': 1, 'models_py': tiny_handin.write_models(
                folder / f'source_{name}', source), **changes})
  return str(next(out.glob('model_*')))


@pytest.fixture
def copied(folder, tmp_path):
  """A model folder, its run file beside it, that a test may spoil."""
  return tiny_handin.copy_run(trained(folder, 'plain'), tmp_path / 'out')


@pytest.fixture
def in_process(monkeypatch):
  """Takes the steps in this process: faster, but without its walls."""
  def run(self, arguments):
    script, *rest = arguments
    monkeypatch.setattr(sys, 'argv', [script, *rest])
    monkeypatch.syspath_prepend(self.folder)
    sys.modules.pop('models', None)
    importlib.invalidate_caches()
    runpy.run_path(script, run_name='__main__')

  monkeypatch.setattr(sandbox.Sandbox, 'run', run)


def check(folder, model_dir, tmp_path, source: str = STUDENT,
          **changes) -> verify.Verdict:
  return verify.verify(str(model_dir), **{
      'models_py': tiny_handin.write_models(tmp_path / 'handed_in', source),
      'data_root': str(folder / 'data'), 'cache_dir': '', **changes})


def fault(verdict: verify.Verdict, *parts: str) -> None:
  """One fault has all these parts."""
  assert any(all(part in text for part in parts)
             for text in verdict.faults), verdict.faults
  assert not verdict.ok and verdict.text().endswith('this hand-in fails')


def test_a_sound_hand_in_passes_and_says_who_graded_it(
    folder, copied, tmp_path, monkeypatch, caplog):
  """In a process without this package, which changes nothing here."""
  caplog.set_level('INFO')
  monkeypatch.setenv('MY_TOKEN', 'hush')
  before = dict(os.environ)
  verdict = check(folder, f'{copied}/', tmp_path, STUDENT.replace(
      IMPORT, IMPORT + SEALED, 1))
  assert verdict.faults == []
  assert dict(os.environ) == before
  assert verdict.text().endswith('this hand-in works')
  # The run's own statistics leave the largest kernel out, the grader's do not.
  edited, note = verdict.notes
  assert 'is not the models.py that the model was trained with' in edited
  assert 'train kernels of at least 6 configurations' in note
  content = verdict.to_json()
  assert (content['ok'], content['graded_by']) == (True, 'tpu_graphs_ext')
  assert content['facts']['ranked'].startswith('12 test kernels')
  opa, = artifacts.load_run(str(copied), TILE).info['train_curve']['val_opa']
  text = f'1 epochs to the best validation OPA of {opa:.4f}, written 20'
  assert f'handing in TinyRanker {{}}: {text}' in caplog.text
  assert verdict.facts['trained'].startswith(text)


# ----------------------------------------------- models.py and the run file


@pytest.mark.parametrize('source, args, parts', [
    (STUDENT.replace(IMPORT, f'{IMPORT}import tpu_graphs_ext\n'), {},
     ['line 9 imports tpu_graphs_ext', 'copy what it needs into it']),
    (STUDENT.replace(IMPORT, f'{IMPORT}raise SystemExit(0)\n'), {},
     ['cannot be imported at line 9 (SystemExit: 0)']),
    (STUDENT.replace(IMPORT, f'{IMPORT}from . import metrics\n'), {},
     ['cannot be imported at line 9 (ImportError: ', 'with --root or TPU_']),
    (ONE_MORE, {}, ['7 are saved, and the class has 8']),
    (WITH_NAN, {}, ['scores of 12 of 12 test kernels are NaN or infinite']),
    (UNSTEADY, {}, ['gives other scores when it is called again',
                    'dropout or noise is on']),
    (LEAKING, {}, ['with other runtimes', 'it reads the runtimes']),
    (REVERSED, {}, ['in the run file, 12 kernels have other configurations',
                    'from different trainings, or models.py']),
    (STUDENT, {'model': 'TinyRankr'},
     ['makes the class TinyRankr, which models.py']),
    (STUDENT, {'model_kwargs_json': '{"deep": 2}'},
     ['TinyRanker cannot be built', "unexpected keyword argument 'deep'"]),
    (STUDENT, {'model_kwargs_json': '{"width": 5}'},
     ['(60, 4) is saved where the class has', '(60, 5)',
      "models.py, the class's arguments or the data have changed"]),
], ids=['imports', 'exit', 'no root', 'one more', 'NaN', 'unsteady', 'leaking',
        'reversed', 'class', 'kwargs', 'width'])
def test_models_py_and_the_run_file(folder, copied, tmp_path, in_process,
                                    source, args, parts):
  model_dir = tiny_handin.change_run(
      copied, lambda run: run['args'].update(args))
  fault(check(folder, model_dir, tmp_path, source), *parts)


def test_classes_that_models_py_could_not_register(monkeypatch):
  """Keras misses them only because the import has failed."""
  monkeypatch.setitem(steps.ANSWER, 'faults', [])
  monkeypatch.setattr(tf.keras.models, 'load_model', mock.Mock(
      side_effect=ValueError("Unknown loss function: 'mine'")))
  for has_classes in (False, True):
    assert steps.load_keras('', has_classes) is None
    assert len(steps.ANSWER['faults']) == has_classes


# ---------------------------------------------------------------- the data


def test_the_script_s_data_has_the_ranges_of_all(folder, copied, tmp_path):
  """And the largest opcode: the baseline takes nothing else of that split."""
  class Place:
    def new_folder(self):
      (tmp_path / 'script').mkdir()
      return str(tmp_path / 'script')

  info = artifacts.load_run(str(copied), TILE).info
  grader = verify._Grader(verify.Verdict('', '', run_info=info), Place(),
                          str(folder / 'data'), '')
  whole = read.read_dataset(str(folder / 'data'))
  reduced = read.read_dataset(grader._script_data(whole.train))
  assert len(reduced.train) == 1 < len(whole.train)
  assert reduced.train[0].num_configs == info['args']['configs'] == 6
  assert reduced.num_ops == whole.num_ops
  assert reduced.train.max_opcode == whole.train.max_opcode
  assert reduced.test.names == whole.test.names
  assert [FeatureStats.of_partition(dataset.train).to_json()
          for dataset in (reduced, whole)] == 2 * [
              FeatureStats.of_partition(whole.train).to_json()]


def test_another_test_split(folder, copied, tmp_path, in_process):
  root = tiny_kernels.write_data_root(tmp_path / 'other', num_test=12, seed=5)
  fault(check(folder, copied, tmp_path, data_root=str(root)),
        '24 kernels are not the kernels of the test split',
        'name the data that the model was trained on')
  # Also where the weights do not fit, so that no kernel is ranked.
  wide = tiny_handin.change_run(copied, lambda run: run['args'].update(
      model_kwargs_json='{"width": 5}'))
  fault(check(folder, wide, tmp_path, data_root=str(root)),
        '(60, 4) is saved where the class has', '(60, 5)')


def test_toy_data(folder, tmp_path, in_process, monkeypatch):
  monkeypatch.setattr(read, 'TOY_FILES', 10)
  model_dir = trained(folder, 'toy', toy_data=True)
  verdict = check(folder, model_dir, tmp_path)
  fault(verdict, 'trained with --toy_data')
  # The baseline's run file shows it by the number of its predictions.
  copy = tiny_handin.change_run(tiny_handin.copy_run(
      model_dir, tmp_path / 'out'), tiny_handin.as_baseline)
  fault(check(folder, copy, tmp_path), 'trained with --toy_data')


@pytest.mark.slow
@pytest.mark.parametrize('columns', ['all', 'fewer'])
def test_toy_data_where_the_test_split_is_small(
    folder, tmp_path, in_process, monkeypatch, columns):
  """Nothing in the baseline's run file shows it, but its statistics do."""
  monkeypatch.setattr(read, 'TOY_FILES', 15)  # Of 24 to train, 12 to test.
  root = tiny_kernels.write_data_root(tmp_path / 'data', num_test=12)
  toy = {os.path.basename(path) for path in read.find_npz(
      str(root / 'train'), 15)}
  for path in (root / 'train').iterdir():
    kernel = Kernel.load(str(path))
    if path.name not in toy:
      kernel.config_feat[:, 9:20] *= np.arange(1, 12)
    elif columns == 'fewer':
      kernel.config_feat[:, 9:20] = 1
    kernel.save(str(root / 'train'))
  eager_training.trained(
      root, tmp_path / 'toy', whole=True, epochs=1, toy_data=True)
  (model_dir,) = (tmp_path / 'toy').glob('model_*')
  copy = tiny_handin.change_run(tiny_handin.copy_run(
      model_dir, tmp_path / 'out'), tiny_handin.as_baseline)
  verdict = check(folder, copy, tmp_path, data_root=str(root))
  fault(verdict, 'trained with --toy_data')
  assert 'batch normalisation' not in verdict.text()


# --------------------------------------------------------------- the files


def test_damaged_files(folder, copied, tmp_path, in_process, caplog):
  """Everything is named at once."""
  caplog.set_level('INFO')
  path = pathlib.Path(artifacts.run_path_of(str(copied)))
  wide = tiny_handin.change_run(
      tiny_handin.copy_run(str(copied), tmp_path / 'wide'),
      lambda run: run['args'].update(model_kwargs_json='{"width": 6}'))
  path.write_bytes(pathlib.Path(artifacts.run_path_of(str(wide))).read_bytes())
  verdict = check(folder, copied, tmp_path)
  fault(verdict, 'holds another run: its args have the hash')
  fault(verdict, '(60, 4) is saved where the class has', '(60, 6)')
  path.write_bytes(b'no gzip')
  variables = copied / 'variables' / 'variables.data-00000-of-00001'
  variables.write_bytes(variables.read_bytes()[:2000])
  verdict = check(folder, copied, tmp_path, 'import torch\nimport wandb\n',
                  data_root='/nowhere')
  assert verdict.facts['class'] == 'unknown'
  assert verdict.facts['trained'].startswith('for unknown epochs, written 20')
  # What was named before is of the other run.
  assert ''.join(caplog.messages).count('handing in ') == 1
  for part in ('cannot be read as a run file', 'line 1 imports torch',
               'line 2 imports wandb', 'models.py cannot be imported',
               '/nowhere', 'cannot be loaded by Keras'):
    fault(verdict, part)


def test_a_folder_without_hash_in_one_with(folder, copied, tmp_path):
  model_dir = tmp_path / 'model_zoo' / 'mine'
  copied.rename(tmp_path / 'out' / 'mine')
  (tmp_path / 'out').rename(tmp_path / 'model_zoo')
  verdict = verify.verify(str(model_dir), models_py=str(tmp_path / 'no.py'))
  for part in ('named model_<hash>', 'no.py: cannot be read'):
    fault(verdict, part)
  assert len(verdict.faults) == 2
  # The script replaces '/model_' anywhere.
  assert any('replaces every "/model_"' in note for note in verdict.notes)


def test_a_full_disk(folder, copied, tmp_path, monkeypatch):
  monkeypatch.setattr(verify.tile_batches, 'kernel_graphs', mock.Mock(
      side_effect=tf.errors.ResourceExhaustedError(None, None, 'full')))
  fault(check(folder, copied, tmp_path), 'to use another folder): full')


def test_what_cannot_be_verified(copied, tmp_path):
  with pytest.raises(UserError, match='--time_limit must be above 0'):
    verify.verify(str(copied), time_limit=float('nan'))
  with pytest.raises(UserError, match='there is no such model folder'):
    verify.verify(str(tmp_path / 'model_no'))
  def to_layouts(run):
    del run['task']  # As the baseline writes it.
    run['args'].update(keep_nodes=1000, source='xla', search='random')

  model_dir = tiny_handin.change_run(copied, to_layouts)
  with pytest.raises(UserError, match='ranks layouts, but the assignment asks'):
    verify.verify(str(model_dir))
