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

Number = Union[int, float]


@dataclasses.dataclass(frozen=True)
class Choices:
  """Some values; one is no choice."""
  values: tuple

  def tested(self) -> tuple:
    """Values such that if they are allowed, all are."""
    return self.values

  def drawn(self, trial: Any, name: str) -> Any:
    """One that Optuna's `trial` draws."""
    if len(self.values) == 1:
      return self.values[0]
    # Optuna's categories are numbers and texts; ours may be lists.
    texts = [json.dumps(value, sort_keys=True) for value in self.values]
    return json.loads(trial.suggest_categorical(name, texts))


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers between two, both included, that a search draws.

  Attributes:
    least: the lower end.
    most: the upper end, above it.
    step: between neighbours, from `least` on; None: any number.
    log: the logarithm is drawn evenly.
  """
  least: Number
  most: Number
  step: Optional[Number] = None
  log: bool = False

  def tested(self) -> tuple:
    return self.least, self.most

  def drawn(self, trial: Any, name: str) -> Any:
    options = {'log': True} if self.log else (
        {} if self.step is None else {'step': self.step})
    draw = (trial.suggest_int if _is_whole(self.least, self.most, self.step)
            else trial.suggest_float)
    return draw(name, self.least, self.most, **options)


Values = Union[Choices, Range]


def _is_whole(*numbers: Optional[Number]) -> bool:
  return all(type(number) is int for number in numbers if number is not None)


def parsed(given: Any, where: str, is_search: bool) -> Values:
  """What a grid says of one argument.

  Args:
    given: from the file.
    where: the file and the key, for messages.
    is_search: a search draws numbers of a range; a grid has some of them all.

  Raises:
    UserError: it is none of the forms above.
  """
  if isinstance(given, list):
    if not given:
      raise UserError(f'{where}: is an empty list; give values, or leave the '
                      'key out')
    texts = [json.dumps(value, sort_keys=True) for value in given]
    if len(set(texts)) < len(texts):
      twice = next(text for text in texts if texts.count(text) > 1)
      raise UserError(f'{where}: has {twice} twice; each value once')
    return Choices(tuple(given))
  if not isinstance(given, dict):
    return Choices((given,))
  if set(given) == {'value'}:
    return Choices((given['value'],))
  for key in given:
    if key not in _KEYS:
      hint = did_you_mean(key, [*_KEYS, 'value'])
      raise UserError(
          f'{where}: has the unknown key {key!r}; {hint}{" " if hint else ""}'
          f'a range has {", ".join(_KEYS)}; write an object that is itself the '
          'value as {"value": {...}}')
  _check_ends(given, where)
  if is_search:
    if 'count' in given:
      raise UserError(f'{where}.count: a search draws between min and max; '
                      'leave it out, or give "step"')
    return Range(given['min'], given['max'], given.get('step'),
                 given.get('log', False))
  return Choices(tuple(dict.fromkeys(_points(given, where))))


def _check_ends(given: dict, where: str) -> None:
  """Raises a UserError unless min, max, step and log fit together."""
  def require(holds: bool, text: str) -> None:
    if not holds:
      raise UserError(where + text)

  for key in ('min', 'max'):
    require(key in given, f': is a range without {key!r}; give both ends')
  for key in ('min', 'max', 'step'):
    value = given.get(key, 1)
    require(type(value) in (int, float) and math.isfinite(value),
            f'.{key}: must be a number; got {value!r}')
  least, most, log = given['min'], given['max'], given.get('log', False)
  require(least < most, f': min must be below max; got {least} and {most}')
  require(isinstance(log, bool), f'.log: must be true or false; got {log!r}')
  require(not log or least > 0,
          f'.min: must be above 0 where log is true; got {least}')
  if 'step' in given:
    require(given['step'] > 0, f'.step: must be above 0; got {given["step"]}')
    require(not log and 'count' not in given,
            ': step goes with neither count nor log; leave one of them out')


def _points(given: dict, where: str) -> list[Number]:
  """Those of a grid."""
  least, most, step = given['min'], given['max'], given.get('step')
  if step is not None:
    if (most - least) / step > _MOST_POINTS:
      raise UserError(f'{where}.step: gives more than {_MOST_POINTS} points; '
                      f'got {step}')
    number = 1 + math.floor((most - least) / step + 1e-9)
    return [least + place * step for place in range(number)]
  count = given.get('count')
  if count is None:
    raise UserError(f'{where}: how many numbers? A grid needs "count" or '
                    '"step"; "search" can draw between min and max')
  if type(count) is not int or not 2 <= count <= _MOST_POINTS:
    raise UserError(f'{where}.count: must be a whole number from 2 to '
                    f'{_MOST_POINTS}; got {count!r}')
  between = [least * (most / least) ** part if given.get('log')
             else least + (most - least) * part
             for part in (place / (count - 1) for place in range(1, count - 1))]
  return [least, *(
      round(number) if _is_whole(least, most) else float(f'{number:.12g}')
      for number in between), most]
