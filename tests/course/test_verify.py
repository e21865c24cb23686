"""Every broken link between a trained model and its grade, named."""

import gzip
import importlib
import os
import pathlib
import runpy
import sys

import pytest
import tensorflow as tf

from support import eager_training, tiny_handin, tiny_kernels
from tpu_graphs_ext.course import checkout, grader_steps, sandbox, verify
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import artifacts

STUDENT = tiny_handin.STUDENT
UNSTEADY = STUDENT.replace(
    'return tf.squeeze(self._head(hidden), -1)',
    'scores = tf.squeeze(self._head(hidden), -1)\n'
    '    return scores + tf.random.normal(tf.shape(scores))')
REVERSED = STUDENT.replace(
    'return tf.squeeze(self._head(hidden), -1)',
    'return -tf.squeeze(self._head(hidden), -1)')
WITH_NAN = REVERSED.replace(
    'return -tf', "return float('nan') * tf")
ONE_MORE = STUDENT.replace(
    '    return tf.squeeze(self._head(hidden), -1)',
    '    hidden = self._more(hidden)\n'
    '    return tf.squeeze(self._head(hidden), -1)').replace(
        '    self._step =', '    self._more = tf.keras.layers.Dense(\n'
        '        width, use_bias=False)\n    self._step =')
# What shifts the configurations moves in training, but no gradient does it.
WITH_STATE = STUDENT
for place, code in (
    ('    self._step =',
     '    self._shift = tf.Variable(tf.zeros([23]), trainable=False)\n'),
    ('    feats = tf.reshape(', '    feats = feats * (1 - self._shift)\n'),
    ('    if training and', '    if training:\n'
     '      self._shift.assign(tf.linspace(0., 9., 23))\n')):
  WITH_STATE = WITH_STATE.replace(place, code + place)
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
  def run(self, arguments, on_line=None):
    script, *rest = arguments
    monkeypatch.setattr(sys, 'argv', [script, *rest])
    monkeypatch.syspath_prepend(self.place)
    sys.modules.pop('models', None)
    importlib.invalidate_caches()
    runpy.run_path(script, run_name='__main__')

  monkeypatch.setattr(sandbox.Sandbox, '_run', run)


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


# ------------------------------------------------- in a process of its own


def test_a_sound_hand_in_passes_and_names_its_host(folder, copied, tmp_path):
  verdict = check(folder, f'{copied}/', tmp_path)
  assert verdict.faults == []
  assert verdict.text().endswith('this hand-in works')
  assert 'no checkout of the baseline is named' in verdict.facts['graded by']
  assert verdict.facts['ranked'].startswith('12 test kernels')
  # The run's own statistics leave the largest kernel out, the grader's do not.
  (note,) = verdict.notes
  assert 'train kernels of at least 6 configurations' in note
  assert 'it is no fault' in note


def test_this_package_cannot_be_imported(folder, copied, tmp_path):
  hidden = STUDENT.replace(
      'import tensorflow as tf\n',
      "import tensorflow as tf\nexec('import tpu_graphs_ext')\n", 1)
  verdict = check(folder, copied, tmp_path, hidden)
  fault(verdict, 'models.py cannot be imported at line 9',
        "No module named 'tpu_graphs_ext': the graders do not have it")


# ------------------------------------------------------------- the class


def test_models_py_that_imports_this_package(
    folder, copied, tmp_path, in_process):
  verdict = check(folder, copied, tmp_path, STUDENT.replace(
      'import tensorflow as tf\n',
      'import tensorflow as tf\nfrom tpu_graphs_ext.data import schema\n', 1))
  fault(verdict, 'line 9 imports tpu_graphs_ext', 'must stand alone')


def test_wrong_class(folder, copied, tmp_path, in_process):
  model_dir = tiny_handin.change_run(
      copied, lambda run: run['args'].update(model='TinyRankr'))
  fault(check(folder, model_dir, tmp_path), 'names the class TinyRankr',
        'did you mean TinyRanker?')


def test_argument_that_the_class_does_not_take(
    folder, copied, tmp_path, in_process):
  model_dir = tiny_handin.change_run(
      copied, lambda run: run['args'].update(model_kwargs_json='{"deep": 2}'))
  fault(check(folder, model_dir, tmp_path), 'TinyRanker cannot be built',
        '{"deep": 2}', "unexpected keyword argument 'deep'")


def test_changed_arguments(folder, copied, tmp_path, in_process):
  model_dir = tiny_handin.change_run(
      copied, lambda run: run['args'].update(model_kwargs_json='{"width": 5}'))
  fault(check(folder, model_dir, tmp_path), '(60, 4) is saved where the class '
        'has', '(60, 5)', "the class's arguments have changed since training")


def test_missing_variable(folder, copied, tmp_path, in_process):
  fault(check(folder, copied, tmp_path, ONE_MORE),
        '7 are saved, and the class has 8', '(4, 4) is in the class and not '
        'saved')


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


# ------------------------------------------------------------ the numbers


def test_nan_scores(folder, copied, tmp_path, in_process):
  verdict = check(folder, copied, tmp_path, WITH_NAN)
  fault(verdict, 'scores of 12 of 12 test kernels are NaN or infinite',
        'meaningless rows')
  assert len(verdict.faults) == 1


def test_scores_that_change_from_call_to_call(
    folder, copied, tmp_path, in_process):
  fault(check(folder, copied, tmp_path, UNSTEADY),
        'gives other scores when it is called again', 'dropout or noise is on')


def test_models_py_that_scores_otherwise_than_in_training(
    folder, copied, tmp_path, in_process):
  fault(check(folder, copied, tmp_path, REVERSED),
        '12 kernels have other configurations in the run file',
        'models.py or the data has changed since')


@pytest.mark.slow
def test_state_that_the_grader_does_not_copy(folder, tmp_path, in_process):
  model_dir = trained(folder, 'state', WITH_STATE)
  fault(check(folder, model_dir, tmp_path, WITH_STATE),
        'variables that are not trained are copied')


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
        'They fit the data that the run file describes', 'num_ops=60')
  # A run file of the baseline keeps no such description.
  model_dir = tiny_handin.change_run(copied, tiny_handin.as_baseline)
  fault(check(folder, model_dir, tmp_path, data_root=data_root), '(71, 4)',
        'or the data is')


def test_other_kernels(folder, copied, tmp_path, in_process):
  root = tiny_kernels.write_data_root(tmp_path / 'other', num_test=12, seed=5)
  fault(check(folder, copied, tmp_path, data_root=str(root)),
        '12 kernels are not in the run file',
        '12 kernels of the run file are not in the data',
        'name the data that the model was trained on')


def test_fewer_configurations(folder, copied, tmp_path, in_process):
  def first_five(split, kernel):
    if split == 'test':
      for name in ('config_feat', 'runtime_ns', 'normalizer_ns'):
        object.__setattr__(kernel, name, getattr(kernel, name)[:5])
    return kernel

  verdict = check(folder, copied, tmp_path,
                  data_root=other_data(folder, tmp_path, first_five))
  fault(verdict, 'have configurations in the run file that they lack',
        'another test split')


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
  # Graded with the same toy data it is sound.
  assert check(folder, copy, tmp_path, toy_data=True).ok


def test_without_data_the_rest_is_still_looked_at(
    folder, copied, tmp_path, in_process):
  model_dir = tiny_handin.change_run(
      copied, lambda run: run['args'].update(model='Other'))
  verdict = check(folder, model_dir, tmp_path, data_root='/nowhere')
  fault(verdict, 'nothing could be ranked', '/nowhere')
  fault(verdict, 'names the class Other')


@pytest.mark.parametrize('change', [lambda run: None, tiny_handin.as_baseline])
def test_without_data_a_sound_hand_in_has_one_fault(
    folder, copied, tmp_path, in_process, change):
  """The number of opcodes is in the run file, or in the data alone."""
  model_dir = tiny_handin.change_run(copied, change)
  verdict = check(folder, model_dir, tmp_path, data_root='/nowhere')
  assert len(verdict.faults) == 1, verdict.faults
  fault(verdict, 'nothing could be ranked', '/nowhere')


def test_without_data_arguments_are_looked_at(
    folder, copied, tmp_path, in_process):
  model_dir = tiny_handin.change_run(copied, lambda run: run['args'].update(
      model_kwargs_json='{"depth": 3}'))
  verdict = check(folder, model_dir, tmp_path, data_root='/nowhere')
  assert len(verdict.faults) == 2, verdict.faults
  fault(verdict, 'cannot be built with the arguments', '"depth": 3')


# --------------------------------------------------------------- the files


def test_truncated_variables_file(folder, copied, tmp_path, in_process):
  path = copied / 'variables' / 'variables.data-00000-of-00001'
  path.write_bytes(path.read_bytes()[:2000])
  fault(check(folder, copied, tmp_path), 'cannot be loaded by Keras',
        'copy the whole folder again')


@pytest.mark.slow
def test_weights_that_are_nan(folder, tmp_path, in_process):
  """The weights of a training that has diverged."""
  diverged = STUDENT.replace(
      '    self._step =', '    self._diverges = width == 3\n    self._step ='
  ).replace('  def call(', '  def save(self, *args, **kwargs):\n'
            '    if self._diverges:\n'
            '      self._head.bias.assign([float("nan")])\n'
            '    super().save(*args, **kwargs)\n\n  def call(', 1)
  model_dir = trained(folder, 'nan', diverged, test_mode='metrics',
                      model_kwargs_json='{"width": 3}',
                      data_root=labelled(folder))
  verdict = check(folder, model_dir, tmp_path, diverged)
  fault(verdict, '1 of the 7 saved variables hold NaN', 'dense')


def labelled(folder) -> pathlib.Path:
  """The data with a test split whose labels are there."""
  root = folder / 'labelled'
  if not root.exists():
    root.mkdir()
    for split in ('train', 'valid'):
      os.symlink(folder / 'data' / split, root / split)
    os.symlink(folder / 'data' / 'test_labelled', root / 'test')
  return root


def test_run_file_of_another_model(folder, copied, tmp_path, in_process):
  """Both the name and the variables tell."""
  other = trained(folder, 'wide', model_kwargs_json='{"width": 6}')
  with open(artifacts.run_path_of(other), 'rb') as source, open(
      artifacts.run_path_of(str(copied)), 'wb') as target:
    target.write(source.read())
  verdict = check(folder, copied, tmp_path)
  fault(verdict, 'holds another run: its args have the hash')
  fault(verdict, '(60, 4) is saved where the class has', '(60, 6)')


@pytest.mark.parametrize('content', [
    b'no gzip', gzip.compress(b'{"args": 1}', mtime=0)])
def test_damaged_run_file(folder, copied, tmp_path, in_process, content):
  pathlib.Path(artifacts.run_path_of(str(copied))).write_bytes(content)
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


def test_missing_folder_missing_models_py_and_a_name_without_hash(tmp_path):
  verdict = verify.verify(str(tmp_path / 'mine'), data_root='/nowhere',
                          models_py=str(tmp_path / 'no.py'))
  fault(verdict, 'there is no such model folder')
  fault(verdict, "named model_<hash>", "got 'mine'")
  fault(verdict, 'no.py: cannot be read')


def test_a_path_that_the_courses_script_cannot_use(
    folder, copied, tmp_path, in_process):
  awkward = tiny_handin.copy_run(str(copied), tmp_path / 'model_zoo' / 'a')
  verdict = check(folder, awkward, tmp_path)
  assert any('replaces every "/model_"' in note for note in verdict.notes)


def test_json(folder, copied, tmp_path, in_process):
  content = check(folder, copied, tmp_path).to_json()
  assert content['ok'] is True
  assert content['graded_by'] == 'tpu_graphs_ext'
  assert content['facts']['class'] == 'TinyRanker {}'


def test_long_arguments_are_cut():
  assert grader_steps.brief('{"a": 1}') == '{"a": 1}'
  # 7 characters before 300 digits, and 2 after them.
  text = '{"a": "' + 300 * '1' + '"}'
  assert grader_steps.brief(text) == text[:200] + '... (309 characters)'
