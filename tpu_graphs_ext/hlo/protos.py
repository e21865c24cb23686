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
    UserError: the bytes are no serialized HloModuleProto.
  """
  if isinstance(module, HloModuleProto):
    return module
  try:
    return HloModuleProto.FromString(module)
  except (DecodeError, TypeError) as error:
    raise UserError(
        f'not an HLO module: {error}; give an HloModuleProto or its '
        'serialized bytes') from error
