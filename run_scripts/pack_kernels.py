"""Packs what compile_kernels.py wrote into the package, for maintainers.

  python run_scripts/pack_kernels.py DIR [--tpu v3] [--tiles 1000]

Takes the programs apart, features each distinct kernel and keeps up to
`--tiles` of its feasible tiles, always the compiler's own, and writes
`tpu_graphs_ext/sample/compiled/TPU_{train,valid,test}_PART.xz`. A program that
is not in DIR keeps the kernels that these files have of it.
"""

import argparse
import collections
import dataclasses
import glob
import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.hlo import features, protos, tpu_compiler
from tpu_graphs_ext.sample import kernels

COMPILER = 'libtpu 0.0.50.1'
INFEASIBLE = 10 ** 9  # Cycles: 2^63 - 1 and its parts; a second and more.
MOST_NODES, MOST_KERNELS = 400, 60
FEWEST_TILES = 4
PART = 1000  # Kernels of a file, which has less than 2 MB then.
FEW_TILES, MOST_WITH_FEW = 10, 5  # Of a program: so many with so few tiles.


def pack(path: str, about: dict, **arrays: np.ndarray) -> None:
  """Writes a file that `sample.kernels.unpacked` reads."""
  content = io.BytesIO()
  np.savez(content, about=np.frombuffer(json.dumps(about).encode(), np.uint8),
           **arrays)
  with lzma.open(path, 'wb', preset=9 | lzma.PRESET_EXTREME) as file:
    file.write(content.getvalue())


def save(path: str, packed: Sequence[kernels.WeighedKernel], tpu: str,
         compiler: str) -> None:
  """Writes a file that `kernels.load` reads."""
  programs = sorted({kernel.program for kernel in packed})
  rows, row = np.unique(np.concatenate([k.node_feat for k in packed]),
                        axis=0, return_inverse=True)
  bounds = [np.concatenate([k.output_bounds, k.kernel_bounds], 1)
            for k in packed]
  about = {'format': kernels.FORMAT, 'compiler': compiler, 'tpu': tpu,
           'programs': programs}
  edges = np.concatenate([k.edge_index for k in packed])
  cycles = np.concatenate([k.cycles for k in packed]).astype('<u4')
  pack(
      path, about, kernels=np.array([
          [programs.index(k.program), len(k.node_feat), len(k.edge_index),
           k.output_bounds.shape[1], k.kernel_bounds.shape[1], len(k.cycles),
           k.default] for k in packed], np.int32),
      rows=np.ascontiguousarray(rows.T), row=row.reshape(-1).astype(np.uint32),
      opcode=np.concatenate([k.node_opcode for k in packed]),
      edges=np.stack([edges[:, 0], edges[:, 0] - edges[:, 1]]).astype(np.int16),
      bounds=np.concatenate(
          [part.T.reshape(-1) for part in bounds]).astype(np.uint16),
      cycles=np.ascontiguousarray(cycles[:, None].view(np.uint8).T))


def program_kernels(folder: str, name: str, most_tiles: int, counts) -> list:
  """The distinct kernels of a program that are of use, in its order."""
  path = os.path.join(folder, name)
  with open(path + '.pb', 'rb') as file:
    module = protos.as_module(file.read())
  with gzip.open(path + '.json.gz', 'rt') as file:
    logged = json.load(file)
  distinct, few = {}, 0
  for compiled in tpu_compiler.kernels_of(module).kernels:
    single = compiled.module
    if single.name not in logged:
      counts['not compiled by itself'] += 1
      continue
    kernel, fault = _kernel(single, logged[single.name], name, most_tiles)
    if fault:
      counts[fault] += 1
      continue
    if len(kernel.cycles) < FEW_TILES:
      few += 1
      if few > MOST_WITH_FEW:
        counts['one of many with few tiles'] += 1
        continue
    distinct.setdefault(kernel.graph_hash(), kernel)
  chance = np.random.default_rng(zlib.crc32(name.encode()))
  chosen = list(distinct.values())
  if len(chosen) > MOST_KERNELS:
    counts['beyond the most of a program'] += len(chosen) - MOST_KERNELS
    chosen = [chosen[i] for i in np.sort(chance.choice(
        len(chosen), MOST_KERNELS, replace=False))]
  return chosen


def feasible(logged: Sequence, default: tuple) -> dict:
  """{(output bounds, kernel bounds): cycles} of the tiles that can be had.

  Of products, and of windows that are reduced, the log has the memory that a
  tile needs, and far too many cycles for a tile that does not fit. Of all other
  kernels it has every combination of bounds. Those that do not fit are known
  only where they seem to take fewer cycles than the default, as the whole tile
  does, which waits for no transfer: the compiler would else have taken them.
  """
  cycles = {(tuple(output), tuple(kernel)): count
            for output, kernel, count, *_ in logged if 0 < count < INFEASIBLE}
  has_memory = any(len(row) > 3 for row in logged)
  if has_memory or default not in cycles:
    return cycles
  return {tile: count for tile, count in cycles.items()
          if count >= cycles[default]}


def _kernel(module, logged, program, most_tiles):
  """(the kernel, None), or (None, why it is left out)."""
  window = tpu_compiler.window_of(tpu_compiler.root_of(module))
  default = window and window[:2]
  cycles = feasible(logged, default)
  if default not in cycles:
    return None, 'default not among the tiles'
  if cycles[default] != window.cycles:
    return None, "the default's cycles are others than in the log"
  tiles = sorted(tile for tile in cycles
                 if list(map(len, tile)) == list(map(len, default)))
  if len(tiles) < FEWEST_TILES:
    return None, 'fewer than four tiles'
  arrays = features.module_arrays(module)
  if len(arrays.node_opcode) > MOST_NODES:
    return None, 'too many nodes'
  if len(tiles) > most_tiles:
    chance = np.random.default_rng(zlib.crc32(repr(tiles).encode()))
    others = [tile for tile in tiles if tile != default]
    kept = chance.choice(len(others), most_tiles - 1, replace=False)
    tiles = sorted([default, *(others[i] for i in kept)])
  bounds = [np.array([tile[side] for tile in tiles], np.int64).reshape(
      len(tiles), -1) for side in (0, 1)]
  return kernels.WeighedKernel(
      program, arrays.node_feat, arrays.node_opcode, arrays.edge_index,
      *bounds, np.array([cycles[tile] for tile in tiles], np.int64),
      tiles.index(default)), None


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('dir')
  parser.add_argument('--tpu', choices=sorted(kernels.CLOCK_GHZ), default='v3')
  parser.add_argument('--tiles', type=int, default=1000,
                      help='of a kernel at most (default: %(default)s)')
  args = parser.parse_args()
  folder = os.path.join(args.dir, args.tpu)
  with open(os.path.join(args.dir, 'programs.json')) as file:
    splits = json.load(file)
  counts, packed = collections.Counter(), _packed(args.tpu)
  chosen = {split: {} for split in schema.SPLITS}
  for split, names in splits.items():
    for name in names:
      if os.path.exists(os.path.join(folder, name + '.json.gz')):
        of_program = program_kernels(folder, name, args.tiles, counts)
      else:
        of_program = packed[name]
      for kernel in of_program:
        chosen[split].setdefault(kernel.graph_hash(), kernel)
  # A graph is in one split: rather in one that models are measured on.
  for split, others in (('train', ('valid', 'test')), ('valid', ('test',))):
    for other in others:
      for graph in chosen[split].keys() & chosen[other].keys():
        counts[f'{split}, also in {other}'] += 1
        del chosen[split][graph]
  for split in schema.SPLITS:
    _write(args.tpu, split, list(chosen[split].values()))
  for reason, count in counts.most_common():
    print(f'  left out: {count} {reason}')


def _packed(tpu: str) -> dict:
  """Program -> its kernels in the package."""
  packed = collections.defaultdict(list)
  for path in glob.glob(kernels.path_of(tpu, '*', '*')):
    for kernel in kernels.load(path):
      packed[kernel.program].append(_without_refused(kernel))
  return packed


def _without_refused(
    kernel: kernels.WeighedKernel) -> kernels.WeighedKernel:
  """The kernel of an older log without the tiles that `feasible` leaves out."""
  if kernel.kernel_bounds.shape[1]:
    return kernel
  kept = kernel.cycles >= kernel.cycles[kernel.default]
  return dataclasses.replace(
      kernel, default=int(kept[:kernel.default].sum()), **{
          name: getattr(kernel, name)[kept]
          for name in ('output_bounds', 'kernel_bounds', 'cycles')})


def _write(tpu: str, split: str, chosen: list) -> None:
  size = 0
  for path in glob.glob(kernels.path_of(tpu, split, '*')):
    os.remove(path)
  for part, first in enumerate(range(0, len(chosen), PART)):
    path = kernels.path_of(tpu, split, part)
    save(path, chosen[first:first + PART], tpu, COMPILER)
    size += os.path.getsize(path)
  print(f'{tpu} {split}: {len(chosen)} kernels of '
        f'{len({k.program for k in chosen})} programs, '
        f'{sum(len(k.cycles) for k in chosen):,} tiles, '
        f'{size / 1024:,.0f} KiB')


if __name__ == '__main__':
  main()
