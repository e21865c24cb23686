"""Writes the sample data of the layout task: programs, modelled runtimes.

The programs are those of JAX that the tile task's kernels were compiled of
(see `programs`), before layouts are assigned; they are featurized whole like
the real collections, and given layout configurations whose runtimes come from
an analytic machine model. The folder is what `layout_train.py` calls its
`--data_root`:

    DIR/{xla,nlp}/{default,random}/{train,valid,test}/*.npz
    DIR/{xla,nlp}/{default,random}/test_labelled/*.npz
    DIR/sample_data.json

The labels of test are blanked; test_labelled has the same programs with
labels. The same settings give the same bytes (see `folder`).
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import dataclasses
import hashlib
import itertools
import math
import os
import zlib

import numpy as np
import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.analytic.layout_cost import TPU_V3_LAYOUTS, LayoutConstants
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sample import folder as folder_lib
from tpu_graphs_ext.sample.kernels import SPLITS

SOURCES = ('xla', 'nlp')
SEARCHES = ('default', 'random')
_WHAT = ('Sample data of tpu_graphs_ext for the layout task: real HLO graphs, '
         'runtimes of an analytic machine model.')
# Part of the marker: data written by another version is written anew.
_VERSION = 2
# Configurations of a program: so many of the most at least.
_LEAST_SHARE = 0.3
# Medians over eight real files that are public one by one; of the runtimes over
# the three of them that have labels and several configurations. To print beside
# the sample; the published archives are not at hand.
REAL_FILES = {
    'programs': 8, 'nodes': 2026, 'edges': 3396, 'configurable': 59,
    'configs': 1000, 'distinct': 0.95, 'median': 1.0034, 'slow': 1.024,
}
_ROWS = {
    'programs': 'programs',
    'nodes': 'nodes, median',
    'edges': 'edges, median',
    'configurable': 'configurable nodes, median',
    'configs': 'configurations, median',
    'distinct': 'distinct configurations, share',
    'median': 'median runtime over fastest',
    'slow': '95 % runtime over fastest',
}


@dataclasses.dataclass(frozen=True)
class LayoutSampleSettings:
  """What to write, and where.

  Attributes:
    out: the folder; new, empty, or with sample data that is to be replaced.
    programs: of each source, all splits together; a seventh each for valid and
      test, or all that they have. Each program is in both searches.
    most_configs: the most configurations that a program has.
    seed: of programs, configurations and noise.
    constants: the machine that the runtimes are of.
    workers: processes; 1 makes everything in this one.
  """
  out: str
  programs: int = 14
  most_configs: int = 1000
  seed: int = 0
  constants: LayoutConstants = TPU_V3_LAYOUTS
  workers: int = 2

  def __post_init__(self):
    files.require_path('--out', self.out)
    for name, least in (('programs', 7), ('most_configs', 2), ('seed', 0),
                        ('workers', 1)):
      if getattr(self, name) < least:
        raise UserError(f'{name} is {getattr(self, name)}; it must be at least '
                        f'{least}')

  def split_sizes(self) -> dict:
    """Programs of each split, of one source, at most."""
    part = self.programs // 7
    return {'train': self.programs - 2 * part, 'valid': part, 'test': part}

  def fingerprint(self) -> dict:
    """What the content depends on, for the marker file."""
    return {'version': _VERSION, 'task': 'layout', 'seed': self.seed,
            'programs': self.programs, 'most_configs': self.most_configs,
            'constants': dataclasses.asdict(self.constants)}


@dataclasses.dataclass(frozen=True)
class Summary:
  """What was written.

  Attributes:
    out: the folder.
    collections: 'xla:default' and so on -> split -> statistics, with the keys
      of `REAL_FILES`.
    reused: True if the folder had exactly this data already.
  """
  out: str
  collections: dict
  reused: bool = False

  def text(self) -> str:
    """A table of the train splits beside the real files at hand."""
    state = 'already there' if self.reused else 'written'
    names = list(self.collections)
    lines = [f'Sample data of the layout task {state}: {self.out}',
             'Real HLO graphs; layouts and runtimes are modelled.', '',
             f'{"train":32}' + ''.join(f'{name:>12}' for name in names)
             + f'{"real files":>12}']
    for key, label in _ROWS.items():
      cells = [self.collections[name]['train'][key] for name in names]
      lines.append(f'{label:32}' + ''.join(
          f'{cell:>12,}' for cell in [*cells, REAL_FILES[key]]))
    return '\n'.join(lines)


def write_layout_data(settings: LayoutSampleSettings) -> Summary:
  """Writes the sample data, or finds it written.

  With more than one worker a script must call it under
  `if __name__ == '__main__':`, because the workers import that script.

  Raises:
    UserError: `out` holds something that is not sample data, or cannot be
      written, or a worker died.
  """
  out = files.require_path('--out', settings.out)
  collections_, reused = folder_lib.write_folders(
      out, _WHAT, SOURCES, settings.fingerprint(),
      lambda places: _write_sources(settings, places), _is_whole)
  return Summary(out, collections_, reused)


def _is_whole(statistics: dict) -> bool:
  """Whether they are what `_write_sources` returns."""
  return all(
      isinstance(statistics.get(name), dict)
      and isinstance(statistics[name].get(split), dict)
      and set(_ROWS) <= set(statistics[name][split])
      for name in _collection_names() for split in SPLITS)


def _collection_names() -> list[str]:
  return [f'{source}:{search}' for source in SOURCES for search in SEARCHES]


# --- One source --------------------------------------------------------------


def _write_sources(settings, places: dict[str, str]) -> dict:
  """Fills the folders; returns collection -> split -> statistics."""
  statistics = {name: {} for name in _collection_names()}
  try:
    with folder_lib.pool(settings.workers) as pool:
      for source, split in itertools.product(SOURCES, SPLITS):
        facts = _write_split(settings, source, split, places[source], pool)
        for search in SEARCHES:
          statistics[f'{source}:{search}'][split] = _statistics(
              [fact[search] for fact in facts])
  except concurrent.futures.process.BrokenProcessPool as error:
    raise UserError(
        f'{settings.out}: a process that writes sample programs was killed, '
        'most likely because memory ran out; free some and run it '
        'again') from error
  return statistics


def _programs(source: str, split: str, seed: int) -> list:
  """The programs of a source that belong to a split, in random order."""
  from tpu_graphs_ext.sample import programs
  found = [program for program in programs.load()
           if (program.source, program.split) == (source, split)]
  order = np.random.default_rng(seed).permutation(len(found))
  return [found[number] for number in order]


def _write_split(settings, source, split, folder, pool) -> list[dict]:
  """Writes the programs of a split for both searches; returns their facts."""
  size = settings.split_sizes()[split]
  for search in SEARCHES:
    for name in (split, 'test_labelled')[:1 + (split == 'test')]:
      os.makedirs(os.path.join(folder, search, name), exist_ok=True)
  made = [pool.submit(_write_program, (program, settings, folder))
          for program in _programs(source, split, settings.seed)[:size]]
  return [future.result() for future in tqdm.tqdm(
      made, desc=f'{source} {split} programs', unit='program', disable=None)]


# --- One program -------------------------------------------------------------


def _write_program(job) -> dict:
  """Writes a program's files; returns search -> facts."""
  program, settings, folder = job
  from tpu_graphs_ext.hlo import protos
  from tpu_graphs_ext.sample import layouts
  module = protos.as_module(program.module)
  module.ClearField('name')
  graph = hashlib.sha256(
      module.SerializeToString(deterministic=True)).hexdigest()
  name = graph[:32] if program.split == 'test' else program.name
  fact = {}
  for search in SEARCHES:
    seed = zlib.crc32(f'{program.name} {search} {settings.seed}'.encode())
    chance = np.random.default_rng([seed, 1])
    configs = int(chance.integers(
        math.ceil(_LEAST_SHARE * settings.most_configs),
        settings.most_configs, endpoint=True))
    made = layouts.sample_graph(
        module, name, search, max(2, configs), settings.constants, seed)
    parts = {program.split: made}
    if program.split == 'test':
      parts = {'test': dataclasses.replace(
          made, config_runtime=np.zeros_like(made.config_runtime)),
               'test_labelled': made}
    for kind, part in parts.items():
      part.save(os.path.join(folder, search, kind))
    fact[search] = _facts(made)
  return fact


def _facts(graph) -> dict:
  """What the statistics are made of."""
  relative = graph.config_runtime / graph.config_runtime.min()
  flat = graph.node_config_feat.reshape(len(relative), -1)
  return {'nodes': len(graph.node_opcode), 'edges': len(graph.edge_index),
          'configurable': len(graph.node_config_ids),
          'configs': len(relative),
          'distinct': len(np.unique(flat, axis=0)) / len(flat),
          'median': float(np.median(relative)),
          'slow': float(np.quantile(relative, 0.95))}


def _statistics(facts: list[dict]) -> dict:
  """Medians over the programs of a split, with the keys of `REAL_FILES`."""
  digits = {'distinct': 2, 'median': 4, 'slow': 4}
  medians = {key: float(np.median([fact[key] for fact in facts]))
             for key in facts[0]}
  return {'programs': len(facts), **{
      key: round(value, digits[key]) if key in digits else round(value)
      for key, value in medians.items()}}
