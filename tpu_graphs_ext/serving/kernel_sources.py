"""Files and functions that a user names -> kernels to rank.

  .npz                 the kernel; the default is among its tiles
  tuning data (.pb)    the kernels, with their runs
  HLO, StableHLO       compiled for a TPU; if a TPU's compiler has optimised
                       the program already, its kernels as they are
  module:function      of TensorFlow or JAX: lowered for shapes, then compiled
"""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import Any, Callable, Optional, Union

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.analytic import feature_loops
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel, require_readable
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import (
  features,
  libtpu,
  lowering,
  protos,
  subprocesses,
  tpu_compiler,
  tuning,
)

DEFAULT_TPU = 'v3'  # What the data set was timed on.

# Where the default tile of a kernel is from.
FROM_FILE = 'of the file'
FROM_COMPILER = "the TPU compiler's"
FROM_TIME = 'fastest by the TPU v3 formula, as no default is known'


@dataclasses.dataclass(frozen=True)
class SourceKernel:
  """A kernel, and attributes as in `tile_ranking.KernelRanking`."""
  kernel: Kernel
  copies: int = 1
  notes: tuple = ()
  default_from: str = FROM_FILE
  op_name: str = ''
  cycles: Optional[int] = None
  share: Optional[float] = None
  in_open_loop: bool = False


@dataclasses.dataclass(frozen=True)
class Source:
  """Kernels of one file or function."""
  name: str  # As the user gave it.
  kernels: list[SourceKernel]  # Each graph once.
  notes: list[str]  # How they were made and what was left out.
  faults: list[str]  # A message for each kernel that cannot be ranked.


def read_source(source: Union[str, Callable[..., Any]], shapes: Any = '',
                tpu: str = DEFAULT_TPU, jax_python: str = '') -> Source:
  """Reads a file or lowers a function, and compiles programs; or a UserError.

  Args:
    source: see the module's docstring; or a function.
    shapes: a function's arguments; see `lowered`.
    tpu: one of `libtpu.GENERATIONS`, to compile for.
    jax_python: the Python that has JAX, for functions that are named; '': this.
  """
  libtpu.topology_of(tpu)  # Refuses an unknown one before anything is lowered.
  name = source if isinstance(source, str) else getattr(
      source, '__name__', type(source).__name__)
  if callable(source) or lowering.names_function(name):
    return _from_program(name, lowered(source, shapes, jax_python), 'hlo', tpu)
  path = os.path.expanduser(name)
  if not os.path.exists(path):
    raise UserError(f'{name}: no such file; a function is named as '
                    'module:function')
  if path.endswith('.npz'):
    kernel = Kernel.load(path)
    require_readable(kernel, path)
    return Source(name, [SourceKernel(kernel)], [], [])
  content = files.read_file(path)
  if protos.is_stablehlo(content):
    return _from_program(name, content, 'mlir', tpu)
  # XLA's own dumps have the first field of tuning data too.
  data = None if path.endswith('.hlo.pb') else tuning.parse_tuning_data(
      path, content)
  if data is not None and any(
      run.HasField('op_config') or run.HasField('module_config')
      for module in data[0].modules for run in module.runs):
    return Source(
        name, list(map(SourceKernel, tuning.read_tile_kernels(path))), [], [])
  module = protos.read_hlo(name, content)
  if not protos.is_optimized(name, module):
    return _from_program(name, module.SerializeToString(), 'hlo', tpu)
  return _from_optimized(name, module)


def _doubts(tpu: str) -> list[str]:
  """What the tiles of another generation than the data set's are worth."""
  return [] if tpu == DEFAULT_TPU else [
      f"legal tiles, analytic time and pretrained model are a TPU "
      f"{DEFAULT_TPU}'s; not checked for {tpu}"]


def lowered(function: Union[str, Callable[..., Any]], arguments: Any,
            jax_python: str = '') -> bytes:
  """A function of JAX or TensorFlow as a serialized `HloModuleProto`.

  One that is named is lowered in another process. `arguments` are their shapes
  as text; for a named function the name of another that returns them; the tuple
  itself, see `lowering.lower`; or None for a `tf.function` with a signature.
  """
  if isinstance(function, str):
    return subprocesses.lower_named(function, arguments, jax_python)
  if isinstance(arguments, str):
    arguments = lowering.arguments_of_shapes(
        function, lowering.parse_shapes(arguments))
  elif arguments is not None and not isinstance(arguments, (tuple, list)):
    arguments = (arguments,)
  return lowering.lower(function, tuple(arguments or ()))


def default_of(kernel: Kernel) -> Optional[int]:
  """The configuration that is the compiler's default; None without any.

  It is the one whose time is the normalizer. If times are withheld, it is the
  tile that is listed several times, else the first.
  """
  if not kernel.num_configs:
    return None
  same = np.flatnonzero(kernel.runtime_ns == kernel.normalizer_ns)
  if same.size and (kernel.runtime_ns > 1).all():
    return int(same[0])
  _, first, count = np.unique(kernel.config_feat, axis=0, return_index=True,
                              return_counts=True)
  return int(first[np.argmax(count)]) if count.max() > 1 else 0


def never_timed(kernel: Kernel, rows: np.ndarray) -> Kernel:
  """The kernel with other rows of `config_feat`, which have no times."""
  return dataclasses.replace(
      kernel, config_feat=rows, runtime_ns=np.zeros(len(rows), np.int64),
      normalizer_ns=np.ones(len(rows), np.int64))


def _from_optimized(name: str, module: protos.HloModuleProto) -> Source:
  is_for_tpu = protos.is_for_tpu(module)
  if module.HasField('schedule') and not is_for_tpu:
    raise UserError(
        f'{name}: was optimised for a CPU or GPU, whose kernels are not a '
        'TPU\'s; give the module before optimisation, whose name has '
        'before_optimizations')
  return _from_compiled(
      name, lambda: tpu_compiler.kernels_of(module), [] if is_for_tpu else [
          "not known to be a TPU's: nothing in it says what compiler "
          'optimised it'])


def _from_program(name: str, content: bytes, program_format: str,
                  tpu: str) -> Source:
  return _from_compiled(
      name, lambda: tpu_compiler.compile_program(content, tpu, program_format),
      [f'compiled for a TPU {tpu} by libtpu', *_doubts(tpu)])


def _from_compiled(name: str,
                   compiled: Callable[[], tpu_compiler.CompiledProgram],
                   notes: list[str]) -> Source:
  """Adds to the notes what was left out."""
  try:
    program = compiled()
  except UserError as error:
    raise UserError(f'{name}: {error}') from error
  kernels = [kernel for kernel in program.kernels if _has_tiles(kernel)]
  if program.pallas:
    written = (f'{shortened(program.pallas)}: written in Pallas, so the author '
               'chooses the blocks, and the compiler no tile')
    if not kernels:
      raise UserError(
          f'{name}: has no kernel to rank. {written}. If it is one matrix '
          'product, rank its blocks: --blocks usual with a plain function of '
          'that product')
    notes.append(f'{written}; shares of time are without them')
  left_out = {**program.passed_over,
              'operation on scalars': len(program.kernels) - len(kernels)}
  counts = [f'{count} {of}' for of, count in left_out.items() if count]
  if counts:
    notes.append('passed over, because they have no tiles: '
                 + ', '.join(counts))
  distinct, faults = _each_once(kernels)
  if not distinct and not faults:
    notes.append('it has no kernel with tiles')
  total = sum((kernel.cycles or 0) * kernel.copies for kernel in distinct)
  if total:  # The kernels with most estimated time first.
    distinct = sorted((dataclasses.replace(
        kernel, share=kernel.cycles and kernel.cycles * kernel.copies / total)
                       for kernel in distinct),
                      key=lambda kernel: -(kernel.share or 0))
  if program.open_loops:
    share = sum(kernel.share or 0 for kernel in distinct if kernel.in_open_loop)
    notes.append(
        f'{program.open_loops} of its loops have an unknown number of trips; '
        f'their kernels, marked *, count once: {100 * share:.1f} % of the '
        'time, or more')
  return Source(name, distinct, notes,
                [f'{name}: {fault}' for fault in faults])


def _has_tiles(kernel: tpu_compiler.CompiledKernel) -> bool:
  shape = tpu_compiler.root_of(kernel.module).shape
  parts = shape.tuple_shapes or [shape]
  return kernel.window is not None or any(part.dimensions for part in parts)


def _each_once(kernels: list[tpu_compiler.CompiledKernel]
               ) -> tuple[list[SourceKernel], list[str]]:
  """(kernels with different graphs, messages of those without features)."""
  distinct, faults, uses = {}, [], collections.Counter()
  for compiled in kernels:
    name = compiled.module.name
    uses[name] += 1
    if uses[name] > 1:
      name += f' ({uses[name]})'
    try:
      made = source_kernel(compiled, name)
    except UserError as error:
      faults.append(str(error))
      continue
    kernel = made.kernel
    key = (kernel.node_feat.tobytes(), kernel.node_opcode.tobytes(),
           kernel.edge_index.tobytes(), compiled.window, made.in_open_loop)
    if key in distinct:
      copies = distinct[key].copies + made.copies
      made = dataclasses.replace(distinct[key], copies=copies)
    distinct[key] = made
  return list(distinct.values()), faults


def source_kernel(compiled: tpu_compiler.CompiledKernel,
                  name: str) -> SourceKernel:
  """A kernel with the compiler's tile, if that is known; or a UserError."""
  nodes = list(protos.nodes(compiled.module))
  for node in nodes:
    if len(node.shape.dimensions) > schema.MAX_DIMS:
      raise UserError(
          f'{name}: {node.name} has {len(node.shape.dimensions)} dimensions; '
          f'features have columns for {schema.MAX_DIMS}, so this kernel cannot '
          'be ranked')
  unknown = sorted({node.opcode for node in nodes} - set(schema.OPCODES))
  notes = [f'the model does not know what {shortened(unknown)} does: no '
           'number of the data set stands for it'] if unknown else []
  arrays, none = features.module_arrays(compiled.module), np.zeros(0, np.int64)
  kernel = Kernel(
      name, arrays.node_feat, arrays.node_opcode, arrays.edge_index,
      np.zeros((0, len(schema.CONFIG_FEATURES)), np.float32), none, none)
  window = compiled.window
  if window is not None:
    kernel, more = _with_window(kernel, window)
    notes += more
  return SourceKernel(
      kernel, compiled.runs, tuple(notes), FROM_COMPILER, compiled.op_name,
      window and window.cycles, in_open_loop=compiled.in_open_loop)


def _with_window(kernel: Kernel,
                 window: tpu_compiler.Window) -> tuple[Kernel, list[str]]:
  """(the kernel with the compiler's tile, notes)."""
  grid = feature_loops.kernel_loops(kernel).grid
  bounds = window.output_bounds, window.kernel_bounds
  fits = grid.bounded and all(
      len(of) == len(most) and all(0 < b <= m for b, m in zip(of, most))
      for of, most in zip(bounds, grid.largest))
  if not fits:
    return kernel, [
        f"the compiler's tile, output {list(bounds[0])}, kernel "
        f'{list(bounds[1])}, belongs to another tensor than the one that is '
        'tiled here']
  return never_timed(kernel, features.config_features(
      window.kernel_bounds, window.output_bounds)[np.newaxis]), []
