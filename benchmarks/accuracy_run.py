"""One run of the accuracy benchmark, in a process of a `sweep.pool`."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil

import accuracy_layout_run
import booster
from accuracy_training import Training, training_columns

# Ways of splitting a data set.
SPLITS, LAYOUTS = 'splits', 'layout splits'


@dataclasses.dataclass(frozen=True)
class RunSpec:
  """What to train, and on what to measure it.

  Attributes:
    data: name of the data set.
    source: its folder of splits; for layouts <data root>/<source>/<search>.
    protocol: `SPLITS` or `LAYOUTS`.
    name: of the row: the model's, or the ablation's.
    model: class in models.py.
    kwargs: constructor arguments, a JSON object with sorted keys.
    seed: of weights and batches.
    epochs: at most.
    real: file of real kernels to measure on as well, or empty; for layouts
      a collection, whose labelled files are.
    models_py: the models.py to use, or `booster.py` for its own model.
    folder: for all that the run writes.
    cache_dir: see `TrainSettings`.
    threads: cores that it may use.
  """
  data: str
  source: str
  protocol: str
  name: str
  model: str
  kwargs: str
  seed: int
  epochs: int
  real: str
  models_py: str
  folder: str
  cache_dir: str
  threads: int


def run(spec: RunSpec) -> dict[str, object]:
  """Trains and measures; returns a row's columns.

  Raises:
    UserError: the model, its arguments or the data cannot be used.
  """
  import tensorflow as tf

  from tpu_graphs_ext.engine import artifacts
  tf.keras.backend.clear_session()  # Of the run before, in this process.
  shutil.rmtree(spec.folder, ignore_errors=True)
  os.makedirs(spec.folder)
  row = (accuracy_layout_run.on_layouts if spec.protocol == LAYOUTS
         else _on_splits)(spec)
  versions = artifacts.versions()
  if spec.model == booster.NAME:
    versions = {**versions, 'lightgbm': booster.lightgbm().__version__}
  return {**row, 'versions': ', '.join(
      f'{name} {version}' for name, version in versions.items())}


def _on_splits(spec: RunSpec) -> dict[str, object]:
  """Trains on the train split; measures on all labelled sources there are."""
  from tpu_graphs_ext.engine import evaluate
  from tpu_graphs_ext.tasks import kernel_inputs
  training, ranker = (_trained_booster if spec.model == booster.NAME
                      else _trained)(spec)
  row = training_columns([training])
  labelled = os.path.join(spec.source, 'test_labelled')
  sources = {
      'valid': os.path.join(spec.source, 'valid'),
      'test': (labelled if os.path.isdir(labelled)
               else os.path.join(spec.source, 'test')),
      'real': spec.real}
  for split, source in sources.items():
    kernels = kernel_inputs.read_kernels(source) if source else []
    if split != 'valid' and not all(kernel.is_labelled for kernel in kernels):
      continue
    if len(kernels):
      evaluate.require_labels(kernels, source, ranker.task)
      row.update(_measures(split, evaluate.measure(ranker, kernels, split)))
  return row


def _trained(spec: RunSpec):
  """Trains at default flags; returns (Training, the ranker as saved)."""
  from tpu_graphs_ext.engine import scoring, settings, train
  result = train.train(settings.TrainSettings(
      model=spec.model, model_kwargs_json=spec.kwargs, epochs=spec.epochs,
      seed=spec.seed, data_root=spec.source, out_dir=spec.folder,
      cache_dir=spec.cache_dir, models_py=spec.models_py))
  ranker = scoring.load_ranker(
      result.model_dir, settings.LoadSettings(models_py=spec.models_py))
  return Training.of(result.run_info, ranker.model), ranker


def _trained_booster(spec: RunSpec):
  """The same of LightGBM: an epoch is a tree."""
  from tpu_graphs_ext.engine import evaluate, task
  from tpu_graphs_ext.tasks import kernel_inputs
  splits = {}
  for split in ('train', 'valid'):
    folder = os.path.join(spec.source, split)
    splits[split] = kernel_inputs.read_kernels(folder)
    evaluate.require_labels(splits[split], folder, task.find('tile'))
  ranker = booster.fit(
      **splits, settings=booster.Settings(**json.loads(spec.kwargs)),
      seed=spec.seed, threads=spec.threads)
  return Training(ranker.leaves, ranker.seconds, ranker.settings.trees,
                  ranker.best), ranker


def _measures(split: str, rows) -> dict[str, object]:
  """Columns <split>_micro_<measure> and <split>_<choice>; no NaN."""
  from tpu_graphs_ext.tasks import tile_results
  evaluation = tile_results.Evaluation('', '', rows)
  summary = evaluation.summary_json(evaluation.micro)
  return {
      f'{split}_kernels': len(rows),
      **{f'{split}_micro_top{k}': slowdown
         for k, slowdown in summary['slowdown'].items()},
      **{f'{split}_micro_{name}': summary[name] for name in ('opa', 'kendall')},
      f'{split}_default': summary['default'],
      **{f'{split}_random{k}': slowdown
         for k, slowdown in summary['random'].items()}}
