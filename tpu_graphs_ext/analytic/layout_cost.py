"""An analytic runtime model of whole programs on a TPU-like machine, by layout.

It gives the sample data of the layout task their runtimes: synthetic ones. The
machine is that of `tpu`; what is added are the terms that depend on layouts.

    time = sum over instructions of launch + the larger of memory and
           arithmetic time, plus a copy where a tensor is read in a layout that
           it is not stored in

A tensor is stored in whole layout tiles (see `hlo.layout`), so that an order
with a small or odd innermost dimension makes it larger. The matrix unit takes
its operands with features innermost, and turns the others as they come.
Layouts of nodes without a choice follow from what they read: elementwise
operations keep them, transposes and reductions rename the dimensions,
broadcasts come in any order, and parameters and results are row-major. A copy
that several instructions need is made once.

All functions are of many configurations at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from tpu_graphs_ext.analytic.tpu import TPU_V3_LIKE, TpuConstants
from tpu_graphs_ext.hlo import layout
from tpu_graphs_ext.hlo.layout_choices import NodeChoice, completed
from tpu_graphs_ext.hlo.protos import PrimitiveType


@dataclasses.dataclass(frozen=True)
class LayoutConstants:
  """What layouts cost. Round numbers; another set is another machine.

  Attributes:
    machine: time of transfers and arithmetic.
    stored: share of the results of elementwise work that are written to main
      memory; the others are fused away.
    against_grain: share by which a product takes longer for each of its
      tensors whose features are not innermost.
    turned: how much longer a copy takes that changes the innermost dimension.
    unhidden_copies: share of the time of copies beside which nothing else runs.
    most_padding: a tensor takes no more than so many times its elements; the
      compiler then packs it in smaller pieces.
    noise: standard deviation of the logarithm of repeated runs. Real files
      with few distinct runtimes have 2e-5 around each.
  """
  machine: TpuConstants = TPU_V3_LIKE
  stored: float = 0.3
  against_grain: float = 0.03
  turned: float = 1.5
  unhidden_copies: float = 0.25
  most_padding: float = 1.5
  noise: float = 2e-5


TPU_V3_LAYOUTS = LayoutConstants()


class _Stored(NamedTuple):
  """In which order a tensor is stored, by configuration."""
  orders: tuple       # Distinct orders, minor to major.
  choice: np.ndarray  # int16 [configs], which of them.


# Any order at no cost: what is made where it is needed.
_MADE_ANYWHERE = frozenset({'broadcast', 'constant', 'iota', 'rng'})
# Take the layout of their first operand, with as many dimensions.
_KEEP_ORDER = frozenset({
    'slice', 'pad', 'reverse', 'concatenate', 'dynamic-slice', 'reduce-window',
    'select-and-scatter', 'dynamic-update-slice', 'copy', 'convert'})
_NO_WORK = frozenset({'parameter', 'tuple', 'get-tuple-element', 'after-all',
                      'constant', 'broadcast', 'iota', 'transpose', 'reshape',
                      'bitcast'})


def program_ns(module, choices: Sequence[NodeChoice], chosen: np.ndarray,
               constants: LayoutConstants = TPU_V3_LAYOUTS) -> np.ndarray:
  """float64 [configs]: runtime without noise, in nanoseconds.

  Args:
    module: `HloModuleProto` of `hlo.whole_program`.
    choices: of `hlo.layout_choices`.
    chosen: int [configs, groups], which option each group of nodes takes.
    constants: the machine.
  """
  return _Run(module, choices, chosen, constants).total_ns()


class _Run:
  """Goes through a program once, for all configurations."""

  def __init__(self, module, choices, chosen, constants):
    self._entry = module.computations[-1]
    self._choices = {choice.instruction_id: choice for choice in choices}
    self._chosen, self._constants = chosen, constants
    self._configs = len(chosen)
    self._nodes = {node.id: node for node in self._entry.instructions}
    self._stored = {}  # id -> _Stored, or None where any order will do.
    self._copies = {}  # (id, from, to) -> bool [configs]
    self._ns = np.zeros(self._configs)

  def total_ns(self) -> np.ndarray:
    for node in self._entry.instructions:
      self._stored[node.id] = self._visit(node)
    root = self._entry.root_id
    self._read(root, self._row_major(self._rank(root)))
    for (made, source, target), needed in self._copies.items():
      self._ns += needed * copy_ns(
          self._nodes[made].shape, source, target, self._constants)
    return self._ns

  def _visit(self, node) -> Optional[_Stored]:
    """Adds the time of an instruction; returns how its result is stored."""
    if node.opcode in _MADE_ANYWHERE:
      return None
    if node.opcode in ('convolution', 'dot') and node.id in self._choices:
      return self._product(node)
    if node.opcode == 'reshape':
      return self._reshape(node)
    if node.opcode == 'tuple':  # What a program or a loop hands on.
      for made in node.operand_ids:
        self._read(made, self._row_major(self._rank(made)))
      return self._row_major(0)
    stored = self._followed(node)
    if node.opcode not in _NO_WORK:
      self._ns += self._by_order(
          stored, lambda order: _elementwise_ns(node, order, self._constants))
    return stored

  # --- Layouts ---------------------------------------------------------------

  def _rank(self, node_id) -> int:
    return len(self._nodes[node_id].shape.dimensions)

  def _row_major(self, rank: int) -> _Stored:
    return _Stored((completed((), rank),), np.zeros(self._configs, np.int16))

  def _by_order(self, stored: _Stored, value) -> np.ndarray:
    """float64 [configs] of a function of the order."""
    values = [value(order) for order in stored.orders]
    return np.array(values, np.float64)[stored.choice]

  def _of_options(self, choice: NodeChoice, tensor: str, rank: int) -> _Stored:
    """A configured tensor; row-major where the compiler may choose."""
    orders = [completed(getattr(option, tensor), rank)
              for option in choice.options]
    distinct = tuple(dict.fromkeys(orders))
    place = np.array([distinct.index(order) for order in orders], np.int16)
    return _Stored(distinct, place[self._chosen[:, choice.group]])

  def _followed(self, node) -> _Stored:
    """The layout of a result without choice, of those of its operands."""
    dims = list(node.shape.dimensions)
    operands = list(node.operand_ids)
    fixed = [i for i in operands if self._stored[i] is not None]
    if node.opcode in ('transpose', 'reduce') and fixed[:1] == operands[:1]:
      return self._renamed(node, self._stored[operands[0]])
    if node.opcode in _KEEP_ORDER:
      like = [i for i in fixed if self._rank(i) == len(dims)]
    else:
      like = [i for i in fixed
              if list(self._nodes[i].shape.dimensions) == dims]
    stored = self._stored[like[0]] if like and dims else self._row_major(
        len(dims))
    for other in fixed:
      if other in like:
        self._read(other, stored)
      else:
        self._read(other, self._row_major(self._rank(other)))
    return stored

  def _renamed(self, node, source: _Stored) -> _Stored:
    """A transpose's or a reduction's result: the order that needs no copy."""
    if node.opcode == 'transpose':
      place = {d: i for i, d in enumerate(node.dimensions)}
    else:
      kept = [d for d in range(self._rank(node.operand_ids[0]))
              if d not in node.dimensions]
      place = {d: i for i, d in enumerate(kept)}
    orders = [tuple(place[d] for d in order if d in place)
              for order in source.orders]
    distinct = tuple(dict.fromkeys(orders))
    index = np.array([distinct.index(order) for order in orders], np.int16)
    return _Stored(distinct, index[source.choice])

  def _read(self, made: int, wanted: _Stored, where=None) -> None:
    """Notes the copies of a result that is read in another order."""
    stored = self._stored[made]
    if stored is None or stored is wanted:
      return
    for i, source in enumerate(stored.orders):
      for j, target in enumerate(wanted.orders):
        if source == target:
          continue
        needed = (stored.choice == i) & (wanted.choice == j)
        if where is not None:
          needed &= where
        if needed.any():
          key = made, source, target
          self._copies[key] = self._copies.get(key, False) | needed

  # --- Nodes with a choice ---------------------------------------------------

  def _unset(self, choice: NodeChoice, tensor: str) -> np.ndarray:
    """bool [configs]: the compiler may choose."""
    given = np.array([bool(getattr(option, tensor))
                      for option in choice.options])
    return ~given[self._chosen[:, choice.group]]

  def _product(self, node) -> _Stored:
    choice, constants = self._choices[node.id], self._constants
    output = self._of_options(choice, 'output', len(node.shape.dimensions))
    memory = self._by_order(
        output, lambda order: _transfer_ns(node.shape, order, constants))
    best = choice.options[0]  # Features are innermost there.
    turned = self._by_order(output, lambda o: o[:1] != best.output[:1])
    for operand, tensor in zip(node.operand_ids, ('input', 'kernel')):
      wanted = self._of_options(choice, tensor, self._rank(operand))
      free = self._unset(choice, tensor)
      self._read(operand, wanted, ~free)
      kept = self._stored[operand] or wanted
      shape, lanes = self._nodes[operand].shape, getattr(best, tensor)[:1]
      for stored, where in ((wanted, ~free), (kept, free)):
        memory += where * self._by_order(
            stored, lambda o, s=shape: _transfer_ns(s, o, constants))
        turned = turned + where * self._by_order(
            stored, lambda o, n=lanes: o[:1] != n)
    left, right = (self._nodes[i].shape for i in node.operand_ids[:2])
    arithmetic = matrix_ns(node, left, right, constants) * (
        1 + constants.against_grain * turned)
    self._ns += constants.machine.launch_ns + np.maximum(memory, arithmetic)
    return output

  def _reshape(self, node) -> _Stored:
    """Free in the orders of its options, and what it reads is copied to one."""
    operand, = node.operand_ids
    rank = len(node.shape.dimensions)
    choice = self._choices.get(node.id)
    if choice is None:
      self._read(operand, self._row_major(self._rank(operand)))
      return self._row_major(rank)
    wanted = self._of_options(choice, 'input', self._rank(operand))
    output = self._of_options(choice, 'output', rank)
    free = self._unset(choice, 'input')
    self._read(operand, wanted, ~free)
    read = self._stored[operand]
    if read is None or not free.any():
      return output
    # Left to the compiler it follows what it reads, if an option has that.
    after = {option.input: option.output for option in choice.options
             if option.input and option.output}
    orders, place = list(output.orders), output.choice.copy()
    for i, source in enumerate(read.orders):
      where = free & (read.choice == i)
      if source in after:
        if after[source] not in orders:
          orders.append(after[source])
        place[where] = orders.index(after[source])
      else:
        self._read(operand, self._row_major(self._rank(operand)), where)
        place[where] = orders.index(completed((), rank))
    return _Stored(tuple(orders), place)


# --- Terms, nanoseconds ------------------------------------------------------


def stored_bytes(shape, order: Sequence[int],
                 constants: LayoutConstants) -> float:
  """Bytes of a tensor in an order of its dimensions, padding included."""
  sizes = [shape.dimensions[d] for d in reversed(order)]
  padded = layout.padded_elements(sizes, layout.layout_units(sizes))
  return min(padded, constants.most_padding * math.prod(sizes)) * _bytes(shape)


def copy_ns(shape, source: tuple, target: tuple,
            constants: LayoutConstants) -> float:
  """Storing a tensor once more, in another order."""
  both = sum(_transfer_ns(shape, order, constants)
             for order in (source, target))
  turned = constants.turned if source[:1] != target[:1] else 1.0
  return constants.machine.launch_ns + (
      constants.unhidden_copies * both * turned)


def matrix_ns(node, left, right, constants: LayoutConstants) -> float:
  """Rows through the matrix unit, of a convolution or a product.

  Args:
    node: the instruction.
    left, right: shapes of its operands.
    constants: the machine.
  """
  elements = math.prod(node.shape.dimensions)
  if node.opcode == 'dot':
    dims = node.dot_dimension_numbers
    summed = math.prod(left.dimensions[d]
                       for d in dims.lhs_contracting_dimensions)
    features = math.prod(
        size for d, size in enumerate(right.dimensions)
        if d not in dims.rhs_batch_dimensions
        and d not in dims.rhs_contracting_dimensions)
    taps = 1
  else:
    dims = node.convolution_dimension_numbers
    summed = right.dimensions[dims.kernel_input_feature_dimension]
    features = node.shape.dimensions[dims.output_feature_dimension]
    taps = math.prod(w.size for w in node.window.dimensions)
  rows = elements / max(1, features)
  blocks = taps * math.ceil(summed / layout.LANES) * math.ceil(
      features / layout.LANES)
  machine = constants.machine
  return machine.matrix_row_ns * blocks * max(rows, machine.matrix_min_rows)


def _transfer_ns(shape, order, constants: LayoutConstants) -> float:
  return (stored_bytes(shape, order, constants)
          / constants.machine.bytes_per_ns)


def _elementwise_ns(node, order, constants: LayoutConstants) -> float:
  """Work on each layout tile of a result, some of which are written out."""
  if node.shape.tuple_shapes:
    return constants.machine.launch_ns
  needed = stored_bytes(node.shape, order, constants)
  tiles = needed / layout.RANK_1_UNIT / _bytes(node.shape)
  return (constants.machine.vector_ns * tiles
          + constants.stored * needed / constants.machine.bytes_per_ns)


def _bytes(shape) -> int:
  """Of one element."""
  return layout.element_bytes(PrimitiveType.Name(shape.element_type))
