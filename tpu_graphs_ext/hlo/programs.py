"""Files and functions -> programs that the compiler takes.

HLO as protobuf or text, StableHLO as text or bytecode, `jax.export` files: what
a file is shows in its content, not in its name.
"""

from __future__ import annotations

import codecs
import math
import os
import re
from typing import NamedTuple, Optional

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos, subprocesses

_BYTECODE = b'ML\xefR'  # Of MLIR.
_EXPORTED = _BYTECODE + b'\rStableHLO_v'  # Within a file of `jax.export`.
# No pattern may match ambiguously or look far ahead: any long text may come.
_HLO_TEXT = re.compile(
    rb'(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*HloModule\s')
_MLIR_FUNCTION = re.compile(rb'"?func(?:\.func)?"?[\s(]')
_OTHER_KINDS = {b'PK\x03\x04': 'a zip archive', b'\x7fELF': 'a binary of ELF',
                b'\x93NUMPY': 'an array of NumPy', b'BZh': 'packed by bzip2',
                b'\x28\xb5\x2f\xfd': 'packed by Zstandard',
                b'\xfd7zXZ': 'packed by xz', b'\x80\x04\x95': 'a pickle'}


class Program(NamedTuple):
  """A program that no compiler has changed, or one for a TPU."""
  content: bytes  # StableHLO, or a serialized `HloModuleProto`.
  program_format: str  # 'mlir' or 'hlo', see `libtpu.Compiler.compile`.
  replicas: int = 1  # Devices that run all of it, each on data of its own.
  partitions: int = 1  # Devices that each tensor is split among.
  optimized: Optional[protos.HloModuleProto] = None  # If a compiler has.

  @property
  def shardy(self) -> bool:
    """Whether shardings are written in Shardy, not in XLA's older way.

    JAX 0.4.34 writes an empty list, xla.sdy.meshes, for the older way too.
    """
    return bool(re.search(rb'sdy\.(?!meshes)', self.content))


def read(name: str, content: bytes, jax_python: str = '') -> Program:
  """The program in a file's content; `name` is the file's, for messages.

  `jax_python` is the Python with jaxlib, for HLO text; '': this one. Raises
  UserError if it is of another kind, damaged, or optimised for a CPU or GPU.
  """
  content = content.removeprefix(codecs.BOM_UTF8)  # Of editors on Windows.
  start = content.find(_EXPORTED)
  if start > 3:  # The size is before it.
    content = content[start:start + int.from_bytes(
        content[start - 4:start], 'little')]
  function = _MLIR_FUNCTION.search(content)
  if content.startswith(_BYTECODE) or (
      function and content.find(b'tensor<', function.end()) > 0):
    if content.startswith(_BYTECODE) and (
        b'sdy' in content or b'mhlo.sharding' in content):
      content = _by_jaxlib(name, 'sharded StableHLO bytecode', content,
                           jax_python)
    return Program(content, 'mlir', *_largest(
        content, rb'mhlo\.num_replicas', rb'mhlo\.num_partitions'))
  devices = [1, 1]
  if _HLO_TEXT.match(content):
    header = content.split(b'HloModule', 1)[1].split(b'\n', 1)[0]
    devices = _largest(header, b'replica_count', b'num_partitions')
    content = _by_jaxlib(name, 'HLO text', content, jax_python)
  module = protos.module_in(content)
  if module is None:
    raise UserError(f'{name}: {_other_kind(content)}')
  return of_module(protos.as_module(module, f'{name}: HLO module'), name,
                   *devices)


def _largest(content: bytes, *names: bytes) -> list[int]:
  """The largest number that is assigned to each name, at least 1."""
  return [max([1, *map(int, re.findall(
      name + rb'\s*=\s*(\d{1,18})', content))])
          for name in names]


def of_module(module: protos.HloModuleProto, name: str = '', replicas: int = 1,
              partitions: int = 1) -> Program:
  """A module as a program, for at least so many devices; or a UserError.

  What a compiler for other hardware noted for itself is left out.
  """
  if (module.HasField('schedule')
      or 'after_optimizations' in os.path.basename(name)  # As XLA writes it.
      or any(node.opcode == 'fusion' for node in protos.nodes(module))):
    if not protos.is_for_tpu(module) and (
        module.HasField('schedule')
        or re.search('[cg]pu_after_optimizations', name)):
      raise UserError(
          f'{name}: is HLO optimised for a CPU or GPU, whose kernels are not a '
          'TPU\'s; give the module before optimisation, whose name has '
          'before_optimizations')
    return Program(b'', 'hlo', optimized=module)
  for node in protos.nodes(module):
    if node.opcode != 'custom-call':  # Theirs say what they do.
      node.ClearField('backend_config')
  try:
    devices = _devices(module)
  except protos.DecodeError as error:
    raise UserError(f'{name}: the groups of devices of an operation are '
                    'damaged') from error
  return Program(module.SerializeToString(), 'hlo', max(replicas, devices[0]),
                 max(partitions, devices[1]))


def _devices(module) -> tuple[int, int]:
  """(replicas, partitions) that a module is for, by what it says of them."""
  assigned = module.device_assignment
  if assigned.computation_count:
    return max(1, assigned.replica_count), assigned.computation_count
  replicas, partitions = 1, 1
  meshes = module.frontend_attributes.map.get('xla.sdy.meshes', '')
  for mesh in re.findall(r'mesh<\[([^[\]]*)\]', meshes):
    partitions = max(partitions, math.prod(map(int, re.findall(
        r'=\s*(\d{1,18})', mesh))))
  for node in protos.nodes(module):
    for sharding in (node.sharding, *node.sharding.tuple_shardings):
      partitions = max(partitions, math.prod(
          sharding.tile_assignment_dimensions), 1 + max(
              sharding.tile_assignment_devices, default=0))
    devices = 1 + max(
        [0, *_grouped(node), *(number for pair in node.source_target_pairs
                               for number in (pair.source, pair.target))])
    if node.channel_id or node.use_global_device_ids:
      partitions = max(partitions, devices)
    else:
      replicas = max(replicas, devices)
  return replicas, partitions


def _grouped(node) -> list[int]:
  """The devices among which a collective operation works, or the last one."""
  groups, counts = list(node.replica_groups), []
  if re.search('all-|reduce-scatter|collective', node.opcode):
    fields = protos.DeviceGroups.FromString(node.SerializeToString())
    listed = fields.collective_device_list
    groups += listed.replica_groups
    counts = [math.prod(
        axis.size for axis in fields.mesh_axes_replica_group_list.mesh.axes), *(
            iota.num_replica_groups * iota.num_devices_per_group for iota in (
                listed.iota_replica_group_list,
                fields.iota_collective_device_list))]
  return [*(number for group in groups for number in group.replica_ids),
          *(count - 1 for count in counts)]


def _by_jaxlib(name: str, kind: str, content: bytes, jax_python: str) -> bytes:
  try:
    return subprocesses.convert(content, jax_python)
  except UserError as error:
    raise UserError(f'{name}: is {kind}, which {error}') from error


def _other_kind(content: bytes) -> str:
  """What a file is that has no program, and what to give instead."""
  kind = next((kind for start, kind in _OTHER_KINDS.items()
               if content.startswith(start)), '')
  text = content.decode(errors='ignore').strip()
  if not content.strip():
    kind = 'empty'
  elif not kind and text.encode() == content.strip() and min(text) >= '\t':
    line = text.split('\n', 1)[0][:60]
    kind = f'text that begins with {line!r}, no program of XLA'
  if kind:
    return (f'is {kind}; give HLO, as protobuf or text, StableHLO, or the '
            'folder of a SavedModel')
  return (f'its {len(content):,} bytes are not a whole HloModuleProto or '
          'HloProto, StableHLO or tuning data; the file is damaged or of '
          'another kind. For HLO, XLA writes protobufs with '
          '--xla_dump_hlo_as_proto')
