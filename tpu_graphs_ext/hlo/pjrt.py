"""Compiles HLO for a TPU ahead of time, through the C API of PJRT.

`GetPjrtApi` of libtpu.so returns the table of functions that the public header
`xla/pjrt/c/pjrt_c_api.h` declares. It only grows at the end, so the positions
below stay.
"""

from __future__ import annotations

import ctypes

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


class PjrtError(Exception):
  """The compiler refused the program; the message is the compiler's."""


class _Struct(ctypes.Structure):
  """The start of every argument struct of the API, with its size set."""

  def __init__(self, **fields):
    super().__init__(**fields)
    self.struct_size = ctypes.sizeof(self)


def _struct(name: str, *fields):
  return type(name, (_Struct,), {'_fields_': [
      ('struct_size', ctypes.c_size_t), ('extension_start', ctypes.c_void_p),
      *fields]})


_POINTER, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_Initialize = _struct('_Initialize')
_Message = _struct('_Message', ('error', _POINTER), ('message', _POINTER),
                   ('message_size', _SIZE))
_Topology = _struct(
    '_Topology', ('name', _TEXT), ('name_size', _SIZE),
    ('options', _POINTER), ('num_options', _SIZE), ('topology', _POINTER))
_Program = _struct('_Program', ('code', _POINTER), ('code_size', _SIZE),
                   ('format', _TEXT), ('format_size', _SIZE))
_Compile = _struct(
    '_Compile', ('topology', _POINTER), ('program', _POINTER),
    ('options', _TEXT), ('options_size', _SIZE), ('client', _POINTER),
    ('executable', _POINTER))
_Optimized = _struct('_Optimized', ('executable', _POINTER),
                     ('program', _POINTER))


class Compiler:
  """libtpu, loaded into this process for one topology.

  Malformed programs can end the process, and nothing is freed before it ends:
  see `subprocesses`.
  """

  def __init__(self, library: str, topology: str):
    """Loads the library.

    Args:
      library: path of libtpu.so.
      topology: its name for a TPU, such as 'v3:2x2x1'.

    Raises:
      OSError: the library cannot be loaded.
      PjrtError: it does not know the topology.
    """
    loaded = ctypes.CDLL(library)
    loaded.GetPjrtApi.restype = _POINTER
    start = loaded.GetPjrtApi() + _TABLE_OFFSET
    table = (_POINTER * (max(FUNCTIONS.values()) + 1)).from_address(start)
    signature = ctypes.CFUNCTYPE(_POINTER, _POINTER)
    self._functions = {
        name: signature(table[place]) for name, place in FUNCTIONS.items()}
    self._call('PJRT_Plugin_Initialize', _Initialize())
    name = topology.encode()
    arguments = _Topology(name=name, name_size=len(name))
    self._call('PJRT_TopologyDescription_Create', arguments)
    self._topology = arguments.topology

  def compile(self, program: bytes, program_format: str) -> bytes:
    """Compiles a program for one device.

    Args:
      program: a serialized `HloModuleProto`, or MLIR (StableHLO).
      program_format: 'hlo' or 'mlir'.

    Returns:
      The optimised program, a serialized `HloModuleProtoWithConfig`. Its first
      field is the module, so it parses as an `HloProto` too.

    Raises:
      PjrtError: the compiler refuses the program.
    """
    code = ctypes.create_string_buffer(program, len(program))
    form = program_format.encode()
    source = _Program(code=ctypes.addressof(code), code_size=len(program),
                      format=form, format_size=len(form))
    arguments = _Compile(
        topology=self._topology, program=ctypes.addressof(source),
        options=_ONE_DEVICE, options_size=len(_ONE_DEVICE))
    self._call('PJRT_Compile', arguments)
    result = _Program()
    arguments = _Optimized(executable=arguments.executable,
                           program=ctypes.addressof(result))
    self._call('PJRT_Executable_OptimizedProgram', arguments)  # The size.
    code = ctypes.create_string_buffer(result.code_size)
    result.code = ctypes.addressof(code)
    self._call('PJRT_Executable_OptimizedProgram', arguments)
    return code.raw[:result.code_size]

  def _call(self, name: str, arguments: _Struct) -> None:
    error = self._functions[name](ctypes.byref(arguments))
    if error:
      message = _Message(error=error)
      self._functions['PJRT_Error_Message'](ctypes.byref(message))
      text = ctypes.string_at(message.message, message.message_size)
      raise PjrtError(text.decode(errors='replace'))
