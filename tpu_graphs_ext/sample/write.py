"""Writes the sample data: real kernel graphs with synthetic runtimes.

Programs of common layers are compiled by XLA, cut into kernels, featurized
like the real collection, and given tile configurations whose runtimes come
from an analytic machine model. The folder has the layout of the real one:

    DIR/{train,valid,test}/*.npz    test with its labels blanked
    DIR/test_labelled/*.npz         the same test kernels with labels
    DIR/sample_data.json            settings, statistics, sums of all files

The same settings give the same bytes. A folder is written again only where
the sums say that all in it was written here.
"""

from __future__ import annotations

import collections
import concurrent.futures
import concurrent.futures.process
import dataclasses
import hashlib
import itertools
import math
import os
import shutil
import zlib

import numpy as np
import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.analytic import tpu
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sample import folder as folder_lib

SPLITS = ('train', 'valid', 'test')
_FOLDERS = (*SPLITS, 'test_labelled')
_WHAT = ('Synthetic sample data of tpu_graphs_ext: real HLO graphs, runtimes '
         'of an analytic machine model.')
_PROGRAMS = 'programs'  # In a split that is being made: kernels not yet chosen.
# Part of the marker: data written by another version is written anew.
_VERSION = 3

# The real tile collection, to print beside the sample: train split for
# kernels, nodes, edges, configs; all splits' runs for the runtime.
REAL_TILE_XLA = {
    'kernels': schema.PUBLISHED_KERNELS,
    'nodes_mean': 39.5, 'edges_mean': 41.5, 'configs_mean': 1917.6,
    'nodes_quantiles': [2, 7, 19, 37, 58, 94, 154],
    'edges_quantiles': [1, 6, 19, 40, 60, 102, 249],
    'runtime_rel_mean': 4.98, 'runtime_rel_std': 8.2,
    'kernel_mean_quantiles': [
        0.278, 1.187, 1.75, 3.192, 4.898, 7.782, 26.427],
}
_QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)


@dataclasses.dataclass(frozen=True)
class SampleDataSettings:
  """What to write, and where.

  Attributes:
    out: the folder; new, empty, or with sample data that is to be replaced.
    kernels: of all splits together; a seventh each for valid and test.
    seed: of programs, cuts, tiles and noise.
    full_size: as many kernels and about as many configurations as the real
      collection has; `kernels` is ignored.
    hardware: the machine that the runtimes are of.
    workers: processes; 1 makes everything in this one.
  """
  out: str
  kernels: int = 700
  seed: int = 0
  full_size: bool = False
  hardware: tpu.TpuConstants = tpu.TPU_V3_LIKE
  workers: int = 2

  def __post_init__(self):
    files.require_path('--out', self.out)
    if self.kernels < 7:
      raise UserError(f'kernels is {self.kernels}; it must be at least 7, so '
                      'that valid and test have at least one kernel each')
    if self.seed < 0:
      raise UserError(f'seed is {self.seed}; it must not be negative')
    if self.workers < 1:
      raise UserError(f'workers is {self.workers}; it must be at least 1')

  def split_sizes(self) -> dict:
    """Kernels of each split."""
    if self.full_size:
      return dict(schema.PUBLISHED_KERNELS)
    part = self.kernels // 7
    return {'train': self.kernels - 2 * part, 'valid': part, 'test': part}

  @property
  def max_configs(self) -> int:
    """The most configurations that any kernel has."""
    return 10_000 if self.full_size else 1_500

  @property
  def config_share(self) -> float:
    """How many of a kernel's candidate tiles are measured."""
    return 1.0 if self.full_size else 0.5

  @property
  def many_tiles(self) -> int:
    """Kernels with fewer candidate tiles than this are taken less often."""
    return 20_000 if self.full_size else 400

  def kernels_per_program(self, split: str) -> int:
    """The most kernels that one program gives: more programs, more variety."""
    size = self.split_sizes()[split]
    return 14 if self.full_size else max(3, min(20, size // 10))

  def fingerprint(self) -> dict:
    """What the content depends on, for the marker file."""
    return {'version': _VERSION, 'seed': self.seed,
            'split_sizes': self.split_sizes(),
            'full_size': self.full_size,
            'hardware': dataclasses.asdict(self.hardware)}


@dataclasses.dataclass(frozen=True)
class Summary:
  """What was written.

  Attributes:
    out: the folder.
    splits: split -> statistics, with the keys of `REAL_TILE_XLA`.
    reused: True if the folder had exactly this data already.
  """
  out: str
  splits: dict
  reused: bool = False

  def text(self) -> str:
    """A table of the statistics beside those of the real collection."""
    state = 'already there' if self.reused else 'written'
    lines = [f'Sample data {state}: {self.out}',
             'Real HLO graphs; tiles and runtimes are synthetic.', '',
             f'{"":34}' + ''.join(f'{split:>10}' for split in SPLITS)
             + f'{"real":>10}']
    for key, label in _ROWS.items():
      cells = [self.splits[split][key] for split in SPLITS]
      real = REAL_TILE_XLA[key]
      cells.append(real['train'] if isinstance(real, dict) else real)
      lines.append(f'{label:34}' + ''.join(f'{c:>10,}' for c in cells))
    for key, label in _QUANTILE_ROWS.items():
      for quantile, position in (('median', 3), ('95 %', 5)):
        cells = [self.splits[split][key][position] for split in SPLITS]
        cells.append(REAL_TILE_XLA[key][position])
        lines.append(f'{label + ", " + quantile:34}'
                     + ''.join(f'{c:>10,}' for c in cells))
    return '\n'.join(lines)


_ROWS = {
    'kernels': 'kernels', 'nodes_mean': 'nodes of a kernel, mean',
    'edges_mean': 'edges of a kernel, mean',
    'configs_mean': 'configurations of a kernel, mean',
    'runtime_rel_mean': 'runtime over normalizer, mean',
    'runtime_rel_std': 'runtime over normalizer, std',
}
_QUANTILE_ROWS = {
    'nodes_quantiles': 'nodes',
    'kernel_mean_quantiles': "a kernel's mean runtime",
}


def write_sample_data(settings: SampleDataSettings) -> Summary:
  """Writes the sample data, or finds it written.

  Each folder is made beside the one it then replaces, inside `out`. With more
  than one worker a script must call it under `if __name__ == '__main__':`,
  because the workers import that script.

  Raises:
    UserError: `out` holds something that is not sample data, or cannot be
      written, or a worker died.
  """
  out = files.require_path('--out', settings.out)
  splits, reused = folder_lib.write_folders(
      out, _WHAT, _FOLDERS, settings.fingerprint(),
      lambda places: _write_splits(settings, places),
      lambda splits: all(
          isinstance(splits.get(split), dict)
          and {*_ROWS, *_QUANTILE_ROWS} <= set(splits[split])
          for split in SPLITS))
  return Summary(out, splits, reused)


# --- One split ---------------------------------------------------------------


def _write_splits(settings, places: dict[str, str]) -> dict:
  """Fills the folders; returns split -> statistics."""
  try:
    with folder_lib.pool(settings.workers) as pool:
      return {split: _write_split(settings, split, size, places, pool)
              for split, size in settings.split_sizes().items()}
  except concurrent.futures.process.BrokenProcessPool as error:
    raise UserError(
        f'{settings.out}: a process that compiles sample programs was killed, '
        'most likely because memory ran out (each takes about 1.5 GB); free '
        'some and run it again') from error


def _write_split(settings, split, size, places, pool) -> dict:
  """Writes the kernels of a split; returns its statistics."""
  folder = places['test_labelled' if split == 'test' else split]
  facts = _write_kernels(settings, split, size, folder, pool)
  if split == 'test':
    for fact in facts:
      _blanked(Kernel.load(fact['path'])).save(places['test'])
  return _statistics(facts)


def _write_kernels(settings, split, size, folder, pool) -> list[dict]:
  """Writes `size` kernels with different graphs; returns facts about each.

  Programs are taken in their order, whichever process is done first.
  """
  from tpu_graphs_ext.sample import programs
  # Each program has a folder of its own: two may have a kernel in common.
  made = os.path.join(folder, _PROGRAMS)
  jobs = ((program, settings, split, os.path.join(made, program.name))
          for program in programs.programs(split, settings.seed))
  facts, seen, waiting = [], set(), collections.deque()
  with tqdm.tqdm(total=size, desc=f'{split} kernels',
                 unit='kernel', disable=None) as progress:
    while len(facts) < size:
      needed = math.ceil(
          (size - len(facts)) / settings.kernels_per_program(split))
      ahead = min(needed, 2 * settings.workers) - len(waiting)
      waiting.extend(pool.submit(_write_program, job)
                     for job in itertools.islice(jobs, max(0, ahead)))
      if not waiting:
        raise UserError(
            f'the {split} split has only {len(facts)} distinct kernels, not '
            f'{size}; ask for fewer kernels')
      for fact in waiting.popleft().result():
        if len(facts) == size or fact['graph'] in seen:
          continue
        target = os.path.join(folder, os.path.basename(fact['path']))
        os.replace(fact['path'], target)
        seen.add(fact['graph'])
        facts.append({**fact, 'path': target})
        progress.update()
  # What was asked for ahead must not write while the folder is moved.
  concurrent.futures.wait(waiting)
  shutil.rmtree(made)  # In a folder that was made for this run.
  return facts


def _blanked(kernel: Kernel) -> Kernel:
  """The kernel with its labels withheld, as in the public test split."""
  return dataclasses.replace(
      kernel, runtime_ns=np.zeros_like(kernel.runtime_ns),
      normalizer_ns=np.ones_like(kernel.normalizer_ns))


# --- One program -------------------------------------------------------------


def _write_program(job) -> list[dict]:
  """Compiles a program and writes its kernels; returns facts about each."""
  program, settings, split, folder = job
  os.makedirs(folder, exist_ok=True)
  from tpu_graphs_ext.hlo import compile as hlo_compile
  from tpu_graphs_ext.hlo import cutting
  from tpu_graphs_ext.sample import programs, tiles
  seed = zlib.crc32(f'{program.name} {settings.seed}'.encode())
  chance = np.random.default_rng(seed)
  limits = cutting.CutLimits(
      max_fused=int(chance.integers(40, 110)),
      share_probability=float(chance.uniform(0.0, 0.35)),
      join_probability=float(chance.uniform(0.5, 1.0)),
      copies=int(chance.integers(1, 5)))
  function, specs = programs.traced_function(program)
  module = hlo_compile.function_module(function, *specs)
  kernels = cutting.cut_kernels(module, limits, seed)
  facts = []
  for kernel in _chosen_kernels(
      kernels, settings.kernels_per_program(split), settings.many_tiles,
      chance):
    graph = hashlib.sha256(
        kernel.SerializeToString(deterministic=True)).hexdigest()
    name = (graph[:32] if split == 'test'
            else f'{program.name}_{graph[:16]}')
    made = tiles.sample_kernel(
        kernel, name, settings.config_share, settings.max_configs,
        settings.hardware, [seed, int(graph[:8], 16)])
    if made is not None:
      facts.append(_facts(made, made.save(folder), graph))
  return facts


def _chosen_kernels(kernels, count, many_tiles, chance) -> list:
  """Distinct kernels of a program, the larger ones more likely, in order."""
  distinct = {k.SerializeToString(deterministic=True): k for k in kernels}
  kernels = list(distinct.values())
  weights = np.array([_weight(kernel, many_tiles) for kernel in kernels])
  chosen = chance.choice(
      len(kernels), min(count, len(kernels)), replace=False,
      p=weights / weights.sum())
  return [kernels[i] for i in np.sort(chosen)]


def _weight(kernel, many_tiles) -> float:
  """Programs have many small kernels; the real collection has fewer.

  Few real kernels have less than ten configurations; those with `many_tiles`
  candidates and more all count the same.
  """
  from tpu_graphs_ext.sample import tiles
  nodes = sum(len(c.instructions) for c in kernel.computations)
  if nodes == 2:
    return 30.0  # Copies and reshapes: a program has few of them.
  return (3 + min(nodes, 80)) ** 1.5 * min(
      1.0, tiles.num_candidates(kernel) / many_tiles + 0.02)


def _facts(kernel: Kernel, path, graph) -> dict:
  relative = kernel.runtime_rel
  return {'path': path, 'graph': graph, 'nodes': kernel.num_nodes,
          'edges': kernel.num_edges, 'configs': kernel.num_configs,
          'relative_sum': float(relative.sum()),
          'relative_square': float(np.square(relative).sum())}


def _statistics(facts) -> dict:
  """Statistics of a split, with the keys of `REAL_TILE_XLA`."""
  column = {key: np.array([fact[key] for fact in facts])
            for key in ('nodes', 'edges', 'configs', 'relative_sum',
                        'relative_square')}
  configs = column['configs'].sum()
  mean = column['relative_sum'].sum() / configs
  spread = np.sqrt(column['relative_square'].sum() / configs - mean ** 2)

  def quantiles(values, digits):
    return [round(float(q), digits)
            for q in np.quantile(values, _QUANTILES)]

  return {
      'kernels': len(facts), 'configs': int(configs),
      **{f'{key}_mean': round(float(column[key].mean()), 1)
         for key in ('nodes', 'edges', 'configs')},
      'nodes_quantiles': quantiles(column['nodes'], 1),
      'edges_quantiles': quantiles(column['edges'], 1),
      'runtime_rel_mean': round(float(mean), 2),
      'runtime_rel_std': round(float(spread), 2),
      'kernel_mean_quantiles': quantiles(
          column['relative_sum'] / column['configs'], 3)}
