"""A program -> its kernels, by Google's TPU compiler, without a TPU.

Google does not promise how an optimised program notes a kernel's tile, so
pyproject.toml pins the versions of libtpu that were tested.

Kernels are the program's fusions, and other instructions that run as a loop
over tiles. Everything else (custom calls, transfers between chips) is counted.
"""

from __future__ import annotations

import collections
import re
from typing import Any, NamedTuple, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import libtpu, loops, programs, protos, subprocesses

# An estimate of 2^63-1 cycles, or half of it, means an infeasible tile.
INFEASIBLE_CYCLES = 10**12
PALLAS_TARGET = 'tpu_custom_call'  # A custom call that is a Pallas kernel.
_WITHOUT_TILES = frozenset({
    'cholesky', 'custom-call', 'dynamic-update-slice', 'fft', 'gather', 'map',
    'reverse-sequence', 'rng-bit-generator', 'scatter', 'sort',
    'triangular-solve'})
# They do no work.
_FREE = frozenset({'parameter', 'constant', 'bitcast', 'tuple', 'after-all',
                   'get-tuple-element', 'partition-id', 'replica-id',
                   'add-dependency', 'domain', 'opt-barrier', 'copy-done',
                   'async-update', 'async-done'})
_TRANSFERS = ('all-', 'async-start', 'collective-', 'send', 'recv', 'infeed',
              'outfeed', 'reduce-scatter', 'copy-start', 'rng-get')


class Window(NamedTuple):
  """The tile that the compiler chose for an instruction, see `hlo.tiles`."""
  output_bounds: tuple[int, ...]
  kernel_bounds: tuple[int, ...]
  cycles: Optional[int]  # The compiler's estimate for one run, if it has one.


class CompiledKernel(NamedTuple):
  """One kernel of a compiled program."""
  module: protos.HloModuleProto  # This kernel alone, named as in the program.
  op_name: str  # The operation in the user's program that it is named after.
  window: Optional[Window]  # None if the compiler chose no tile.
  runs: int  # How often it runs each time the program does.
  # In a loop of an unknown number of trips, which `runs` counts as one.
  in_open_loop: bool = False


class CompiledProgram(NamedTuple):
  """A program as the TPU's compiler leaves it."""
  kernels: list[CompiledKernel]  # In the program's order.
  passed_over: dict[str, int]  # Opcode -> other instructions.
  pallas: list[str]  # Names of Pallas kernels, whose authors choose the blocks.
  open_loops: int  # With an unknown trip count: their kernels count once.
  conditionals: int = 0  # All of whose branches count.


def compile_program(program: programs.Program, tpu: str,
                    progress: subprocesses.Progress = None) -> CompiledProgram:
  """Compiles a program for one of `libtpu.GENERATIONS` and splits it.

  Of a program for several devices, the kernels are those of each. One that is
  compiled already is only split.

  Raises UserError if libtpu is missing, or the program does not compile.
  """
  if program.optimized is not None:
    return kernels_of(program.optimized)
  topology = libtpu.topology_of(tpu, program.replicas * program.partitions)
  try:
    optimized = subprocesses.compile_program(
        libtpu.library(), topology, program.content,
        program.program_format, compile_options(
            program.replicas, program.partitions, program.shardy), progress)
  except UserError as error:
    raise UserError(f'{error}{_advice(str(error), program, tpu)}') from error
  return kernels_of(parse_optimized(optimized))


def _advice(message: str, program: programs.Program, tpu: str) -> str:
  """What to do about what the compiler says."""
  if 'Ran out of memory' in message and 'hbm' in message.lower():
    memory = libtpu.GENERATIONS[libtpu.generation(tpu)].hbm_gib
    more = [f'{name} ({machine.hbm_gib} GiB)' for name, machine in
            libtpu.GENERATIONS.items() if machine.hbm_gib > memory]
    larger = f'generations with more memory per device: {", ".join(more)}; '
    return (f'; a device of {tpu} has {memory} GiB. {larger if more else ""}'
            'or shard the program, or make it smaller')
  if re.search(r'Unbounded dynamism|tensor<(\d+x)*\?|count_overflow|'
               r'stablehlo\.(real_)?dynamic_(?!slice|update)|shape_assertion',
               message):
    return ('; a TPU compiles for whole sizes: export the program with a '
            'number in place of each ? or symbol, such as the batch')
  if PALLAS_TARGET.encode() in program.content:
    return ('; it has Pallas kernels, which may need the libtpu of the JAX '
            'that lowers them: name that one in '
            f'{libtpu.LIBRARY_VARIABLE}=/path/to/libtpu.so')
  if program.replicas * program.partitions > 1:
    return (f'; it is for {program.partitions} partitions and '
            f'{program.replicas} replicas, and this compiler cannot split it '
            'so: give the part of one device')
  return ''


def compile_options(replicas: int = 1, partitions: int = 1,
                    shardy: bool = False, shape: Any = None) -> bytes:
  """Serialized options of `libtpu.Compiler.compile`.

  Args:
    replicas, partitions: of the program; XLA splits it for the latter.
    shardy: whether its shardings are written in Shardy.
    shape: a `ProgramShapeProto` whose layouts to keep.
  """
  options = protos.CompileOptions()
  build = options.executable_build_options
  build.device_ordinal = -1  # Any.
  build.num_replicas, build.num_partitions = replicas, partitions
  if replicas * partitions > 1:
    build.use_spmd_partitioning = partitions > 1
    build.use_shardy_partitioner = shardy
    # As JAX does for results without a sharding; else each device has all.
    build.allow_spmd_sharding_propagation_to_output.append(True)
    assigned = build.device_assignment
    assigned.replica_count, assigned.computation_count = replicas, partitions
    for partition in range(partitions):
      assigned.computation_devices.add(replica_device_ids=range(
          partition, replicas * partitions, partitions))
  if shape:
    options.argument_layouts.extend(shape.parameters)
    build.result_layout.CopyFrom(shape.result)
  return options.SerializeToString()


def parse_optimized(optimized: bytes) -> protos.HloModuleProto:
  """The module in what `libtpu.Compiler.compile` returns."""
  parsed = protos.parse(protos.HloProto, optimized)
  return protos.as_module(parsed and parsed.hlo_module)


def root_of(kernel: protos.HloModuleProto) -> protos.HloInstructionProto:
  """The instruction that a kernel's module wraps."""
  entry = protos.by_id(kernel.computations)[kernel.entry_computation_id]
  return protos.by_id(entry.instructions)[entry.root_id]


def config_of(node: protos.HloInstructionProto) -> Any:
  """What the compiler noted for an instruction, or a UserError: no JSON."""
  return files.parse_json(node.backend_config, node.name)


def window_of(node: protos.HloInstructionProto) -> Optional[Window]:
  """The compiler's tile of an instruction; None if it noted none."""
  try:
    window = config_of(node).get('window_config') or {}
    cycles = int(window.get('estimated_cycles', 0))
    output, filters = (tuple(map(int, window.get(f'{of}_window_bounds', ())))
                       for of in ('output', 'kernel'))
    if not window or not all(
        bound in range(1 << 63) for bound in output + filters):
      return None
    return Window(output, filters,
                  cycles if 0 < cycles < INFEASIBLE_CYCLES else None)
  except (UserError, ValueError, TypeError, AttributeError, OverflowError):
    return None  # No JSON, or of another form.


def kernels_of(module: protos.HloModuleProto) -> CompiledProgram:
  """Splits an optimised program, or raises a UserError if it is damaged.

  One that is a single kernel stays as it is.
  """
  try:
    return _split(module)
  except LookupError as error:
    raise UserError(f'HLO module {module.name!r} refers to {error}, which it '
                    'does not have; it is incomplete or damaged') from error


def _split(module) -> CompiledProgram:
  computations = protos.by_id(module.computations)
  of_kernels, passed_over, conditionals = [], collections.Counter(), 0
  runs, open_loops = loops.runs_of(module)
  for number, runs_of_it in runs.items():
    nodes = protos.by_id(computations[number].instructions)
    for node in nodes.values():
      inside = [] if node.opcode != 'fusion' or window_of(node) else [
          each.opcode for called in node.called_computation_ids
          for each in computations[called].instructions]
      transfer = next((opcode for opcode in [node.opcode, *inside]
                       if opcode.startswith(_TRANSFERS)), '')
      if node.async_execution_thread == 'sparsecore':
        # An argument's change of layout has the argument's name, without '/'.
        _, is_operation, name = node.metadata.op_name.rpartition('/')
        transfer = (name if is_operation else node.name.split('.')[0]
                    ) + ' on the SparseCore'
      if transfer or node.opcode in _WITHOUT_TILES:
        passed_over[transfer or node.opcode] += 1
      elif node.opcode not in _FREE | loops.CONTROL:
        of_kernels.append((node, nodes, runs_of_it))
      conditionals += node.opcode == 'conditional'
  entry = computations[module.entry_computation_id]
  work = [node for node in entry.instructions
          if node.opcode not in ('parameter', 'constant')]
  is_one = work == [node for node, *_ in of_kernels] and len(work) == 1
  kernels = []
  for node, nodes, runs_of_it in of_kernels:
    kernel = module if is_one else _kernel(node, nodes, computations)
    op_names = [inner.metadata.op_name for inner in (
        *protos.nodes(kernel), node) if inner.metadata.op_name]
    kernels.append(CompiledKernel(
        kernel, (op_names or [''])[-1], window_of(node), *runs_of_it))
  pallas = [node.metadata.op_name or node.name for node in protos.nodes(module)
            if node.custom_call_target == PALLAS_TARGET]
  return CompiledProgram(
      kernels, dict(passed_over), pallas, open_loops, conditionals)


def _kernel(node, nodes, computations) -> protos.HloModuleProto:
  """A module whose entry has parameters and this instruction."""
  kernel = protos.HloModuleProto(name=node.name)
  called, waiting = set(), list(node.called_computation_ids)
  while waiting:
    number = waiting.pop()
    if number not in called:
      called.add(number)
      for inner in computations[number].instructions:
        waiting.extend(inner.called_computation_ids)
  kernel.computations.extend(  # In stored order, callees first.
      c for number, c in computations.items() if number in called)
  entry = kernel.computations.add(
      id=1 + max(computations), name=node.name, root_id=node.id)
  parameters = 0
  for operand in dict.fromkeys(node.operand_ids):
    source = nodes[operand]
    argument = entry.instructions.add(
        id=operand, name=source.name, opcode='parameter', shape=source.shape)
    if source.opcode != 'constant' or source.shape.dimensions:
      argument.parameter_number = parameters
      parameters += 1
      continue
    argument.opcode = 'constant'
    if source.HasField('literal'):
      argument.literal.CopyFrom(source.literal)
  entry.instructions.add().CopyFrom(node)
  kernel.entry_computation_id = entry.id
  kernel.entry_computation_name = entry.name
  return kernel
