"""The output of a training run, in the baseline's format.

  <out_dir>/model_<hash>/      Keras SavedModel
  <out_dir>/run_<hash>.jsonz   gzip of one JSON object, the run file

`<hash>` is `Task.train_hash` of the run's arguments. The baseline's keys of the
run file are `train_curve` {epoch, train_loss, train_opa, val_loss, val_opa: one
number an epoch}, `final_error` {val: {'1', '5', '10': slowdown}}, `args`, and
`test_predictions` {tile_id: 10 config indices, best first, padded with 0}.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import itertools
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
from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import origin, pretrained, saved_weights
from tpu_graphs_ext.engine.settings import parse_model_kwargs
from tpu_graphs_ext.engine.task import Task
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import imports
from tpu_graphs_ext.stacks.versions import stack_name

# What a run writes into a model folder.
SAVED_FILES = ('saved_model.pb', 'keras_metadata.pb', 'fingerprint.pb',
               origin.COPY, 'assets', 'variables/variables.index',
               'variables/variables.data-00000-of-00001')


def model_path(out_dir: str, run_hash: str) -> str:
  return os.path.join(os.path.expanduser(out_dir), f'model_{run_hash}')


def run_path_of(model_dir: str) -> str:
  """The run file of a model folder model_<hash>, else a UserError."""
  folder, name = os.path.split(files.full_path(model_dir))
  if not name.startswith('model_'):
    raise UserError(f'{model_dir}: a model folder is named model_<hash>, which '
                    f'tells its run file run_<hash>.jsonz; got {name!r}')
  return os.path.join(folder, 'run_' + name[len('model_'):] + '.jsonz')


def save_run(model: tf.keras.Model, run_info: dict[str, Any], out_dir: str,
             task: Task, models_py: bytes = b'') -> str:
  """Writes the model folder, with a copy of its models.py, and the run file.

  Returns the folder.
  """
  model_dir = model_path(out_dir, task.train_hash(run_info['args']))
  try:
    with files.new_folder(model_dir, lambda: files.require_own(
        model_dir, {}, SAVED_FILES)) as temporary, quiet_keras():
      model.save(temporary, save_format='tf',
                 include_optimizer=task.keeps_optimizer)
      if models_py:
        with open(os.path.join(temporary, origin.COPY), 'wb') as file:
          file.write(models_py)
  except (OSError, tf.errors.OpError) as error:
    raise files.cannot_be_written(model_dir, error) from error
  save_run_file(run_info, out_dir, task)
  return model_dir


def save_run_file(run_info: dict[str, Any], out_dir: str, task: Task) -> str:
  """Writes the run file alone and returns its path; see `save_run`."""
  path = run_path_of(model_path(out_dir, task.train_hash(run_info['args'])))
  # No time in the header: the same run gives the same bytes.
  files.write_file(path, gzip.compress(json.dumps(run_info).encode(), mtime=0))
  return path


@contextlib.contextmanager
def quiet_keras() -> Iterator[None]:
  """Drops warnings that saving and loading any graph model gives."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel('ERROR')
  try:
    with warnings.catch_warnings():
      imports.ignore_saving_warning()
      yield
  finally:
    logger.setLevel(level)


def versions() -> dict[str, str]:
  """Versions of the libraries of a training run, and the stack's name."""
  import tensorflow_gnn as tfgnn
  import tensorflow_ranking as tfr
  return {'stack': stack_name(), 'python': platform.python_version(),
          **{module.__name__: module.__version__
             for module in (tpu_graphs_ext, tf, tfgnn, tfr, np)}}


@dataclasses.dataclass(frozen=True)
class Run:
  """A model folder, by this package or the baseline's trainer."""
  model_dir: str
  info: dict[str, Any]  # Content of the run file.
  model_kwargs: dict[str, Any]  # From its model_kwargs_json.


def load_run(model_dir: str, task: Task) -> Run:
  """Reads the run file of a model folder, or of one of the package's models.

  Raises UserError if one is missing, damaged, or of another run or task.
  """
  if pretrained.tpu_of(model_dir):
    model_dir = pretrained.folder_of(model_dir)
  path = run_path_of(model_dir)
  files.remove_leftovers(os.path.dirname(path))  # The old model may come back.
  pretrained.require_folder(model_dir)
  run_info = read_run_file(path)
  if not task.owns(run_info):
    name = run_info.get('task')
    raise UserError(f'{model_dir}: is a model of ' + (
        f'the {name} task; give --task {name}' if name else
        f'another task than {task.name}; give the --task of its training'))
  check_run(path, run_info, task)
  return Run(model_dir, run_info,
             parse_model_kwargs(run_info['args']['model_kwargs_json']))


def check_run(path: str, run_info: dict[str, Any], task: Task) -> None:
  """Raises UserError unless a file's name is the hash of its args."""
  for name in task.collection_args:
    if not isinstance(run_info['args'].get(name), str):
      raise UserError(f'{path}: cannot be read as a run file (its {name} must '
                      'be text); copy it again from where the model was '
                      'trained')
  named_hash = os.path.basename(path)[len('run_'):-len('.jsonz')]
  own_hash = task.train_hash(run_info['args'])
  # A folder renamed by hand has no hash to compare.
  if re.fullmatch('[0-9a-f]{32}', named_hash) and own_hash != named_hash:
    raise UserError(
        f'{path}: holds another run: its args have the hash {own_hash}; copy '
        'the right run file, or rename it and its model folder alike')


# Fields of the run file; see `files.require_forms`.
_TEXT, _NUMBER = (str,), (int, float, type(None))
_RUN = {
    **dict.fromkeys(('args', 'settings', 'versions'), ((dict,), 'an object')),
    **dict.fromkeys(('task', 'tpu', 'host'), (_TEXT, 'text')),
    **dict.fromkeys(('models_py', 'data'), ({'': _TEXT}, 'texts by name')),
    **dict.fromkeys(('seconds', 'final_kendall', 'final_opa'),
                    ({'': _NUMBER}, 'numbers by name')),
    'final_error': ({'': {'': _NUMBER}}, 'numbers by split and number'),
    'train_curve': ({'': [_NUMBER]}, 'lists of numbers by name'),
    'test_predictions': ({'': [(int,)]}, 'lists of whole numbers by name'),
    'opcodes': ([(int,)], 'a list of whole numbers'),
    'seed': ((int, type(None)), 'a whole number'),
    'num_ops': (range(1, 2 ** 16 + 1), 'a whole number from 1 to 65536')}
_DATA_ROOT = {'data_root': (_TEXT, 'text')}
_ARGS = {'model': (_TEXT, 'text'), 'model_kwargs_json': (_TEXT, 'text'),
         'configs': (range(1, 2 ** 31), 'a whole number from 1 to 2147483647')}


def read_run_file(path: str) -> dict[str, Any]:
  """Reads a run file, whatever its name, of this package or the baseline's.

  Raises UserError if it is damaged, or cannot be used to build the model.
  """
  try:
    run_info = files.parse_json(
        files.read_file(path, unpack=True), 'its content')
    files.require_forms({'content': run_info}, {'content': _RUN['args']})
    has_stats = ['num_ops'] if 'feature_stats' in run_info else []
    files.require_forms(run_info, _RUN, ['args', *has_stats])
    files.require_forms(run_info['args'], _ARGS, _ARGS)
    for fields in run_info['args'], run_info.get('settings', {}):
      files.require_forms(fields, _DATA_ROOT)
    parse_model_kwargs(run_info['args']['model_kwargs_json'])
    if has_stats:
      FeatureStats.from_json(run_info['feature_stats'])
  except (ValueError, UserError) as error:
    reason = str(error).removeprefix(f'{path}: ')
    if not reason.startswith('cannot be read ('):
      reason = f'cannot be read as a run file ({reason})'
    raise UserError(f'{path}: {reason}; copy it again from where the model was '
                    'trained') from error
  return run_info


def load_model(run: Run, num_ops: int, sample_graph: Any,
               models_py: str = '') -> tf.keras.Model:
  """Builds the run file's class for the columns of `sample_graph`.

  Saved weights are copied by position, as in the baseline's scripts. Raises
  UserError unless they are those of the class.
  """
  args = run.info['args']
  try:
    model = load_models.build(args['model'], args['configs'], num_ops,
                              run.model_kwargs, models_py, sample_graph)
    built, saved = model.trainable_variables, saved_weights.read(
        files.full_path(run.model_dir))
    pairs = itertools.zip_longest([tuple(value.shape) for value in built],
                                  [value.shape for _, value in saved])
    for number, (needed, stored) in enumerate(pairs):
      if needed != stored:
        raise UserError(
            f'variable {number} has the shape {stored}, but must have {needed} '
            f'in {args["model"]} built for num_ops={num_ops}. The run file, '
            'the data or models.py belongs to another model; give --data_root '
            'the data that it was trained on')
  except (ValueError, UserError) as error:
    trained_with = run.info.get('versions', {}).get('tpu_graphs_ext')
    version = '' if trained_with in (None, tpu_graphs_ext.__version__) else (
        f'. It was trained with tpu_graphs_ext {trained_with}; this is '
        f'{tpu_graphs_ext.__version__}')
    what = '' if isinstance(error, UserError) else (
        'cannot be read as a saved Keras model, copy the whole folder again: ')
    raise UserError(f'{run.model_dir}: {what}{error}{version}') from error
  for variable, (_, value) in zip(built, saved):
    variable.assign(value)
  return model
