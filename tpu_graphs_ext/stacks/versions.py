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
import os
import platform
import re
import sys
from typing import Optional

# Packages that bring the module tensorflow.
_TENSORFLOWS = ('tensorflow', 'tensorflow-cpu', 'tensorflow-gpu',
                'tensorflow-macos', 'tensorflow-rocm', 'tf-nightly')


@dataclasses.dataclass(frozen=True)
class Stack:
  """One supported set of versions."""
  name: str  # 'classic' or 'current'.
  pythons: tuple[str, ...]  # Oldest first.
  requirements: dict[str, str]  # Package -> versions, as pip writes them.


def _stack(name: str, *pythons: str) -> Stack:
  """The requirements in the .txt files beside this one; setup.py reads them."""
  requirements = {}
  for part in (name, 'scripts'):
    path = os.path.join(os.path.dirname(__file__), f'{part}.txt')
    with open(path, encoding='utf-8') as file:
      requirements.update(re.findall(r'^([\w-]+)(>=.+)$', file.read(), re.M))
  return Stack(name, pythons, requirements)


STACKS = {stack.name: stack for stack in (
    _stack('classic', '3.9', '3.10', '3.11'),
    _stack('current', '3.10', '3.11', '3.12', '3.13'))}


@dataclasses.dataclass(frozen=True)
class StackInUse:
  """What the running Python has."""
  name: str  # 'classic' or 'current'.
  why: str  # One sentence.
  python: str  # Such as '3.12.1'.
  versions: dict[str, Optional[str]]  # Package -> installed; None: missing.
  expected: dict[str, str]  # Package -> supported, as pip writes them.


def tensorflow_version() -> Optional[str]:
  """Version of TensorFlow, without importing it; None where it is missing."""
  module = sys.modules.get('tensorflow')
  if hasattr(module, '__version__'):
    return module.__version__
  return next(filter(None, map(_installed, _TENSORFLOWS)), None)


def stack_name() -> str:
  """'classic' up to TensorFlow 2.15; without any, what this Python gets."""
  version = tensorflow_version()
  if version is None:
    python = '.'.join(platform.python_version_tuple()[:2])
    return 'classic' if python in STACKS['classic'].pythons else 'current'
  return 'classic' if _numbers(version) < (2, 16) else 'current'


def describe() -> StackInUse:
  """Which stack the running Python has, and why."""
  name, tensorflow = stack_name(), tensorflow_version()
  python = platform.python_version()
  why = (f'what Python {python} gets; TensorFlow is not installed'
         if tensorflow is None else f'TensorFlow {tensorflow} is installed')
  expected = STACKS[name].requirements
  versions = {package: _installed(package) for package in expected}
  versions['tensorflow'] = tensorflow
  return StackInUse(name, why, python, versions, expected)


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
