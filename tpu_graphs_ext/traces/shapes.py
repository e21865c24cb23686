"""Shapes and types of a call's arguments, as the profiler records them.

`Input Dims` and `Input type` of `record_shapes=True`; older versions wrote
`Input dims` and `Input Types`. A tensor's type is its C++ or its ATen name;
what is no tensor (`Scalar`, ``) has no size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

from tpu_graphs_ext.traces.calls import Call

# Python refuses to read thousands of digits.
_WHOLE = re.compile('-?[0-9]{1,18}')

# Bytes of a value. `Int` and `Bool` of an execution trace are no tensors.
SIZES = {
    'double': 8, 'float': 4, 'Half': 2, 'BFloat16': 2, 'long': 8,
    'long int': 8, 'long long': 8, 'int': 4, 'short': 2, 'char': 1,
    'signed char': 1, 'unsigned char': 1, 'bool': 1, 'Float8_e4m3fn': 1,
    'Float8_e5m2': 1, 'complex<float>': 8, 'complex<double>': 16}
_FLOAT = 'float'


class UnknownError(Exception):
  """Why a time cannot be predicted; the message is for users."""


class Tensor(NamedTuple):
  """Attributes:
    shape: sizes; () of a single value.
    type: as in `SIZES`.
  """
  shape: tuple
  type: str

  @property
  def values(self) -> int:
    return math.prod(self.shape)

  @property
  def value_bytes(self) -> int:
    return SIZES[self.type]

  @property
  def bytes(self) -> int:
    return self.values * self.value_bytes

  def text(self) -> str:
    """'float[16,13]'."""
    return f'{self.type}[{",".join(map(str, self.shape))}]'


Argument = Union[Tensor, list, None]


def arguments(call: Call) -> list[Argument]:
  """A tensor, a list of tensors, or None of what is neither.

  Values of a list without a type of their own are taken for 4-byte floats.

  Raises:
    UnknownError: the trace has no shapes here, or not all of them.
  """
  dims = _field(call, 'Input Dims', 'Input dims')
  types = _field(call, 'Input type', 'Input Types', 'Input types')
  if not dims or not isinstance(dims, list):
    raise UnknownError('no shapes here (record_shapes=True records them)')
  if not isinstance(types, list):
    types = [_FLOAT if _is_shape(one) and one else '' for one in dims]
  if len(types) != len(dims):
    raise UnknownError(f'{len(dims)} shapes and {len(types)} types')
  return [_argument(one, str(kind)) for one, kind in zip(dims, types)]


def tensor(given: Sequence[Argument], place: int) -> Tensor:
  """The tensor that is argument number `place`, from 0.

  Raises:
    UnknownError: it is none.
  """
  if place >= len(given) or not isinstance(given[place], Tensor):
    raise UnknownError(f'argument {place} is no tensor with a known shape')
  return given[place]


def number(call: Call, place: int) -> Optional[int]:
  """The whole number that is argument number `place`, where it is told."""
  for key in ('Concrete Inputs', 'values'):
    values = call.args.get(key)
    if isinstance(values, list) and place < len(values):
      value = values[place]
      if type(value) is int:
        return value
      if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
  return None


def _field(call: Call, *names: str) -> Any:
  return next((call.args[name] for name in names if name in call.args), None)


def _is_shape(value: Any) -> bool:
  return isinstance(value, list) and all(
      type(size) is int and size >= 0 for size in value)


def _argument(dims: Any, kind: str) -> Argument:
  name = kind
  if kind.startswith('Tensor('):  # Of an execution trace.
    name = kind[len('Tensor('):-1]
  name = name.replace('c10::', '').replace('at::', '')
  if name in SIZES:
    if not _is_shape(dims):
      raise UnknownError(f'{dims!r:.40} is no shape')
    return Tensor(tuple(dims), name)
  if kind == 'TensorList' or kind.startswith('GenericList[Tensor('):
    return _list(dims, kind)
  if kind.startswith('Tensor('):
    raise UnknownError(f'nothing is known of the type {name!r:.40}')
  return None


def _list(dims: Any, kind: str) -> list[Tensor]:
  if not isinstance(dims, list) or not dims:
    raise UnknownError('the trace lacks the shapes of lists of tensors, as '
                       'those of older versions do')
  inner = kind.removeprefix('GenericList[').removesuffix(']').split(',')
  types = inner if kind != 'TensorList' else ['float'] * len(dims)
  if len(types) != len(dims):
    raise UnknownError(f'{len(dims)} shapes and {len(types)} types in a list')
  found = [_argument(one, one_kind) for one, one_kind in zip(dims, types)]
  if not all(isinstance(one, Tensor) for one in found):
    raise UnknownError('a list holds something else than tensors')
  return found
