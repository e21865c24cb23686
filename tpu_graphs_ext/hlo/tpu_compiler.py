"""Google's TPU compiler: a program -> its kernels, without a TPU.

libtpu, the extra [tpu], compiles ahead of time for every generation of TPU on
any Linux machine with an x86-64 processor. It is under Google Cloud's terms,
and users install it themselves; this package contains none of it.

Google does not promise how an optimised program notes a kernel's tile, so
pyproject.toml pins the versions that were tested.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Optional

from tensorflow.compiler.xla.service import hlo_pb2

from tpu_graphs_ext.errors import UserError, how_to_install
from tpu_graphs_ext.hlo import fusions, protos, subprocesses
from tpu_graphs_ext.hlo.libtpu import LIBRARY_VARIABLE, Generation, library

# An estimate of 2^63-1 cycles, or half of it, means an infeasible tile.
INFEASIBLE_CYCLES = 10**12
PALLAS_TARGET = 'tpu_custom_call'  # A custom call that is a Pallas kernel.


class Window(NamedTuple):
  """The tile that the compiler chose for an instruction, see `hlo.tiles`."""
  output_bounds: tuple[int, ...]
  kernel_bounds: tuple[int, ...]
  cycles: Optional[int]  # The compiler's estimate for one run, if it has one.


class CompiledKernel(NamedTuple):
  """One kernel of a compiled program."""
  module: protos.HloModuleProto  # This kernel alone; see `fusions.kernels_of`.
  op_name: str  # The operation in the user's program that it is named after.
  window: Optional[Window]  # None if the compiler chose no tile.
  runs: int  # How often it runs each time the program does.


class CompiledProgram(NamedTuple):
  """A program as the TPU's compiler leaves it."""
  kernels: list[CompiledKernel]  # In the program's order.
  passed_over: dict[str, int]  # Opcode -> other instructions.
  pallas: list[str]  # Names of Pallas kernels, whose authors choose the blocks.
  open_loops: int  # With an unknown trip count: their kernels count once.


def compile_program(program: bytes, generation: Generation,
                    program_format: str = 'hlo') -> CompiledProgram:
  """Compiles a program and splits it into kernels.

  Args:
    program: serialized `HloModuleProto` before optimisation, or StableHLO.
    generation: one of `GENERATIONS`.
    program_format: 'hlo', or 'mlir' for StableHLO.

  Raises:
    UserError: libtpu is missing, or the program does not compile.
  """
  try:
    optimized = subprocesses.compile_program(
        library(), generation.topology, program, program_format)
  except subprocesses.CompileError as error:
    if PALLAS_TARGET.encode() not in program:
      raise
    raise subprocesses.CompileError(
        f'{error}; it has Pallas kernels, which may need the libtpu of the '
        'JAX that lowers them: name that one in '
        f'{LIBRARY_VARIABLE}=/path/to/libtpu.so') from error
  return kernels_of(parse_optimized(optimized))


def parse_optimized(optimized: bytes) -> protos.HloModuleProto:
  """The module in what `pjrt.Compiler.compile` returns."""
  parsed = protos.parse(hlo_pb2.HloProto, optimized)
  if parsed is None:
    raise UserError('the TPU compiler returned something that is not an HLO '
                    'module; for the version that was tested '
                    f'{how_to_install("tpu")}')
  return protos.as_module(parsed.hlo_module)


def kernels_of(module: protos.HloModuleProto) -> CompiledProgram:
  """Splits a program that the TPU's compiler has optimised into kernels."""
  split = fusions.kernels_of(module)
  kernels = []
  for kernel, runs in zip(split.modules, split.runs):
    root = root_of(kernel)
    kernels.append(CompiledKernel(
        kernel, _op_name(kernel, root), window_of(root), runs))
  pallas = [node.metadata.op_name or node.name for node in protos.nodes(module)
            if node.opcode == 'custom-call'
            and node.custom_call_target == PALLAS_TARGET]
  return CompiledProgram(kernels, split.passed_over, pallas, split.open_loops)


def root_of(kernel: protos.HloModuleProto) -> protos.HloInstructionProto:
  """The instruction that a kernel's module wraps."""
  return next(node for computation in kernel.computations
              if computation.id == kernel.entry_computation_id
              for node in computation.instructions
              if node.id == computation.root_id)


def window_of(node: protos.HloInstructionProto) -> Optional[Window]:
  """The compiler's tile of an instruction; None if it noted none."""
  try:
    window = json.loads(node.backend_config).get('window_config')
  except (ValueError, AttributeError):  # No JSON, or not an object.
    window = None
  if not window:
    return None
  cycles = int(window.get('estimated_cycles', 0))
  return Window(
      tuple(map(int, window.get('output_window_bounds', ()))),
      tuple(map(int, window.get('kernel_window_bounds', ()))),
      cycles if 0 < cycles < INFEASIBLE_CYCLES else None)


def _op_name(kernel, root) -> str:
  """The root's; else that of the last fused instruction that has one."""
  named = [node.metadata.op_name for node in protos.nodes(kernel)
           if node.metadata.op_name]
  return root.metadata.op_name or (named[-1] if named else '')
