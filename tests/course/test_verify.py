"""Every broken link between a trained model and its grade, named."""

import importlib
import os
import pathlib
import runpy
import sys

import pytest
import tensorflow as tf

from support import eager_training, tiny_handin, tiny_kernels
from tpu_graphs_ext.course import checkout, sandbox, verify
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError

STUDENT = tiny_handin.STUDENT
IMPORT = 'import tensorflow as tf\n'
SCORES = 'return tf.squeeze(self._head(hidden), -1)'
UNSTEADY = STUDENT.replace(
    SCORES, f'scores = {SCORES[7:]}\n'
    '    return scores + tf.random.normal(tf.shape(scores))')
REVERSED = STUDENT.replace(SCORES, f'return -{SCORES[7:]}')
WITH_NAN = STUDENT.replace(SCORES, f"return float('nan') * {SCORES[7:]}")
ONE_MORE = STUDENT.replace(
    SCORES, f'hidden = self._more(hidden)\n    {SCORES}').replace(
        '    self._step =', '    self._more = tf.keras.layers.Dense(\n'
        '        width, use_bias=False)\n    self._step =')
OWN_LOSS = '''
@tf.keras.utils.register_keras_serializable('student')
class SquareLoss(tf.keras.losses.Loss):

  def call(self, y_true, y_pred):
    return tf.reduce_mean(tf.square(y_true - y_pred), -1)


class TinyRanker'''
WITH_LOSS = STUDENT.replace('class TinyRanker', OWN_LOSS, 1).replace(
    '  def forward',
    '  def compile(self, loss=None, **kwargs):\n'
    '    super().compile(loss=SquareLoss(), **kwargs)\n\n  def forward', 1)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('verify')
  tiny_handin.write_data(folder / 'data', num_test=12)
  return folder


def trained(folder, name: str, source: str = STUDENT, **changes) -> str:
  """Model folder of a run with that models.py; trains once."""
  out = folder / name
  if not out.exists():
    eager_training.trained(
        changes.pop('data_root', folder / 'data'), out, **{
            'epochs': 1, 'models_py': tiny_handin.write_models(
                folder / f'source_{name}', source), **changes})
  return str(next(out.glob('model_*')))


@pytest.fixture
def copied(folder, tmp_path):
  """A model folder, its run file beside it, that a test may spoil."""
  return tiny_handin.copy_run(trained(folder, 'plain'), tmp_path / 'out')


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)


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
  assert not verdict.ok
  assert f'{len(verdict.faults)} reason' in verdict.text()


def test_a_sound_hand_in_passes_and_says_who_graded_it(
    folder, copied, tmp_path, monkeypatch):
  """In a process of its own, which changes nothing here."""
  monkeypatch.setenv('MY_TOKEN', 'hush')
  before = dict(os.environ)
  verdict = check(folder, f'{copied}/', tmp_path, STUDENT.replace(
      IMPORT, IMPORT + "import os\nassert 'MY_TOKEN' not in os.environ\n"
      "os.environ['PATH'] = '/nowhere'\n", 1))
  assert verdict.faults == []
  assert dict(os.environ) == before
  assert verdict.text().endswith('this hand-in works')
  assert verdict.facts['ranked'].startswith('12 test kernels')
  # The run's own statistics leave the largest kernel out, the grader's do not.
  (note,) = verdict.notes
  assert 'train kernels of at least 6 configurations' in note
  assert 'it is no fault' in note
  content = verdict.to_json()
  assert (content['ok'], content['graded_by']) == (True, 'tpu_graphs_ext')
  assert content['facts']['class'] == 'TinyRanker {}'
  assert 'no checkout of the baseline is named' in content['facts']['graded by']


def test_this_package_cannot_be_imported(folder, copied, tmp_path):
  verdict = check(folder, copied, tmp_path, STUDENT.replace(
      IMPORT, IMPORT + "exec('import tpu_graphs_ext')\n", 1))
  fault(verdict, 'models.py cannot be imported at line 9',
        "No module named 'tpu_graphs_ext': the graders do not have it")


# ----------------------------------------------- models.py and the run file


@pytest.mark.parametrize('source, parts', [
    (STUDENT.replace(IMPORT, f'{IMPORT}from tpu_graphs_ext.data import schema\n'
                     ), ['line 9 imports tpu_graphs_ext', 'must stand alone']),
    (ONE_MORE, ['7 are saved, and the class has 8']),
    (WITH_NAN, ['scores of 12 of 12 test kernels are NaN or infinite']),
    (UNSTEADY, ['gives other scores when it is called again',
                'dropout or noise is on']),
    (REVERSED, ['in the run file, 12 kernels have other configurations',
                'are from different trainings, or models.py']),
], ids=['imports', 'one more', 'NaN', 'unsteady', 'reversed'])
def test_models_py(folder, copied, tmp_path, in_process, source, parts):
  fault(check(folder, copied, tmp_path, source), *parts)


@pytest.mark.parametrize('args, parts', [
    ({'model': 'TinyRankr'}, ['makes the class TinyRankr',
                              'did you mean TinyRanker?']),
    ({'model_kwargs_json': '{"deep": 2}'},
     ['TinyRanker cannot be built', "unexpected keyword argument 'deep'"]),
    ({'model_kwargs_json': '{"width": 5}'},
     ['(60, 4) is saved where the class has', '(60, 5)',
      "the class's arguments have changed since training"])])
def test_args_of_the_run_file(folder, copied, tmp_path, in_process, args,
                              parts):
  model_dir = tiny_handin.change_run(
      copied, lambda run: run['args'].update(args))
  fault(check(folder, model_dir, tmp_path), *parts)


@pytest.mark.slow
def test_loss_that_is_not_registered(folder, tmp_path, in_process):
  model_dir = trained(folder, 'loss', WITH_LOSS)
  unregistered = WITH_LOSS.replace(
      "@tf.keras.utils.register_keras_serializable('student')\n", '')
  assert check(folder, model_dir, tmp_path, WITH_LOSS).ok
  # What an earlier models.py of this process registered must not help.
  tf.keras.utils.get_custom_objects().pop('student>SquareLoss')
  fault(check(folder, model_dir, tmp_path, unregistered),
        'cannot be loaded with its loss', 'register your classes')


# ---------------------------------------------------------------- the data


def other_data(folder, tmp_path, change) -> str:
  """A copy of the data in which `change(split, kernel)` gives each kernel."""
  for split in ('train', 'valid', 'test'):
    target = tmp_path / 'data' / split
    target.mkdir(parents=True)
    for path in (folder / 'data' / split).glob('*.npz'):
      change(split, Kernel.load(str(path))).save(str(target))
  return str(tmp_path / 'data')


def test_other_num_ops(folder, copied, tmp_path, in_process):
  def one_opcode(split, kernel):
    if split == 'valid':
      kernel.node_opcode[0] = 70
    return kernel

  data_root = other_data(folder, tmp_path, one_opcode)
  verdict = check(folder, copied, tmp_path, data_root=data_root)
  fault(verdict, '(60, 4) is saved where the class has', '(71, 4)',
        'trained on other data, with num_ops=60')


def test_another_test_split(folder, copied, tmp_path, in_process):
  root = tiny_kernels.write_data_root(tmp_path / 'other', num_test=12, seed=5)
  fault(check(folder, copied, tmp_path, data_root=str(root)),
        '12 kernels are not in the data',
        'name the data that the model was trained on')

  def first_five(split, kernel):
    if split == 'test':
      for name in ('config_feat', 'runtime_ns', 'normalizer_ns'):
        object.__setattr__(kernel, name, getattr(kernel, name)[:5])
    return kernel

  fault(check(folder, copied, tmp_path,
              data_root=other_data(folder, tmp_path, first_five)),
        'have configurations that they lack')


def test_toy_data(folder, tmp_path, in_process, monkeypatch):
  monkeypatch.setattr(read, 'TOY_FILES', 10)
  model_dir = trained(folder, 'toy', toy_data=True)
  verdict = check(folder, model_dir, tmp_path)
  fault(verdict, 'trained with --toy_data')
  assert verdict.toy_trained
  # The baseline's run file shows it by the number of its predictions.
  copy = tiny_handin.change_run(tiny_handin.copy_run(
      model_dir, tmp_path / 'out'), tiny_handin.as_baseline)
  fault(check(folder, copy, tmp_path), 'trained with --toy_data')


def test_without_data_everything_else_is_checked(
    folder, copied, tmp_path, in_process):
  """The number of opcodes is in the run file."""
  copied = tiny_handin.change_run(
      copied, lambda run: run['args'].update(model_kwargs_json='{"depth": 3}'))
  verdict = check(folder, copied, tmp_path, data_root='/nowhere')
  assert len(verdict.faults) == 2
  fault(verdict, 'nothing could be ranked')
  fault(verdict, '"depth": 3')


# --------------------------------------------------------------- the files


def test_truncated_variables_file(folder, copied, tmp_path, in_process):
  path = copied / 'variables' / 'variables.data-00000-of-00001'
  path.write_bytes(path.read_bytes()[:2000])
  fault(check(folder, copied, tmp_path), 'cannot be loaded by Keras',
        'copy the whole folder again')


def test_run_files(folder, copied, tmp_path, in_process):
  """Of another model, damaged, missing."""
  path = pathlib.Path(artifacts.run_path_of(str(copied)))
  other = trained(folder, 'wide', model_kwargs_json='{"width": 6}')
  path.write_bytes(pathlib.Path(artifacts.run_path_of(other)).read_bytes())
  verdict = check(folder, copied, tmp_path)
  fault(verdict, 'holds another run: its args have the hash')
  fault(verdict, '(60, 4) is saved where the class has', '(60, 6)')
  path.write_bytes(b'no gzip')
  fault(check(folder, copied, tmp_path), 'cannot be read as a run file')


def test_everything_is_named_at_once(folder, copied, tmp_path, in_process):
  pathlib.Path(artifacts.run_path_of(str(copied))).unlink()
  (copied / 'saved_model.pb').unlink()
  verdict = check(folder, copied, tmp_path, 'import torch\nimport wandb\n',
                  data_root='/nowhere')
  for part in ('run file', 'saved_model.pb is missing or empty',
               'line 1 imports torch', 'line 2 imports wandb', '/nowhere',
               'models.py cannot be imported', 'cannot be loaded by Keras'):
    fault(verdict, part)


def test_missing_files_and_a_name_without_hash(tmp_path):
  verdict = verify.verify(str(tmp_path / 'model_zoo' / 'mine'),
                          models_py=str(tmp_path / 'no.py'))
  for part in ('there is no such model folder', 'named model_<hash>',
               'no.py: cannot be read'):
    fault(verdict, part)
  # The script replaces '/model_' anywhere.
  assert any('replaces every "/model_"' in note for note in verdict.notes)


def test_a_layout_model_is_refused(copied, tmp_path):
  model_dir = tiny_handin.change_run(
      copied, lambda run: run['args'].update(
          keep_nodes=1000, source='xla', search='random'))
  (only,) = verify.verify(str(model_dir)).faults
  assert 'ranks layouts, but the assignment asks for a tile model' in only


@pytest.mark.parametrize('minutes', [0, -1, float('nan'), float('inf')])
def test_what_is_not_a_time_limit(minutes):
  with pytest.raises(UserError, match=f'--time_limit must be .* got {minutes}'):
    verify.verify('model_a', time_limit=minutes)


# ------------------------------------------------------- hostile hand-ins

HOSTILE = {
    'exit': ('raise SystemExit(0)\n', 'cannot be imported at line 9 (SystemEx'),
    'exit at once': ('import os\nos._exit(0)\n', 'ends Python before'),
    'abort': ('import os\nos.abort()\n', 'stopped by SIGABRT'),
    'sleep': ('import time\ntime.sleep(1e6)\n', 'more time than --time_limit'),
}


@pytest.mark.skipif(os.name != 'posix', reason='needs signals')
@pytest.mark.survive
@pytest.mark.parametrize('name', HOSTILE)
def test_a_hostile_hand_in_gets_one_fault(folder, copied, tmp_path, name):
  code, message = HOSTILE[name]
  minutes = {'time_limit': 0.4} if name == 'sleep' else {}
  verdict = check(folder, copied, tmp_path,
                  STUDENT.replace(IMPORT, IMPORT + code, 1), **minutes)
  (only,) = verdict.faults
  assert message in only
  assert 'Traceback' not in verdict.text()
