"""One run of the accuracy benchmark of the layout task; see `accuracy_run`."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np

from accuracy_layout_table import SPLITS
from accuracy_training import Training, training_columns

# Fewer train programs than a step takes would be a step an epoch, which teaches
# nothing in as many epochs as others need. They are written until there are so
# many; every copy draws configurations of its own.
TRAIN_PROGRAMS = 40


def on_layouts(spec: Any) -> dict[str, object]:
  """Trains on a collection; measures on all labelled files there are.

  Args:
    spec: a `RunSpec`; its source is <data root>/<source>/<search>.

  Raises:
    UserError: the model, its arguments or the data cannot be used.
  """
  from tpu_graphs_ext.data import programs
  from tpu_graphs_ext.engine import evaluate
  training, ranker = _trained(spec)
  row = training_columns([training])
  for split, folders in sources(spec.source, spec.real).items():
    members = programs.Programs([
        program for folder in folders
        for program in programs.read_folder(folder, cache_dir=spec.cache_dir)
        if program.is_labelled and has_choice(program)], split)
    if len(members):
      evaluate.require_labels(members, split, ranker.task)
      row.update(columns_of(split, members, evaluate.measure(
          ranker, members, split)))
  return row


def sources(source: str, real: str) -> dict[str, list[str]]:
  """Split -> folders with its programs."""
  labelled = os.path.join(source, 'test_labelled')
  found = {
      'valid': [os.path.join(source, 'valid')],
      'test': [labelled if os.path.isdir(labelled)
               else os.path.join(source, 'test')],
      'real': [os.path.join(real, split) for split in (
          'train', 'valid', 'test') if real]}
  return {split: [folder for folder in found[split] if npz_files(folder)]
          for split in SPLITS}


def has_choice(program: Any) -> bool:
  """Whether its configurations are not all the same.

  Where they are, as in a public file of 20, runtimes differ by noise alone, and
  there is nothing to learn or to rank.
  """
  from tpu_graphs_ext.data import programs
  first = program.layouts(np.arange(1))
  return any((program.layouts(configs) != first).any()
             for configs in programs.blocks_of(program.num_configs, 64))


def npz_files(folder: str) -> list[str]:
  """Their names; none where there is no such folder."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return [name for name in names if name.endswith('.npz')]


def _trained(spec: Any):
  """Trains at default flags; returns (Training, the ranker as saved)."""
  from tpu_graphs_ext.engine import scoring, train
  from tpu_graphs_ext.tasks import layout_settings
  root, search = os.path.split(spec.source)
  root, source = os.path.split(root)
  given = layout_settings.LayoutTrainSettings(
      model=spec.model, model_kwargs_json=spec.kwargs, epochs=spec.epochs,
      seed=spec.seed, data_root=root, source=source, search=search,
      out_dir=spec.folder, cache_dir=spec.cache_dir, models_py=spec.models_py)
  if len(npz_files(os.path.join(spec.source, 'train'))) < given.batch:
    given = dataclasses.replace(
        given, data_root=with_copies(spec.source, spec.folder))
  result = train.train(given)
  loading = layout_settings.LayoutLoadSettings(
      models_py=spec.models_py, cache_dir=spec.cache_dir)
  ranker = scoring.load_ranker(result.model_dir, loading)
  return Training.of(result.run_info, ranker.model), ranker


def with_copies(collection: str, folder: str) -> str:
  """Links the files of a collection, those of train several times.

  Args:
    collection: <data root>/<source>/<search>.
    folder: where the new data root goes.

  Returns:
    The new data root, with that collection alone.
  """
  root = os.path.join(folder, 'data')
  source, search = collection.split(os.sep)[-2:]
  for split in ('train', 'valid', 'test'):
    names = sorted(npz_files(os.path.join(collection, split)))
    copies = -(-TRAIN_PROGRAMS // len(names)) if split == 'train' else 1
    links = os.path.join(root, source, search, split)
    os.makedirs(links)
    for copy, name in itertools.product(range(copies), names):
      # The number first: each batch in the order of names has all programs.
      os.symlink(os.path.abspath(os.path.join(collection, split, name)),
                 os.path.join(links, f'{copy:02d}.{name}' if copy else name))
  return root


def columns_of(split: str, members: Any, rows: Any) -> dict[str, object]:
  """Columns <split>_<measure> of programs and their measures; NaN is None."""
  from tpu_graphs_ext.engine import results
  from tpu_graphs_ext.tasks import layout_results
  mean = results.Summary(rows, len(rows))
  perfect = [
      layout_results.kendall_of_order(
          program.runtime_ns.astype(np.float64), program.fastest_first)
      for program in members]
  columns = {'programs': len(rows), 'kendall': mean['kendall'],
             'opa': mean['opa'], 'most_kendall': _mean(perfect)}
  for k in results.ks_of(rows):
    columns[f'top{k}'] = mean[f'slowdown_{k}']
    columns[f'random{k}'] = mean[f'random_{k}']
  return {f'{split}_{name}': results.or_none(value)
          for name, value in columns.items()}


def _mean(values: Iterable[float]) -> float:
  defined = [value for value in values if not math.isnan(value)]
  return statistics.fmean(defined) if defined else math.nan
