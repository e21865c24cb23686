"""The output of a training run, in the baseline's format.

  <out_dir>/model_<hash>/      Keras SavedModel
  <out_dir>/run_<hash>.jsonz   gzip of one JSON object, the run file
  <out_dir>/run_<hash>.log     its messages; see `run_log`

`<hash>` is `train_hash` of the run's arguments. Keys of the run file that the
baseline writes too: `train_curve` {epoch, train_loss, train_opa, val_loss,
val_opa: one number an epoch}, `final_error` {val: {'1', '5', '10': slowdown}},
`args`, `test_predictions` {tile_id: 10 config indices, best first, padded with
0}. Keys of this package: `feature_stats` (how features were normalised),
`num_ops`, `seed`, `host`, `versions`, `seconds`, `settings`.

The package's own model is a folder with the weights alone; see
`save_weights_only`.

Every write is atomic: a reader sees the old artifact or the new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import platform
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tpu_graphs_ext
from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine import run_file, saved_weights
from tpu_graphs_ext.engine.settings import parse_model_kwargs
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import (
  full_path,
  new_folder,
  remove_leftovers,
  write_file,
)
from tpu_graphs_ext.stacks import quiet
from tpu_graphs_ext.stacks.versions import stack_name

# In place of a model folder: the trained model that comes with the package.
PRETRAINED = 'pretrained'
PRETRAINED_FOLDER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'pretrained')

# What Keras and TensorFlow raise on a folder that holds no whole SavedModel.
_LOAD_ERRORS = (OSError, ValueError, KeyError, AttributeError, RuntimeError,
                tf.errors.OpError)


def train_hash(args: dict[str, Any]) -> str:
  """MD5 of the arguments as sorted JSON: the name of a run.

  In the layout task it does not depend on the folder, as in the baseline.
  """
  if task_of(args) == 'layout':
    args = {key: value for key, value in args.items() if key != 'out_dir'}
  return hashlib.md5(json.dumps(args, sort_keys=True).encode()).hexdigest()


def task_of(args: dict[str, Any]) -> str:
  """'tile' or 'layout', by the `args` of a run file."""
  return 'layout' if 'keep_nodes' in args else 'tile'


def model_path(out_dir: str, run_hash: str) -> str:
  return os.path.join(os.path.expanduser(out_dir), f'model_{run_hash}')


def run_path_of(model_dir: str) -> str:
  """The run file of a model folder, whose path may start with ~.

  Raises:
    UserError: the last part of the path is not model_<hash>.
  """
  folder, name = os.path.split(full_path(model_dir))
  if not name.startswith('model_'):
    raise UserError(
        f'{model_dir}: a model folder is named model_<hash>, which tells its '
        f'run file run_<hash>.jsonz; got {name!r}.{_models_in(model_dir)}')
  return os.path.join(folder, 'run_' + name[len('model_'):] + '.jsonz')


def pretrained_dir() -> str:
  """The model folder that comes with the package.

  Raises:
    UserError: this installation has none.
  """
  if names := _model_names(PRETRAINED_FOLDER):
    return os.path.join(PRETRAINED_FOLDER, names[0])
  raise UserError(
      f'{PRETRAINED_FOLDER}: this installation has no pretrained model; name '
      'one that you trained, as --dir model_<hash>')


def save_run(model: tf.keras.Model, run_info: dict[str, Any],
             out_dir: str) -> tuple[str, str]:
  """Writes the model folder, then the run file; returns both paths.

  `run_info` is the run file's content, whose `args` give the hash.

  Raises:
    UserError: the folder cannot be written.
  """
  model_dir = model_path(out_dir, train_hash(run_info['args']))
  # The scripts of the layout task would look for the loss by its name.
  options = ({'include_optimizer': False}
             if task_of(run_info['args']) == 'layout' else {})
  try:
    with new_folder(model_dir) as temporary, quiet_keras():
      model.save(temporary, save_format='tf', **options)
  except (OSError, tf.errors.OpError) as error:
    raise UserError(
        f'{model_dir}: cannot be written ({str(error)[:300]}); free some space '
        'or choose another --out_dir') from error
  return model_dir, save_run_file(run_info, out_dir)


def save_run_file(run_info: dict[str, Any], out_dir: str) -> str:
  """Writes the run file alone and returns its path; see `save_run`."""
  path = run_path_of(model_path(out_dir, train_hash(run_info['args'])))
  # No time in the header: the same run gives the same bytes.
  write_file(path, gzip.compress(json.dumps(run_info).encode(), mtime=0))
  return path


@dataclasses.dataclass(frozen=True)
class Run:
  """A model folder and its run file.

  Attributes:
    model_dir: folder written by `save_run` or by the baseline's trainer.
    info: content of the run file.
    model_kwargs: constructor arguments, from its model_kwargs_json.
  """
  model_dir: str
  info: dict[str, Any]
  model_kwargs: dict[str, Any]

  @property
  def run_path(self) -> str:
    """The run file."""
    return run_path_of(self.model_dir)


def load_run(model_dir: str, task: str = 'tile') -> Run:
  """Reads the run file of a model folder.

  Args:
    model_dir: the folder; 'pretrained' is the one in the package.
    task: 'tile' or 'layout', the expected task; '': either.

  Raises:
    UserError: the folder or its run file is missing or damaged, belongs to
      another run or to the other task.
  """
  if model_dir == PRETRAINED:
    model_dir = pretrained_dir()
  path = run_path_of(model_dir)
  if not os.path.isdir(full_path(model_dir)):
    remove_leftovers(os.path.dirname(path))  # The old model may come back.
  if not os.path.isdir(full_path(model_dir)):
    raise UserError(
        f'{model_dir}: there is no such model folder.'
        f'{_models_in(os.path.dirname(full_path(model_dir)))}')
  if not os.path.exists(path):
    raise UserError(
        f'{model_dir}: its run file {path} is missing; it says how the model '
        'is built, so copy it from where the model was trained')
  run_info = read_run_file(path)
  check_hash(path, run_info)
  own = task_of(run_info['args'])
  if task and own != task:
    how = ('leave --task layout out' if own == 'tile'
           else 'add --task layout')
    raise UserError(f'{model_dir}: is a model of the {own} task; {how}, or '
                    f'name a model of the {task} task')
  return Run(model_dir, run_info,
             parse_model_kwargs(run_info['args']['model_kwargs_json']))


def read_run_file(path: str) -> dict[str, Any]:
  """Reads a run file, whatever its name; see `run_file.read`."""
  return run_file.read(path)


def check_hash(path: str, run_info: dict[str, Any]) -> None:
  """Raises UserError unless the file's name is the hash of its args."""
  args = run_info['args']
  named_hash = os.path.basename(path)[len('run_'):-len('.jsonz')]
  # A folder renamed by hand has no hash to compare.
  if (re.fullmatch('[0-9a-f]{32}', named_hash)
      and train_hash(args) != named_hash):
    raise UserError(
        f'{path}: holds another run: its args have the hash '
        f'{train_hash(args)}, its name says {named_hash}; copy the right run '
        'file, or rename it and its model folder alike')


def load_model(run: Run, num_ops: int, sample_graph: Any,
               models_py: str = '') -> tf.keras.Model:
  """Builds the class that the run file names, with the saved weights.

  The weights are copied by position, as the baseline's scripts do, so a model
  may come from either trainer. Only weights are read from the folder.

  Args:
    run: the folder and its run file, from `load_run`.
    num_ops: opcodes that the model was built for.
    sample_graph: normalised scalar GraphTensor with the right columns.
    models_py: another models.py with the class; empty: the package's.

  Raises:
    UserError: the folder holds no model, or another than its run file says.
  """
  args = run.info['args']
  try:
    model = load_models.build(args['model'], args['configs'], num_ops,
                              run.model_kwargs, models_py, sample_graph)
  except UserError as error:
    if needed := _other_version(run):
      raise UserError(f'{run.model_dir}: {error}. {needed}') from error
    raise
  try:
    saved = saved_weights.read(full_path(run.model_dir))
    _check_same_shapes(run, num_ops, sample_graph, model.trainable_variables,
                       saved)
    for variable, (_, value) in zip(model.trainable_variables, saved):
      variable.assign(value)
  except _LOAD_ERRORS as error:
    raise UserError(
        f'{run.model_dir}: cannot be read as a saved Keras model ({error}); '
        'copy the whole folder again, or train again') from error
  return model


def _other_version(run) -> str:
  """Names the version of the package that trained a model, if another."""
  known = run.info.get('versions')
  trained_with = isinstance(known, dict) and known.get('tpu_graphs_ext')
  if not trained_with or trained_with == tpu_graphs_ext.__version__:
    return ''
  return (f'It was trained with tpu_graphs_ext {trained_with} and needs that '
          f'version; this is {tpu_graphs_ext.__version__}')


def _check_same_shapes(run, num_ops, sample_graph, built, saved):
  """Raises UserError that names the first variable that does not fit."""
  built_for = (
      f'{run.info["args"]["model"]} built for num_ops={num_ops}, '
      f'{sample_graph.node_sets["op"]["feats"].shape[-1]} node and '
      f'{load_models.config_feats(sample_graph).shape[-1]} config columns')
  advice = _other_version(run) or (
      'The run file, or the data that these numbers were taken from, belongs '
      'to another model: give --data_root the data that it was trained on')
  if os.path.dirname(run.model_dir) == PRETRAINED_FOLDER:
    advice = (
        'The pretrained model belongs to another version of models.py: install '
        'the package anew, or name a model that you trained, with --dir')
  if len(built) != len(saved):
    raise UserError(
        f'{run.model_dir}: holds {len(saved)} variables, but {built_for} has '
        f'{len(built)}. {advice}')
  for i, (variable, (name, value)) in enumerate(zip(built, saved)):
    if variable.shape != value.shape:
      raise UserError(
          f'{run.model_dir}: variable {i} ({name}) has shape {value.shape}, '
          f'but in {built_for} it has {tuple(variable.shape)}. {advice}')


def versions() -> dict[str, str]:
  """Versions of the libraries of a training run, and the stack's name."""
  import tensorflow_gnn as tfgnn
  import tensorflow_ranking as tfr

  return {
      'tpu_graphs_ext': tpu_graphs_ext.__version__,
      'stack': stack_name(),
      'python': platform.python_version(),
      'tensorflow': tf.__version__,
      'tensorflow_gnn': tfgnn.__version__,
      'tensorflow_ranking': tfr.__version__,
      'numpy': np.__version__,
  }


@contextlib.contextmanager
def quiet_keras() -> Iterator[None]:
  """Drops warnings that saving and loading any graph model gives.

  They concern the metric, and that a reader must import TF-GNN.
  """
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel('ERROR')
  try:
    with warnings.catch_warnings():
      quiet.ignore_saving_warning()
      yield
  finally:
    logger.setLevel(level)


def _model_names(folder: str) -> list[str]:
  """Names of the model folders in a folder, if there is such a folder."""
  try:
    return sorted(name for name in os.listdir(full_path(folder))
                  if re.fullmatch('model_[^.]+', name))
  except OSError:
    return []


def _models_in(folder: str) -> str:
  """' Models in <folder>: ...', or '' if there are none."""
  names = _model_names(folder)
  if not names:
    return ''
  more = f' and {len(names) - 5} more' if len(names) > 5 else ''
  return f' Models in {full_path(folder)}: {", ".join(names[:5])}{more}'


# What builds a model and scales its features, and how it was trained.
_KEPT = ('args', 'feature_stats', 'num_ops', 'opcodes', 'seed', 'versions',
         'final_error')


def save_weights_only(model_dir: str, folder: str) -> str:
  """Writes a trained model's weights and how to build it, half a megabyte.

    <folder>/model_<hash>/weights.npz   float32 arrays, named by their place
                                        among the trainable variables: '0007'
    <folder>/run_<hash>.jsonz           the run file, as far as verbs need it

  Every verb takes such a folder; the baseline's scripts do not.

  Returns:
    The new model folder.

  Raises:
    UserError: a file is missing or damaged, or `folder` cannot be written.
  """
  run = load_run(model_dir)
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **{
      f'{place:04d}': np.asarray(value, np.float32)
      for place, (_, value) in enumerate(
          saved_weights.read(full_path(run.model_dir)))})
  new_dir = model_path(folder, train_hash(run.info['args']))
  write_file(os.path.join(new_dir, saved_weights.COMPACT_FILE),
             buffer.getvalue())
  save_run_file(
      {key: run.info[key] for key in _KEPT if key in run.info}, folder)
  return new_dir
