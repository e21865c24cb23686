"""Writes the sample data of either task as a data root.

  DIR/{train,valid,test,test_labelled}/*.npz                        tiles
  DIR/xla/{default,random}/{train,valid,test,test_labelled}/*.npz   layouts
  DIR/sample_data.json                   settings, statistics, checksums

The labels of test are blanked; test_labelled has the same problems with labels.
Equal settings give equal bytes, and reuse what is there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Optional

import numpy as np
import pandas as pd

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, kernel_sources
from tpu_graphs_ext.sample import kernels as kernels_lib
from tpu_graphs_ext.sample import layouts
from tpu_graphs_ext.sample.kernels import CLOCK_GHZ

_WHAT = ('Sample data of tpu_graphs_ext: runtimes are estimates of '
         "Google's TPU compiler.")
_MARKER = schema.SAMPLE_DATA_MARK
_VERSION = 6  # Of both tasks; a folder of another version is refused.
# Files of each train program of layouts, each with its share of the
# configurations: a pass over so few programs would be two training steps.
PARTS = 3

# A real file joins several tunings, each with the default once more. Four of 14
# kernels of up to 600 configurations have it twice, the others once; those of
# 807, 1,282 and 2,951 have it 9, 6 and 10 times. They repeat no other tile.
_MANY_CONFIGS = 600
_SECOND_CHANCE = 0.3
_COPIES = (5, 9)


@dataclasses.dataclass(frozen=True)
class Summary:
  """The result of writing sample data."""
  out: str  # The folder.
  statistics: dict[str, dict[str, float]]  # Split -> statistic -> number.
  reused: bool  # Whether the folder had exactly this data already.

  def text(self) -> str:
    """A table of the statistics."""
    table = pd.DataFrame.from_dict(self.statistics, orient='index')
    return (f'Sample data {"already there" if self.reused else "written"}: '
            f"{self.out}\nRuntimes are estimates of Google's TPU compiler.\n\n"
            + table.to_string(float_format='{:,.2f}'.format))


def write_sample_data(out: str, kernels: Optional[int] = 700, seed: int = 0,
                      tpu: str = 'v3') -> Summary:
  """Writes the sample data of the tile task, or finds it written.

  Args:
    out: the folder; new, empty, or with exactly this data.
    kernels: in all splits: a seventh each for valid and test, or all that they
      have. None: all kernels that there are.
    seed: decides the choice of kernels and the order of tiles.
    tpu: the machine they were compiled for, of `CLOCK_GHZ`.

  Raises UserError for a wrong argument, or if `out` holds something else or
  cannot be written.
  """
  settings = {'kernels': kernels, 'seed': seed, 'tpu': tpu}
  for name, holds, rule in (
      ('kernels', kernels is None or kernels >= 7,
       'at least 7, so that valid and test have one each'),
      ('seed', seed >= 0, 'at least 0'),
      ('tpu', tpu in CLOCK_GHZ, f'one of {", ".join(CLOCK_GHZ)}')):
    if not holds:
      raise UserError(f'--{name} must be {rule}; got {settings[name]!r}')
  return _write(out, {'version': _VERSION, **settings},
                _tile_problems(**settings))


def write_layout_data(out: str) -> Summary:
  """The same of the layout task; `layout_train.py --data_root=out` reads it."""
  return _write(out, {'version': _VERSION, 'task': 'layout'},
                _layout_problems())


def tpu_of(path: str) -> str:
  """The generation of sample data in a folder, or in the one above it.

  '' for other data, and for a path that cannot be read.
  """
  for folder in (path, os.path.dirname(os.path.abspath(path))):
    try:
      marker = files.read_json(os.path.join(folder, _MARKER))
      if isinstance(tpu := marker['settings']['tpu'], str):
        return tpu
    except (UserError, TypeError, LookupError):
      pass
  return ''


# --- The folder --------------------------------------------------------------


def _write(out: str, settings: dict, problems: Iterable) -> Summary:
  """Fills the folder with (split, files of a problem, its sizes)."""
  out = files.require_path('--out', out)
  place = os.path.realpath(out)
  files.require_replaceable(place, folder=True)
  if next(files.contents(place), None):
    return Summary(out, _statistics_in(place, settings), True)
  try:
    with files.new_folder(place) as folder:
      statistics = _fill(folder, problems)
      marker = {'what': _WHAT, 'settings': settings, 'statistics': statistics,
                'files': files.sums(folder)}
      files.write_file(os.path.join(folder, _MARKER),
                       json.dumps(marker, indent=1).encode())
  except OSError as error:
    raise files.cannot_be_written(out, error) from error
  return Summary(out, _statistics_in(place, settings), False)


def _statistics_in(place: str, settings: dict) -> dict:
  """What the marker says of exactly this data; UserError for anything else."""
  try:
    marker = files.read_json(os.path.join(place, _MARKER))
    files.require_own(place, marker['files'], [_MARKER])
    if marker['settings'] == settings and (
        len(marker['files']) + 1 == len([*files.contents(place)])):
      return marker['statistics']
  except (UserError, TypeError, LookupError):
    pass
  raise UserError(
      f'{place}: exists and does not hold exactly this sample data; remove it '
      'if nothing in it is needed, or give a new folder')


def _fill(folder: str, problems: Iterable) -> dict:
  """Writes the files; returns the means of the sizes by split."""
  sizes = []
  for split, parts, its_sizes in problems:
    for problem in parts:
      if split.endswith('test'):
        problem.save(os.path.join(folder, f'{split}_labelled'))
        problem = _blanked(problem)
      problem.save(os.path.join(folder, split))
    sizes.append({'split': split, **its_sizes})
  by_split = pd.DataFrame(sizes).groupby('split', sort=False)
  means = by_split.mean().round(2)
  means.insert(0, 'count', by_split.size())
  return means.to_dict('index')


def _blanked(problem):
  """The problem with its labels withheld, as in the public test split."""
  if isinstance(problem, Kernel):
    return kernel_sources.never_timed(problem, problem.config_feat)
  return dataclasses.replace(
      problem, config_runtime=np.zeros_like(problem.config_runtime))


# --- Programs with layouts ---------------------------------------------------


def _layout_problems() -> Iterator[tuple]:
  programs = layouts.load()
  for search in layouts.SEARCHES:
    for split in schema.SPLITS:
      for program in programs:
        if program.split == split:
          graph = program.graph(search)
          runtime = graph.config_runtime
          yield f'xla/{search}/{split}', _parts(program, graph), {
              'nodes': len(graph.node_opcode),
              'configurable nodes': len(graph.node_config_ids),
              'configurations': len(runtime),
              'runtime over fastest': float(np.mean(runtime / runtime.min()))}


def _parts(program: layouts.Program, graph) -> list:
  """The files of a program; the name of a test program is a hash."""
  if program.split == 'test':
    name = hashlib.sha256(program.module).hexdigest()[:32]
    return [dataclasses.replace(graph, name=name)]
  if program.split == 'valid':
    return [graph]
  return [dataclasses.replace(
      graph, name=f'{graph.name}_{part}',
      node_config_feat=graph.node_config_feat[part::PARTS],
      config_runtime=graph.config_runtime[part::PARTS])
          for part in range(PARTS)]


# --- Kernels with tiles ------------------------------------------------------


def _tile_problems(kernels: Optional[int], seed: int,
                   tpu: str) -> Iterator[tuple]:
  most = dict.fromkeys(schema.SPLITS)
  if kernels is not None:
    most = dict.fromkeys(schema.SPLITS, kernels // 7)
    most['train'] = kernels - 2 * most['test']
  for split in schema.SPLITS:
    there = kernels_lib.split_kernels(tpu, split)
    for compiled in _chosen(there, most[split], seed):
      graph = compiled.graph_hash()
      kernel = sample_kernel(
          compiled, graph[:32] if split == 'test'
          else f'{compiled.program}_{graph[:16]}', CLOCK_GHZ[tpu],
          [seed, int(graph[:8], 16)])
      yield split, [kernel], {
          'nodes': kernel.num_nodes, 'edges': kernel.num_edges,
          'configurations': kernel.num_configs,
          'runtime over default': float(kernel.runtime_rel.mean())}


def _chosen(kernels, most: Optional[int], seed: int) -> list:
  """At most `most` kernels, as evenly from the programs as they allow."""
  order = np.random.default_rng(seed).permutation(len(kernels))
  programs = pd.Series([kernels[number].program for number in order])
  # Of each program its first kernel in this order, then its second, ...
  turns = programs.groupby(programs).cumcount().sort_values(kind='stable')
  return [kernels[number] for number in sorted(order[turns.index[:most]])]


def sample_kernel(compiled: kernels_lib.WeighedKernel, tile_id: str,
                  clock_ghz: float, seed) -> Kernel:
  """The kernel with its tiles in random order by `seed`, the default first."""
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
