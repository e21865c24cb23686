"""HLO files that compilers write: protobufs and text.

`--xla_dump_to=DIR` writes `<name>.hlo.pb` with `--xla_dump_hlo_as_proto` and
`<name>.txt` with `--xla_dump_hlo_as_text`, before and after optimisation.
jaxlib, from the extra [jax], parses text.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from tensorflow.compiler.xla.service import hlo_pb2

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos, subprocesses

# XLA puts this into the file names of modules that it has fused.
_OPTIMIZED_NAME = 'after_optimizations'
_TEXT_START = b'HloModule'
_SCHEDULED = b'is_scheduled=true'


class HloFile(NamedTuple):
  """A module, and whether a compiler has fused it into kernels already."""
  module: protos.HloModuleProto
  is_optimized: bool


def read_hlo(path: str, content: bytes, jax_python: str = '') -> HloFile:
  """Reads an HLO module.

  Args:
    path: for messages; XLA's own file names also say whether the module is
      optimised.
    content: serialized `HloModuleProto` or `HloProto`, or HLO text.
    jax_python: the Python whose jaxlib parses text; '' for this one.

  Raises:
    UserError: the content is something else or damaged, exceeds the limits,
      or is text and jaxlib is missing.
  """
  scheduled = False
  if any(line.lstrip().startswith(_TEXT_START)
         for line in content[:1 << 16].split(b'\n')):
    scheduled = _SCHEDULED in content.split(b'\n{', 1)[0][:1 << 20]
    module = subprocesses.parse_text(path, content, jax_python)
  else:
    module = _module_of_proto(path, content)
  try:
    module = protos.as_module(module)
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  return HloFile(
      module, scheduled or module.HasField('schedule')
      or any(node.opcode == 'fusion' for node in protos.nodes(module))
      or _OPTIMIZED_NAME in os.path.basename(path))


def is_stablehlo(content: bytes) -> bool:
  """Whether this is MLIR: bytecode, or text with StableHLO operations."""
  return content.startswith(b'ML\xefR') or (
      b'func.func' in content and b'stablehlo.' in content)


def is_for_tpu(module: protos.HloModuleProto) -> bool:
  """Whether a TPU's compiler optimised it: it writes tiles into layouts."""
  return any(shape.layout.tiles for node in protos.nodes(module)
             for shape in (node.shape, *node.shape.tuple_shapes))


def is_for_cpu_or_gpu(module: protos.HloModuleProto) -> bool:
  """Whether another machine's compiler optimised it: scheduled, no tiles."""
  return module.HasField('schedule') and not is_for_tpu(module)


def _module_of_proto(path: str, content: bytes) -> protos.HloModuleProto:
  module = protos.parse(protos.HloModuleProto, content)
  if module is None or not protos.has_opcodes(module):
    wrapped = protos.parse(hlo_pb2.HloProto, content)
    module = wrapped and wrapped.hlo_module
  if module is None or not protos.has_opcodes(module):
    raise UserError(
        f'{path}: its {len(content):,} bytes are neither HLO text, which has a '
        'line that starts with HloModule, nor a whole HloModuleProto, HloProto '
        'or tuning data; the file is cut short, damaged or of another kind')
  return module
