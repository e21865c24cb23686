"""Run files, read and checked: a run file comes from whoever trained the model.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Any

from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine.settings import parse_model_kwargs
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import parse_json

# `args` that are needed to build a model again.
_NEEDED_ARGS = ('model', 'model_kwargs_json', 'configs')
# Of a run file, unpacked: a thousand times the largest ever seen.
_MOST_BYTES = 2 ** 28
# An opcode is a byte; a model may be built for more.
_MOST_OPS = 2 ** 16
_MOST_CONFIGS = 2 ** 31 - 1
# Arguments that name a collection of the layout task.
_COLLECTION = {'source': ('xla', 'nlp'), 'search': ('random', 'default')}


def read(path: str) -> dict[str, Any]:
  """Reads a run file, whatever its name, of this package or the baseline's.

  Raises:
    UserError: the file is damaged, or cannot be used to build the model.
  """
  try:
    with gzip.open(path, 'rb') as file:
      text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
      raise ValueError(f'it holds more than {_MOST_BYTES} bytes')
    run_info = parse_json(text, 'its content')
    missing = [key for key in _NEEDED_ARGS if key not in run_info['args']]
  except (OSError, EOFError, ValueError, KeyError, TypeError, UserError,
          zlib.error) as error:
    raise UserError(
        f'{path}: cannot be read as a run file ({error!r}); copy it again from '
        'where the model was trained') from error
  if missing:
    raise UserError(
        f'{path}: its args lack {", ".join(missing)}; it is no run file of '
        'the tile or layout collection')
  _check(path, run_info)
  return run_info


def _check(path: str, run_info: dict[str, Any]) -> None:
  """Raises a UserError that names the first field that breaks its rule."""
  def require(field: str, value: Any, holds: bool, rule: str) -> None:
    if not holds:
      raise UserError(
          f'{path}: its {field} must be {rule}; it is {repr(value)[:100]}. '
          'Copy the file again from where the model was trained')

  args = run_info['args']
  require('args', args, isinstance(args, dict), 'an object')
  require('model', args['model'],
          isinstance(args['model'], str) and bool(args['model']), 'a name')
  for field, value, most in (
      ('configs', args['configs'], _MOST_CONFIGS),
      ('num_ops', run_info.get('num_ops', 1), _MOST_OPS)):
    require(field, value, type(value) is int and 1 <= value <= most,
            f'a whole number from 1 to {most}')
  if 'keep_nodes' in args:  # Of the layout task.
    for field, known in _COLLECTION.items():
      require(field, args.get(field), args.get(field) in known,
              ' or '.join(known))
  for field in ('train_curve', 'final_error', 'seconds', 'settings',
                'test_predictions'):
    value = run_info.get(field, {})
    require(field, value, isinstance(value, dict), 'an object')
  opcodes = run_info.get('opcodes', [])
  require('opcodes', opcodes, isinstance(opcodes, list) and all(
      type(opcode) is int for opcode in opcodes), 'a list of whole numbers')
  try:
    parse_model_kwargs(args['model_kwargs_json'])
    stats = ('feature_stats' in run_info
             and FeatureStats.from_json(run_info['feature_stats']))
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  if stats:
    require('num_ops', None, 'num_ops' in run_info,
            'there, as its feature_stats are')
    for table in ('node', 'config'):
      columns = getattr(stats, table)
      require(f'feature_stats of {table}', run_info['feature_stats'][table],
              len(columns.minimum)
              and (columns.minimum <= columns.maximum).all(),
              'the minimum and maximum of at least one column')


def is_finished(run_info: dict[str, Any]) -> bool:
  """Whether it has what only the end of a run writes, and can be reported."""
  curve = run_info.get('train_curve', {})
  seconds = run_info.get('seconds', {})
  return ('settings' in run_info
          and 'total' in seconds and _are_numbers(list(seconds.values()))
          and bool(curve.get('val_opa')) and 'epoch' in curve
          and all(map(_are_numbers, curve.values()))
          and all(isinstance(split, dict) and _are_numbers(list(split.values()))
                  for split in run_info.get('final_error', {}).values())
          and all(map(_are_numbers,
                      run_info.get('test_predictions', {}).values())))


def _are_numbers(values: Any) -> bool:
  return isinstance(values, list) and all(
      type(value) in (int, float) for value in values)
