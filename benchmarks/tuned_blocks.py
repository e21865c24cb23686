"""Makes the tables of docs/blocks.md: rows of results/numbers.csv.

  python benchmarks/tuned_blocks.py tuned_block_sizes.py [grouped_winners.json]

The first file is tpu_inference/kernels/quantized_matmul/tuned_block_sizes.py
of vllm-project/tpu-inference (version of August 2026): the blocks of a Pallas
kernel that its authors measured to be the fastest, by TPU, sizes and types; it
may take most of the on-chip memory. The second holds the tiles of grouped
products that the authors of openxla/tokamax measured to be the fastest: a list
of {"tpu", "kind": "gmm", "dlhs" or "drhs", "m", "k", "n", "groups", "winner":
[tm, tk, tn]}, where k and n are the weights'.
"""

from __future__ import annotations

import ast
import collections
import json
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import tables
from tpu_graphs_ext.analytic import blocks, grouped_blocks, products
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.errors import UserError

FIRST = 5
USABLE = 0.75  # Share of the on-chip memory that tuned blocks may take.
_TPUS = {6: 'v6e', 7: 'v7x'}
_GROUPED_TPUS = {'tpu7x': 'v7x', 'tpu_v5_lite': 'v5e', 'tpu_v5': 'v5p'}
_KINDS = {'gmm': ('forward', 'forward'),
          'dlhs': ('dlhs', 'gradient of the rows'),
          'drhs': ('drhs', 'gradient of the weights')}


class Entry(NamedTuple):
  """One line of a table.

  Attributes:
    group: the row of our table that it counts in.
    tpu: generation.
    product: activations and results are bfloat16 in main memory; packed
      weights count as bytes.
    best: bm, bk, bn.
  """
  group: str
  tpu: str
  product: products.Product | products.GroupedProduct
  best: Sequence[int]


def entries(source: str) -> list[Entry]:
  """The entries of the first file's text.

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
  return Entry(group, tpu, products.Product(1, m, k, n, 2, 1, 2, narrow),
               (bm, bk, bn))


def grouped_entries(source: str) -> list[Entry]:
  """The entries of the second file's text; the newest machine first."""
  every = []
  for row in json.loads(source):
    tpu, (kind, name) = _GROUPED_TPUS[row['tpu']], _KINDS[row['kind']]
    k, n = (row['n'], row['k']) if kind == 'dlhs' else (row['k'], row['n'])
    every.append(Entry(f'{name} on {tpu}', tpu, products.GroupedProduct(
        kind, row['groups'], row['m'], k, n, 2, 2, 2), row['winner']))
  return sorted(every, key=lambda entry: (entry.tpu, entry.product.kind),
                reverse=True)


def found(entry: Entry) -> dict[str, float]:
  """Column -> number of candidates, or whether the best is among some.

  `random` is the chance that it is among five random ones.
  """
  machine = MACHINES[entry.tpu]
  module, limit_bytes = (
      (blocks, USABLE * machine.vmem_bytes)
      if isinstance(entry.product, products.Product)
      else (grouped_blocks, machine.vmem_limit_bytes))
  grid = module.usual_blocks(entry.product, machine, limit_bytes)
  is_best = (grid == entry.best).all(1)
  shares = {column: is_best[np.argsort(key, kind='stable')[:FIRST]].any()
            for column, key in (
                ('largest', -grid.prod(1)),
                ('rank', module.times_ns(entry.product, grid, machine)))}
  return {'candidates': len(grid),
          'random': is_best.any() * min(1, FIRST / len(grid)), **shares}


def rows_of(every: Sequence[Entry]) -> dict[str, dict[str, float]]:
  """A row for each group: the median of candidates, shares in %."""
  groups = collections.defaultdict(list)
  for entry in every:
    groups[entry.group].append(found(entry))
  rows = {}
  for name, group in groups.items():
    counts, *shares = zip(*(columns.values() for columns in group))
    rows[f'{name}, {len(group)}'] = dict(zip(group[0], (
        statistics.median(counts),
        *(100 * float(np.mean(share)) for share in shares))))
  return rows


def main(paths: Sequence[str]) -> int:
  if len(paths) not in (1, 2):
    print(__doc__, file=sys.stderr)
    return 2
  try:
    for path, table, code, entries_in in zip(
        paths, ('blocks', 'blocks-grouped'), ('blocks.py', 'grouped_blocks.py'),
        (entries, grouped_entries)):
      with open(path, encoding='utf-8') as file:
        rows = rows_of(entries_in(file.read()))
      tables.put(table, rows, f'tpu_graphs_ext/analytic/{code}',
                 'python benchmarks/tuned_blocks.py FILE FILE', whole=True)
  except (OSError, UserError, ValueError, KeyError) as error:
    print(f'error: {path}: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
