"""What a models.py may import, told from its text."""

import os

import pytest

from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import allowed_imports


def faults(tmp_path, source: str) -> list[str]:
  path = tmp_path / 'models.py'
  path.write_text(source)
  return allowed_imports.faults_of(str(path))


def test_the_projects_own_file_is_sound():
  assert allowed_imports.faults_of(load_models.models_path()) == []
  assert not allowed_imports.needs_baseline(load_models.models_path())


@pytest.mark.parametrize('line', [
    'import tensorflow as tf', 'import numpy.linalg', 'import os, json',
    'from tensorflow_gnn.models import gat_v2', 'from absl import logging',
    'from tpu_graphs.baselines.tiles import implicit', 'from . import implicit',
    'import _ctypes', '__import__("math")'])
def test_allowed(tmp_path, line):
  assert faults(tmp_path, line) == []


@pytest.mark.parametrize('source, line, name', [
    ('import torch', 1, 'torch'),
    ('import os, torch.nn', 1, 'torch'),
    ('\ndef f():\n  from tpu_graphs_ext.hlo import tuning', 3,
     'tpu_graphs_ext'),
    ('import importlib\nimportlib.import_module("pandas.core")', 2, 'pandas'),
    ('__import__("wandb")', 1, 'wandb'),
    ('try:\n  import torch\nexcept ValueError:\n  pass', 2, 'torch'),
    ('try:\n  import os\nexcept ImportError:\n  import torch', 4, 'torch'),
])
def test_not_allowed(tmp_path, source, line, name):
  (fault,) = faults(tmp_path, source)
  assert f'line {line} imports {name}, which' in fault


@pytest.mark.parametrize('error', ['ImportError', '(OSError, ImportError)',
                                   'Exception', ''])
def test_an_import_that_may_fail_is_no_fault(tmp_path, error):
  assert faults(
      tmp_path, f'try:\n  import torch\nexcept {error}:\n  pass') == []


def test_every_import_is_named(tmp_path):
  assert len(faults(tmp_path, 'import torch\nimport jax\nimport torch')) == 3


def test_no_python_and_no_file(tmp_path):
  (fault,) = faults(tmp_path, 'def f(:\n')
  assert 'is no Python file' in fault
  (fault,) = allowed_imports.faults_of(str(tmp_path / 'no.py'))
  assert 'cannot be read (No such file or directory)' in fault
  assert not allowed_imports.needs_baseline(str(tmp_path / 'no.py'))


def test_needs_the_checkout(tmp_path):
  faults(tmp_path, 'from tpu_graphs.baselines.tiles import implicit')
  assert allowed_imports.needs_baseline(str(tmp_path / 'models.py'))


def test_standard_library_without_its_list(monkeypatch):
  """As on Python 3.9."""
  monkeypatch.delattr('sys.stdlib_module_names', raising=False)
  for name in ('sys', 'json', 'dataclasses', 'zlib', 'math'):
    assert allowed_imports.is_standard(name)
  for name in ('numpy', 'tensorflow', 'tpu_graphs_ext'):
    assert not allowed_imports.is_standard(name)


@pytest.mark.parametrize('text', [
    b'\xff', b'\0', 100_000 * b'(', b'x = ' + 20_000 * b'-' + b'1\n',
    b'x = 1' + 50_000 * b'+1'])
def test_what_is_no_python_or_nested_without_end(tmp_path, text):
  path = tmp_path / 'models.py'
  path.write_bytes(text)
  fault, = allowed_imports.faults_of(str(path))
  assert 'is no Python file' in fault
  assert not allowed_imports.needs_baseline(str(path))


def test_what_is_no_file_or_too_long(tmp_path, monkeypatch):
  os.mkfifo(tmp_path / 'models.py')
  for path in (tmp_path, tmp_path / 'models.py'):
    fault, = allowed_imports.faults_of(str(path))
    assert 'cannot be read (is no ordinary file)' in fault
  monkeypatch.setattr(allowed_imports, 'MAX_BYTES', 10)
  (tmp_path / 'long.py').write_text('import numpy')
  fault, = allowed_imports.faults_of(str(tmp_path / 'long.py'))
  assert 'more than 10 bytes' in fault
