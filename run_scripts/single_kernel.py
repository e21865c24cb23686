"""A kernel of a compiled program as a module that the compiler takes again.

The compiler assigns layouts and fuses anew unless the module has a schedule,
the mark of one that has been through all that. With one it only chooses the
kernel's tile.
"""

import json

from tpu_graphs_ext.hlo import protos

# What the compiler decided about the tile: it is to decide again.
_DECISIONS = ('window_config', 'used_scoped_memory_configs', 'retry_config',
              'convolution_algorithm_config')


def compiled(kernel, tpu) -> bytes:
  """The kernel as the compiler optimises it, all tensors in main memory.

  Args:
    kernel: `HloModuleProto`, as `tpu_compiler.kernels_of` splits it off.
    tpu: a `libtpu.Compiler`.
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
  return tpu.compile(module.SerializeToString(), 'hlo',
                     _options(entry.program_shape))


def _options(shape) -> bytes:
  """A CompileOptionsProto that asks for the layouts of a program's shape."""
  def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value

  def varint(number):
    written = b''
    while number > 127:
      written += bytes([number & 127 | 128])
      number >>= 7
    return written + bytes([number])

  build = (b'\x08' + 9 * b'\xff' + b'\x01'  # device_ordinal -1
           + field(2, shape.result.SerializeToString())
           + b'\x20\x01\x28\x01')  # A replica, a partition.
  return b''.join(field(1, given.SerializeToString())
                  for given in shape.parameters) + field(3, build)


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


def _undecide(node) -> None:
  config = _config_of(node)
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
