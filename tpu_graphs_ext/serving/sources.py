"""What a user names as something to rank -> kernels, measured or not.

  .npz                 the kernel; its own tiles tell the default
  tuning data (.pb)    the kernels, with their runs
  HLO, StableHLO       compiled for a TPU; of a program that a TPU's compiler
                       has optimised already, its kernels as they are
  module:function      TensorFlow's or JAX's, lowered for shapes, then the same
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from tpu_graphs_ext.analytic import feature_loops
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import (
  compiling,
  dumps,
  features,
  lowering,
  lowering_subprocess,
  protos,
  tpu_compiler,
  tuning,
)
from tpu_graphs_ext.tasks import kernel_inputs

# A function's name; not a Windows path, whose part after ':' has a slash.
_FUNCTION = re.compile(r'[\w./~-]+:[A-Za-z_][\w.]*')
_SHAPE = re.compile(r'([a-z][a-z\d]*)\[([\d,\s]*)\]')
# The same, or a name in the function's own module: what is its arguments.
_NAMED_ARGUMENTS = re.compile(r'([\w./~-]+:)?[A-Za-z_][\w.]*')
DEFAULT_TPU = 'v3'  # What the data set was timed on.

# Where the default tile of a kernel is from.
FROM_FILE = 'of the file'
FROM_COMPILER = "the TPU compiler's"


@dataclasses.dataclass(frozen=True)
class Found:
  """One kernel of a source.

  Attributes:
    kernel: its name is `tile_id`; no configurations where it has no tiles yet.
    copies: how often it runs, with all equal kernels of the program.
    notes: what to know of it, a sentence each.
    default_from: where its default tile is from, if it has one.
    op_name: of the operation in the user's program that it is named after.
    cycles: of one run, as the TPU's compiler estimates it; None if it did not.
    share: of the estimated cycles of the whole program, 0 to 1; None as above.
  """
  kernel: Kernel
  copies: int = 1
  notes: tuple = ()
  default_from: str = FROM_FILE
  op_name: str = ''
  cycles: Optional[int] = None
  share: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Source:
  """Kernels of one file or function.

  Attributes:
    name: as it was given.
    found: the kernels, each graph once.
    notes: how they were made, and what was left out, a sentence each.
    faults: of kernels that cannot be ranked, a message each.
  """
  name: str
  found: list[Found]
  notes: list[str]
  faults: list[str]


def read_source(name: str, shapes: str = '', tpu: str = DEFAULT_TPU,
                jax_python: str = '') -> Source:
  """Reads a file, or lowers a function, and compiles what is a program.

  Args:
    name: see the module's docstring.
    shapes: of a function's arguments, as 'f32[512,1024] bf16[1024]'; or the
      name of a function of the same module that returns them, in any nesting.
    tpu: the generation to compile for; see `tpu_compiler.GENERATIONS`.
    jax_python: the Python that has the user's JAX, which also reads HLO text;
      not given: this one.

  Raises:
    UserError: nothing of it can be read, with the reason.
  """
  generation = tpu_compiler.generation_of(tpu)
  path = os.path.expanduser(name)
  if not os.path.exists(path) and _FUNCTION.fullmatch(name):
    tpu_compiler.library()  # Before the function's module is run.
    module = lowering_subprocess.module_of_function(
        name, arguments_of(shapes), jax_python)
    return of_program(name, module, 'hlo', generation)
  if not os.path.exists(path):
    raise UserError(f'{name}: no such file; a function is named as '
                    'module:function')
  if shapes:
    raise UserError(f'--shapes goes with a function; {name} is a file')
  if os.path.isdir(path):
    raise UserError(f'{name}: is a folder; name a file of it, or rank the '
                    'tiles of its .npz files with --data')
  if path.endswith('.npz'):
    return _of_npz(name, path)
  content = dumps.content_of(path)
  if dumps.is_stablehlo(content):
    return of_program(name, content, 'mlir', generation)
  # XLA's own dumps have the first field of tuning data too.
  data = None if path.endswith('.hlo.pb') else tuning.data_in(path, content)
  if data is not None and _has_runs(data[0]):
    return _of_tuning(name, *data, generation)
  return _of_dump(name, dumps.read_dump(name, content, jax_python), generation)


def of_function(function: Callable, arguments: Any,
                tpu: str = DEFAULT_TPU) -> Source:
  """Lowers a function in this process and compiles it.

  Args:
    function: of JAX or TensorFlow, jitted or not.
    arguments: the tuple of its arguments, see `lowering.lowered`; text as
      `parsed_shapes` reads it; None for a `tf.function` with a signature.
    tpu: the generation to compile for.

  Raises:
    UserError: it cannot be lowered or compiled.
  """
  generation = tpu_compiler.generation_of(tpu)
  tpu_compiler.library()  # Before anything takes long.
  return of_program(_name_of(function), lowered_function(function, arguments),
                    'hlo', generation)


def lowered_function(function: Callable, arguments: Any) -> bytes:
  """The same before it is compiled: serialized `HloModuleProto`.

  Raises:
    UserError: it cannot be lowered.
  """
  if isinstance(arguments, str):
    arguments = lowering.arguments_of_shapes(
        function, parsed_shapes(arguments))
  elif arguments is None:
    arguments = ()
  elif not isinstance(arguments, (tuple, list)):
    arguments = (arguments,)
  return lowering.lowered(function, tuple(arguments), _name_of(function))


def _name_of(function: Callable) -> str:
  return getattr(function, '__name__', type(function).__name__)


def arguments_of(shapes: str) -> lowering.Arguments:
  """What `--shapes` says: shapes, or the name of what returns arguments.

  Raises:
    UserError: it is neither.
  """
  name = shapes.strip()
  if _NAMED_ARGUMENTS.fullmatch(name) and name not in lowering.TYPES:
    return name
  return parsed_shapes(shapes)


def parsed_shapes(text: str) -> list[tuple]:
  """'f32[512,1024] s32[]' -> [('f32', [512, 1024]), ('s32', [])].

  Raises:
    UserError: it is written otherwise, or a type has another name.
  """
  found, rest = [], _SHAPE.sub('', text)
  for name, sizes in _SHAPE.findall(text):
    if name not in lowering.TYPES:
      raise UserError(f'--shapes={text}: there is no type {name!r}; choose '
                      f'from {", ".join(lowering.TYPES)}')
    try:
      found.append((name, [int(size) for size in sizes.split(',')
                           if sizes.strip()]))
    except ValueError:
      rest = sizes
  if rest.strip(' ,;'):
    raise UserError(f'--shapes={text}: cannot be read at {rest.strip()!r}; '
                    'write, for example, "f32[512,1024] bf16[1024,4096]", '
                    'or name a function that returns the arguments')
  return found


# --------------------------------------------------------------- files


def _of_npz(name: str, path: str) -> Source:
  return Source(name, [Found(kernel) for kernel in kernel_inputs.read_kernels(path)],
                [], [])


def _has_runs(data) -> bool:
  return any(run.HasField('op_config') or run.HasField('module_config')
             for module in data.modules for run in module.runs)


def _of_tuning(name: str, data, stem: str, generation) -> Source:
  parts = []
  for module_data in data.modules:
    single = protos.TuningData(modules=[module_data])
    kernels = []
    try:
      kernels = tuning.tile_kernels(single, stem)
    except UserError as error:
      unmeasured = str(error)
    else:
      unmeasured = 'it has no two runs that count'
    if kernels:
      parts.append(Source(name, [Found(kernel) for kernel in kernels], [], []))
      continue
    module = protos.as_module(module_data.module)
    # The data set's modules are kernels that a TPU's compiler made.
    part = _of_dump(name, dumps.Dump(module, True), generation)
    parts.append(dataclasses.replace(
        part, notes=[f'module {module.name!r} is ranked as one that was never '
                     f'timed: {unmeasured}', *part.notes]))
  return Source(name, *(
      [one for part in parts for one in getattr(part, field)]
      for field in ('found', 'notes', 'faults')))


# ------------------------------------------------------------ programs


def _of_dump(name: str, dump: dumps.Dump, generation) -> Source:
  """The kernels of a module; it is compiled unless a TPU's compiler has."""
  if not dump.is_optimized:
    return of_program(name, dump.module.SerializeToString(), 'hlo', generation)
  machine = dumps.other_machine(dump.module)
  if machine:
    raise UserError(
        f'{name}: was optimised for {machine}, whose kernels are not a TPU\'s; '
        'give the module before optimisation, whose name has '
        'before_optimizations')
  try:
    program = tpu_compiler.kernels_of(dump.module)
  except UserError as error:
    raise UserError(f'{name}: {error}') from error
  notes = [] if dumps.is_of_tpu(dump.module) else [
      "not known to be a TPU's: nothing in it says what compiler optimised it"]
  return _of_compiled(name, program, notes)


def of_program(name: str, content: bytes, program_format: str,
               generation: tpu_compiler.Generation) -> Source:
  """Compiles a program for a TPU and takes its kernels.

  Args:
    name: for messages.
    content: serialized `HloModuleProto`, or StableHLO.
    program_format: 'hlo' or 'mlir'.
    generation: of the TPU.

  Raises:
    UserError: libtpu is missing, the program does not compile, or all its
      kernels are Pallas kernels.
  """
  try:
    program = tpu_compiler.compile_program(content, generation, program_format)
  except compiling.CompileError as error:
    raise UserError(f'{name}: {error}') from error
  return _of_compiled(name, program, [
      f'compiled for a TPU {generation.name} by libtpu'])


def _of_compiled(name: str, program: tpu_compiler.CompiledProgram,
                 notes: list[str]) -> Source:
  kernels = [kernel for kernel in program.kernels if _has_tiles(kernel)]
  if program.pallas:
    written = (f'{shortened(program.pallas)}: written in Pallas, so their '
               'author chooses the blocks and the compiler no tile')
    if not kernels:
      raise UserError(f'{name}: has no kernel to rank. {written}')
    notes.append(f'{written}; shares of time are without them')
  passed_over = collections.Counter(program.passed_over)
  passed_over['operation on scalars'] += len(program.kernels) - len(kernels)
  if +passed_over:
    notes.append('passed over, as no kernels with tiles: ' + ', '.join(
        f'{count} {opcode}' for opcode, count in (+passed_over).items()))
  if program.open_loops:
    notes.append(f'{program.open_loops} of its loops make a number of trips '
                 'that is not known; their kernels count once')
  found, faults = _each_once(kernels)
  if not found and not faults:
    notes.append('it has no kernel with tiles')
  return Source(name, _with_shares(found), notes,
                [f'{name}: {fault}' for fault in faults])


def _has_tiles(kernel: tpu_compiler.CompiledKernel) -> bool:
  shape = tpu_compiler.root_of(kernel.module).shape
  parts = shape.tuple_shapes or [shape]
  return kernel.window is not None or any(part.dimensions for part in parts)


def _each_once(kernels: Sequence[tpu_compiler.CompiledKernel]
               ) -> tuple[list[Found], list[str]]:
  """(kernels with different graphs, messages of those without features)."""
  found, faults, uses = {}, [], collections.Counter()
  for compiled in kernels:
    name = compiled.module.name
    uses[name] += 1
    if uses[name] > 1:
      name += f' ({uses[name]})'
    try:
      kernel, notes = _kernel(compiled.module, name)
    except UserError as error:
      faults.append(str(error))
      continue
    key = (kernel.node_feat.tobytes(), kernel.node_opcode.tobytes(),
           kernel.edge_index.tobytes(), compiled.window)
    if key in found:
      found[key] = dataclasses.replace(
          found[key], copies=found[key].copies + compiled.runs)
      continue
    kernel, more = _with_window(kernel, compiled)
    found[key] = Found(
        kernel, compiled.runs, (*notes, *more), FROM_COMPILER,
        compiled.op_name, compiled.window and compiled.window.cycles)
  return list(found.values()), faults


def _with_window(kernel: Kernel, compiled) -> tuple[Kernel, list[str]]:
  """The kernel with the compiler's tile as its one configuration."""
  window = compiled.window
  if window is None:
    return kernel, []
  grid = feature_loops.kernel_loops(kernel).grid
  output, filters = window.output_bounds, window.kernel_bounds
  fits = (len(output) == len(grid.output_units) and
          len(filters) == len(grid.kernel_units) and grid.bounded and
          all(0 < bound <= units for bound, units in zip(
              (*output, *filters), (*grid.output_units, *grid.kernel_units))))
  if not fits:
    return kernel, [
        f"the compiler's tile, output {list(output)}, kernel {list(filters)}, "
        'is of another tensor than the one that is tiled here']
  ones = np.ones(1, np.int64)
  return dataclasses.replace(
      kernel, runtime_ns=ones, normalizer_ns=ones,
      config_feat=features.config_features(filters, output)[np.newaxis]), []


def _with_shares(found: list[Found]) -> list[Found]:
  """The kernels with most estimated time first, each with its share of it."""
  total = sum((one.cycles or 0) * one.copies for one in found)
  if not total:
    return found
  shared = [one if one.cycles is None else dataclasses.replace(
      one, share=one.cycles * one.copies / total) for one in found]
  return sorted(shared, key=lambda one: -(one.share or 0))


def _kernel(module, name) -> tuple[Kernel, list[str]]:
  """A kernel without configurations, and what to know of it."""
  nodes = [node for computation in module.computations
           for node in computation.instructions]
  high = [node for node in nodes
          if len(node.shape.dimensions) > schema.MAX_DIMS]
  if high:
    raise UserError(
        f'{name}: {high[0].name} has {len(high[0].shape.dimensions)} '
        f'dimensions; features have columns for {schema.MAX_DIMS}, so this '
        'kernel cannot be ranked')
  unknown = sorted({node.opcode for node in nodes
                    if node.opcode not in schema.OPCODES})
  notes = [f'the model does not know what {shortened(unknown)} does: no '
           'number of the data set stands for it'] if unknown else []
  arrays = features.module_arrays(module)
  none = np.zeros(0, np.int64)
  return Kernel(
      tile_id=name, node_feat=arrays.node_feat,
      node_opcode=arrays.node_opcode, edge_index=arrays.edge_index,
      config_feat=np.zeros((0, len(schema.CONFIG_FEATURES)), np.float32),
      runtime_ns=none, normalizer_ns=none), notes


def default_of(kernel: Kernel) -> Optional[int]:
  """The configuration that is the compiler's default; None without any.

  The normalizer is its time; where times are withheld it is the tile that is
  listed several times, else the first.
  """
  if not kernel.num_configs:
    return None
  same = np.flatnonzero(kernel.runtime_ns == kernel.normalizer_ns)
  if same.size and (kernel.runtime_ns > 1).all():
    return int(same[0])
  _, first, count = np.unique(kernel.config_feat, axis=0, return_index=True,
                              return_counts=True)
  return int(first[np.argmax(count)]) if count.max() > 1 else 0
