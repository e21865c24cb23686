"""What importing the package does to the imports of TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support import fake_tensorflow
from support.places import PYTHONPATH
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import imports

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


def test_todays_tensorflow_gets_keras_2_and_the_stub(today):
  for first in ('import tpu_graphs_ext',
                # Not too late before Keras is used.
                'import tensorflow, tpu_graphs_ext'):
    # Ranking is imported twice: without the stub, and with it.
    assert fake_tensorflow.printed(today, first + REPORT) == [
        '1', 'tf_keras.src', 'module', 'train 2']


def test_nothing_changes_on_the_classic_stack(tmp_path):
  folder = fake_tensorflow.write(tmp_path, '2.15.1', estimators=True)
  assert fake_tensorflow.printed(folder, 'import tpu_graphs_ext' + REPORT) == [
      'None', 'tf_keras.src', 'module', 'real 1']


def test_keras_3_is_refused(today):
  """Where it was used before, and where the user asks for it."""
  for module, code, variables in (
      ('tensorflow_gnn', 'import tensorflow\ntensorflow.keras.Model', {}),
      ('tensorflow_ranking', '', {'TF_USE_LEGACY_KERAS': '0'})):
    done = fake_tensorflow.run(
        today, f'{code}\nimport tpu_graphs_ext, {module}', **variables)
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert line.startswith(
        'tpu_graphs_ext.stacks.imports.KerasVersionError: '
        f'{module} needs Keras 2, but tf.keras of TensorFlow 2.21.0 is keras.')
    assert 'import tpu_graphs_ext before tensorflow' in line
  # The command line prints it.
  assert issubclass(imports.KerasVersionError, UserError)


def test_input_layers_are_saved_as_keras_2_15_reads_them():
  import tensorflow as tf
  import tensorflow_gnn  # noqa: F401  With it the change comes.
  layer = tf.keras.layers.InputLayer([3])
  config = layer.get_config()
  assert set(config) == {'batch_input_shape', 'dtype', 'sparse', 'ragged',
                         'name'}
  assert tf.keras.layers.InputLayer.from_config(config).get_config() == config


def test_only_what_others_write_is_shown_while_tensorflow_loads():
  code = """if True:
    import os, sys
    from tpu_graphs_ext.stacks import imports
    imports.quieten()
    def log():  # As a library does, beside a message of Python's.
      print('ours', file=sys.stderr)
      os.write(2, b'log')
    imports._silently(log)()
    os.write(2, b'theirs')
    import tensorflow
  """
  variables = {name: value for name, value in os.environ.items()
               if name != 'TF_CPP_MIN_LOG_LEVEL'}
  done = subprocess.run(
      [sys.executable, '-c', code], check=True, capture_output=True,
      env={**variables, 'PYTHONPATH': PYTHONPATH})
  assert done.stderr == b'ours\ntheirs'
