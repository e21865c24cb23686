"""Writes the sample data of the layout task, see `layouts`:

    DIR/xla/{default,random}/{train,valid,test}/*.npz
    DIR/xla/{default,random}/test_labelled/*.npz
    DIR/sample_data.json

as `layout_train.py --data_root=DIR` reads it. The labels of test are blanked;
test_labelled has the same programs with labels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.sample import folder as folder_lib
from tpu_graphs_ext.sample import layouts
from tpu_graphs_ext.sample.kernels import SPLITS

_WHAT = ('Sample data of tpu_graphs_ext for the layout task: runtimes are '
         "estimates of Google's TPU compiler.")
SOURCE = 'xla'  # The collection that they stand in for.
_VERSION = 4  # Data written by another version is written anew.
# The number of files of each train program, each with its share of the
# configurations: a pass over so few programs would be two training steps.
PARTS = 3
# Statistic -> its row of the table.
_ROWS = {
    'programs': 'programs',
    'nodes': 'nodes of a program, median',
    'configurable': 'configurable nodes, median',
    'configs': 'configurations, median',
    'median': 'median runtime over fastest, median',
    'slow': '95 % runtime over fastest, median',
}


def write_layout_data(out: str) -> folder_lib.Summary:
  """Writes the sample data, or finds it written.

  Raises:
    UserError: `out` holds something that is not sample data, or cannot be
      written.
  """
  out = files.require_path('--out', out)
  collections, reused = folder_lib.write_folders(
      out, _WHAT, (SOURCE,), {'version': _VERSION, 'task': 'layout'},
      _write)
  return folder_lib.Summary(
      out, collections,
      {f'{name}, train': splits['train']
       for name, splits in collections.items()}, _ROWS, reused)


def _write(places: dict[str, str]) -> dict:
  """Fills the folder; returns collection -> split -> statistics."""
  programs, statistics = layouts.load(), {}
  for search in layouts.SEARCHES:
    folder = os.path.join(places[SOURCE], search)
    for split in (*SPLITS, 'test_labelled'):
      os.makedirs(os.path.join(folder, split))
    statistics[f'{SOURCE}:{search}'] = {
        split: _medians([_write_program(program, search, folder)
                         for program in programs if program.split == split])
        for split in SPLITS}
  return statistics


def _write_program(program: layouts.Program, search: str, folder: str) -> dict:
  """Writes a program's files; returns its facts."""
  graph = program.graph(search)
  runtime = graph.config_runtime
  if program.split == 'test':
    name = hashlib.sha256(program.module).hexdigest()[:32]
    graph = dataclasses.replace(graph, name=name)
    graph.save(os.path.join(folder, 'test_labelled'))
    graph = dataclasses.replace(graph, config_runtime=np.zeros_like(runtime))
  for part in range(parts := PARTS if program.split == 'train' else 1):
    dataclasses.replace(
        graph, name=f'{graph.name}_{part}' if parts > 1 else graph.name,
        node_config_feat=graph.node_config_feat[part::parts],
        config_runtime=graph.config_runtime[part::parts]).save(
            os.path.join(folder, program.split))
  relative = runtime / runtime.min()
  return {'nodes': len(graph.node_opcode),
          'configurable': len(graph.node_config_ids), 'configs': len(runtime),
          'median': float(np.median(relative)),
          'slow': float(np.quantile(relative, 0.95))}


def _medians(facts: list[dict]) -> dict:
  return {'programs': len(facts), **{
      key: round(float(np.median([fact[key] for fact in facts])), 3)
      for key in (facts[0] if facts else ())}}
