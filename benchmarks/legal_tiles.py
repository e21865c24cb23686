"""Makes the table of docs/ranking.md: how well rules list the legal tiles.

  python benchmarks/legal_tiles.py --tpu v6e --compiled DIR --but NAME ...

Without --compiled of the sample data, which the package brings, and with --real
of .npz or .pb with tiles that were measured on a TPU v3. DIR is what
run_scripts/compile_kernels.py wrote; --but leaves out programs by the start of
their names, those that the rules were inferred from. Kernels that `rank` leaves
out are left out: of several products or seven dimensions. Rows go to
results/numbers.csv, for `tables.py --write`.

Of a product that the compiler tried again with less memory, the log of the last
try has fewer tiles than are legal: it counts for the recall alone.

Of a loop the compiler weighs all combinations of bounds, and changes a tile
that does not fit, as compiling with the tile set shows: a tile with less cycles
than the default does not fit, and one that does not by the estimate here. So
its recall counts bounds alone.
"""

from __future__ import annotations

import argparse
import collections
import glob
import gzip
import json
import os
import shlex
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import tables
from tpu_graphs_ext import files
from tpu_graphs_ext.analytic import candidates, geometry
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.schema import MAX_DIMS, SPLITS
from tpu_graphs_ext.hlo import features, protos, stored, tpu_compiler, tuning
from tpu_graphs_ext.sample import kernels as sample

INFEASIBLE = 10 ** 9  # Cycles, and more.
MOST_STORED = 1000  # Of a kernel's tiles in the sample data.


class Weighed(NamedTuple):
  """The tiles of a kernel that are known to be legal."""
  loops: geometry.Loops
  tiles: np.ndarray  # int64 [tiles, loops]
  is_all: bool  # Whether it has no others.


def of_sample(tpu: str) -> Iterator[Weighed]:
  for split in SPLITS:
    for kernel in sample.split_kernels(tpu, split):
      if kernel.output_bounds.shape[1] <= MAX_DIMS:  # Else it is not ranked.
        loops = loops_of(kernel, tpu)
        yield Weighed(loops, loops.tiles(
            kernel.output_bounds, kernel.kernel_bounds),
                      len(kernel.cycles) < MOST_STORED)


def of_programs(folder: str, tpu: str, but: list[str]) -> Iterator[Weighed]:
  seen = set()
  paths = sorted(glob.glob(os.path.join(folder, tpu, '*.json.gz')))
  if not paths:
    sys.exit(f'--compiled={folder}: no {tpu}/*.json.gz in it')
  for path in paths:
    program = path.removesuffix('.json.gz')
    if os.path.basename(program).startswith(tuple(but)):
      continue
    with gzip.open(path) as file:
      logged = json.load(file)
    for kernel in tpu_compiler.kernels_of(
        protos.as_module(files.read_file(program + '.pb'))).kernels:
      tiles = logged.get(kernel.module.name)
      if not tiles or not kernel.window or len(kernel.window[0]) > MAX_DIMS:
        continue
      graph = features.module_arrays(kernel.module)
      key = (graph.node_feat.tobytes(), graph.edge_index.tobytes())
      if key not in seen:
        seen.add(key)
        loops = loops_of(graph, tpu)
        loops.note(stored.tensors_of(kernel.module),
                   stored.limit_bytes(kernel.module))
        retries = tpu_compiler.config_of(tpu_compiler.root_of(
            kernel.module)).get('retry_config', {}).get('retry_count', 0)
        yield from _weighed(loops, kernel.window, tiles, int(retries))


def _weighed(loops, window, logged, retries: int) -> Iterator[Weighed]:
  """Of rows [output bounds, kernel bounds, cycles, memory of products]."""
  default = [[*window.output_bounds], [*window.kernel_bounds]]
  logged = [row for row in logged
            if [*map(len, row[:2])] == [*map(len, default)]]
  tiles = [row[:2] for row in logged]
  if default not in tiles or len(default[0]) != loops.rank:
    return
  place = tiles.index(default)
  cycles = np.array([row[2] for row in logged])
  tiles = loops.tiles(*(np.array([row[side] for row in logged]).reshape(
      len(logged), -1) for side in (0, 1)))
  legal = (cycles < INFEASIBLE) & (cycles >= cycles[place])
  is_loop = len(logged[place]) < 4
  if is_loop:
    legal &= (loops.counts(tiles)['footprint_bytes']
              <= loops.machine.vmem_limit_bytes)
    legal[place] = True
  if legal.sum() > 1:
    yield Weighed(loops, tiles[legal], is_loop or not retries)


def of_files(paths: list[str]) -> Iterator[Weighed]:
  for path in paths:
    for kernel in (tuning.read_tile_kernels(path) if path.endswith('.pb')
                   else [Kernel.load(path)]):
      if kernel.config_feat.any():  # Else it was not tiled.
        loops, = geometry.loops_of([kernel])
        yield Weighed(loops, loops.tiles_of(kernel.config_feat), False)


def loops_of(graph, tpu: str) -> geometry.Loops:
  none = np.zeros(0, np.int64)
  return geometry.loops_of([Kernel(
      'kernel', graph.node_feat, graph.node_opcode, graph.edge_index,
      np.zeros((0, 24), np.float32), none, none)], MACHINES[tpu])[0]


def rows(title: str,
         kernels: Iterator[Weighed]) -> dict[str, dict[str, float]]:
  """A row for each kind of kernel; recall and precision are means over them."""
  kinds = collections.defaultdict(list)
  for kernel in kernels:
    loops = kernel.loops
    if loops.products > 1:
      continue
    legal = candidates.candidates(loops).tiles
    known = np.unique(kernel.tiles, axis=0)
    listed = {tile.tobytes() for tile in legal}
    common = sum(tile.tobytes() in listed for tile in known)
    kinds['products and convolutions' if loops.is_product else
          'poolings' if loops.is_pooling else
          'reductions' if loops.nest.summed.any() else 'element-wise'].append((
              common / len(known),
              common / max(1, len(legal)) if kernel.is_all else np.nan))
  measured = {}
  for kind, values in sorted(kinds.items()):
    recall, precision = np.transpose(values)
    row = measured[f'{title}, {kind}'] = {
        'kernels': len(values), 'recall': recall.mean()}
    if not np.isnan(precision).all():
      row['precision'] = np.nanmean(precision)
  return measured


def main() -> None:
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument('--tpu', default='v3', choices=MACHINES)
  flags.add_argument('--real', nargs='*', default=[], metavar='FILE')
  flags.add_argument('--compiled', metavar='DIR')
  flags.add_argument('--but', nargs='*', default=[], metavar='NAME')
  args = flags.parse_args()
  tables.put('legal-tiles', {
      **rows('v3, measured', of_files(args.real)),
      **rows(f'{args.tpu}, compiled', of_programs(
          args.compiled, args.tpu, args.but) if args.compiled
             else of_sample(args.tpu))},
             'tpu_graphs_ext/analytic/candidates.py',
             shlex.join(['python', 'benchmarks/legal_tiles.py', *sys.argv[1:]]))


if __name__ == '__main__':
  main()
