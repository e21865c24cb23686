"""Google's TPU compiler as a library: where it is, and its C API.

`GetPjrtApi` of libtpu.so returns the table of functions that the public header
`xla/pjrt/c/pjrt_c_api.h` declares. It only grows at the end, so the positions
below stay. Needs no TensorFlow.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os

from tpu_graphs_ext.errors import UserError, how_to_install

LIBRARY_VARIABLE = 'TPU_GRAPHS_EXT_LIBTPU'
# Keeps libtpu from asking the cloud which TPU it runs on, and from taking the
# lock for the TPU, which compiling does not need.
ENVIRONMENT = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_ACCELERATOR_TYPE': 'v3-8',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_LOG_DIR': 'disabled',
}
# Position of each function in `PJRT_Api`, after its three leading fields.
FUNCTIONS = {
    'PJRT_Error_Message': 1,
    'PJRT_Plugin_Initialize': 3,
    'PJRT_Executable_OptimizedProgram': 48,
    'PJRT_TopologyDescription_Create': 82,
    'PJRT_Compile': 89,
}
# struct_size, extension_start, and a version of 24 bytes: one whole struct.
_TABLE_OFFSET = 40
# A serialized CompileOptionsProto (xla/pjrt/proto/compile_options.proto), which
# TensorFlow has no class for. Field 3, 15 bytes: device_ordinal (field 1) -1,
# num_replicas (4) 1, num_partitions (5) 1.
_ONE_DEVICE = b'\x1a\x0f\x08' + 9 * b'\xff' + b'\x01\x20\x01\x28\x01'


GENERATIONS = ('v2', 'v3', 'v4', 'v5e', 'v5p', 'v6e', 'v7x')


def topology_of(tpu: str) -> str:
  """libtpu's name for the smallest machine of a generation, or a UserError."""
  if tpu not in GENERATIONS:
    raise UserError(f'{tpu!r} is not a TPU generation that libtpu compiles '
                    f'for; choose from {", ".join(GENERATIONS)}')
  return f'{tpu.replace("v7", "tpu7")}:2x2x1'


def library() -> str:
  """The environment variable's libtpu.so, else the installed one's."""
  named = os.environ.get(LIBRARY_VARIABLE)
  spec = None if named else importlib.util.find_spec('libtpu')
  path = named or (spec and os.path.join(
      os.path.dirname(spec.origin), 'libtpu.so'))
  if not path or not os.path.isfile(path):
    raise UserError(
        f'the TPU compiler is missing ({path or "not installed"}): '
        f'{how_to_install("tpu")} (Python 3.11 or newer on Linux, x86-64), or '
        f'set {LIBRARY_VARIABLE}=/path/to/libtpu.so')
  return os.path.abspath(path)


class PjrtError(Exception):
  """The compiler refused the program; the message is the compiler's."""


class Compiler:
  """libtpu, loaded into this process for one topology.

  Malformed programs can end the process, and nothing is freed before it ends:
  see `subprocesses`.
  """

  def __init__(self, path: str, topology: str):
    """Loads libtpu.so for a topology; see `topology_of`.

    Raises OSError, AttributeError or PjrtError if that is impossible.
    """
    loaded = ctypes.CDLL(path)
    loaded.GetPjrtApi.restype = ctypes.c_void_p
    table = (ctypes.c_void_p * (max(FUNCTIONS.values()) + 1)).from_address(
        loaded.GetPjrtApi() + _TABLE_OFFSET)
    signature = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    self._functions = {
        name: signature(table[place]) for name, place in FUNCTIONS.items()}
    self._call('PJRT_Plugin_Initialize', _struct())
    name = topology.encode()
    found = _struct(*_text(name), 0, 0, 0)
    self._call('PJRT_TopologyDescription_Create', found)
    self._topology = found[-1]

  def compile(self, program: bytes, program_format: str,
              options: bytes = _ONE_DEVICE) -> bytes:
    """Compiles a program for one device.

    Args:
      program: StableHLO, or a serialized `HloModuleProto`.
      program_format: 'mlir', or 'hlo'.
      options: a serialized `CompileOptionsProto`.

    Returns a serialized `HloModuleProtoWithConfig`, the optimised program. Its
    first field is the module, so it parses as an `HloProto` too.

    Raises PjrtError if the compiler refuses the program.
    """
    form = program_format.encode()
    source = _struct(*_text(program), *_text(form))
    compiled = _struct(self._topology, ctypes.addressof(source),
                       *_text(options), 0, 0)
    self._call('PJRT_Compile', compiled)
    result = _struct(0, 0, 0, 0)
    found = _struct(compiled[-1], ctypes.addressof(result))
    self._call('PJRT_Executable_OptimizedProgram', found)  # The size.
    code = ctypes.create_string_buffer(result[3])
    result[2] = ctypes.addressof(code)
    self._call('PJRT_Executable_OptimizedProgram', found)
    return code.raw[:result[3]]

  def _call(self, name: str, arguments) -> None:
    error = self._functions[name](arguments)
    if error:
      message = _struct(error, 0, 0)
      self._functions['PJRT_Error_Message'](message)
      raise PjrtError(ctypes.string_at(*message[-2:]).decode(errors='replace'))


def _text(content: bytes) -> tuple[int, int]:
  """(address, size); the caller keeps `content`."""
  return ctypes.cast(content, ctypes.c_void_p).value, len(content)


def _struct(*words: int):
  """An argument of the API: its size, no extension, then words of 8 bytes."""
  size = 2 + len(words)
  return (ctypes.c_uint64 * size)(8 * size, 0, *words)
