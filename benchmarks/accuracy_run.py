"""One run of the accuracy benchmark, in a process of a `sweep.pool`."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from typing import Any, NamedTuple

import booster


@dataclasses.dataclass(frozen=True)
class RunSpec:
  """What to train, and on what to measure it.

  Attributes:
    task: 'tile' or 'layout'.
    data: name of the data set.
    source: its folder of splits; for layouts <data root>/<source>/<search>.
    name: of the row: the model's, or the ablation's.
    model: class in models.py, or CLASS:RECIPE with a recipe of `train`, which
      then decides the epochs.
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
  task: str
  data: str
  source: str
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
  """Trains, and measures on all labelled sources; returns a row's columns.

  Raises:
    UserError: the model, its arguments or the data cannot be used.
  """
  import tensorflow as tf

  from tpu_graphs_ext.engine import artifacts, evaluate
  tf.keras.backend.clear_session()  # Of the run before, in this process.
  shutil.rmtree(spec.folder, ignore_errors=True)
  os.makedirs(spec.folder)
  training, ranker = (_trained_booster if spec.model == booster.NAME
                      else _trained)(spec)
  row = training._asdict()
  for split in ('valid', 'test', 'real'):
    problems, source = _problems(spec, split)
    if len(problems):
      evaluate.require_labels(problems, source, ranker.task)
      row.update(_measures(split, problems,
                           evaluate.measure(ranker, problems, split)))
  versions = artifacts.versions()
  if spec.model == booster.NAME:
    versions = {**versions, 'lightgbm': booster.lightgbm().__version__}
  return {**row, 'versions': ', '.join(
      f'{name} {version}' for name, version in versions.items())}


# ------------------------------------------------------------------- training


class Training(NamedTuple):
  """Columns of the CSV."""
  parameters: int
  seconds_an_epoch: float
  epochs_done: int
  best_epoch: int


def _trained(spec: RunSpec) -> tuple[Training, Any]:
  """Trains at default flags or a recipe's; returns also the saved ranker."""
  from tpu_graphs_ext.engine import scoring, train
  from tpu_graphs_ext.tasks import layout, tile
  shared = {'models_py': spec.models_py, 'cache_dir': spec.cache_dir}
  model, _, recipe = spec.model.partition(':')
  common = {'model': model, 'model_kwargs_json': spec.kwargs,
            'seed': spec.seed, 'out_dir': spec.folder, **shared,
            **({'recipe': recipe} if recipe else {'epochs': spec.epochs})}
  if spec.task == 'layout':
    root, source, search = spec.source.rsplit(os.sep, 2)
    result = train.train(layout.LayoutTrainSettings(
        data_root=root, source=source, search=search, **common))
    loading = layout.LayoutLoadSettings(**shared)
  else:
    result = train.train(tile.TrainSettings(data_root=spec.source, **common))
    loading = tile.LoadSettings(**shared)
  ranker = scoring.load_ranker(result.model_dir, loading)
  curve = result.run_info['train_curve']
  epochs = len(curve['epoch'])
  return Training(
      sum(variable.shape.num_elements()
          for variable in ranker.model.trainable_variables),
      result.run_info['seconds']['train'] / epochs, epochs,
      1 + curve['val_opa'].index(max(curve['val_opa']))), ranker


def _trained_booster(spec: RunSpec) -> tuple[Training, Any]:
  """The same of LightGBM: an epoch is a tree."""
  from tpu_graphs_ext.data import read
  from tpu_graphs_ext.engine import evaluate
  from tpu_graphs_ext.tasks import TILE
  splits = {}
  for split in ('train', 'valid'):
    folder = os.path.join(spec.source, split)
    splits[split] = read.read_kernels(folder)
    evaluate.require_labels(splits[split], folder, TILE)
  ranker = booster.fit(
      **splits, settings=booster.Settings(**json.loads(spec.kwargs)),
      seed=spec.seed)
  trees = ranker.settings.trees
  return Training(ranker.leaves, ranker.seconds / trees, trees,
                  ranker.best), ranker


# ------------------------------------------------------------------ measuring


def npz_files(folder: str) -> list[str]:
  """Names of the .npz files; none if there is no such folder."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return [name for name in names if name.endswith('.npz')]


def _problems(spec: RunSpec, split: str) -> tuple[Any, str]:
  """The labelled problems of 'valid', 'test' or 'real', and their source.

  Tiles of a source that has some without labels are left out altogether.
  """
  labelled = os.path.join(spec.source, 'test_labelled')
  source = {'valid': os.path.join(spec.source, 'valid'), 'real': spec.real,
            'test': labelled if os.path.isdir(labelled)
            else os.path.join(spec.source, 'test')}[split]
  if not source:
    return [], ''
  if spec.task == 'tile':
    from tpu_graphs_ext.tasks import tile
    kernels = tile.TILE.read(source, tile.LoadSettings(cache_dir=''))
    if split != 'valid' and not all(kernel.is_labelled for kernel in kernels):
      return [], source
    return kernels, source
  from tpu_graphs_ext.data import programs
  folders = [source] if split != 'real' else [
      os.path.join(source, part) for part in ('train', 'valid', 'test')]
  return programs.Programs([
      program for folder in folders if npz_files(folder)
      for program in programs.read_programs(folder, cache_dir=spec.cache_dir)
      if program.is_labelled]), source


def _measures(split: str, problems: Any, rows: Any) -> dict[str, object]:
  """Columns <split>_<measure>, the choices without a model too; no NaN."""
  from tpu_graphs_ext.engine import metrics, results
  is_tile = 'default' in rows
  mean = results.Summary(rows, len(rows))
  measures = {name: mean[name] for name in ('opa', 'kendall')}
  choices = {}
  for k in results.ks_of(rows):
    measures[f'top{k}'] = mean[f'slowdown_{k}']
    choices[f'random{k}'] = mean[f'random_{k}']
  if is_tile:
    measures = {f'micro_{name}': value for name, value in measures.items()}
    choices['default'] = mean['default']
  else:
    choices['most_kendall'] = results.Summary(rows.assign(perfect=[
        metrics.pair_agreement(
            program.runtime_ns, program.fastest_first.argsort())[1]
        for program in problems]), len(rows))['perfect']
  return {f'{split}_{"kernels" if is_tile else "programs"}': len(rows), **{
      f'{split}_{name}': results.or_none(value)
      for name, value in {**measures, **choices}.items()}}
