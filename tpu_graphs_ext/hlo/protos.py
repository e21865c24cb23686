"""The messages: HLO as TensorFlow defines it, tuning files by a table.

TensorFlow is not imported, which takes seconds: only its definitions are read.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Optional, Union

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper
from google.protobuf.message import DecodeError

from tpu_graphs_ext.errors import UserError

_POOL = descriptor_pool.Default()  # The one that TensorFlow's modules use.
_TENSORFLOW = pathlib.Path(importlib.util.find_spec('tensorflow').origin).parent


def _define(module: str) -> None:
  """Adds the messages of one of TensorFlow's generated modules to the pool."""
  source = _TENSORFLOW.joinpath(
      *module.split('.')[1:]).with_suffix('.py').read_text('utf-8')
  for folder, name in re.findall(
      r'^from ([\w.]+) import (\w+_pb2) as', source, re.MULTILINE):
    if folder.startswith('tensorflow.'):
      _define(f'{folder}.{name}')
    else:  # protobuf's own.
      importlib.import_module(f'{folder}.{name}')
  serialized, = re.findall(r'AddSerializedFile\((b.*)\)\n', source)
  _POOL.AddSerializedFile(ast.literal_eval(serialized))


def _message_class(name: str) -> Any:
  return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


_define('tensorflow.compiler.xla.service.hlo_pb2')
HloProto = _message_class('xla.HloProto')
HloSnapshot = _message_class('xla.HloSnapshot')
HloModuleProto = _message_class('xla.HloModuleProto')
HloInstructionProto = _message_class('xla.HloInstructionProto')
ShapeProto = _message_class('xla.ShapeProto')
PrimitiveType = enum_type_wrapper.EnumTypeWrapper(
    _POOL.FindEnumTypeByName('xla.PrimitiveType'))
TYPE_NAMES = {  # By number, also those that TensorFlow 2.15 does not know.
    26: 'S2', 27: 'U2', 28: 'F8E4M3', 29: 'F8E3M4', 32: 'F4E2M1FN',
    33: 'F8E8M0FNU', **{value: name for name, value in PrimitiveType.items()}}

ON_CHIP = 1  # The `memory_space` of a TPU's vector memory; 0: HBM.

# No compiler writes more; reading it would take minutes, or all memory.
MAX_INSTRUCTIONS = 1_000_000  # The largest programs have some 50,000.

# Fields: number, type and name. Types that start with a dot are messages of
# XLA, those with a capital messages of this table.
_MESSAGES = {
    'TuningData': '1 ModuleTuningData* modules',
    'ModuleTuningData': '''1 .xla.HloModuleProto module
        2 uint64 fingerprint
        3 ConfigProfile* runs
        4 uint64* config_index_to_node''',
    'ConfigProfile': '''1 HloOpConfig op_config
        2 HloModuleConfig module_config
        3 bool error
        4 .xla.ExecutionProfile profile
        5 bool is_default''',
    'HloOpConfig': '1 TileSizeConfig tile_size_config',
    'TileSizeConfig': '''1 int64* kernel_bounds
        2 int64* output_bounds
        3 int64* input_bounds''',
    'HloModuleConfig': '1 LayoutConfig layout_config',
    'LayoutConfig': '1 NodeLayoutConfig* nodes',
    'NodeLayoutConfig': '1 TensorLayoutConfig* tensors',
    'TensorLayoutConfig': '1 int32* dims',
    # Of xla/pjrt/proto/compile_options.proto.
    'CompileOptions': '''1 .xla.ShapeProto* argument_layouts
        3 BuildOptions executable_build_options''',
    'BuildOptions': '''1 int64 device_ordinal
        2 .xla.ShapeProto result_layout
        4 int64 num_replicas
        5 int64 num_partitions
        6 bool use_spmd_partitioning
        9 .xla.DeviceAssignmentProto device_assignment
        12 bool* allow_spmd_sharding_propagation_to_output
        19 bool use_shardy_partitioner''',
    # Of an instruction of XLA; TensorFlow 2.15 does not know these fields.
    'RaggedDotDimensionNumbers':
        '1 .xla.DotDimensionNumbers dot_dimension_numbers',
    'RaggedDot': '90 RaggedDotDimensionNumbers ragged_dot_dimension_numbers',
    'IotaGroups': '''1 int64 num_replica_groups
        2 int64 num_devices_per_group''',
    'CollectiveDevices': '''1 .xla.ReplicaGroup* replica_groups
        2 IotaGroups iota_replica_group_list''',
    'MeshAxis': '2 int64 size',
    'Mesh': '1 MeshAxis* axes',
    'MeshGroups': '1 Mesh mesh',
    'DeviceGroups': '''87 CollectiveDevices collective_device_list
        92 IotaGroups iota_collective_device_list
        93 MeshGroups mesh_axes_replica_group_list''',
}


def _define_own() -> None:
  """Adds the messages of `_MESSAGES` to the pool."""
  types = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(
      name='tpu_graphs_ext.proto', package='tpu_graphs_ext', syntax='proto3',
      dependency=sorted({each.DESCRIPTOR.file.name
                         for each in (HloProto, ShapeProto)}))
  for message_name, fields in _MESSAGES.items():
    message = file.message_type.add(name=message_name)
    for line in fields.split('\n'):
      number, kind, name = line.split()
      field = message.field.add(name=name, number=int(number), label=(
          types.LABEL_REPEATED if '*' in kind else types.LABEL_OPTIONAL))
      kind = kind.rstrip('*')
      if kind.islower() and kind[0] != '.':
        field.type = types.Type.Value(f'TYPE_{kind.upper()}')
      else:
        field.type = types.TYPE_MESSAGE
        field.type_name = kind if kind[0] == '.' else f'.{file.package}.{kind}'
  _POOL.Add(file)


_define_own()
TuningData = _message_class('tpu_graphs_ext.TuningData')
ModuleTuningData = _message_class('tpu_graphs_ext.ModuleTuningData')
CompileOptions = _message_class('tpu_graphs_ext.CompileOptions')
RaggedDot = _message_class('tpu_graphs_ext.RaggedDot')
DeviceGroups = _message_class('tpu_graphs_ext.DeviceGroups')


def parse(message_class: Any, content: bytes) -> Any:
  """A message from its serialized form; None if it is not one."""
  try:
    return message_class.FromString(content)
  except (DecodeError, TypeError):
    return None


def nodes(module: HloModuleProto) -> Iterator[HloInstructionProto]:
  """The instructions of all computations, in stored order."""
  for computation in module.computations:
    yield from computation.instructions


def by_id(messages: Iterable) -> dict[int, Any]:
  """Computations or instructions by their ids."""
  return {message.id: message for message in messages}


def has_opcodes(module: Optional[HloModuleProto]) -> bool:
  """Whether this is HLO, not other bytes that happen to parse as such."""
  return module is not None and any(node.opcode for node in nodes(module))


def as_module(module: Union[HloModuleProto, bytes],
              where: str = 'HLO module') -> HloModuleProto:
  """The module, itself or parsed; UserError if it is none, or too large."""
  if not isinstance(module, HloModuleProto):
    module = parse(HloModuleProto, module)
    if module is None:
      raise UserError('not an HLO module; give an HloModuleProto or its '
                      'serialized bytes')
  count = sum(len(c.instructions) for c in module.computations)
  if count > MAX_INSTRUCTIONS:
    raise UserError(f'{where} {module.name[:100]!r}: has {count:,} '
                    f'instructions; at most {MAX_INSTRUCTIONS:,} are read')
  return module


def module_in(content: bytes) -> Optional[HloModuleProto]:
  """The module of a serialized module, `HloProto` or `HloSnapshot`, if any."""
  for message_class in (HloModuleProto, HloProto, HloSnapshot):
    module = parse(message_class, content)
    for field in ('hlo', 'hlo_module'):
      module = getattr(module, field, module)
    if has_opcodes(module):
      return module
  return None


def is_for_tpu(module: HloModuleProto) -> bool:
  """Whether a TPU's compiler optimised it: it writes tiles into layouts."""
  return any(shape.layout.tiles for node in nodes(module)
             for shape in (node.shape, *node.shape.tuple_shapes))
