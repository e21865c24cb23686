"""Google's TPU compiler as a library: where it is, and its C API.

`GetPjrtApi` of libtpu.so returns the table of functions that the public header
`xla/pjrt/c/pjrt_c_api.h` declares. It only grows at the end, so the positions
below stay. Needs no TensorFlow.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import re
from typing import NamedTuple

from tpu_graphs_ext.errors import UserError, how_to_install

LIBRARY_VARIABLE = 'TPU_GRAPHS_EXT_LIBTPU'
MOST_DEVICES = 1 << 16  # Seven times the largest pod.
# Keeps libtpu from asking the cloud which TPU it runs on, and from taking the
# lock for the TPU, which compiling does not need.
ENVIRONMENT = {
    'TPU_SKIP_MDS_QUERY': '1', 'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_ACCELERATOR_TYPE': 'v3-8', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_LOG_DIR': 'disabled'}
# Position of each function in `PJRT_Api`, after its three leading fields.
FUNCTIONS = {
    'PJRT_Error_Message': 1, 'PJRT_Plugin_Initialize': 3,
    'PJRT_Executable_OptimizedProgram': 48, 'PJRT_Executable_Serialize': 49,
    'PJRT_TopologyDescription_Create': 82, 'PJRT_Compile': 89}
# struct_size, extension_start, and a version of 24 bytes: one whole struct.
_TABLE_OFFSET = 40


class Generation(NamedTuple):
  """How libtpu names machines of a TPU generation."""
  topology: str  # The first part of the name.
  devices: int  # XLA's devices of each chip.
  axes: int  # Dimensions that a larger slice grows along.
  hbm_gib: int  # Main memory of a device.


# Sizes: https://cloud.google.com/tpu/docs/system-architecture-tpu-vm.
GENERATIONS = {
    'v2': Generation('v2', 2, 2, 8), 'v3': Generation('v3', 2, 2, 16),
    'v4': Generation('v4', 1, 3, 32), 'v5e': Generation('v5e', 1, 2, 16),
    'v5p': Generation('v5p', 1, 3, 95), 'v6e': Generation('v6e', 1, 2, 32),
    'v7x': Generation('tpu7x', 2, 3, 96)}
# As Google Cloud and JAX write them, without 'TPU', 'v' and a number of chips.
_OTHER_NAMES = {'5litepod': '5e', '5lite': '5e', '5': '5p', '6lite': '6e',
                '6': '6e', '7': '7x'}


def generation(name: str) -> str:
  """A key of `GENERATIONS`, also for '7x', 'v5litepod-8' or 'TPU v6 lite'.

  Raises UserError if the name is of none.
  """
  short = re.fullmatch(r'(?:tpu)?v?(\d\w*?)(?:-\d+)?', re.sub(
      r'[\s_]', '', name.lower()))
  short = short and 'v' + _OTHER_NAMES.get(short[1], short[1])
  if short not in GENERATIONS:
    raise UserError(f'{name!r} is not a TPU generation that libtpu compiles '
                    f'for; choose from {", ".join(GENERATIONS)}')
  return short


def topology_of(tpu: str, devices: int = 1) -> str:
  """libtpu's name for a machine with so many devices, or a UserError."""
  machine = GENERATIONS[generation(tpu)]
  if devices > MOST_DEVICES:
    raise UserError(f'is for {devices:,} devices, more than {MOST_DEVICES:,}; '
                    'its shardings are damaged')
  chips = [2, 2, 1]  # The smallest.
  while math.prod(chips) * machine.devices < devices:
    axis = min(range(machine.axes), key=chips.__getitem__)
    chips[axis] *= 2
  return f'{machine.topology}:{"x".join(map(str, chips))}'


def library() -> str:
  """The environment variable's libtpu.so, else the installed one's."""
  named = os.environ.get(LIBRARY_VARIABLE)
  spec = None if named else importlib.util.find_spec('libtpu')
  path = named or (spec and os.path.join(
      os.path.dirname(spec.origin), 'libtpu.so'))
  if not path or not os.path.isfile(path):
    raise UserError(f'the TPU compiler is missing ({path or "not installed"}): '
                    f'{how_to_install("tpu")} (Python 3.11 or newer on Linux, '
                    f'x86-64), or set {LIBRARY_VARIABLE}=/path/to/libtpu.so')
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
    created = _struct(*_text(name), 0, 0, 0)
    self._call('PJRT_TopologyDescription_Create', created)
    self._topology = created[-1]

  def compile(self, program: bytes, program_format: str, options: bytes,
              to_run: bool = False) -> tuple[bytes, bytes]:
    """(optimised program, executable for this version of libtpu if `to_run`).

    Args:
      program: StableHLO, or a serialized `HloModuleProto`.
      program_format: 'mlir', or 'hlo'.
      options: of `tpu_compiler.compile_options`.
      to_run: whether to serialize the executable, else empty.

    The optimised program is a serialized `HloModuleProtoWithConfig`, whose
    first field is the module, so it parses as an `HloProto` too. Raises
    PjrtError if the compiler refuses the program.
    """
    form = program_format.encode()
    source = _struct(*_text(program), *_text(form))
    compiled = _struct(self._topology, ctypes.addressof(source),
                       *_text(options), 0, 0)
    self._call('PJRT_Compile', compiled)
    result, serialized = _struct(0, 0, 0, 0), _struct(compiled[-1], 0, 0, 0, 0)
    optimized = _struct(compiled[-1], ctypes.addressof(result))
    self._call('PJRT_Executable_OptimizedProgram', optimized)  # The size.
    code = ctypes.create_string_buffer(result[3])
    result[2] = ctypes.addressof(code)
    self._call('PJRT_Executable_OptimizedProgram', optimized)
    if to_run:
      self._call('PJRT_Executable_Serialize', serialized)
    return code.raw[:result[3]], ctypes.string_at(*serialized[3:5])

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
