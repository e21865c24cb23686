"""A kernel as its compiler sees it: the entry and all that is fused into it."""

from __future__ import annotations

import math

PRODUCTS = ('convolution', 'dot')
_MAX_ELEMENTS = 2**48  # Fits no machine, while int64 still holds its bytes.


def num_elements(shape) -> int:
  """Elements of an array shape; 1 for a scalar.

  Raises:
    ValueError: a size is negative, or far beyond any machine.
  """
  sizes = shape.dimensions
  if (any(size < 0 for size in sizes)
      or math.prod(max(1, size) for size in sizes) > _MAX_ELEMENTS):
    raise ValueError(f'shape {list(sizes)}')
  return math.prod(sizes)


class FusedKernel:
  """A kernel's entry computation and the computations fused into it.

  Building one, or asking it, raises a LookupError where the module refers to
  something that it does not have.

  Attributes:
    entry, root: the entry computation and its root.
    nodes: id -> instruction, of these computations.
    computations: id -> computation, the entry first.
    home: id of an instruction -> id of its computation.
    calls: id of a fused computation -> the fusion that calls it.
  """

  def __init__(self, module):
    stored = {c.id: c for c in module.computations}
    self.entry = stored[module.entry_computation_id]
    self.computations = {self.entry.id: self.entry}
    self.nodes, self.home, self.calls = {}, {}, {}
    waiting = [self.entry]
    while waiting:
      computation = waiting.pop()
      for node in computation.instructions:
        self.nodes[node.id] = node
        self.home[node.id] = computation.id
        called = node.called_computation_ids if node.opcode == 'fusion' else ()
        for number in called:
          if number not in self.computations:
            self.computations[number] = stored[number]
            self.calls[number] = node
            waiting.append(stored[number])
    self.root = self.nodes[self.entry.root_id]

  def product(self):
    """The first convolution or dot, or None."""
    return next((node for node in self.nodes.values()
                 if node.opcode in PRODUCTS), None)

  def tiled_root(self):
    """The instruction whose shape is cut in a kernel without product."""
    root = self.root
    for _ in self.computations:  # As deep as fusions can be nested.
      if root.opcode == 'fusion':
        root = self.nodes[
            self.computations[root.called_computation_ids[0]].root_id]
    roots = [root]
    if root.opcode == 'tuple' and root.operand_ids:
      roots = [self.nodes[i] for i in root.operand_ids]
    for candidate in roots:
      if candidate.opcode == 'reduce':
        return self.nodes[candidate.operand_ids[0]]
    return max(roots, key=lambda node: num_elements(node.shape))

  def parameters_of(self, start: int) -> set:
    """Ids of the entry parameters that instruction `start` depends on."""
    found, seen, waiting = set(), set(), [start]
    while waiting:
      number = waiting.pop()
      if number in seen:
        continue
      seen.add(number)
      node = self.nodes[number]
      if node.opcode != 'parameter':
        waiting += node.operand_ids
      elif self.home[number] == self.entry.id:
        found.add(number)
      else:
        fusion = self.calls[self.home[number]]
        waiting.append(fusion.operand_ids[node.parameter_number])
    return found
