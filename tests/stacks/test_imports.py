"""What importing the package does to the imports of TensorFlow."""

from __future__ import annotations

import pytest

from support import fake_tensorflow
from tpu_graphs_ext.stacks import imports, versions

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


def last_line(done) -> str:
  assert done.returncode == 1
  return done.stderr.splitlines()[-1]


def test_todays_tensorflow_gets_keras_2_and_the_stub(today):
  for first in ('import tpu_graphs_ext',
                # Not too late before Keras is used.
                'import tensorflow, tpu_graphs_ext'):
    # Ranking is imported twice: without the stub, and with it.
    assert fake_tensorflow.printed(today, first + REPORT) == [
        '1', 'tf_keras.src', '_Estimators', 'train 2']


@pytest.mark.parametrize('version, variable', [
    ('2.15.1', 'None'),  # Nothing changes on the classic stack.
    ('2.21.0', '1')])
def test_the_stub_stays_away_where_there_are_estimators(
    tmp_path, version, variable):
  folder = fake_tensorflow.write(tmp_path, version, estimators=True)
  assert fake_tensorflow.printed(folder, 'import tpu_graphs_ext' + REPORT) == [
      variable, 'tf_keras.src', 'module', 'real 1']


def test_importing_the_package_imports_next_to_nothing(today):
  lines = fake_tensorflow.printed(today, '''
import importlib.util, os, sys
before = set(sys.modules)
import tpu_graphs_ext
print(sorted(set(sys.modules) - before - {'__future__'}))
importlib.util.find_spec('tensorflow')  # Looks for it, no more.
print(os.environ.get('TF_USE_LEGACY_KERAS'))''')
  assert lines == ["['tpu_graphs_ext', 'tpu_graphs_ext.errors', "
                   "'tpu_graphs_ext.stacks', 'tpu_graphs_ext.stacks.imports']",
                   'None']


def test_keras_3_is_refused(today):
  line = last_line(fake_tensorflow.run(today, '''
import tensorflow
tensorflow.keras.Model
import tpu_graphs_ext
import tensorflow_gnn'''))
  assert line.startswith('tpu_graphs_ext.stacks.imports.KerasVersionError: '
                         'tensorflow_gnn needs Keras 2, but TensorFlow 2.21.0 '
                         'was imported and used with Keras 3 before')
  assert 'import tpu_graphs_ext before tensorflow' in line
  for module in ('tensorflow_gnn', 'tensorflow_ranking'):
    line = last_line(fake_tensorflow.run(
        today, f'import tpu_graphs_ext, {module}', TF_USE_LEGACY_KERAS='0'))
    assert f"{module} needs Keras 2, and TF_USE_LEGACY_KERAS is '0'" in line
  from tpu_graphs_ext.errors import UserError  # The command line prints it.
  assert issubclass(imports.KerasVersionError, UserError)


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


def test_startup_notes_are_dropped_but_not_errors(tmp_path):
  folder = fake_tensorflow.write(tmp_path, '2.21.0',
                                 notes=fake_tensorflow.NOTES)
  for level, notes in (('1', 0), ('3', 0), ('0', 2)):  # Of three lines.
    lines = fake_tensorflow.run(
        folder, 'import tpu_graphs_ext, tensorflow',
        TF_CPP_MIN_LOG_LEVEL=level).stderr.splitlines()
    assert len(lines) == 1 + notes and lines[-1].endswith('something is wrong')
  (folder / 'tensorflow' / '__init__.py').open('a').write('import absent')
  done = fake_tensorflow.run(folder, 'import tpu_graphs_ext, tensorflow',
                             TF_CPP_MIN_LOG_LEVEL='3')
  assert 'something is wrong' in done.stderr
  assert "No module named 'absent'" in done.stderr


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
  with pytest.raises(imports.NoEstimatorError,
                     match=r'tensorflow\.estimator\.RunConfig does not exist'):
    tfr.estimator.EstimatorBuilder(
        context_feature_columns={}, example_feature_columns={},
        scoring_function=lambda *unused: None, hparams={
            'checkpoint_secs': 1, 'num_checkpoints': 1, 'loss': 'mse',
            'listwise_inference': True, 'model_dir': 'unused',
            'learning_rate': 0.1}).make_estimator()
