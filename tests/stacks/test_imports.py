"""What importing the package does to the imports of TensorFlow."""

from __future__ import annotations

import pytest

from support import fake_tensorflow
from tpu_graphs_ext.stacks import estimator_stub, versions

REPORT = '''
import os, sys
import tensorflow as tf, tensorflow_gnn, tensorflow_ranking
print(os.environ.get('TF_USE_LEGACY_KERAS'))
print(tf.keras.Model.__module__)
print(type(sys.modules['tensorflow.estimator']).__name__)
print(tensorflow_ranking.feature_columns(), tensorflow_ranking.imports)
'''


@pytest.fixture
def today(tmp_path):
  return fake_tensorflow.write(tmp_path, '2.21.0')


@pytest.fixture
def classic(tmp_path):
  return fake_tensorflow.write(tmp_path, '2.15.1', estimators=True)


def test_todays_tensorflow_gets_keras_2_and_the_stub(today):
  # Imported twice: without the stub, and with it.
  assert fake_tensorflow.printed(today, 'import tpu_graphs_ext' + REPORT) == [
      '1', 'tf_keras.src', '_Stub', 'train 2']


def test_nothing_changes_on_the_classic_stack(classic):
  assert fake_tensorflow.printed(classic, 'import tpu_graphs_ext' + REPORT) == [
      'None', 'tf_keras.src', 'module', 'real 1']


def test_the_stub_stays_away_where_ranking_works_without_it(tmp_path):
  folder = fake_tensorflow.write(tmp_path, '2.21.0', estimators=True)
  assert fake_tensorflow.printed(folder, 'import tpu_graphs_ext' + REPORT) == [
      '1', 'tf_keras.src', 'module', 'real 1']


def test_another_import_error_of_ranking_is_not_hidden(today):
  (today / 'tensorflow_ranking.py').write_text('import absent_package')
  done = fake_tensorflow.run(
      today, 'import tpu_graphs_ext, tensorflow_ranking')
  assert done.stderr.endswith("No module named 'absent_package'\n")


def test_importing_the_package_imports_next_to_nothing(today):
  lines = fake_tensorflow.printed(today, '''
import sys
before = set(sys.modules)
import tpu_graphs_ext
print(sorted(set(sys.modules) - before - {'__future__'}))''')
  assert lines == ["['tpu_graphs_ext', 'tpu_graphs_ext.errors', "
                   "'tpu_graphs_ext.stacks', 'tpu_graphs_ext.stacks.imports']"]


def test_looking_for_tensorflow_without_importing_it_changes_nothing(today):
  assert fake_tensorflow.printed(today, '''
import importlib.util, os
import tpu_graphs_ext
importlib.util.find_spec('tensorflow')
print(os.environ.get('TF_USE_LEGACY_KERAS'))''') == ['None']


def test_not_too_late_after_tensorflow_before_keras(today):
  assert fake_tensorflow.printed(
      today, 'import tensorflow, tpu_graphs_ext' + REPORT)[1] == 'tf_keras.src'


def last_line(done) -> str:
  assert done.returncode == 1
  return done.stderr.splitlines()[-1]


def test_too_late_after_keras_3_was_used(today):
  line = last_line(fake_tensorflow.run(today, '''
import tensorflow
tensorflow.keras.Model
import tpu_graphs_ext
import tensorflow_gnn'''))
  assert line.startswith('tpu_graphs_ext.stacks.imports.KerasVersionError: '
                         'tensorflow_gnn needs Keras 2, but TensorFlow 2.21.0 '
                         'was imported and used with Keras 3 before')
  assert 'import tpu_graphs_ext before tensorflow' in line


@pytest.mark.parametrize('module', ['tensorflow_gnn', 'tensorflow_ranking'])
def test_keras_3_that_the_user_asked_for_is_named(today, module):
  line = last_line(fake_tensorflow.run(
      today, f'import tpu_graphs_ext, {module}', TF_USE_LEGACY_KERAS='0'))
  assert f"{module} needs Keras 2, and TF_USE_LEGACY_KERAS is '0'" in line


@pytest.mark.parametrize('version,advice', [
    ('2.21.0', 'run: pip install "tf_keras==2.21.*"'),
    ('2.15.1', 'TensorFlow 2.15 has its own, so unset TF_USE_LEGACY_KERAS')])
def test_a_missing_tf_keras_is_named(tmp_path, version, advice):
  folder = fake_tensorflow.write(tmp_path, version)
  path = folder / 'tensorflow' / '__init__.py'
  path.write_text(path.read_text().replace(
      '    legacy =', "    raise ImportError('Keras cannot be imported')\n"
      '    legacy ='))
  line = last_line(fake_tensorflow.run(
      folder, 'import tpu_graphs_ext, tensorflow_gnn',
      TF_USE_LEGACY_KERAS='1'))
  assert 'tf_keras, which cannot be imported' in line
  assert line.endswith(advice)


def test_the_error_is_one_that_the_command_line_prints():
  from tpu_graphs_ext import errors
  from tpu_graphs_ext.stacks import imports
  assert issubclass(imports.KerasVersionError, errors.UserError)


@pytest.mark.parametrize('level,notes', [('1', 0), ('3', 0), ('0', 2)])
def test_startup_notes_are_kept_back_but_not_errors(tmp_path, level, notes):
  """Of the three lines two are notes."""
  folder = fake_tensorflow.write(tmp_path, '2.21.0',
                                 notes=fake_tensorflow.NOTES)
  done = fake_tensorflow.run(folder, 'import tpu_graphs_ext, tensorflow',
                             TF_CPP_MIN_LOG_LEVEL=level)
  lines = done.stderr.splitlines()
  assert len(lines) == 1 + notes
  assert lines[-1].endswith('something is wrong')


def test_what_is_said_before_tensorflow_fails_to_import_is_shown(tmp_path):
  folder = fake_tensorflow.write(tmp_path, '2.21.0',
                                 notes=fake_tensorflow.NOTES)
  (folder / 'tensorflow' / '__init__.py').open('a').write('import absent')
  done = fake_tensorflow.run(folder, 'import tpu_graphs_ext, tensorflow',
                             TF_CPP_MIN_LOG_LEVEL='3')
  assert 'something is wrong' in done.stderr
  assert "No module named 'absent'" in done.stderr


def test_only_the_saving_warning_is_dropped(today):
  done = fake_tensorflow.run(today, '''
import warnings
import tpu_graphs_ext, tensorflow
warnings.warn('Encoding a StructuredValue with type tensorflow_gnn.X; loading')
warnings.warn('Encoding a StructuredValue with type other.X; loading')
warnings.warn('old', DeprecationWarning)''')
  assert 'tensorflow_gnn.X' not in done.stderr
  assert 'UserWarning: Encoding a StructuredValue with type other.X' in (
      done.stderr)
  assert 'DeprecationWarning: old' in done.stderr


def test_input_layers_are_saved_as_keras_2_15_reads_them():
  import tensorflow as tf
  import tensorflow_gnn  # noqa: F401  With it the change comes.
  layer = tf.keras.layers.InputLayer([3])
  config = layer.get_config()
  assert set(config) == {'batch_input_shape', 'dtype', 'sparse', 'ragged',
                         'name'}
  assert tf.keras.layers.InputLayer.from_config(config).get_config() == config
  if versions.stack_name() == 'current':
    layer = tf.keras.layers.InputLayer([3], optional=True)
    assert layer.get_config()['optional']


def test_estimators_of_the_real_ranking_library_refuse_to_be_used():
  import tensorflow_ranking as tfr
  if versions.stack_name() == 'classic':
    pytest.skip('TensorFlow 2.15 has estimators')
  with pytest.raises(estimator_stub.NoEstimatorError,
                     match=r'tensorflow\.estimator\.RunConfig does not exist'):
    tfr.estimator.EstimatorBuilder(
        context_feature_columns={}, example_feature_columns={},
        scoring_function=lambda context_features, example_features, mode: None,
        hparams={
            'checkpoint_secs': 1, 'num_checkpoints': 1, 'loss': 'mse',
            'listwise_inference': True, 'model_dir': 'unused',
            'learning_rate': 0.1,
        }).make_estimator()
