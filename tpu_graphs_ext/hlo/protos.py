"""The protobuf messages: HLO as TensorFlow defines it, tuning files by a table.

Reading a tuning file needs only field numbers and types, so there is no
generated code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Optional, Union

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

HloModuleProto = hlo_pb2.HloModuleProto
HloInstructionProto = hlo_pb2.HloInstructionProto
ShapeProto = xla_data_pb2.ShapeProto
PrimitiveType = xla_data_pb2.PrimitiveType

# No compiler writes more; reading it would take minutes, or all memory.
MAX_FILE_BYTES = 1 << 28
MAX_INSTRUCTIONS = 1_000_000  # The largest programs have some 50,000.
MAX_RANK = 128  # Entries of any list of dimensions.
# The lists of dimensions of an instruction's optional messages.
_DIMENSIONS = {
    'window': ['dimensions'], 'padding_config': ['dimensions'],
    'convolution_dimension_numbers': [
        f'{of}_spatial_dimensions' for of in ('input', 'kernel', 'output')]}

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


def _message_classes() -> list:
  file = descriptor_pb2.FileDescriptorProto(
      name=_FILE, package=_PACKAGE, syntax='proto3',
      dependency=[hlo_pb2.DESCRIPTOR.name, xla_data_pb2.DESCRIPTOR.name])
  for name, fields in _MESSAGES.items():
    message = file.message_type.add(name=name)
    for field_name, (number, kind) in fields.items():
      field = message.field.add(
          name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
      if isinstance(kind, list):
        field.label, (kind,) = _Field.LABEL_REPEATED, kind
      if kind.startswith('.') or kind[0].isupper():
        field.type = _Field.TYPE_MESSAGE
        field.type_name = kind if kind[0] == '.' else f'.{_PACKAGE}.{kind}'
      else:
        field.type = _Field.Type.Value(f'TYPE_{kind.upper()}')
  pool = descriptor_pool.Default()  # The one that knows XLA's messages.
  pool.Add(file)
  found = pool.FindFileByName(_FILE).message_types_by_name
  return [message_factory.GetMessageClass(found[name]) for name in _MESSAGES]


TuningData, ModuleTuningData, ConfigProfile, *_ = _message_classes()


def read_bytes(path: str) -> bytes:
  """The content of a file.

  Raises:
    UserError: it cannot be read, or exceeds `MAX_FILE_BYTES`.
  """
  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      content = file.read(MAX_FILE_BYTES + 1)
  except (OSError, ValueError) as error:
    raise UserError(f'{path}: cannot be read ({error})') from error
  if len(content) > MAX_FILE_BYTES:
    raise UserError(f'{path}: has more than {MAX_FILE_BYTES:,} bytes, the most '
                    'that is read; split it')
  return content


def parse(message_class: Any, content: bytes) -> Optional[Any]:
  """A message from its serialized form; None if it is not one."""
  try:
    return message_class.FromString(content)
  except (DecodeError, TypeError):
    return None


def nodes(module: HloModuleProto) -> Iterator[HloInstructionProto]:
  """The instructions of all computations, in stored order."""
  for computation in module.computations:
    yield from computation.instructions


def has_opcodes(module: HloModuleProto) -> bool:
  """Whether this is HLO, not other bytes that happen to parse as such."""
  return any(node.opcode for node in nodes(module))


def as_module(module: Union[HloModuleProto, bytes]) -> HloModuleProto:
  """The module itself, or parsed from its serialized form.

  Raises:
    UserError: it is not a serialized HloModuleProto, or it exceeds the limits.
  """
  if not isinstance(module, HloModuleProto):
    module = parse(HloModuleProto, module)
    if module is None:
      raise UserError('not an HLO module; give an HloModuleProto or its '
                      'serialized bytes')
  name = module.name[:100]
  count = sum(len(c.instructions) for c in module.computations)
  if count > MAX_INSTRUCTIONS:
    raise UserError(
        f'HLO module {name!r}: has {count:,} instructions; at most '
        f'{MAX_INSTRUCTIONS:,} are read')
  for node in nodes(module):
    rank = max(map(len, _dimension_lists(node)))
    if rank > MAX_RANK:
      raise UserError(
          f'HLO module {name!r}: instruction {node.name[:100]!r} has '
          f'{rank:,} dimensions; at most {MAX_RANK} are read, so the module '
          'is damaged')
  return module


def _dimension_lists(node: HloInstructionProto) -> list:
  lists = [node.dimensions, node.slice_dimensions, node.dynamic_slice_sizes,
           node.shape.dimensions, node.shape.layout.minor_to_major]
  for field, names in _DIMENSIONS.items():
    if node.HasField(field):
      lists += [getattr(getattr(node, field), name) for name in names]
  return lists
