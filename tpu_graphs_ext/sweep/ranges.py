"""What a grid says of one argument: a value, several, or a range.

  0.001                            that value
  [1, 2, 4]                        each of them
  {"min": 1, "max": 4, "step": 1}  1, 2, 3, 4
  {"min": 1e-4, "max": 1e-2, "count": 3, "log": true}   1e-4, 1e-3, 1e-2
  {"min": 1e-4, "max": 1e-2, "log": true}   any between them; for a search
  {"value": [1, 2]}                a value that is itself a list or an object

Numbers of a range are whole where all that it is given are.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Optional, Union

from tpu_graphs_ext.errors import UserError, did_you_mean

_KEYS = ('min', 'max', 'step', 'count', 'log')
# More points of one range than anybody trains.
_MOST_POINTS = 10_000


@dataclasses.dataclass(frozen=True)
class Choices:
  """Some values; one is no choice."""
  values: tuple

  def points(self) -> list:
    """All of them, for a grid."""
    return list(self.values)

  def extremes(self) -> list:
    """Values such that if they are allowed, all are."""
    return list(self.values)

  def suggested(self, trial: Any, name: str) -> Any:
    """One that Optuna's `trial` draws."""
    if len(self.values) == 1:
      return self.values[0]
    # Optuna's categories are numbers and texts; ours may be lists.
    texts = [json.dumps(value, sort_keys=True) for value in self.values]
    return json.loads(trial.suggest_categorical(name, texts))


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers between two, both included.

  Attributes:
    least: the lower end.
    most: the upper end, above it.
    step: between neighbours, from `least` on; None: any number.
    count: so many points of a grid; None: those that `step` gives.
    log: even steps of the logarithm.
  """
  least: Union[int, float]
  most: Union[int, float]
  step: Optional[Union[int, float]] = None
  count: Optional[int] = None
  log: bool = False

  @property
  def is_whole(self) -> bool:
    return all(type(value) is int for value in (
        self.least, self.most, 1 if self.step is None else self.step))

  def points(self) -> list:
    """Those of a grid, each once; [] where neither step nor count is given."""
    if self.step is not None:
      number = 1 + math.floor((self.most - self.least) / self.step + 1e-9)
      found = [self.least + place * self.step for place in range(number)]
    elif self.count is not None:
      found = [self._between(place / (self.count - 1))
               for place in range(self.count)]
    else:
      return []
    if self.is_whole:
      found = [round(value) for value in found]
    return list(dict.fromkeys(found))

  def _between(self, part: float) -> float:
    """The point at a part of the way, of which 0 and 1 are the very ends."""
    if part in (0, 1):
      return (self.least, self.most)[int(part)]
    if self.log:
      return float(f'{self.least * (self.most / self.least) ** part:.12g}')
    return float(f'{self.least + (self.most - self.least) * part:.12g}')

  def extremes(self) -> list:
    return [self.least, self.most]

  def suggested(self, trial: Any, name: str) -> Any:
    options = {'log': True} if self.log else (
        {} if self.step is None else {'step': self.step})
    if self.is_whole:
      return trial.suggest_int(name, self.least, self.most, **options)
    return trial.suggest_float(name, self.least, self.most, **options)


Values = Union[Choices, Range]


def parsed(given: Any, where: str, is_search: bool) -> Values:
  """What a grid says of one argument.

  Args:
    given: of the file.
    where: the file and the key, for messages.
    is_search: numbers are drawn by a search; else a grid has all points.

  Raises:
    UserError: it is none of the forms above.
  """
  if isinstance(given, list):
    if not given:
      raise UserError(f'{where}: is an empty list; give values, or leave the '
                      'key out')
    texts = [json.dumps(value, sort_keys=True) for value in given]
    twice = [text for place, text in enumerate(texts) if text in texts[:place]]
    if twice:
      raise UserError(f'{where}: has {twice[0]} twice; each value once')
    return Choices(tuple(given))
  if not isinstance(given, dict):
    return Choices((given,))
  if set(given) == {'value'}:
    return Choices((given['value'],))
  return _range(given, where, is_search)


def _range(given: dict, where: str, is_search: bool) -> Range:
  for key in given:
    if key not in _KEYS:
      hint = did_you_mean(key, [*_KEYS, 'value'])
      raise UserError(
          f'{where}: has the unknown key {key!r}; {hint}{" " if hint else ""}'
          f'a range has {", ".join(_KEYS)}; write an object that is itself the '
          'value as {"value": {...}}')
  for key in ('min', 'max'):
    if key not in given:
      raise UserError(f'{where}: is a range without {key!r}; give both ends')
  for key in ('min', 'max', 'step'):
    _require_number(given, key, where)
  if not given['min'] < given['max']:
    raise UserError(f'{where}: min must be below max; got {given["min"]} and '
                    f'{given["max"]}')
  log = given.get('log', False)
  if not isinstance(log, bool):
    raise UserError(f'{where}.log: must be true or false; got {log!r}')
  if log and given['min'] <= 0:
    raise UserError(f'{where}.min: must be above 0 where log is true; got '
                    f'{given["min"]}')
  _check_points(given, where, is_search, log)
  return Range(given['min'], given['max'], given.get('step'),
               given.get('count'), log)


def _require_number(given: dict, key: str, where: str) -> None:
  value = given.get(key, 1)
  if type(value) not in (int, float) or not math.isfinite(value):
    raise UserError(f'{where}.{key}: must be a number; got {value!r}')
  if key == 'step' and value <= 0:
    raise UserError(f'{where}.step: must be above 0; got {value}')


def _check_points(given: dict, where: str, is_search: bool, log: bool) -> None:
  """Raises a UserError unless step and count fit what they are for."""
  if 'step' in given and (log or 'count' in given):
    raise UserError(f'{where}: step goes with neither count nor log; leave '
                    'one of them out')
  if is_search:
    if 'count' in given:
      raise UserError(f'{where}.count: a search draws between min and max; '
                      'leave it out, or give "step"')
    return
  if 'count' in given and (type(given['count']) is not int
                           or not 2 <= given['count'] <= _MOST_POINTS):
    raise UserError(f'{where}.count: must be a whole number from 2 to '
                    f'{_MOST_POINTS}; got {given["count"]!r}')
  if 'count' not in given and 'step' not in given:
    raise UserError(f'{where}: how many numbers? A grid needs "count" or '
                    '"step"; "search" can draw between min and max')
  if 'step' in given and (
      given['max'] - given['min']) / given['step'] > _MOST_POINTS:
    raise UserError(f'{where}.step: gives more than {_MOST_POINTS} points; '
                    f'got {given["step"]}')
