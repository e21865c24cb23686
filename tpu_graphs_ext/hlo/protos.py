"""The protobuf messages: HLO from TensorFlow, tuning files defined here.

A tuning file holds HLO modules and what was measured on them. The message
classes are made at import, so that nothing has to be generated; only field
numbers and types matter for reading, and those are the files'.
"""

from __future__ import annotations

from typing import Union

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tpu_graphs_ext.errors import UserError

HloModuleProto = hlo_pb2.HloModuleProto
HloComputationProto = hlo_pb2.HloComputationProto
HloInstructionProto = hlo_pb2.HloInstructionProto
ShapeProto = xla_data_pb2.ShapeProto
PrimitiveType = xla_data_pb2.PrimitiveType

# What no compiler writes; more would take minutes, or all memory.
MAX_FILE_BYTES = 1 << 28
MAX_INSTRUCTIONS = 1_000_000  # The largest programs have some 50,000.
MAX_RANK = 128  # Dimensions of a shape, and of all that goes by dimension.

_FILE = 'tpu_graphs_ext/tuning.proto'
_PACKAGE = 'tpu_graphs_ext.tuning'

# Message -> {field: (number, type)}. A type in [] is repeated; one with a
# leading dot is a message of XLA, one with a capital a message of this table.
_MESSAGES = {
    'TuningData': {'modules': (1, ['ModuleTuningData'])},
    'ModuleTuningData': {
        'module': (1, '.xla.HloModuleProto'),
        'fingerprint': (2, 'uint64'),
        'runs': (3, ['ConfigProfile']),
        'config_index_to_node': (4, ['uint64']),
    },
    'ConfigProfile': {
        'op_config': (1, 'HloOpConfig'),
        'module_config': (2, 'HloModuleConfig'),
        'error': (3, 'bool'),
        'profile': (4, '.xla.ExecutionProfile'),
        'is_default': (5, 'bool'),
    },
    'HloOpConfig': {'tile_size_config': (1, 'TileSizeConfig')},
    'TileSizeConfig': {
        'kernel_bounds': (1, ['int64']),
        'output_bounds': (2, ['int64']),
        'input_bounds': (3, ['int64']),
        'iteration_bounds': (4, ['int64']),
    },
    'HloModuleConfig': {'layout_config': (1, 'LayoutConfig')},
    'LayoutConfig': {'nodes': (1, ['NodeLayoutConfig'])},
    'NodeLayoutConfig': {'tensors': (1, ['TensorLayoutConfig'])},
    'TensorLayoutConfig': {'dims': (1, ['int32'])},
}

_Field = descriptor_pb2.FieldDescriptorProto


def _add_field(message, name: str, number: int, kind) -> None:
  field = message.field.add(name=name, number=number)
  repeated = isinstance(kind, list)
  field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
  kind = kind[0] if repeated else kind
  if kind.startswith('.') or kind[0].isupper():
    field.type = _Field.TYPE_MESSAGE
    field.type_name = kind if kind[0] == '.' else f'.{_PACKAGE}.{kind}'
  else:
    field.type = _Field.Type.Value(f'TYPE_{kind.upper()}')


def _message_classes() -> dict:
  file = descriptor_pb2.FileDescriptorProto(
      name=_FILE, package=_PACKAGE, syntax='proto3',
      dependency=[hlo_pb2.DESCRIPTOR.name, xla_data_pb2.DESCRIPTOR.name])
  for name, fields in _MESSAGES.items():
    message = file.message_type.add(name=name)
    for field, (number, kind) in fields.items():
      _add_field(message, field, number, kind)
  pool = descriptor_pool.Default()  # The one that knows XLA's messages.
  pool.Add(file)
  found = pool.FindFileByName(_FILE).message_types_by_name
  return {name: message_factory.GetMessageClass(found[name])
          for name in _MESSAGES}


_CLASSES = _message_classes()
TuningData = _CLASSES['TuningData']
ModuleTuningData = _CLASSES['ModuleTuningData']
ConfigProfile = _CLASSES['ConfigProfile']


def as_module(module: Union[HloModuleProto, bytes]) -> HloModuleProto:
  """The module itself, or parsed from its serialized form.

  Raises:
    UserError: the bytes are no serialized HloModuleProto, or it is beyond
      what any compiler writes.
  """
  if not isinstance(module, HloModuleProto):
    try:
      module = HloModuleProto.FromString(module)
    except (DecodeError, TypeError) as error:
      raise UserError(
          f'not an HLO module: {error}; give an HloModuleProto or its '
          'serialized bytes') from error
  _check_limits(module)
  return module


def _check_limits(module: HloModuleProto) -> None:
  count = sum(len(c.instructions) for c in module.computations)
  if count > MAX_INSTRUCTIONS:
    raise UserError(
        f'HLO module {module.name[:100]!r}: has {count:,} instructions; at '
        f'most {MAX_INSTRUCTIONS:,} are read')
  for computation in module.computations:
    for instruction in computation.instructions:
      rank = _largest_rank(instruction)
      if rank > MAX_RANK:
        raise UserError(
            f'HLO module {module.name[:100]!r}: instruction '
            f'{instruction.name[:100]!r} has {rank:,} dimensions; at most '
            f'{MAX_RANK} are read, so the module is damaged')


def _largest_rank(instruction: HloInstructionProto) -> int:
  """The length of the longest list that has an entry a dimension."""
  shape, lists = instruction.shape, [
      instruction.dimensions, instruction.slice_dimensions,
      instruction.dynamic_slice_sizes]
  lists += [shape.dimensions, shape.layout.minor_to_major]
  if instruction.HasField('window'):
    lists.append(instruction.window.dimensions)
  if instruction.HasField('padding_config'):
    lists.append(instruction.padding_config.dimensions)
  if instruction.HasField('convolution_dimension_numbers'):
    numbers = instruction.convolution_dimension_numbers
    lists += [numbers.input_spatial_dimensions,
              numbers.kernel_spatial_dimensions,
              numbers.output_spatial_dimensions]
  return max(map(len, lists))
