"""Compiles the blocks of a ranking ahead of time, each in a Pallas kernel.

JAX lowers `pallas_kernel`, in a process of its own; libtpu compiles it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from typing import Any

from tqdm import tqdm

from tpu_graphs_ext.analytic import products
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import libtpu, subprocesses, tpu_compiler

# What the lowering process imports: a function, and one of its arguments.
_PROGRAM = '''import types
from tpu_graphs_ext.serving import pallas_kernel
product = types.SimpleNamespace(**{product!r})
run = pallas_kernel.kernel(product, {block!r}, {limit!r})
def shapes():
  return pallas_kernel.shapes(product)
'''
# What a libtpu says of Pallas kernels by a JAX that is newer.
_NEWER_JAX = re.compile('Could not convert JSON|nsupported version')
_TOO_MUCH = re.compile(r'size ([\d.]+[KMG]) and limit ([\d.]+[KMG])')


def checked(ranking: Any, jax_python: str) -> Any:
  """A `BlockRanking` whose choices say what the compiler makes of them.

  Raises UserError if JAX or libtpu is missing, if JAX is too new for libtpu, or
  for a grouped product.
  """
  if isinstance(ranking.product, products.GroupedProduct):
    raise UserError('--check: compiles blocks of plain products; leave it out '
                    'for a grouped one')
  library = libtpu.library()
  topology = libtpu.topology_of(ranking.tpu)
  choices = []
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    for choice in tqdm(ranking.choices, 'compiling', unit='block', leave=False,
                       disable=None):
      path = os.path.join(folder, f'blocks_{choice.index}.py')
      with open(path, 'w', encoding='utf-8') as file:
        file.write(_PROGRAM.format(
            product=dataclasses.asdict(ranking.product), block=choice.block,
            limit=choice.vmem_limit_bytes))
      program = subprocesses.lower_named(f'{path}:run', 'shapes', jax_python)
      choices.append(dataclasses.replace(
          choice, refusal=_refusal(library, topology, program)))
  return dataclasses.replace(ranking, choices=choices)


def _refusal(library: str, topology: str, program: bytes) -> str:
  try:
    subprocesses.compile_program(library, topology, program, 'hlo',
                                 tpu_compiler.compile_options())
    return ''
  except UserError as error:
    if _NEWER_JAX.search(str(error)):
      raise UserError(
          f'--check: {error}; this JAX writes kernels for a newer libtpu than '
          f'{library}: name its own in {libtpu.LIBRARY_VARIABLE}='
          '/path/to/libtpu.so, or an older JAX with --jax_python') from error
    sizes = _TOO_MUCH.search(str(error))
    return (f'takes {sizes[1]} of on-chip memory, the limit is {sizes[2]}'
            if sizes else str(error)[:200])
