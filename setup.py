"""The packages that this project needs; all else is in pyproject.toml.

They depend on TPU_GRAPHS_EXT_STACK, which chooses between two TensorFlows where
a Python could have either; see docs/stacks.md.
"""

import os
import pathlib

import setuptools

STACKS = pathlib.Path(__file__).parent / 'tpu_graphs_ext' / 'stacks'
CHOSEN = os.environ.get('TPU_GRAPHS_EXT_STACK', '')


def requirements(name: str) -> list:
  """The lines of a file of requirements, without comments."""
  lines = (STACKS / f'{name}.txt').read_text(encoding='utf-8').splitlines()
  return [line for line in lines if line and not line.startswith('#')]


if CHOSEN not in ('', 'classic', 'current'):
  raise SystemExit(f'TPU_GRAPHS_EXT_STACK={CHOSEN}: there is no such stack; '
                   'choose classic or current, or unset it')
FIRST_CURRENT = '3.10' if CHOSEN == 'current' else '3.12'
setuptools.setup(install_requires=[
    *(f'{line}; python_version < "{FIRST_CURRENT}"'
      for line in requirements('classic')),
    *(f'{line}; python_version >= "{FIRST_CURRENT}"'
      for line in requirements('current')),
    *requirements('scripts'),
    # The scores that `CostModel` keeps: a least-recently-used cache by size.
    'cachetools>=5,<9',
    # Completion of the command line; pure Python that needs nothing.
    'shtab>=1.6,<2'])
