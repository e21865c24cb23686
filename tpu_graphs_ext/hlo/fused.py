"""A kernel as its compiler sees it: the entry and all that is fused into it."""

from __future__ import annotations

import math

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
    root: the root of the entry computation.
    nodes: id -> instruction, of all these computations.
    computations: id -> computation.
    product: the convolution nearest to the root, or None: others make its
      operands. (A TPU's compiler makes convolutions of dots before it fuses.)
    main: the computation that does the work: that of the product, else what
      the root calls if it is a fusion, else the entry.
  """

  def __init__(self, module):
    stored = {c.id: c for c in module.computations}
    entry = stored[module.entry_computation_id]
    self.computations, waiting = {entry.id: entry}, [entry]
    self.nodes, self.product, self.main = {}, None, None
    while waiting:
      computation = waiting.pop()
      for node in computation.instructions:
        self.nodes[node.id] = node
        if node.opcode == 'convolution' and self.main in (None, computation):
          self.product, self.main = node, computation
        called = node.called_computation_ids if node.opcode == 'fusion' else ()
        for number in called:
          if number not in self.computations:
            self.computations[number] = stored[number]
            waiting.append(stored[number])
    self.root = self.nodes[entry.root_id]
    if not self.main:
      self.main = self._called_by_root(entry)

  def _called_by_root(self, entry):
    main = entry
    for _ in self.computations:  # As deep as fusions can be nested.
      root = self.nodes[main.root_id]
      if root.opcode == 'fusion':
        main = self.computations[root.called_computation_ids[0]]
    return main

  def results(self) -> list:
    """What `main` makes: its root, or the parts of a root tuple."""
    root = self.nodes[self.main.root_id]
    if root.opcode == 'tuple' and root.operand_ids:
      return [self.nodes[i] for i in root.operand_ids]
    return [root]

  def tiled(self):
    """The instruction whose shape tile bounds cut.

    The product; else the operand of a reduction among the results; else the
    largest result.
    """
    if self.product:
      return self.product
    results = self.results()
    for result in results:
      if result.opcode == 'reduce':
        return self.nodes[result.operand_ids[0]]
    return max(results, key=lambda node: num_elements(node.shape))
