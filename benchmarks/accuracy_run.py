"""One run of the accuracy benchmark, in a process of its own.

`accuracy.py` starts it with the path of a JSON file that holds a `RunSpec`.
It trains with the package's own host, measures, and leaves `row.json` in the
run's folder: the columns of the CSV that a run knows itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import traceback

import accuracy_layout_run
import booster
from accuracy_training import Training, training_columns

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# Ways of splitting a data set.
SPLITS, LEAVE_ONE_OUT, LAYOUTS = 'splits', 'leave one out', 'layout splits'

ROW_FILE = 'row.json'

# Leave one out: the few kernels that are left to train on are written as many
# times as this, so that the default batch is full and an epoch has about as
# many steps as one of a small data set. Every copy draws configurations of
# its own.
TRAIN_COPIES, VALID_COPIES = 40, 10


@dataclasses.dataclass(frozen=True)
class RunSpec:
  """What to train, and on what to measure it.

  Attributes:
    data: name of the data set.
    source: its folder of splits; for leave one out a file of kernels; for
      layouts <data root>/<source>/<search>.
    protocol: `SPLITS`, `LEAVE_ONE_OUT` or `LAYOUTS`.
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
    threads: TensorFlow's, for each of its two pools.
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
  from tpu_graphs_ext.engine import artifacts
  train_and_measure = {
      SPLITS: _on_splits, LEAVE_ONE_OUT: _leave_one_out,
      LAYOUTS: accuracy_layout_run.on_layouts}[spec.protocol]
  row = train_and_measure(spec)
  versions = artifacts.versions()
  if spec.model == booster.NAME:
    versions = {**versions, 'lightgbm': booster.lightgbm().__version__}
  return {**row, 'versions': ', '.join(
      f'{name} {version}' for name, version in versions.items())}


def _on_splits(spec: RunSpec) -> dict[str, object]:
  """Trains on the train split; measures on all labelled sources there are."""
  from tpu_graphs_ext.engine import evaluate
  from tpu_graphs_ext.tasks import kernel_inputs
  training, ranker = _trained(spec, spec.source, spec.folder)
  row = training_columns([training])
  for split, source in _sources(spec).items():
    kernels = kernel_inputs.read_kernels(source)
    if split == 'test' and not all(kernel.is_labelled for kernel in kernels):
      continue
    evaluate.require_labels(kernels, source, ranker.task)
    row.update(_measures(split, evaluate.measure(ranker, kernels, split)))
  return row


def _sources(spec: RunSpec) -> dict[str, str]:
  """Split -> where its kernels are."""
  labelled = os.path.join(spec.source, 'test_labelled')
  sources = {
      'valid': os.path.join(spec.source, 'valid'),
      'test': (labelled if os.path.isdir(labelled)
               else os.path.join(spec.source, 'test'))}
  if spec.real:
    sources['real'] = spec.real
  return sources


def _leave_one_out(spec: RunSpec) -> dict[str, object]:
  """Trains once for each kernel, on the others, and measures on that one.

  The kernels left to train on also choose the best epoch, so that the kernel
  left out has no part in it. Kernels with fewer configurations than a training
  step draws take no part at all.
  """
  import pandas
  import tensorflow as tf

  from tpu_graphs_ext.data.partition import Partition
  from tpu_graphs_ext.engine import evaluate, settings
  from tpu_graphs_ext.errors import UserError
  from tpu_graphs_ext.tasks import kernel_inputs
  least = settings.TrainSettings.configs
  kernels = [kernel for kernel in kernel_inputs.read_kernels(spec.source)
             if kernel.num_configs >= least]
  if len(kernels) < 2:
    raise UserError(
        f'{spec.source}: {len(kernels)} kernels have {least} or more '
        'configurations; leaving one out takes two at least')
  trainings, rows = [], []
  for number, left_out in enumerate(kernels):
    fold = os.path.join(spec.folder, f'fold_{number}')
    _write_fold(fold, kernels[:number] + kernels[number + 1:], left_out)
    training, ranker = _trained(spec, fold, os.path.join(fold, 'out'))
    trainings.append(training)
    rows.append(evaluate.measure(
        ranker, Partition.from_kernels([left_out]), 'left out'))
    shutil.rmtree(fold)
    tf.keras.backend.clear_session()
  return {**training_columns(trainings), **_measures('real', pandas.concat(
      rows, ignore_index=True))}


def _write_fold(folder, others, left_out) -> None:
  """Writes a data root: copies of `others`, and `left_out` as its test."""
  for split, copies in (('train', TRAIN_COPIES), ('valid', VALID_COPIES)):
    os.makedirs(os.path.join(folder, split))
    for copy in range(copies):
      for kernel in others:
        # The number first: each batch in the order of names has all kernels.
        name = f'{copy:02d}.{kernel.tile_id}'
        dataclasses.replace(kernel, tile_id=name).save(
            os.path.join(folder, split))
  os.makedirs(os.path.join(folder, 'test'))
  left_out.save(os.path.join(folder, 'test'))


def _trained(spec: RunSpec, data_root: str, out_dir: str):
  """Trains at default flags; returns (Training, the ranker as saved)."""
  if spec.model == booster.NAME:
    return _trained_booster(spec, data_root)
  from tpu_graphs_ext.engine import scoring, settings, train
  result = train.train(settings.TrainSettings(
      model=spec.model, model_kwargs_json=spec.kwargs, epochs=spec.epochs,
      seed=spec.seed, data_root=data_root, out_dir=out_dir,
      cache_dir=spec.cache_dir if spec.protocol == SPLITS else '',
      models_py=spec.models_py))
  ranker = scoring.load_ranker(
      result.model_dir, settings.LoadSettings(models_py=spec.models_py))
  return Training.of(result.run_info, ranker.model), ranker


def _trained_booster(spec: RunSpec, data_root: str):
  """The same of LightGBM: an epoch is a tree.

  Copies of a kernel are taken once: it draws no configurations.
  """
  from tpu_graphs_ext.engine import evaluate, task
  from tpu_graphs_ext.tasks import kernel_inputs
  splits = {}
  for split in ('train', 'valid'):
    folder = os.path.join(data_root, split)
    kernels = kernel_inputs.read_kernels(folder)
    evaluate.require_labels(kernels, folder, task.find('tile'))
    splits[split] = list(
        {kernel.tile_id.split('.')[-1]: kernel for kernel in kernels}.values()
        if spec.protocol == LEAVE_ONE_OUT else kernels)
  ranker = booster.fit(
      **splits, settings=booster.Settings.of(json.loads(spec.kwargs)),
      seed=spec.seed, threads=spec.threads)
  return Training(ranker.leaves, ranker.seconds, ranker.settings.trees,
                   ranker.best), ranker


def _measures(split: str, rows) -> dict[str, object]:
  """Columns <split>_<micro or macro>_<measure>, <split>_<choice>; no NaN."""
  from tpu_graphs_ext.tasks import tile_results
  evaluation = tile_results.Evaluation('', '', rows)
  columns = {f'{split}_kernels': len(rows)}
  for mean in ('micro', 'macro'):
    summary = evaluation.summary_json(getattr(evaluation, mean))
    for k, slowdown in summary['slowdown'].items():
      columns[f'{split}_{mean}_top{k}'] = slowdown
    for measure in ('opa', 'kendall'):
      columns[f'{split}_{mean}_{measure}'] = summary[measure]
  micro = evaluation.summary_json(evaluation.micro)
  columns[f'{split}_default'] = micro['default']
  for k, slowdown in micro['random'].items():
    columns[f'{split}_random{k}'] = slowdown
  return columns


def _use_threads(count: int) -> None:
  os.environ['OMP_NUM_THREADS'] = str(count)
  import tensorflow as tf
  tf.config.threading.set_intra_op_parallelism_threads(count)
  tf.config.threading.set_inter_op_parallelism_threads(count)


def main() -> int:
  """Runs the spec of the JSON file that is the only argument."""
  with open(sys.argv[1], encoding='utf-8') as file:
    spec = RunSpec(**json.load(file))
  try:
    _use_threads(spec.threads)
    row = {'status': 'ok', **run(spec)}
  except Exception as error:
    traceback.print_exc()
    text = ' '.join(str(error).split()) or 'no message'
    name = type(error).__name__
    row = {'status': 'failed',
           'error': text if name == 'UserError' else f'{name}: {text}'}
  path = os.path.join(spec.folder, ROW_FILE)
  with open(path + '.tmp', 'w', encoding='utf-8') as file:
    json.dump(row, file)
  os.replace(path + '.tmp', path)
  return 0 if row['status'] == 'ok' else 1


if __name__ == '__main__':
  sys.exit(main())
