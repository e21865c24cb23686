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


def tensorflow_version() -> Optional[str]:
  """Version of TensorFlow, without importing it; None where it is missing."""
  module = sys.modules.get('tensorflow')
  if hasattr(module, '__version__'):
    return module.__version__
  return next(filter(None, map(installed, _TENSORFLOWS)), None)


def stack_name() -> str:
  """'classic' up to TensorFlow 2.15; without any, what this Python gets."""
  version = tensorflow_version()
  if version is None:
    python = '.'.join(platform.python_version_tuple()[:2])
    return 'classic' if python in STACKS['classic'].pythons else 'current'
  return 'classic' if _numbers(version) < (2, 16) else 'current'


def installed(package: str) -> Optional[str]:
  """Version of a package; None where it is missing."""
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
