"""What a models.py may import, told from its text."""

import re
import sys

import pytest

from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import allowed_imports


def faults(tmp_path, source: str) -> list[str]:
  path = tmp_path / 'models.py'
  path.write_text(source)
  return allowed_imports.faults_of(str(path))


def test_allowed(tmp_path, monkeypatch):
  monkeypatch.setattr(sys.modules['__main__'], '__spec__', None)  # No -m.
  assert allowed_imports.faults_of(load_models.models_path()) == []
  for source in (
      'import numpy.linalg', 'import os, _ctypes, __main__',
      'from . import implicit', 'from tpu_graphs.baselines import implicit',
      'try:\n  import torch\nexcept ImportError:\n  pass'):
    assert faults(tmp_path, source) == [], source


@pytest.mark.parametrize('source, line, name', [
    ('import os, torch.nn', 1, 'torch'),
    ('\ndef f():\n  from tpu_graphs_ext.hlo import tuning', 3,
     'tpu_graphs_ext'),
    ('try:\n  import os\nexcept ImportError:\n  import torch', 4, 'torch'),
])
def test_not_allowed(tmp_path, source, line, name):
  (fault,) = faults(tmp_path, source)
  assert f'line {line} imports {name}, which' in fault
  assert len(faults(tmp_path, f'{source}\nimport jax\nimport jax')) == 3


def test_what_is_not_python(tmp_path):
  path = tmp_path / 'models.py'
  texts = [b'def f(:\n', b'\xff', b'\0', 100_000 * b'(',
           b'x = ' + 20_000 * b'-' + b'1\n']
  if sys.version_info >= (3, 11):  # Earlier ones read it.
    texts.append(b'x = 1' + 50_000 * b'+1')
  for text in texts:
    path.write_bytes(text)
    (fault,) = allowed_imports.faults_of(str(path))
    assert re.search(r'is not a Python file for Python [\d.]+ \(.+\)', fault)
  (fault,) = allowed_imports.faults_of(str(tmp_path))
  assert 'cannot be read (is not an ordinary file)' in fault
