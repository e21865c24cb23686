"""Prints the table of docs/blocks.md.

  python benchmarks/tuned_blocks.py tuned_block_sizes.py

The file is `tpu_inference/kernels/quantized_matmul/tuned_block_sizes.py` of
vllm-project/tpu-inference (version of August 2026): the blocks of a Pallas
kernel that its authors measured to be the fastest, by TPU, sizes and types.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import accuracy_table
from tpu_graphs_ext.analytic import blocks
from tpu_graphs_ext.errors import UserError

FIRST = 5
_TPUS = {6: 'v6e', 7: 'v7x'}
_HEADS = ('entries', 'candidates, median', 'random', 'largest block first',
          '`rank`', '`rank`, first choice')


class Entry(NamedTuple):
  """One line of the table.

  Attributes:
    group: the row of our table that it counts in.
    tpu: generation.
    product: activations and results are bfloat16 in main memory; packed
      weights count as bytes.
    best: bm, bk, bn.
  """
  group: str
  tpu: str
  product: blocks.Product
  best: tuple[int, int, int]


def entries(source: str) -> list[Entry]:
  """The entries of the file's text.

  Raises:
    UserError: it holds no such table.
  """
  try:
    table = next(ast.literal_eval(node.value)
                 for node in ast.parse(source).body
                 if isinstance(node, ast.Assign)
                 and isinstance(node.value, ast.Dict) and node.value.keys)
    return [_entry(*key, value) for key, value in table.items()]
  except (SyntaxError, StopIteration, ValueError, TypeError,
          KeyError) as error:
    raise UserError(f'it holds no table of blocks ({error})') from error


def _entry(version: int, m: int, n: int, k: int, x_type: str, w_type: str,
           value: Sequence[int]) -> Entry:
  tpu = _TPUS[version]
  bm, bn, bk = value[:3]
  # A fourth number marks the repository's other kernel, with scales by block.
  group = f'{x_type} x {w_type} on {tpu}' + (
      ', another kernel' if len(value) > 3 else '')
  narrow = 'int8' if x_type == 'int8' else 'fp8'
  return Entry(group, tpu, blocks.Product(1, m, k, n, 2, 1, 2, narrow),
               (bm, bk, bn))


def shares(group: Sequence[Entry]) -> tuple[float, ...]:
  """(median of candidates; for each other column how often the best is found).
  """
  rows = []
  for entry in group:
    machine = blocks.MACHINES[entry.tpu]
    grid = blocks.usual_blocks(entry.product, machine)
    is_best = (grid == entry.best).all(1)
    ranked = is_best[np.argsort(
        blocks.times_ns(entry.product, grid, machine), kind='stable')]
    largest = is_best[np.argsort(-grid.prod(1), kind='stable')]
    rows.append((len(grid), is_best.any() * min(1, FIRST / len(grid)),
                 largest[:FIRST].any(), ranked[:FIRST].any(), ranked[0]))
  counts, *found = zip(*rows)
  return statistics.median(counts), *(
      float(np.mean(column)) for column in found)


def table(every: Sequence[Entry]) -> str:
  """Markdown, a row for each group."""
  rows = []
  for name in dict.fromkeys(entry.group for entry in every):
    group = [entry for entry in every if entry.group == name]
    count, *found = shares(group)
    rows.append([f'{name}, {len(group)}', f'{count:.0f}',
                 *(f'{100 * share:.0f} %' for share in found)])
  return '\n'.join(accuracy_table.table(list(_HEADS), rows)).rstrip()


def main(paths: Sequence[str]) -> int:
  if len(paths) != 1:
    print(__doc__, file=sys.stderr)
    return 2
  try:
    with open(paths[0], encoding='utf-8') as file:
      print(table(entries(file.read())))
  except (OSError, UserError) as error:
    print(f'error: {paths[0]}: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
