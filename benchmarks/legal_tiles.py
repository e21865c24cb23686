"""Makes the table of docs/ranking.md: how well rules list the legal tiles.

  python benchmarks/legal_tiles.py --real FILE... --compiled FOLDER

Without options of the sample data alone, which the package brings. Real kernels
are .npz or .pb with measured tiles. A folder of compiled programs has NAME.pb,
and in NAME_candidates.json.gz {kernel: {'default': [output, kernel bounds],
'tiles': [[output, kernel bounds, cycles], ...]}} of what the compiler weighs.
Kernels that `rank` leaves out are left out: of several products or seven
dimensions. Rows go to results/numbers.csv, for `tables.py --write`.
"""

from __future__ import annotations

import argparse
import collections
import glob
import gzip
import json
import shlex
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import tables
from tpu_graphs_ext import files
from tpu_graphs_ext.analytic import candidates, geometry
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.schema import MAX_DIMS
from tpu_graphs_ext.hlo import features, protos, tpu_compiler, tuning
from tpu_graphs_ext.sample import kernels as sample

INFEASIBLE = 10 ** 12  # Cycles, and more.
MOST_STORED = 1000  # Of a kernel's tiles in the sample data.


class Weighed(NamedTuple):
  """The tiles of a kernel that are known to be legal."""
  loops: geometry.Loops
  tiles: np.ndarray  # int64 [tiles, loops]
  default: int  # The number of the compiler's choice; -1: unknown.
  is_all: bool  # Whether it has no others.


def of_sample(tpu: str) -> Iterator[Weighed]:
  for split in sample.SPLITS:
    for kernel in sample.split_kernels(tpu, split):
      if kernel.output_bounds.shape[1] <= MAX_DIMS:  # Else it is not ranked.
        loops = loops_of(kernel)
        yield Weighed(loops, loops.tiles(
            kernel.output_bounds, kernel.kernel_bounds), kernel.default,
                      len(kernel.cycles) < MOST_STORED)


def of_programs(folder: str) -> Iterator[Weighed]:
  for path in sorted(glob.glob(f'{folder}/*_candidates.json.gz')):
    with gzip.open(path) as file:
      listed = json.load(file)
    whole = protos.as_module(files.read_file(
        path.replace('_candidates.json.gz', '.pb')))
    for kernel in tpu_compiler.kernels_of(whole).kernels:
      known = listed.get(kernel.module.name)
      if known:
        tiles = [known['default'], *(
            tile[:2] for tile in known['tiles'] if tile[2] < INFEASIBLE)]
        loops = loops_of(features.module_arrays(kernel.module))
        yield Weighed(loops, loops.tiles(*(
            np.array(bounds).reshape(len(tiles), -1)
            for bounds in zip(*tiles))), 0, True)


def of_files(paths: list[str]) -> Iterator[Weighed]:
  for path in paths:
    for kernel in (tuning.read_tile_kernels(path) if path.endswith('.pb')
                   else [Kernel.load(path)]):
      if kernel.config_feat.any():  # Else it was not tiled.
        loops, = geometry.loops_of([kernel])
        yield Weighed(loops, loops.tiles_of(kernel.config_feat), -1, False)


def loops_of(graph) -> geometry.Loops:
  none = np.zeros(0, np.int64)
  return geometry.loops_of([Kernel(
      'kernel', graph.node_feat, graph.node_opcode, graph.edge_index,
      np.zeros((0, 24), np.float32), none, none)])[0]


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
          'poolings' if loops.is_pooling else 'others'].append((
              len(known), common, common / len(known),
              common / max(1, len(legal)) if kernel.is_all else np.nan,
              kernel.default < 0 or (
                  kernel.tiles[kernel.default].tobytes() in listed)))
  measured = {}
  for kind, values in sorted(kinds.items()):
    known, common, recall, precision, default = np.array(values, float).T
    complete = ~np.isnan(precision)
    row = measured[f'{title}, {kind}'] = {
        'kernels': len(values), 'listed': common.sum(), 'known': known.sum(),
        'recall': recall.mean()}
    if complete.any():
      row.update(complete=complete.sum(), precision=precision[complete].mean(),
                 complete_recall=recall[complete].mean(),
                 defaults=default.sum())
  return measured


def main() -> None:
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument('--tpu', default='v3', choices=sample.CLOCK_GHZ)
  flags.add_argument('--real', nargs='*', default=[], metavar='FILE')
  flags.add_argument('--compiled', metavar='FOLDER')
  args = flags.parse_args()
  tables.put('legal-tiles', {
      **rows('measured', of_files(args.real)),
      **rows('compiled', of_programs(args.compiled or '')),
      **rows(f'sample data, {args.tpu}', of_sample(args.tpu))},
             'tpu_graphs_ext/analytic/candidates.py',
             shlex.join(['python', 'benchmarks/legal_tiles.py', *sys.argv[1:]]))


if __name__ == '__main__':
  main()
