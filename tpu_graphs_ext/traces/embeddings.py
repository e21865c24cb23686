"""What is looked up in embedding tables, off the arguments of operators.

ATen's `_embedding_bag` has one table; FBGEMM's lookups (`split`, `dense`) have
several one after another, in which rows of different widths lie. Of those the
trace tells sums alone, and every table is taken for the mean one. Positions of
arguments are those of the operators' schemas.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from tpu_graphs_ext.analytic import roofline
from tpu_graphs_ext.analytic.roofline import EmbeddingBags, Gpu
from tpu_graphs_ext.traces import shapes
from tpu_graphs_ext.traces.calls import Activity, Call
from tpu_graphs_ext.traces.shapes import Tensor, UnknownError


class _Places(NamedTuple):
  """Positions of the arguments of a lookup of several tables."""
  weights: tuple
  width_offsets: int  # One more than there are tables.
  total_width: int
  indices: int
  offsets: int


_SPLIT = _Places((1, 2), 6, 7, 11, 12)
_DENSE = _Places((0,), 2, 3, 7, 8)
_LOOKUP = re.compile(r'fbgemm::(split|dense)_embedding_codegen_lookup_'
                     r'(?:\w+?_)?function(?:_cpu|_pt2)?')
_STEP = re.compile(r'(?:torch::autograd::)?CppNode<.*SplitLookupFunction_'
                   r'(\w+?)_Op>')
# Numbers that an optimizer keeps for each value.
_STATES = {'Dense': 0, 'adagrad': 1, 'adam': 2}


def is_lookup(name: str) -> bool:
  """Whether an operator looks rows up."""
  return name in _ATEN or _LOOKUP.fullmatch(name) is not None


def is_step(name: str) -> bool:
  """Whether it is the backward pass of one, with an optimizer or without."""
  return name in _ATEN_BACKWARD or _STEP.fullmatch(name) is not None


def paired(calls: Sequence[Call]) -> dict[Call, Call]:
  """Each lookup of FBGEMM -> its backward pass, and the other way round.

  Neither names the other one. The backward pass has the sequence number of
  the lookup, and lookups are numbered in their order: so the first lookup has
  the backward pass with the smallest number. Where there are not as many of
  one as of the other, or the numbers of bags differ, there are no pairs.
  """
  found: dict[Call, Call] = {}
  for dense in (False, True):
    lookups = [call for call in calls
               if (match := _LOOKUP.fullmatch(call.name))
               and (match[1] == 'dense') == dense]
    steps = [call for call in calls if (match := _STEP.fullmatch(call.name))
             and (match[1] == 'Dense') == dense]
    if len(lookups) != len(steps) or not all(
        type(call.args.get('Sequence number')) is int for call in steps):
      continue
    steps.sort(key=lambda call: call.args['Sequence number'])
    lookups.sort(key=lambda call: call.start)
    for lookup, step in zip(lookups, steps):
      try:
        bags, tables, _ = _counts(lookup)
        if shapes.tensor(shapes.arguments(step), 0).shape[0] * tables != bags:
          break
      except (UnknownError, IndexError):
        continue
      found[lookup], found[step] = step, lookup
  return found


def lookup_us(call: Call, kernels: Sequence[Activity],
              step: Optional[Call]) -> tuple[Callable[[Gpu], float], str]:
  """What predicts a lookup's time on a machine, and its sizes in words.

  Args:
    call: the lookup.
    kernels: what it launched; they tell how many bags a block has.
    step: its backward pass, if known, whose gradient tells the widths.

  Raises:
    UnknownError: the trace does not tell enough.
  """
  bags = dataclasses.replace(_bags(call, step), **_rows_per_block(kernels))
  return lambda of: roofline.embedding_forward_us(bags, of), text(bags)


def step_us(call: Call,
            lookup: Optional[Call]) -> tuple[Callable[[Gpu], float], str]:
  """The same of a backward pass, whose lookup tells what was looked up.

  Raises:
    UnknownError: the trace does not tell enough.
  """
  if call.name in _ATEN_BACKWARD:
    bags = _ATEN_BACKWARD[call.name](call)
    return lambda of: roofline.embedding_backward_us(bags, of), text(bags)
  optimizer = _STEP.fullmatch(call.name)[1]
  if lookup is None:
    raise UnknownError('the lookup of this backward pass is not to be told')
  bags = _bags(lookup, call)
  if optimizer == 'sgd':
    return lambda of: roofline.embedding_backward_sgd_us(bags, of), text(bags)
  if optimizer == 'rowwise_adagrad':
    return (lambda of: roofline.embedding_backward_rowwise_adagrad_us(bags, of),
            text(bags))
  if optimizer not in _STATES:
    raise UnknownError(f'no formula for the optimizer {optimizer:.40}')
  states = _STATES[optimizer]
  return (lambda of: roofline.embedding_backward_us(bags, of, states),
          text(bags))


def text(bags: EmbeddingBags) -> str:
  """'3 tables of 1000 x 16, 16 bags of 2.0'."""
  return (f'{bags.tables} tables of {bags.rows} x {bags.width}, '
          f'{bags.batch_size} bags of {bags.bag_size:.1f}')


# ---------------------------------------------------------------- arguments


def _bags(call: Call, step: Optional[Call]) -> EmbeddingBags:
  if call.name in _ATEN:
    return _ATEN[call.name](call)
  return _several_tables(call, step)


def _rows_per_block(kernels: Sequence[Activity]) -> dict:
  """Of the longest kernel, where the trace tells it."""
  told = [kernel for kernel in kernels if kernel.block]
  if not told:
    return {}
  longest = max(told, key=lambda kernel: kernel.duration_us)
  return {'rows_per_block': longest.block[1]}


def _made(**sizes) -> EmbeddingBags:
  """Bags, unless a size says that nothing is looked up."""
  if min(sizes['batch_size'], sizes['bag_size'], sizes['rows'],
         sizes['width']) <= 0:
    raise UnknownError('nothing is looked up')
  return EmbeddingBags(**sizes)


def _places(call: Call) -> _Places:
  return _DENSE if '::dense_' in call.name else _SPLIT


def _counts(call: Call) -> tuple[int, int, Tensor]:
  """Bags of all tables, tables, and the indices of an FBGEMM lookup."""
  given, places = shapes.arguments(call), _places(call)
  tables = shapes.tensor(given, places.width_offsets).values - 1
  bags = shapes.tensor(given, places.offsets).values - 1
  if tables < 1 or bags < tables or bags % tables:
    raise UnknownError(f'{bags} bags do not divide among {tables} tables')
  return bags, tables, shapes.tensor(given, places.indices)


def _several_tables(call: Call, step: Optional[Call]) -> EmbeddingBags:
  given, places = shapes.arguments(call), _places(call)
  bags, tables, indices = _counts(call)
  weights = max((shapes.tensor(given, place) for place in places.weights),
                key=lambda one: one.values)
  total = shapes.number(call, places.total_width)
  if total is None and step is not None:  # Its gradient: [batch, widths].
    gradient = shapes.tensor(shapes.arguments(step), 0)
    total = gradient.shape[1] if len(gradient.shape) == 2 else None
  if not total or total < tables:
    raise UnknownError('the trace does not tell how wide rows are')
  return _made(
      batch_size=bags // tables, tables=tables, width=round(total / tables),
      rows=max(weights.values // total, 1), bag_size=indices.values / bags,
      value_bytes=weights.value_bytes, index_bytes_each=indices.value_bytes)


def _one_table(table: Tensor, indices: Tensor, bags: int) -> EmbeddingBags:
  if len(table.shape) != 2:
    raise UnknownError(f'a table of {len(table.shape)} dimensions')
  return _made(
      batch_size=bags, rows=table.shape[0], tables=1, width=table.shape[1],
      bag_size=indices.values / max(bags, 1), value_bytes=table.value_bytes,
      index_bytes_each=indices.value_bytes)


def _embedding(call: Call) -> EmbeddingBags:
  """weight, indices: each index is a bag."""
  given = shapes.arguments(call)
  indices = shapes.tensor(given, 1)
  return _one_table(shapes.tensor(given, 0), indices, indices.values)


def _embedding_bag(call: Call) -> EmbeddingBags:
  """weight, indices, offsets, scale_grad_by_freq, mode, sparse,
  per_sample_weights, include_last_offset."""
  given = shapes.arguments(call)
  bags = shapes.tensor(given, 2).values
  listed = call.args.get('Concrete Inputs', call.args.get('values'))
  if isinstance(listed, list) and len(listed) > 7 and (
      str(listed[7]) == 'True'):
    bags -= 1
  return _one_table(shapes.tensor(given, 0), shapes.tensor(given, 1), bags)


def _gradient_rows(call: Call, bags_of: Callable) -> EmbeddingBags:
  """gradient, indices: rows of the table's gradient are read and written."""
  given = shapes.arguments(call)
  gradient, indices = shapes.tensor(given, 0), shapes.tensor(given, 1)
  if not gradient.shape:
    raise UnknownError('a gradient without dimensions')
  width = gradient.shape[-1]
  bags = bags_of(gradient, indices)
  return _made(
      batch_size=bags, rows=max(indices.values, 1), tables=1, width=width,
      bag_size=indices.values / max(bags, 1), value_bytes=gradient.value_bytes,
      index_bytes_each=indices.value_bytes)


def _bag_gradient(call: Call) -> EmbeddingBags:
  return _gradient_rows(call, lambda gradient, _: gradient.shape[0])


def _embedding_gradient(call: Call) -> EmbeddingBags:
  return _gradient_rows(call, lambda _, indices: indices.values)


_ATEN = {
    'aten::embedding': _embedding, 'aten::_embedding_bag': _embedding_bag,
    'aten::_embedding_bag_forward_only': _embedding_bag}
_ATEN_BACKWARD = {
    'aten::_embedding_bag_dense_backward': _bag_gradient,
    'aten::embedding_dense_backward': _embedding_gradient}
