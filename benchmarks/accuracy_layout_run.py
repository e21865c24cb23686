"""One run of the accuracy benchmark of the layout task; see `accuracy_run`."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np

from accuracy_layout_table import SPLITS
from accuracy_training import Training, training_columns


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
        if program.is_labelled], split)
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
  result = train.train(given)
  loading = layout_settings.LayoutLoadSettings(
      models_py=spec.models_py, cache_dir=spec.cache_dir)
  ranker = scoring.load_ranker(result.model_dir, loading)
  return Training.of(result.run_info, ranker.model), ranker


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
