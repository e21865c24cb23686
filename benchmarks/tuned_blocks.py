"""Makes the tables of docs/blocks.md: rows of results/numbers.csv.

  python benchmarks/tuned_blocks.py tuned_block_sizes.py [grouped_winners.json]

The first file is tpu_inference/kernels/quantized_matmul/tuned_block_sizes.py
of vllm-project/tpu-inference (version of August 2026): the blocks of a Pallas
kernel that its authors measured to be the fastest, by TPU, sizes and types; it
may take most of the on-chip memory. The second holds the tiles of grouped
products that the authors of openxla/tokamax measured to be the fastest, and
their time: a list of {"tpu", "kind": "gmm", "dlhs" or "drhs", "m", "k", "n",
"groups", "winner": [tm, tk, tn], "ms"}, where k and n are the weights'.
"""

from __future__ import annotations

import ast
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
  product: products.Product
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
  return Entry(group, tpu, products.Product(1, m, k, n, 2, 1, 2, narrow),
               (bm, bk, bn))


def shares(group: Sequence[Entry]) -> tuple[float, ...]:
  """(median of candidates; for each other column how often the best is found).
  """
  rows = []
  for entry in group:
    machine = MACHINES[entry.tpu]
    grid = blocks.usual_blocks(entry.product, machine,
                               USABLE * machine.vmem_bytes)
    is_best = (grid == entry.best).all(1)
    ranked = is_best[np.argsort(
        blocks.times_ns(entry.product, grid, machine), kind='stable')]
    largest = is_best[np.argsort(-grid.prod(1), kind='stable')]
    rows.append((len(grid), is_best.any() * min(1, FIRST / len(grid)),
                 largest[:FIRST].any(), ranked[:FIRST].any(), ranked[0]))
  counts, *columns = zip(*rows)
  return statistics.median(counts), *(
      float(np.mean(column)) for column in columns)


def rows_of(every: Sequence[Entry]) -> dict[str, dict[str, float]]:
  """A row for each group; shares in %."""
  rows = {}
  for name in dict.fromkeys(entry.group for entry in every):
    group = [entry for entry in every if entry.group == name]
    count, *means = shares(group)
    rows[f'{name}, {len(group)}'] = {'candidates': count, **dict(zip(
        ('random', 'largest', 'rank', 'rank_first'),
        (100 * share for share in means)))}
  return rows


_KINDS = {'gmm': 'forward', 'dlhs': 'dlhs', 'drhs': 'drhs'}
_NAMES = {'forward': 'forward', 'dlhs': 'gradient of the rows',
          'drhs': 'gradient of the weights'}
_GROUPED_TPUS = {'tpu7x': 'v7x', 'tpu_v5_lite': 'v5e', 'tpu_v5': 'v5p'}


def grouped_rows(entries_of: Sequence[dict]) -> dict[str, dict[str, float]]:
  """A row for each machine and kind of grouped product; shares in %."""
  groups = {}
  for entry in entries_of:
    key = _GROUPED_TPUS[entry['tpu']], _KINDS[entry['kind']]
    groups.setdefault(key, []).append(_grouped_row(entry, *key))
  rows = {}
  for (tpu, kind), group in sorted(groups.items(), reverse=True):
    counts, chance, of_ranking, ratios = zip(*group)
    rows[f'{_NAMES[kind]} on {tpu}, {len(group)}'] = {
        'candidates': statistics.median(counts),
        'random': 100 * float(np.mean(chance)),
        'rank': 100 * float(np.mean(of_ranking)),
        'ratio': statistics.median(ratios)}
  return rows


def _grouped_row(row, tpu, kind) -> tuple:
  """(candidates, chance of five random ones, found, time / measured)."""
  k, n = (row['n'], row['k']) if kind == 'dlhs' else (row['k'], row['n'])
  product = products.GroupedProduct(
      kind, row['groups'], row['m'], k, n, 2, 2, 2)
  machine = MACHINES[tpu]
  grid = grouped_blocks.usual_blocks(product, machine,
                                     machine.vmem_limit_bytes)
  is_best = (grid == row['winner']).all(1)
  order = np.argsort(
      grouped_blocks.times_ns(product, grid, machine), kind='stable')
  time_ms = grouped_blocks.times_ns(
      product, np.array([row['winner']]), machine)[0] / 1e6
  return (len(grid), is_best.any() * min(1, FIRST / len(grid)),
          is_best[order[:FIRST]].any(), time_ms / row['ms'])


def main(paths: Sequence[str]) -> int:
  if len(paths) not in (1, 2):
    print(__doc__, file=sys.stderr)
    return 2
  try:
    for path, name, rows_in in zip(paths, ('blocks', 'blocks-grouped'), (
        lambda text: rows_of(entries(text)),
        lambda text: grouped_rows(json.loads(text)))):
      with open(path, encoding='utf-8') as file:
        rows = rows_in(file.read())
      tables.put(name, rows, 'tpu_graphs_ext/analytic/grouped_blocks.py'
                 if 'grouped' in name else 'tpu_graphs_ext/analytic/blocks.py',
                 'python benchmarks/tuned_blocks.py FILE FILE', whole=True)
  except (OSError, UserError, ValueError, KeyError) as error:
    print(f'error: {path}: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
