"""A kernel of a compiled program as a module that the compiler takes again.

The compiler assigns layouts and fuses anew unless the module has a schedule,
the mark of one that has been through all that. With one it only chooses the
kernel's tile.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import libtpu, protos, tpu_compiler


def with_tile(kernel, output_bounds: Sequence[int],
              kernel_bounds: Sequence[int] = ()) -> protos.HloModuleProto:
  """The kernel alone as an optimised module, its tile set to these bounds.

  All tensors are in main memory. The compiler keeps the tile, and estimates
  nothing. Bounds are those of `tpu_compiler.Window`.

  Raises UserError if the compiler gave the kernel no tile to change.
  """
  module = renumbered(kernel)
  root = tpu_compiler.root_of(module)
  config = _config_of(root)
  window = config.get('window_config')
  if not window:
    raise UserError(f'{kernel.name}: the compiler chose no tile for it, so '
                    'none can be set')
  for name in ('estimated_cycles', 'iteration_bounds', 'input_window_bounds'):
    window.pop(name, None)
  window['output_window_bounds'] = list(map(str, output_bounds))
  window['kernel_window_bounds'] = list(map(str, kernel_bounds))
  for name in ('used_scoped_memory_configs', 'retry_config'):
    config.pop(name, None)
  root.backend_config = json.dumps(config).encode()
  return alone(module)


def alone(module):
  """Completes a kernel's module, itself, as a program that was scheduled."""
  for node in protos.nodes(module):
    _to_main_memory(node.shape)
  for computation in module.computations:
    _set_signature(computation)
    if computation.id == module.entry_computation_id:
      module.host_program_shape.CopyFrom(computation.program_shape)
  _set_schedule(module)
  return module


def options(module) -> bytes:
  """Compile options that ask for the layouts of the module's own shape."""
  shape = module.host_program_shape
  return libtpu.compile_options(
      parameters=[each.SerializeToString() for each in shape.parameters],
      result=shape.result.SerializeToString())


def renumbered(kernel):
  """The kernel with ids from 1 on, for XLA asks for unique ones."""
  module, ids = protos.HloModuleProto(), {}
  module.CopyFrom(kernel)
  for computation in module.computations:
    for node in computation.instructions:
      ids[node.id] = node.id = len(ids) + 1
    ids['c', computation.id] = computation.id = len(ids) + 1
  for computation in module.computations:
    computation.root_id = ids[computation.root_id]
    for node in computation.instructions:
      node.operand_ids[:] = [ids[i] for i in node.operand_ids]
      node.called_computation_ids[:] = [
          ids['c', i] for i in node.called_computation_ids]
      node.ClearField('control_predecessor_ids')  # The order among kernels.
  module.entry_computation_id = ids['c', module.entry_computation_id]
  return module


def _config_of(node) -> dict:
  config = node.backend_config
  return json.loads(config) if config.startswith(b'{') else {}


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
