"""Made-up TensorFlow packages, to try both stacks in any environment.

They are imported in a moment and have just what `stacks.imports` looks at.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from support.places import PROJECT

# Chooses its Keras as the real one does: when it is first used.
TENSORFLOW = '''
import os
__version__ = '{version}'

class _Keras:
  def __getattr__(self, name):
    legacy = {version!r} < '2.16' or os.environ.get(
        'TF_USE_LEGACY_KERAS') in ('1', 'true', 'True')
    self.layers = type('Layers', (), {{'InputLayer': type(
        'InputLayer', (), {{'get_config': lambda self: {{}}}})}})
    self.Model = type('Model', (), {{
        '__module__': 'tf_keras.src' if legacy else 'keras.src'}})
    return vars(self)[name]

keras = _Keras()
'''

# The modes are taken when it is imported, like TensorFlow Ranking does.
RANKING = '''
imports = globals().get('imports', 0) + 1
from tensorflow import estimator
from tensorflow.compat.v1 import estimator as estimator_v1
def feature_columns(mode=estimator.ModeKeys.TRAIN):
  return mode
'''


def write(folder: pathlib.Path, version: str,
          estimators: bool = False) -> pathlib.Path:
  """Writes the packages, and what pip would note of TensorFlow.

  Args:
    folder: to be put on the path.
    version: TensorFlow's.
    estimators: whether it has `tensorflow.estimator`.
  """
  files = {
      'tensorflow/__init__.py': TENSORFLOW.format(version=version),
      'tensorflow/compat/__init__.py': '',
      'tensorflow/compat/v1/__init__.py': '',
      f'tensorflow-{version}.dist-info/METADATA':
          f'Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\n',
      'tensorflow_gnn.py': '', 'tensorflow_ranking.py': RANKING,
  }
  if estimators:
    code = "class ModeKeys:\n  TRAIN = 'real'\nclass Estimator:\n  pass\n"
    files['tensorflow/estimator.py'] = code
    files['tensorflow/compat/v1/estimator.py'] = code
  for name, text in files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return folder


def run(folder: pathlib.Path, code: str, **variables: str):
  """Runs code in a new Python that has the packages and this project."""
  environment = {key: value for key, value in os.environ.items()
                 if not key.startswith(('PYTHON', 'TF_'))}
  environment.update(
      PYTHONPATH=os.pathsep.join([str(folder), str(PROJECT)]), **variables)
  return subprocess.run([sys.executable, '-c', code], env=environment,
                        capture_output=True, text=True, check=False)


def printed(folder: pathlib.Path, code: str, **variables: str) -> list[str]:
  """The lines that code prints; it must succeed."""
  done = run(folder, code, **variables)
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()
