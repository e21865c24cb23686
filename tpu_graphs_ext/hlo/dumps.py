"""HLO as compilers leave it in files: protobufs and text.

`--xla_dump_to=DIR` writes `<name>.hlo.pb` with `--xla_dump_hlo_as_proto` and
`<name>.txt` with `--xla_dump_hlo_as_text`, before and after optimisation.
Text is parsed by jaxlib, the extra [jax].
"""

from __future__ import annotations

import dataclasses
import os

from google.protobuf.message import DecodeError
from tensorflow.compiler.xla.service import hlo_pb2

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import lowering_subprocess, protos

# Of what XLA names the files of modules that it has fused.
_OPTIMIZED_NAME = 'after_optimizations'
_TEXT_START = b'HloModule'
_SCHEDULED = b'is_scheduled=true'
# What compilers for other machines call, and note on instructions.
_GPU_TARGETS = ('__cublas', '__cudnn', '__cusolver', '__triton', '__gpu',
                '__nccl')
_GPU_NOTES = (b'gpu_backend_config', b'fusion_backend_config', b'gemm_backend',
              b'cudnn', b'operation_queue_id')
_CPU_TARGETS = ('__onednn', '__eigen', '__ynn')
_CPU_NOTES = (b'outer_dimension_partitions', b'onednn_')


@dataclasses.dataclass(frozen=True)
class Dump:
  """A module, and whether its fusions are the kernels.

  Attributes:
    module: `HloModuleProto`.
    is_optimized: whether a compiler has fused it already.
  """
  module: protos.HloModuleProto
  is_optimized: bool


def content_of(path: str) -> bytes:
  """The bytes of a file.

  Raises:
    UserError: it cannot be read, or is larger than such files are.
  """
  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      content = file.read(protos.MAX_FILE_BYTES + 1)
  except (OSError, ValueError) as error:
    raise UserError(f'{path}: cannot be read ({error})') from error
  if len(content) > protos.MAX_FILE_BYTES:
    raise UserError(f'{path}: has more than {protos.MAX_FILE_BYTES:,} bytes, '
                    'the most that is read')
  return content


def read_dump(path: str, content: bytes, jax_python: str = '') -> Dump:
  """An HLO module from the content of a file of any of these kinds.

  Args:
    path: names the file in messages; the name also tells whether the module
      has been optimised, where its content does not.
    content: serialized `HloModuleProto` or `HloProto`, or HLO text.
    jax_python: the Python whose jaxlib reads text; not given: this one.

  Raises:
    UserError: it is none of these, or is beyond what is read; for text also
      where jaxlib is missing, or says what is wrong with it.
  """
  scheduled = False
  if _is_text(content):
    scheduled = _SCHEDULED in content.split(b'\n{', 1)[0][:1 << 20]
    module = protos.as_module(lowering_subprocess.module_of_text(
        path, content, jax_python))
  else:
    module = _module_of_proto(path, content)
  try:
    module = protos.as_module(module)
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  return Dump(module, scheduled or module.HasField('schedule')
              or is_fused(module)
              or _OPTIMIZED_NAME in os.path.basename(path))


def is_fused(module: protos.HloModuleProto) -> bool:
  """Whether any instruction is a fusion."""
  return any(node.opcode == 'fusion' for computation in module.computations
             for node in computation.instructions)


def is_stablehlo(content: bytes) -> bool:
  """Whether this is MLIR: bytecode, or text with operations of StableHLO."""
  return content.startswith(b'ML\xefR') or (
      b'func.func' in content and b'stablehlo.' in content)


def is_of_tpu(module: protos.HloModuleProto) -> bool:
  """Whether a TPU's compiler optimised it: it writes tiles into layouts."""
  return any(node.shape.layout.tiles or any(
      part.layout.tiles for part in node.shape.tuple_shapes)
             for computation in module.computations
             for node in computation.instructions)


def other_machine(module: protos.HloModuleProto) -> str:
  """'a GPU', 'a CPU or GPU', or '' if nothing says that it is not a TPU's.

  By what XLA's compilers for these write into an optimised module: libraries
  that are called, notes on instructions, and a schedule without tiled layouts.
  """
  if is_of_tpu(module):
    return ''
  nodes = [node for computation in module.computations
           for node in computation.instructions]
  if any(node.custom_call_target.startswith(_GPU_TARGETS)
         or any(mark in node.backend_config for mark in _GPU_NOTES)
         for node in nodes):
    return 'a GPU'
  if any(node.custom_call_target.startswith(_CPU_TARGETS)
         or any(mark in node.backend_config for mark in _CPU_NOTES)
         for node in nodes):
    return 'a CPU'
  return 'a CPU or GPU' if module.HasField('schedule') else ''


def has_instructions(module: protos.HloModuleProto) -> bool:
  """Whether this is HLO, not other bytes that happen to parse as such."""
  return any(node.opcode for computation in module.computations
             for node in computation.instructions)


def _is_text(content: bytes) -> bool:
  """Whether a line of the beginning starts as HLO text does."""
  return any(line.lstrip().startswith(_TEXT_START)
             for line in content[:1 << 16].split(b'\n'))


def _module_of_proto(path: str, content: bytes) -> protos.HloModuleProto:
  for message_class, module_of in (
      (protos.HloModuleProto, lambda message: message),
      (hlo_pb2.HloProto, lambda message: message.hlo_module)):
    try:
      module = module_of(message_class.FromString(content))
    except DecodeError:
      continue
    if has_instructions(module):
      return module
  raise UserError(
      f'{path}: its {len(content):,} bytes are neither HLO text, which has a '
      'line that starts with HloModule, nor a whole HloModuleProto, HloProto '
      'or tuning data; the file is cut short, damaged or of another kind')
