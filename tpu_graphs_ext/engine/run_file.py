"""What a run file must hold: it is read from whoever trained the model."""

from __future__ import annotations

from typing import Any

from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine.settings import parse_model_kwargs
from tpu_graphs_ext.errors import UserError

# An opcode is a byte; a model may be built for more.
_MOST_OPS = 2 ** 16
_MOST_CONFIGS = 2 ** 31 - 1
# Arguments that name a collection of the layout task.
_COLLECTION = {'source': ('xla', 'nlp'), 'search': ('random', 'default')}


def check(path: str, run_info: dict[str, Any]) -> None:
  """Checks all that the package reads of a run file, the baseline's too.

  Args:
    path: stands in errors.
    run_info: the parsed file, with the `args` that every run file has.

  Raises:
    UserError: names the first field that is not what it must be.
  """
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
    if 'feature_stats' in run_info:
      require('num_ops', None, 'num_ops' in run_info,
              'there, as its feature_stats are')
      _check_stats(run_info['feature_stats'])
  except UserError as error:
    if str(error).startswith(path):
      raise
    raise UserError(f'{path}: {error}') from error


def _check_stats(stored: Any) -> None:
  """Raises a UserError unless they are least and largest values of columns."""
  stats = FeatureStats.from_json(stored)
  for table, columns in (('node', stats.node), ('config', stats.config)):
    if not len(columns.minimum) or (columns.minimum > columns.maximum).any():
      raise UserError(f'feature_stats: minimum and maximum of {table} must be '
                      'of at least one column, the least first')


def is_finished(run_info: dict[str, Any]) -> bool:
  """Whether it has what only the end of a run writes, and can be reported."""
  curve = run_info.get('train_curve', {})
  errors = run_info.get('final_error', {})
  seconds = run_info.get('seconds', {})
  predictions = run_info.get('test_predictions', {})
  return ('settings' in run_info
          and 'total' in seconds and _are_numbers(list(seconds.values()))
          and bool(curve.get('val_opa')) and 'epoch' in curve
          and all(_are_numbers(values) for values in curve.values())
          and all(isinstance(split, dict)
                  and _are_numbers(list(split.values()))
                  for split in errors.values())
          and all(_are_numbers(best) for best in predictions.values()))


def _are_numbers(values: Any) -> bool:
  return isinstance(values, list) and all(
      type(value) in (int, float) for value in values)
