"""How a compiled kernel stores what it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos, tiles, tpu_compiler

_PASSED = frozenset({'bitcast', 'copy'})  # Others read what is behind them.


def tensors_of(kernel: protos.HloModuleProto) -> list[tiles.Stored]:
  """What a compiled kernel reads and writes; features tell half of it."""
  tensors, readers = [], _Readers(kernel)
  entry = protos.by_id(kernel.computations)[kernel.entry_computation_id]
  for node in entry.instructions:
    reading = readers.of(node, entry)
    for shape in node.shape.tuple_shapes or [node.shape]:
      layout = shape.layout
      name = protos.TYPE_NAMES.get(shape.element_type, '')
      size = layout.element_size_in_bits / 8 or tiles.element_bytes(name)
      rows = [tile.dimensions[0] for tile in layout.tiles[:1]
              if len(tile.dimensions) == 2]
      is_tall = max(rows, default=0) > tiles.SUBLANES
      sizes = sizes_of(shape)
      tensors.append(tiles.Stored(
          node.id == entry.root_id, sizes,
          tiles.element_bytes(tiles.listed_type(name)), size,
          max([tiles.SUBLANES, *rows]),
          is_tall * sum(is_copy for *_, is_copy in reading),
          any(opcode in ('convolution', 'dot') and (is_tall or not is_copy)
              for *_, opcode, is_copy in reading), name,
          readers.copied_as(node, entry) or sizes))
  return tensors


def sizes_of(shape: Any) -> tuple[int, ...]:
  """Of the dimensions of a shape, most major first, without ones."""
  sizes = shape.dimensions
  return tuple(sizes[dim] for dim in tiles.physical_dims(
      shape.layout.minor_to_major, len(sizes)) if sizes[dim] > 1)


def limit_bytes(kernel: protos.HloModuleProto) -> int:
  """On-chip memory for a compiled kernel's blocks; 0 if it is not noted."""
  return noted_bytes(tpu_compiler.root_of(kernel), 'scoped_memory_configs')


def noted_bytes(node: protos.HloInstructionProto, note: str) -> int:
  """On-chip memory by a note of the compiler; 0 without one, or of another
  form."""
  try:
    size = sum(int(each['size']) for each in tpu_compiler.config_of(node)[note]
               if int(each['memory_space']) == protos.ON_CHIP)
    return size if 0 < size < 1 << 63 else 0
  except (UserError, LookupError, ValueError, TypeError, OverflowError):
    return 0


class _Readers:
  """Who reads a tensor, through fusions, bitcasts and changes of layout."""

  def __init__(self, kernel: protos.HloModuleProto):
    self._computations = protos.by_id(kernel.computations)
    self._users, self._shapes = {}, {}
    for computation in kernel.computations:
      for node in computation.instructions:
        self._shapes[computation.id, node.id] = node.shape
        for operand in set(node.operand_ids):
          self._users.setdefault((computation.id, operand), []).append(node)

  def of(self, node, computation) -> set[tuple[int, int, str, bool]]:
    """{(id of its computation, its own, opcode, whether it reads a copy)}."""
    return {(inside, user.id, user.opcode, is_copy)
            for inside, user, is_copy, _ in self._walk(node, computation)
            if user.opcode not in _PASSED}

  def copied_as(self, node, computation) -> tuple[int, ...]:
    """The sizes of a copy that is reshaped; () without one."""
    return next((
        sizes_of(user.shape)
        for _, user, is_copy, shape in self._walk(node, computation)
        if user.opcode == 'bitcast' and is_copy
        and sizes_of(user.shape) != sizes_of(shape)), ())

  def _walk(self, node, computation) -> Iterator[tuple]:
    """(id of its computation, who reads, whether a copy, of which shape)."""
    seen = set()
    places = [(node.id, computation.id, (), False)]
    while places:  # With the fusions that lead there, innermost last.
      place = number, inside, callers, is_copy = places.pop()
      if place in seen:
        continue
      seen.add(place)
      for user in self._users.get((inside, number), ()):
        if user.opcode == 'fusion':
          places += [(argument.id, called, (*callers, (user.id, inside)),
                      is_copy) for called, argument in self._arguments(
                          user, number)]
          continue
        yield inside, user, is_copy, self._shapes[inside, number]
        if user.opcode in _PASSED:
          is_copied = is_copy or user.opcode == 'copy'
          places.append((user.id, inside, callers, is_copied))
          if user.id == self._computations[inside].root_id and callers:
            *others, outside = callers
            places.append((*outside, tuple(others), is_copied))

  def _arguments(self, fusion, operand: int) -> Iterator[tuple[int, Any]]:
    """(id of the computation, parameter) for each place of an operand."""
    places = {place for place, number in enumerate(fusion.operand_ids)
              if number == operand}
    for called in fusion.called_computation_ids:
      for argument in self._computations[called].instructions:
        if (argument.opcode == 'parameter'
            and argument.parameter_number in places):
          yield called, argument
