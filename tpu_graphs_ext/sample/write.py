"""Writes the sample data: kernels of Google's TPU compiler, its estimates.

Programs of JAX were compiled for a TPU ahead of time; `kernels` has their
kernels, the tiles that the compiler weighed and its estimate of each. This lays
them out as the real collection is:

    DIR/{train,valid,test}/*.npz    test with its labels blanked
    DIR/test_labelled/*.npz         the same test kernels with labels
    DIR/sample_data.json            settings, statistics, checksums

The same settings give the same bytes.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Optional

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features
from tpu_graphs_ext.sample import folder as folder_lib
from tpu_graphs_ext.sample import kernels as kernels_lib
from tpu_graphs_ext.sample.kernels import SPLITS

_FOLDERS = (*SPLITS, 'test_labelled')
_WHAT = ("Sample data of tpu_graphs_ext: kernels of Google's TPU compiler, "
         'its estimates as runtimes.')
# Part of the marker: data written by another version is written anew.
_VERSION = 4

# The real tile collection, to print beside the sample: the train split's means,
# and the runtime of all splits.
REAL_TILE_XLA = {
    'kernels': schema.PUBLISHED_KERNELS,
    'nodes_mean': 39.5, 'edges_mean': 41.5, 'configs_mean': 1917.6,
    'runtime_rel_mean': 4.98,
}
_ROWS = {
    'kernels': 'kernels', 'nodes_mean': 'nodes of a kernel, mean',
    'edges_mean': 'edges of a kernel, mean',
    'configs_mean': 'configurations of a kernel, mean',
    'runtime_rel_mean': 'runtime over normalizer, mean',
}

# A real file joins several tunings, each with the default once more. Four of 14
# kernels of up to 600 configurations have it twice, the others once; those of
# 807, 1,282 and 2,951 have it 9, 6 and 10 times. They repeat no other tile.
_MANY_CONFIGS = 600
_SECOND_CHANCE = 0.3
_COPIES = (5, 9)


@dataclasses.dataclass(frozen=True)
class SampleDataSettings:
  """Settings of `sample-data`.

  Attributes:
    out: the folder; new, empty, or with sample data to replace.
    kernels: number in all splits; a seventh each for valid and test, or all
      that they have. None: all kernels that there are.
    seed: decides the choice of kernels and the order of tiles.
    tpu: the machine that they were compiled for, of `kernels.CLOCK_GHZ`.
  """
  out: str
  kernels: Optional[int] = 700
  seed: int = 0
  tpu: str = 'v3'

  def __post_init__(self):
    files.require_path('--out', self.out)
    if self.kernels is not None and self.kernels < 7:
      raise UserError(f'kernels is {self.kernels}; it must be at least 7, so '
                      'that valid and test have at least one kernel each')
    if self.seed < 0:
      raise UserError(f'seed is {self.seed}; it must not be negative')
    if self.tpu not in kernels_lib.CLOCK_GHZ:
      raise UserError(f'tpu is {self.tpu!r}; choose from '
                      f'{", ".join(kernels_lib.CLOCK_GHZ)}')

  def most_kernels(self, split: str) -> Optional[int]:
    if self.kernels is None:
      return None
    part = self.kernels // 7
    return self.kernels - 2 * part if split == 'train' else part

  def fingerprint(self) -> dict:
    """The settings that determine the content, for the marker file."""
    settings = dataclasses.asdict(self)
    del settings['out']
    return {'version': _VERSION, **settings}


def write_sample_data(settings: SampleDataSettings) -> folder_lib.Summary:
  """Writes the sample data, or finds it written.

  Raises:
    UserError: `out` holds something that is not sample data, or cannot be
      written.
  """
  out = files.require_path('--out', settings.out)
  splits, reused = folder_lib.write_folders(
      out, _WHAT, _FOLDERS, settings.fingerprint(),
      lambda places: _write_splits(settings, places))
  real = {**REAL_TILE_XLA, 'kernels': REAL_TILE_XLA['kernels']['train']}
  return folder_lib.Summary(
      out, splits, {**splits, 'real': real}, _ROWS, reused)


def _write_splits(settings, places: dict[str, str]) -> dict:
  """Fills the folders; returns split -> statistics."""
  return {split: _write_split(settings, split, places) for split in SPLITS}


def _write_split(settings, split, places: dict[str, str]) -> dict:
  """Writes the kernels of a split; returns its statistics."""
  folder = places['test_labelled' if split == 'test' else split]
  found = kernels_lib.split_kernels(settings.tpu, split)
  facts = []
  for compiled in _chosen(found, settings.most_kernels(split), settings.seed):
    graph = compiled.graph_hash()
    name = (graph[:32] if split == 'test'
            else f'{compiled.program}_{graph[:16]}')
    kernel = sample_kernel(
        compiled, name, kernels_lib.CLOCK_GHZ[settings.tpu],
        [settings.seed, int(graph[:8], 16)])
    kernel.save(folder)
    if split == 'test':
      _blanked(kernel).save(places['test'])
    facts.append((kernel.num_nodes, kernel.num_edges, kernel.num_configs,
                  float(kernel.runtime_rel.sum())))
  nodes, edges, configs, relative = np.array(facts).T
  return {
      'kernels': len(facts), 'configs': int(configs.sum()),
      **{f'{name}_mean': round(float(values.mean()), 1) for name, values in (
          ('nodes', nodes), ('edges', edges), ('configs', configs))},
      'runtime_rel_mean': round(float(relative.sum() / configs.sum()), 2)}


def _chosen(found, most, seed) -> list:
  """At most `most` kernels, as evenly from the programs as they allow."""
  chance = np.random.default_rng(seed)
  taken = collections.Counter()
  turns = []
  for number in chance.permutation(len(found)):
    program = found[number].program
    turns.append((taken[program], len(turns), number))
    taken[program] += 1
  numbers = sorted(number for _, _, number in sorted(turns)[:most])
  return [found[number] for number in numbers]


def _blanked(kernel: Kernel) -> Kernel:
  """The kernel with its labels withheld, as in the public test split."""
  return dataclasses.replace(
      kernel, runtime_ns=np.zeros_like(kernel.runtime_ns),
      normalizer_ns=np.ones_like(kernel.normalizer_ns))


# --- Tiles of one kernel -----------------------------------------------------


def sample_kernel(compiled: kernels_lib.CompiledKernel, tile_id: str,
                  clock_ghz: float, seed) -> Kernel:
  """The kernel with its tiles in random order, the default first.

  Args:
    compiled: the kernel.
    tile_id: name of the result.
    clock_ghz: cycles of a nanosecond.
    seed: for the order.
  """
  chance = np.random.default_rng(seed)
  rows = _rows(len(compiled.cycles), compiled.default, chance)
  runtime = np.maximum(
      1, np.rint(compiled.cycles[rows] / clock_ghz)).astype(np.int64)
  config_feat = features.config_features(
      compiled.kernel_bounds[rows], compiled.output_bounds[rows])
  return Kernel(tile_id, compiled.node_feat, compiled.node_opcode,
                compiled.edge_index, config_feat, runtime,
                np.full_like(runtime, runtime[0]))


def _rows(count: int, default: int, chance) -> np.ndarray:
  """Numbers of the tiles: the default, then all others and its copies."""
  copies = int(chance.random() < _SECOND_CHANCE)
  if count >= _MANY_CONFIGS:
    copies = int(chance.integers(*_COPIES, endpoint=True))
  others = np.delete(np.arange(count), default)
  others = np.concatenate([others, np.full(copies, default)])
  return np.concatenate([[default], chance.permutation(others)])
