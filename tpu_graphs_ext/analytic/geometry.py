"""Loop nests of kernels, and what their tiles do, as NumPy arrays.

For `candidates`, `explain`, `rank` and the report. The rules are `_Geometry`'s
in models.py, without a model. The kernels of a program are read together and op
by op, a third of a second with TensorFlow's start; the trace that models share
takes a second, and pays only where kernels come one by one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic.machines import MACHINES, Machine
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.schema import DEFAULT_TPU
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo.tiles import LANES, SUBLANES, Stored, physical_dims

INPUT, OUTPUT = 2, 3  # Kinds of streams, besides those of a product.
_WIDTH, _DIMS = len(schema.NODE_FEATURES), schema.MAX_DIMS
_SIZES = slice(schema.NODE_GROUPS['shape_dimensions'].start,
               schema.NODE_GROUPS['shape_dimensions'].start + _DIMS)
_PRODUCTS = schema.OPCODES['convolution'], schema.OPCODES['dot']
_MOST_ELEMENTS = 192 << 30  # The bytes of the largest TPU's memory.


class Loops:
  """The loop nest of one kernel.

  Tiles are int64 [tiles, loops]: layout tiles along each loop, those of the
  tiled tensor's physical dimensions, most major first, and then those that only
  a filter or the windows of a reduction have.

  Attributes:
    nest: `_Loops` of models.py as arrays, a kernel in each first dimension;
      `picked` counts the streams of all kernels that were read together.
    machine: that it runs on: `counts` are by its matrix unit and `copies`.
    axes: int64 [loops], the loops among the nest's 12 axes.
    rank: number of the tiled tensor's loops.
    unit, size, written: int64 [loops], elements of a layout tile, of the whole,
      and of the part that tiles cut: of an update in place what it writes, of
      a filter beside windows a layout tile.
    whole: int64 [loops], layout tiles of the whole.
    kernel_axes: (axis, elements of a layout tile) of each physical dimension of
      the filter, or of the windows: the loop that its bound cuts or follows.
    products: number of convolutions and matrix products; with several, the
      loops are the last one's.
    is_product, is_pooling: whether there is one; whether windows are reduced.
    element_bytes, rows: [streams], of an element, of a layout tile; features
      say 8 rows.
    element_types: XLA's name for each stream's, if that is known.
    is_compiled: whether that is known, see `note`, and of streams these two:
    layout_copies: int [streams], operations that read a copy of it in layout
      tiles of 8 rows.
    is_operand: bool [streams], those that a product reads as they are.
    on_chip: bool [streams], those that do not move, and need no blocks.
    lane_sums: number of results that are summed over lanes and whose partial
      sums count as memory.
    turned: (stream, bytes) of operands whose rows are a batch of products: each
      product has a copy with its own rows, of so many bytes for an element.
    widened: (stream, bytes) of computed operands: a block of so many bytes for
      an element must fit alone.
    merged: (stream, its dimensions) where a reshaped copy of a tensor has those
      in place of one.
    windows: int64 [loops], elements of the window of a pooling or a softmax, of
      the tiled tensor or of what a product reads.
  """

  def __init__(self, nest: Any, machine: Machine = MACHINES[DEFAULT_TPU]):
    self.nest = nest._replace(hardware=nest.hardware._replace(
        matrix_side=np.float32(machine.matrix_unit),
        cores=np.float32(machine.cores)))
    self.machine = machine
    self.axes = np.flatnonzero(nest.is_loop[0])
    self.rank = int((self.axes < _DIMS).sum())
    self.windows = np.ones(len(self.axes), np.int64)
    unit, size = (table[0].astype(np.int64) for table in (nest.unit, nest.size))
    self.unit, self.size = unit[self.axes], size[self.axes]
    self.written = self.size.copy()
    self.written[:self.rank] = nest.written[0][self.axes[:self.rank]]
    self.whole = -(-self.size // self.unit)
    self.products = int(nest.products[0])
    self.is_product = self.products > 0
    self.is_pooling = bool(nest.has_pool[0])
    streams, self.is_compiled = nest.streams, False
    self.element_bytes = streams.tile_bytes[:, 0] / streams.unit.prod(1)
    self.element_types = [''] * len(streams.kind)
    self.rows = np.full(len(streams.kind), SUBLANES)
    self.on_chip = streams.moves[:, 0] == 0
    self.layout_copies = np.zeros(len(streams.kind), np.int64)
    self.lane_sums, self.turned, self.widened = 0, (), ()
    self.merged: list[tuple[int, list[int]]] = []
    self.is_operand = np.zeros(len(streams.kind), bool)
    self._every = np.ones(len(unit), np.int64)  # A tile of all 12 axes.
    # A window has its features in lanes, and follows them where they are rows.
    kernel_unit = unit[_DIMS:] if self.is_product else np.where(
        nest.kernel_axis[0] < _DIMS, LANES, 1)
    self.kernel_axes = [
        (int(axis), int(unit)) for axis, unit in zip(
            nest.kernel_axis[0], kernel_unit) if axis >= 0]

  def keep_windows_whole(self, sizes: np.ndarray, windows: np.ndarray,
                         is_result: bool) -> None:
    """Takes windows, as of a softmax, over a product's result or an operand.

    `sizes` and `windows` are physical, int [dims]. A tile has the dimensions
    that windows see whole. Beside windows of a result the compiler gives the
    filter the lanes of the result's rows as its last bound, however it is
    stored, and bounds of 1 before it.
    """
    if is_result:
      if sizes.tolist() == self.size[:self.rank].tolist():
        self.windows[:self.rank] = windows
        self.written[self.rank:] = self.unit[self.rank:]
        free = min({*range(_DIMS, 2 * _DIMS)} - {*self.axes.tolist()})
        self.kernel_axes = [(free, 1)] * (len(self.kernel_axes) - 1) + [
            (int(self.axes[max(self.rank - 2, 0)]), LANES)]
      return
    streams, rank = self.nest.streams, len(sizes)
    for number in np.flatnonzero(streams.kind < INPUT):
      if (streams.size[number] == [*sizes, *[1] * (_DIMS - rank)]).all():
        follows = streams.per_element[number][:rank][windows > 1]
        self.windows[(follows > 0).any(0)[self.axes]] = windows.max()

  def note(self, tensors: Sequence[Stored],
           limit_bytes: int = 0) -> None:
    """Takes what features do not tell: a compiled kernel's tensors, and the
    memory for its blocks if that is less than its generation's."""
    if 0 < limit_bytes < self.machine.vmem_limit_bytes:
      self.machine = dataclasses.replace(
          self.machine, vmem_limit_bytes=limit_bytes)
    streams, waiting, self.is_compiled = self.nest.streams, [*tensors], True
    for number, sizes in enumerate(streams.size.astype(int).tolist()):
      key = (streams.kind[number] == OUTPUT,
             tuple(size for size in sizes if size > 1),
             self.element_bytes[number])
      tensor = next((t for t in waiting if key in (
          t[:3], (t.is_result, t.copied_as, t.listed_bytes))), None)
      if tensor:
        waiting.remove(tensor)
        (self.element_bytes[number], self.rows[number],
         self.layout_copies[number], self.is_operand[number],
         self.element_types[number], _) = tensor[3:]
        self.merged += [(number, dims) for dims in _runs(sizes, tensor.sizes)]

  def tiles(self, output_bounds, kernel_bounds) -> np.ndarray:
    """int64 [tiles, loops], from int [tiles, rank] and [tiles, filter rank]."""
    every = np.tile(self._every, (len(output_bounds), 1))
    every[:, self.axes[:self.rank]] = output_bounds
    for dim, (axis, _) in enumerate(self.kernel_axes):
      if axis >= _DIMS:
        every[:, axis] = kernel_bounds[:, dim]
    return every[:, self.axes]

  def tiles_of(self, config_feat: np.ndarray) -> np.ndarray:
    """int64 [configs, loops], from float32 [configs, columns].

    A bound that is 0 or has no column stands for the whole dimension.
    """
    columns = _widened(config_feat, len(schema.CONFIG_FEATURES) + 1)
    bounds = columns[:, self.nest.bound[0][self.axes]].astype(np.int64)
    return np.where((bounds > 0) & (self.whole > 1), bounds, self.whole)

  def output_bounds(self, tiles: np.ndarray) -> np.ndarray:
    """int64 [tiles, rank]: the tiled tensor's bounds."""
    return tiles[:, :self.rank]

  def elements(self, tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Elements of `output_bounds` and of `kernel_bounds`, int64 alike."""
    every = np.tile(self._every, (len(tiles), 1))
    every[:, self.axes] = np.minimum(tiles * self.unit, self.size)
    return (every[:, self.axes[:self.rank]],
            every[:, [axis for axis, _ in self.kernel_axes]])

  def kernel_bounds(self, tiles: np.ndarray) -> np.ndarray:
    """int64 [tiles, filter rank]: the filter's or the windows' bounds."""
    return -(-self.elements(tiles)[1] // np.array(
        [unit for _, unit in self.kernel_axes], np.int64))

  def largest(self) -> tuple[tuple, tuple]:
    """Largest `output_bounds` and `kernel_bounds`."""
    whole = self.whole[np.newaxis]
    return tuple(tuple(bounds(whole)[0].tolist())
                 for bounds in (self.output_bounds, self.kernel_bounds))

  @property
  def product(self) -> Optional[tuple[int, int, int]]:
    """(M, N, K) of a single product or convolution, without its batches."""
    if self.products != 1:
      return None
    nest, is_filter = self.nest, self.axes >= _DIMS
    rows, features, taps = (table[0][self.axes] > 0 for table in (
        nest.rows, nest.features, nest.taps))
    return tuple(math.prod(self.size[of].tolist()) for of in (
        rows, features & ~is_filter, (features | taps) & is_filter))

  def counts(self, tiles: np.ndarray) -> dict[str, np.ndarray]:
    """Of `_Counts` of models.py, by name: float64 [tiles] each."""
    import tensorflow as tf
    every = np.ones((1, len(self._every), len(tiles)), np.float32)
    every[0, self.axes] = tiles.T
    nest, traced = self._counter
    names = traced.structured_outputs._fields
    # As an operation: binding a function's 40 arguments takes twice as long.
    counts = tf.raw_ops.PartitionedCall(
        args=[*nest, every], Tout=[np.float32] * len(names), f=traced)
    counts = {name: count.numpy()[0].astype(np.float64)
              for name, count in zip(names, counts)}
    if self.lane_sums:
      rows = (tiles * self.unit)[:, :self.rank - 1].prod(1)
      counts['footprint_bytes'] += self.lane_sums * 4 * LANES * rows
    for number, copy_bytes in self.turned:
      counts['footprint_bytes'] += self._turned_bytes(number, copy_bytes, tiles)
    for number, element_bytes in self.widened:
      counts['footprint_bytes'] = np.maximum(
          counts['footprint_bytes'],
          element_bytes * self._block(number, tiles)[0])
    return counts

  def cuts_as_one(self, tiles: np.ndarray) -> np.ndarray:
    """Whether tiles cut `merged` dimensions as they would cut the one: bool
    [tiles]. They cut equal parts, and a dimension only if the more minor ones
    are whole.

    Any other tile ends the compiler's process.
    """
    as_one = np.ones(len(tiles), bool)
    for number, dims in self.merged:
      size = self.nest.streams.size[number, dims].astype(int)
      cut = self._cut(number, tiles)[:, dims]
      # Looking at the next one is enough: as no size is 1, a whole dimension
      # in turn needs the one after it whole.
      as_one &= ((cut[:, :-1] == 1) | (cut == size)[:, 1:]).all(1)
      as_one &= (size % cut == 0).all(1)
    return as_one

  def _turned_bytes(self, number: int, copy_bytes: float,
                    tiles: np.ndarray) -> np.ndarray:
    """What a `turned` stream needs beyond two blocks: float64 [tiles]."""
    elements, rows = self._block(number, tiles)
    needed = copy_bytes * elements
    if not self.on_chip[number]:
      streams = self.nest.streams
      all_rows = streams.size[number, streams.unit[number] == SUBLANES]
      # Unless they are one row or whole layout tiles, rows may lie across the
      # border of one more.
      is_across = (rows > 1) & (rows % SUBLANES > 0) & (
          rows // SUBLANES < (all_rows - 1) // SUBLANES)
      needed += is_across * 2 * SUBLANES * (
          elements / rows * self.element_bytes[number])
    return needed

  def _block(self, number: int,
             tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(elements of a stream's block, in whole lanes; its rows), int64 [tiles].

    Rows are 1 unless they are padded to those of a layout tile.
    """
    unit = self.nest.streams.unit[number].astype(int)
    cut = self._cut(number, tiles)
    return (np.where(unit == LANES, -(-cut // LANES) * LANES, cut).prod(1),
            np.where(unit == SUBLANES, cut, 1).prod(1))

  def _cut(self, number: int, tiles: np.ndarray) -> np.ndarray:
    """Elements of a stream's block along its dimensions: int64 [tiles, 6]."""
    size = self.nest.streams.size[number].astype(int)
    follows = self.nest.streams.per_element[number][:, self.axes] > 0
    extents = np.minimum(tiles * self.unit, self.size)[:, np.newaxis]
    return np.where(follows.any(1), np.minimum(
        np.where(follows, extents, 1).prod(2), size), size)

  @functools.cached_property
  def _counter(self) -> tuple[list, Any]:
    """(`nest` as tensors, the function that counts): converted once."""
    import tensorflow as tf
    nest = self.nest
    if not self.machine.copies:
      nest = nest._replace(
          sum_bytes=0 * nest.sum_bytes,
          streams=nest.streams._replace(copies=0 * nest.streams.copies))
    nest = tf.nest.map_structure(tf.constant, nest)
    return tf.nest.flatten(nest), _traced_counts(tf.nest.map_structure(
        lambda x: tf.TensorSpec([None, *x.shape[1:]][:x.ndim], x.dtype), nest))


def loops_of(kernels: Sequence[Kernel],
             machine: Machine = MACHINES[DEFAULT_TPU]) -> list[Loops]:
  """The loop nest of each kernel; columns that it lacks count as 0.

  Raises UserError for a kernel without nodes, with edges to others, or with a
  dimension of more elements than any memory has.
  """
  first, edges, features = 0, [], []
  for kernel in kernels:
    features.append(_widened(kernel.node_feat, _WIDTH))
    if (size := features[-1][:, _SIZES].max(initial=0)) > _MOST_ELEMENTS:
      raise UserError(
          f'{kernel.tile_id}: a tensor has a dimension of {size:.4g} elements; '
          f'it must have at most {_MOST_ELEMENTS:,}')
    edge = kernel.edge_index.reshape(-1, 2)
    if not kernel.num_nodes or (
        edge.size and not 0 <= edge.min() <= edge.max() < kernel.num_nodes):
      raise UserError(f'{kernel.tile_id}: its graph has no loops to cut into '
                      'tiles: it has no nodes, or edges to nodes that do not '
                      'exist; see `tpu-graphs-ext check-data`')
    edges.append(edge + first)
    first += kernel.num_nodes
  if not kernels:
    return []
  import tensorflow as tf
  models = load_models.models_module()
  edges = np.concatenate(edges).astype(np.int32)
  read = models._Geometry.loops_of if len(kernels) > 1 else models._loops
  nests = read(
      *map(tf.constant, (
          np.concatenate([k.node_opcode for k in kernels]).astype(np.int32),
          np.array([k.num_nodes for k in kernels], np.int32),
          edges[:, 0], edges[:, 1], np.concatenate(features))),
      models._Hardware(*(
          tf.constant(x, tf.float32) for x in models._MACHINES[0])))
  every = _apart(tf.nest.map_structure(np.asarray, nests), machine)
  for loops, kernel in zip(every, kernels):
    for sizes, windows, is_result in _windows(kernel):
      if loops.is_pooling and len(windows) == loops.rank:
        loops.windows[:loops.rank] = windows
      elif loops.is_product and (windows > 1).any() and (
          (windows < 2) | (windows > 2 * sizes - 2)).all():
        loops.keep_windows_whole(sizes, windows, is_result)
  return every


def _runs(sizes: Sequence[int], merged: Sequence[int]) -> list[list[int]]:
  """Places of sizes that are one of `merged` together, most major first."""
  runs, run, left = [], [], list(merged)
  for place, size in enumerate(sizes):
    if size > 1:
      run.append(place)
    if run and left and math.prod(sizes[each] for each in run) == left[0]:
      runs.append(run)
      run, left = [], left[1:]
  return [run for run in runs if len(run) > 1]


def _paired_by_size(streams: Any, size: np.ndarray) -> Any:
  """Streams whose results follow loops of their own sizes, [12].

  models.py pairs a reduction's dimensions by those that it lists. Of a reshaped
  product these are other dimensions, so the sizes differ.
  """
  size = size[:_DIMS]
  per_element, surplus, follows = (table.copy() for table in (
      streams.per_element, streams.surplus, streams.follows))
  for number in np.flatnonzero(streams.kind == OUTPUT):
    own, unit = streams.size[number], streams.unit[number]
    pairs = per_element[number] * unit[:, np.newaxis]
    if (pairs[pairs > 0] == 1).all() or (own > 1).sum() >= (size > 1).sum():
      continue
    axis, paired = _DIMS, np.zeros_like(pairs)
    for dim in np.flatnonzero(own > 1)[::-1]:
      alike = np.flatnonzero(size[:axis] == own[dim])
      if len(alike):
        axis = alike[-1]
        paired[dim, axis] = 1
    per_element[number] = paired / unit[:, np.newaxis]
    surplus[number] = 1e-4 - np.where(paired.any(1), 0, own / unit)
    follows[number] = paired.any(0)
  return streams._replace(
      per_element=per_element, surplus=surplus, follows=follows)


def _windows(kernel: Kernel) -> list[tuple[np.ndarray, np.ndarray, bool]]:
  """(sizes, windows, whether a product comes before) of reduced windows.

  Sizes and windows are physical, int64 [dims].
  """
  opcodes, windows = kernel.node_opcode, []
  reducing = np.flatnonzero(opcodes == schema.OPCODES['reduce-window'])
  features = _widened(kernel.node_feat[reducing], _WIDTH).astype(int)
  for number, node in zip(reducing, features):
    size, window, order = (
        node[schema.NODE_GROUPS[name]][:_DIMS] for name in (
            'shape_dimensions', 'window_size', 'layout_minor_to_major'))
    rank = int((size > 0).sum())
    places = physical_dims(order[:rank], rank)
    windows.append((size[places], window[places], bool(
        np.isin(opcodes[:number], _PRODUCTS).any())))
  return windows


def _widened(table: np.ndarray, width: int) -> np.ndarray:
  """Whole numbers; the table cut, or padded with zeros, to so many columns."""
  wide = np.zeros((len(table), width), np.float32)
  known = min(width, table.shape[1])
  wide[:, :known] = np.rint(table[:, :known])
  return wide


def _apart(nests: Any, machine: Machine) -> list[Loops]:
  """The loops of each kernel of a batch."""
  kernels = []
  for number in range(len(nests.size)):
    is_here = nests.streams.kernel == number
    streams = type(nests.streams)(*(part[is_here] for part in nests.streams))
    nest = type(nests)(*(
        value if isinstance(value, tuple) else value[number:number + 1]
        for value in nests))
    kernels.append(Loops(nest._replace(streams=_paired_by_size(
        streams._replace(kernel=streams.kernel * 0), nest.size[0])), machine))
  return kernels


@functools.cache
def _traced_counts(nest: Any) -> Any:
  """`counts` of one kernel; `nest` holds `tf.TensorSpec`s."""
  import tensorflow as tf
  models = load_models.models_module()
  return tf.function(
      lambda nest, tile: models._Geometry.counts(nest, tile)[0],
      autograph=False, input_signature=[
          nest, tf.TensorSpec([1, models._AXES, None])]).get_concrete_function()
