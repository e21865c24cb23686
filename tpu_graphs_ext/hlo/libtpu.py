"""Which TPUs libtpu compiles for, and where it is; needs no TensorFlow."""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

from tpu_graphs_ext.errors import UserError, did_you_mean, how_to_install

LIBRARY_VARIABLE = 'TPU_GRAPHS_EXT_LIBTPU'


class Generation(NamedTuple):
  """A generation of TPU; `analytic.blocks.MACHINES` has its figures."""
  name: str  # Google Cloud's.
  topology: str  # libtpu's name for the smallest machine of it.


GENERATIONS = {
    name: Generation(name, topology) for name, topology in (
        ('v2', 'v2:2x2x1'), ('v3', 'v3:2x2x1'), ('v4', 'v4:2x2x1'),
        ('v5e', 'v5e:2x2x1'), ('v5p', 'v5p:2x2x1'), ('v6e', 'v6e:2x2x1'),
        ('v7x', 'tpu7x:2x2x1'))}


def generation_of(name: str) -> Generation:
  """The generation with that name; raises UserError if there is none."""
  if name not in GENERATIONS:
    names = list(GENERATIONS)
    raise UserError(f'{name!r} is not a TPU generation that libtpu compiles '
                    f'for; choose from {", ".join(names)}. '
                    f'{did_you_mean(name, names)}'.rstrip())
  return GENERATIONS[name]


def library() -> str:
  """Path of libtpu.so: the environment variable's, else the installed one.

  Raises:
    UserError: it is missing.
  """
  named = os.environ.get(LIBRARY_VARIABLE)
  if named:
    if not os.path.isfile(named):
      raise UserError(f'{LIBRARY_VARIABLE}={named}: no such file; it must name '
                      'libtpu.so')
    return os.path.abspath(named)
  spec = importlib.util.find_spec('libtpu')
  path = spec and spec.origin and os.path.join(
      os.path.dirname(spec.origin), 'libtpu.so')
  if not path or not os.path.isfile(path):
    raise UserError(
        f'the TPU compiler is not installed: {how_to_install("tpu")} '
        '(Python 3.11 or newer on Linux, x86-64), or set '
        f'{LIBRARY_VARIABLE}=/path/to/libtpu.so')
  return path
