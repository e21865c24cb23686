"""The two sets of versions that everything runs on, and which one is in use.

  classic   TensorFlow 2.15 with its own Keras 2: what the baseline was
            written for. Python 3.9 to 3.11.
  current   today's TensorFlow, with Keras 2 from tf_keras; see `imports`.
            Python 3.10 to 3.13.

Exact versions are in constraints/<stack>-python<version>.txt.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import re
import sys
from typing import Optional

# Chooses a stack for installing on a Python that both support.
STACK_VARIABLE = 'TPU_GRAPHS_EXT_STACK'

# Packages that bring the module tensorflow.
_TENSORFLOWS = ('tensorflow', 'tensorflow-cpu', 'tensorflow-gpu',
                'tensorflow-macos', 'tensorflow-rocm', 'tf-nightly')


@dataclasses.dataclass(frozen=True)
class Stack:
  """One supported set of versions.

  Attributes:
    name: 'classic' or 'current'.
    pythons: versions of Python, oldest first.
    requirements: package -> which versions, as pip writes it.
  """
  name: str
  pythons: tuple[str, ...]
  requirements: dict[str, str]


# What else the scripts of the baseline and of the course import; this package
# needs scipy and tqdm of it.
_OF_SCRIPTS = {
    'absl-py': '>=1.4,<3',
    'apache-beam': '>=2.50,<3',
    'pandas': '>=2,<4',
    'scipy': '>=1.11,<2',
    'tqdm': '>=4.60,<5',
}
CLASSIC = Stack('classic', ('3.9', '3.10', '3.11'), {
    'tensorflow': '>=2.15.1,<2.16',
    'keras': '>=2.15,<3',
    'tensorflow_gnn': '>=1.0.3,<1.1',
    'tensorflow-ranking': '>=0.5.5,<0.6',
    'numpy': '>=1.22,<2',
    **_OF_SCRIPTS,
})
CURRENT = Stack('current', ('3.10', '3.11', '3.12', '3.13'), {
    'tensorflow': '>=2.21,<2.22',
    'tf_keras': '>=2.21,<2.22',
    'tensorflow_gnn': '>=1.0.3,<1.1',
    # The newest that does not ask for a TensorFlow below 2.16.
    'tensorflow-ranking': '>=0.5.3,<0.6',
    'numpy': '>=1.26,<3',
    # No longer comes with TensorFlow.
    'tensorboard': '>=2.20,<3',
    **_OF_SCRIPTS,
})
STACKS = {stack.name: stack for stack in (CLASSIC, CURRENT)}


def default_stack(python: str) -> str:
  """The stack that a Python such as '3.11' gets unless another is chosen."""
  return 'classic' if python in CLASSIC.pythons else 'current'


def install_requires(chosen: str = '') -> list[str]:
  """Requirements for setup.py, with markers for the version of Python.

  Args:
    chosen: the stack for a Python that both support; empty: classic.

  Raises:
    ValueError: there is no such stack.
  """
  if chosen and chosen not in STACKS:
    raise ValueError(f'{STACK_VARIABLE}={chosen}: there is no such stack; '
                     f'choose {" or ".join(STACKS)}, or unset it')
  first_current = '3.10' if chosen == 'current' else '3.12'
  return [
      f'{package}{versions}; python_version {relation} "{first_current}"'
      for stack, relation in ((CLASSIC, '<'), (CURRENT, '>='))
      for package, versions in stack.requirements.items()]


# ------------------------------------------------------------- what is in use


@dataclasses.dataclass(frozen=True)
class StackInUse:
  """What the running Python has.

  Attributes:
    name: 'classic' or 'current'.
    why: one sentence.
    python: its version, such as '3.12.1'.
    versions: package -> installed version, None where it is missing.
    expected: package -> supported versions, as pip writes it.
    faults: one sentence for each version that is not supported.
  """
  name: str
  why: str
  python: str
  versions: dict[str, Optional[str]]
  expected: dict[str, str]
  faults: list[str]

  def text(self) -> str:
    """Name, reason, versions and faults, a line each."""
    lines = [f'{self.name} stack: {self.why}', f'  Python {self.python}']
    for package, version in self.versions.items():
      lines.append(f'  {package} {version or "is missing"} '
                   f'(supported: {self.expected[package]})')
    return '\n'.join(lines + self.faults)


def tensorflow_version() -> Optional[str]:
  """Version of TensorFlow, without importing it; None where it is missing."""
  module = sys.modules.get('tensorflow')
  if hasattr(module, '__version__'):
    return module.__version__
  for package in _TENSORFLOWS:
    version = _installed(package)
    if version:
      return version
  return None


def stack_name() -> str:
  """'classic' up to TensorFlow 2.15, 'current' from 2.16 on.

  Without TensorFlow it is the one that this Python would get.
  """
  version = tensorflow_version()
  if version is None:
    return default_stack('.'.join(platform.python_version_tuple()[:2]))
  return 'classic' if _numbers(version) < (2, 16) else 'current'


def describe() -> StackInUse:
  """Which stack the running Python has, why, and whether it is whole."""
  name, tensorflow = stack_name(), tensorflow_version()
  python = platform.python_version()
  stack = STACKS[name]
  if tensorflow is None:
    why = f'what Python {python} gets; TensorFlow is not installed'
  elif name == 'classic':
    why = f'TensorFlow {tensorflow} is older than 2.16 and has its own Keras 2'
  else:
    why = (f'TensorFlow {tensorflow} is 2.16 or later, so Keras 2 comes from '
           'tf_keras')
  versions = {package: _installed(package) for package in stack.requirements}
  versions['tensorflow'] = tensorflow
  faults = [
      f'{package} {version or "is missing"}; the {name} stack needs '
      f'{package}{stack.requirements[package]}'
      for package, version in versions.items()
      if not version or not within(version, stack.requirements[package])]
  if '.'.join(python.split('.')[:2]) not in stack.pythons:
    faults.append(f'Python {python}; the {name} stack needs one of '
                  f'{", ".join(stack.pythons)}')
  return StackInUse(name, why, python, versions, stack.requirements, faults)


def _installed(package: str) -> Optional[str]:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _numbers(version: str) -> tuple[int, ...]:
  """(2, 21, 0) of '2.21.0rc1'."""
  return tuple(int(number) for number in
               re.match(r'\d+(\.\d+)*', version)[0].split('.'))


def within(version: str, versions: str) -> bool:
  """Whether a version meets rules such as '>=2.15.1,<2.16'."""
  return all(
      _numbers(version) >= _numbers(rule[2:]) if rule.startswith('>=')
      else _numbers(version) < _numbers(rule[1:])
      for rule in versions.split(','))
