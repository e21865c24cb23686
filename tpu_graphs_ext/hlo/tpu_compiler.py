"""Google's TPU compiler: a program -> its kernels, without a TPU.

libtpu, the extra [tpu], compiles ahead of time for every generation of TPU on
any Linux machine with an x86-64 processor. It comes under Google Cloud's terms
and is the user's own install; nothing of it is in this package.

What the optimised program says of a kernel's tile is not promised by anybody,
so the versions that were tested are pinned in pyproject.toml.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from collections.abc import Mapping
from typing import Any, Optional

from google.protobuf.message import DecodeError
from tensorflow.compiler.xla.service import hlo_pb2

from tpu_graphs_ext.errors import UserError, did_you_mean, how_to_install
from tpu_graphs_ext.hlo import compiling, fusions, protos

LIBRARY_VARIABLE = 'TPU_GRAPHS_EXT_LIBTPU'
# Cycles from here on mean that a tile is not feasible: 2^63-1, or half of it.
INFEASIBLE_CYCLES = 10**12
# Custom calls whose kernel somebody wrote in Pallas.
PALLAS_TARGET = 'tpu_custom_call'


@dataclasses.dataclass(frozen=True)
class Generation:
  """A generation of TPU; `analytic.blocks.MACHINES` has its figures.

  Attributes:
    name: as Google Cloud has it.
    topology: libtpu's name for the smallest machine of them.
  """
  name: str
  topology: str


GENERATIONS = {
    name: Generation(name, topology) for name, topology in (
        ('v2', 'v2:2x2x1'), ('v3', 'v3:2x2x1'), ('v4', 'v4:2x2x1'),
        ('v5e', 'v5e:2x2x1'), ('v5p', 'v5p:2x2x1'), ('v6e', 'v6e:2x2x1'),
        ('v7x', 'tpu7x:2x2x1'))}


def generation_of(name: str) -> Generation:
  """The generation of that name.

  Raises:
    UserError: there is none.
  """
  if name not in GENERATIONS:
    names = list(GENERATIONS)
    raise UserError(f'{name!r} is no generation of TPU that can be compiled '
                    f'for; choose from {", ".join(names)}. '
                    f'{did_you_mean(name, names)}'.rstrip())
  return GENERATIONS[name]


def library() -> str:
  """Path of libtpu.so: the environment variable's, else the installed one.

  Raises:
    UserError: there is none.
  """
  named = os.environ.get(LIBRARY_VARIABLE)
  if named:
    if not os.path.isfile(named):
      raise UserError(f'{LIBRARY_VARIABLE}={named}: no such file; it must name '
                      'libtpu.so')
    return os.path.abspath(named)
  spec = importlib.util.find_spec('libtpu')
  path = spec and spec.origin and os.path.join(
      os.path.dirname(spec.origin), 'libtpu.so')
  if not path or not os.path.isfile(path):
    raise UserError(
        f'the TPU compiler is not installed: {how_to_install("tpu")} '
        '(Python 3.11 or newer on Linux, x86-64), or set '
        f'{LIBRARY_VARIABLE}=/path/to/libtpu.so')
  return path


def process(generation: Generation, env: Optional[Mapping[str, str]] = None,
            time_limit_seconds: float = compiling.TIME_LIMIT_SECONDS
            ) -> compiling.CompilingProcess:
  """A compiling process for one generation; arguments as of its class.

  Raises:
    UserError: libtpu is not installed.
  """
  return compiling.CompilingProcess(
      library(), generation.topology, env, time_limit_seconds)


def optimized_module(optimized: bytes) -> protos.HloModuleProto:
  """The module of an optimised program, as `CompilingProcess` returns it."""
  try:
    module = hlo_pb2.HloProto.FromString(optimized).hlo_module
  except DecodeError as error:
    raise UserError('the TPU compiler gave what is no HLO module '
                    f'({error}); for the version that was tested '
                    f'{how_to_install("tpu")}') from error
  return protos.as_module(module)


# --------------------------------------------------------------- kernels


@dataclasses.dataclass(frozen=True)
class Window:
  """The tile that the compiler chose for an instruction.

  Attributes:
    output_bounds: layout tiles along each physical dimension of the tiled
      tensor, most major first.
    kernel_bounds: the same of a convolution's filter; empty for others.
    cycles: the compiler's estimate for one run; None where it has none.
  """
  output_bounds: tuple[int, ...]
  kernel_bounds: tuple[int, ...]
  cycles: Optional[int]


@dataclasses.dataclass(frozen=True)
class CompiledKernel:
  """One kernel of a compiled program.

  Attributes:
    module: of this kernel alone; see `fusions.kernels_of`.
    op_name: of the operation in the user's program that it is named after.
    window: its tile; None where the compiler chose none.
    runs: how often it runs each time the program does.
  """
  module: protos.HloModuleProto
  op_name: str
  window: Optional[Window]
  runs: int


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
  """A program as the TPU's compiler leaves it.

  Attributes:
    kernels: those with tiles, in the program's order.
    passed_over: opcode -> how many instructions are no such kernels.
    pallas: names of its Pallas kernels, whose blocks their author chooses.
    open_loops: loops whose trip count the compiler does not know; their
      kernels are counted once.
  """
  kernels: list[CompiledKernel]
  passed_over: dict[str, int]
  pallas: list[str]
  open_loops: int


def compile_program(program: bytes, generation: Generation,
                    program_format: str = 'hlo') -> CompiledProgram:
  """Compiles a program and takes it apart.

  Args:
    program: serialized `HloModuleProto` before optimisation, or StableHLO.
    generation: one of `GENERATIONS`.
    program_format: 'hlo', or 'mlir' for StableHLO.

  Raises:
    UserError: libtpu is missing, or the program does not compile.
  """
  with process(generation) as compiler:
    try:
      optimized = compiler.compile(program, program_format)
    except compiling.CompileError as error:
      if PALLAS_TARGET.encode() not in program:
        raise
      raise compiling.CompileError(
          f'{error}; it has Pallas kernels, which may need the libtpu of the '
          'JAX that lowers them: name that one in '
          f'{LIBRARY_VARIABLE}=/path/to/libtpu.so') from error
  return kernels_of(optimized_module(optimized))


def kernels_of(module: protos.HloModuleProto) -> CompiledProgram:
  """Takes a program that the TPU's compiler has optimised apart."""
  taken = fusions.kernels_of(module)
  kernels = []
  for kernel, runs in zip(taken.modules, taken.runs):
    root = root_of(kernel)
    kernels.append(CompiledKernel(
        kernel, _op_name(kernel, root), window_of(root), runs))
  return CompiledProgram(kernels, taken.passed_over, _pallas(module),
                         taken.open_loops)


def root_of(kernel: protos.HloModuleProto) -> protos.HloInstructionProto:
  """The instruction that a kernel's module is made of."""
  return next(node for computation in kernel.computations
              if computation.id == kernel.entry_computation_id
              for node in computation.instructions
              if node.id == computation.root_id)


def config_of(node: protos.HloInstructionProto) -> dict[str, Any]:
  """What the compiler noted on an instruction; empty if nothing."""
  if not node.backend_config.startswith(b'{'):
    return {}
  try:
    return json.loads(node.backend_config)
  except ValueError:
    return {}


def window_of(node: protos.HloInstructionProto) -> Optional[Window]:
  """The compiler's tile of an instruction; None where it has none."""
  window = config_of(node).get('window_config')
  if not window:
    return None
  cycles = int(window.get('estimated_cycles', 0))
  return Window(
      tuple(map(int, window.get('output_window_bounds', ()))),
      tuple(map(int, window.get('kernel_window_bounds', ()))),
      cycles if 0 < cycles < INFEASIBLE_CYCLES else None)


def _op_name(kernel, root) -> str:
  """Of the root; else of the last instruction fused into it that has one."""
  named = [node.metadata.op_name for computation in kernel.computations
           for node in computation.instructions if node.metadata.op_name]
  return root.metadata.op_name or (named[-1] if named else '')


def _pallas(module) -> list[str]:
  return [node.metadata.op_name or node.name
          for computation in module.computations
          for node in computation.instructions
          if node.opcode == 'custom-call'
          and node.custom_call_target == PALLAS_TARGET]
