"""A kernel of a compiled program as a module that the compiler takes again.

The compiler assigns layouts and fuses anew unless the module has a schedule,
the mark of one that has been through all that. With one it only chooses the
kernel's tile, so its log can tell every tile that it weighs.
"""

from __future__ import annotations

import dataclasses
import json

from tpu_graphs_ext.hlo import protos, tpu_compiler

# What the compiler decided about the tile: it is to decide again.
_DECISIONS = ('window_config', 'used_scoped_memory_configs', 'retry_config',
              'convolution_algorithm_config')


@dataclasses.dataclass(frozen=True)
class SingleKernel:
  """What `CompilingProcess.compile` takes of one kernel.

  Attributes:
    program: serialized `HloModuleProto`.
    argument_layouts: serialized `ShapeProto` of each parameter.
    result_layout: the same of the result.
  """
  program: bytes
  argument_layouts: tuple[bytes, ...]
  result_layout: bytes

  def compiled_by(self, process) -> bytes:
    """The optimised program, by a `CompilingProcess`."""
    return process.compile(self.program, argument_layouts=self.argument_layouts,
                           result_layout=self.result_layout)


def alone(kernel: protos.HloModuleProto) -> SingleKernel:
  """Prepares a kernel, as `fusions.kernels_of` cuts it or a tuning file has it.

  All tensors are moved to main memory, as the data set's kernels have them.

  Raises:
    LookupError: the module refers to what it does not have.
  """
  module = protos.HloModuleProto()
  module.CopyFrom(kernel)
  for computation in module.computations:
    for node in computation.instructions:
      _undecide(node)
      _to_main_memory(node.shape)
    _set_signature(computation)
  entry = next(c for c in module.computations
               if c.id == module.entry_computation_id)
  module.host_program_shape.CopyFrom(entry.program_shape)
  _set_schedule(module)
  shape = entry.program_shape
  return SingleKernel(
      module.SerializeToString(),
      tuple(given.SerializeToString() for given in shape.parameters),
      shape.result.SerializeToString())


def _undecide(node) -> None:
  config = tpu_compiler.config_of(node)
  if config:
    node.backend_config = json.dumps({
        key: value for key, value in config.items()
        if key not in _DECISIONS}).encode()


def _to_main_memory(shape) -> None:
  if shape.HasField('layout'):
    shape.layout.memory_space = 0
  for part in shape.tuple_shapes:
    _to_main_memory(part)


def _set_signature(computation) -> None:
  """Its `program_shape`, by its parameters and its root."""
  shape = computation.program_shape
  shape.Clear()
  for node in sorted(
      (n for n in computation.instructions if n.opcode == 'parameter'),
      key=lambda node: node.parameter_number):
    shape.parameters.add().CopyFrom(node.shape)
    shape.parameter_names.append(node.name)
  root = {node.id: node for node in computation.instructions}[
      computation.root_id]
  shape.result.CopyFrom(root.shape)


def _set_schedule(module) -> None:
  """The order of the instructions, of all that is not fused."""
  fused = {number for computation in module.computations
           for node in computation.instructions if node.opcode == 'fusion'
           for number in node.called_computation_ids}
  for computation in module.computations:
    if computation.id not in fused:
      module.schedule.sequences[computation.id].instruction_ids[:] = [
          node.id for node in computation.instructions]
