"""Which stack is in use, and why."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import runpy
import subprocess
import sys

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.version import Version

from support.places import PROJECT
from tpu_graphs_ext.stacks import versions

try:
  import tomllib
except ImportError:  # Before Python 3.11; it comes with pytest.
  import tomli as tomllib

CONSTRAINTS = PROJECT / 'constraints'


@pytest.fixture
def installed(monkeypatch):
  """Sets what is installed; TensorFlow is not imported then."""
  packages = {}
  monkeypatch.setattr(versions, 'installed', packages.get)
  monkeypatch.delitem(versions.sys.modules, 'tensorflow', raising=False)
  return packages


def test_the_name_follows_from_tensorflow(installed):
  for version, name in (
      ('2.15.1', 'classic'), ('2.9.0', 'classic'), ('2.16.0rc0', 'current'),
      ('2.21.0', 'current'), ('3.0.0', 'current')):
    installed['tensorflow-cpu'] = version
    assert versions.stack_name() == name
    assert versions.tensorflow_version() == version


def test_without_tensorflow_it_follows_from_python(installed, monkeypatch):
  for python, name in (('3.9.1', 'classic'), ('3.11.7', 'classic'),
                       ('3.12.0', 'current'), ('3.13.2', 'current')):
    monkeypatch.setattr(platform, 'python_version_tuple',
                        lambda python=python: tuple(python.split('.')))
    assert versions.stack_name() == name
    assert versions.tensorflow_version() is None


def asked_of_setuptools(monkeypatch, chosen):
  """What setup.py asks for; it imports nothing of the package."""
  asked = {}
  monkeypatch.setenv('TPU_GRAPHS_EXT_STACK', chosen)
  monkeypatch.setattr(
      setuptools, 'setup', lambda **settings: asked.update(settings))
  before = set(sys.modules)
  runpy.run_path(str(PROJECT / 'setup.py'))
  assert not [name for name in set(sys.modules) - before
              if name.startswith('tpu_graphs_ext')]
  return asked['install_requires']


def test_requirements_for_setup(monkeypatch):
  for chosen, boundary in (('', '3.12'), ('classic', '3.12'),
                           ('current', '3.10')):
    asked = asked_of_setuptools(monkeypatch, chosen)
    assert f'tensorflow>=2.15.1,<2.16; python_version < "{boundary}"' in asked
    assert f'tf_keras>=2.21,<2.22; python_version >= "{boundary}"' in asked
    assert 'scipy>=1.11,<2' in asked
  with pytest.raises(SystemExit, match='TPU_GRAPHS_EXT_STACK=new: there is no '
                     'such stack; choose classic or current'):
    asked_of_setuptools(monkeypatch, 'new')


def test_constraints_name_one_supported_version_of_all_that_is_asked_for(
    monkeypatch):
  assert {path.stem for path in CONSTRAINTS.glob('*.txt')} == {
      f'{stack.name}-python{python}'
      for stack in versions.STACKS.values() for python in stack.pythons}
  project = tomllib.loads((PROJECT / 'pyproject.toml').read_text())['project']
  extras = [text for extra in project['optional-dependencies'].values()
            for text in extra if not text.startswith('tpu_graphs_ext[')]
  for path in CONSTRAINTS.glob('*.txt'):
    exact = dict(re.findall(r'^(\S+)==(\S+)$', path.read_text(), re.MULTILINE))
    stack, python = path.stem.split('-python')
    checked = 0
    for requirement in map(Requirement, asked_of_setuptools(monkeypatch, stack)
                   + extras):
      if requirement.marker is None or requirement.marker.evaluate({
          'python_version': python, 'sys_platform': 'linux',
          'platform_machine': 'x86_64'}):
        name = requirement.name.replace('_', '-')
        assert exact[name] in requirement.specifier, (path, requirement)
        checked += 1
    assert checked > 20


@pytest.mark.parametrize('name, used', [
    ('optuna', 'optuna.storages.journal.JournalFileBackend, '
     'optuna.samplers.TPESampler, optuna.pruners.SuccessiveHalvingPruner, '
     'optuna.exceptions.OptunaError'),
    ('distributed', 'distributed.Client, distributed.TimeoutError'),
    ('fsspec', 'fsspec.core.url_to_fs')])
def test_what_the_extras_bring_imports_in_the_last_version_that_they_allow(
    name, used):
  """The bound is above the major version, or year, that is tried here."""
  pytest.importorskip(name, reason='needs the extra [scale]')
  project = tomllib.loads((PROJECT / 'pyproject.toml').read_text())['project']
  requirement, = (candidate for candidate in map(
      Requirement, project['optional-dependencies']['scale'])
                  if candidate.name == name)
  version = Version(importlib.metadata.version(name))
  assert version in requirement.specifier
  if sys.version_info >= (3, 11):  # Older Pythons have older versions.
    assert str(Version(str(version.major + 1))) in [
        bound.version for bound in requirement.specifier
        if bound.operator == '<']
  for path in used.split(', '):
    module, _, last = path.rpartition('.')
    assert hasattr(importlib.import_module(module), last)


def test_jax_imports_in_the_last_version_that_is_allowed(jax_python):
  project = tomllib.loads((PROJECT / 'pyproject.toml').read_text())['project']
  requirement, = map(Requirement, project['optional-dependencies']['jax'])
  done = subprocess.run(
      [jax_python or sys.executable, '-c', 'import jax; from jax import export,'
       ' jit, ShapeDtypeStruct; print(jax.__version__)'], capture_output=True,
      text=True, check=True)
  assert Version(done.stdout.strip()) in requirement.specifier
