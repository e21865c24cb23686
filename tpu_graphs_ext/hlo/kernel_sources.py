"""Files and functions that a user names -> kernels to rank.

  .npz                 the kernel; the default is among its tiles
  tuning data (.pb)    the kernels, with their runs
  HLO, StableHLO       compiled for a TPU; if a TPU's compiler has optimised
                       the program already, its kernels as they are
  module:function      of TensorFlow or JAX: lowered for shapes, then compiled
  SavedModel           its folder: the function that it serves, alike

Needs no TensorFlow, but for lowering its functions.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Callable, Optional

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel, readable
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import (
  features,
  libtpu,
  lowering,
  programs,
  protos,
  stored,
  subprocesses,
  tiles,
  tpu_compiler,
  tuning,
)

# Where the default tile of a kernel is from.
FROM_FILE = 'of the file'
FROM_COMPILER = "the TPU compiler's"
FROM_TIME = 'fastest by the formula, as no default is known'
_NOT_COMPILED = tpu_compiler.CompiledKernel(None, '', None, 1)
GRAPH = tuple(field.name for field in schema.TILE_FIELDS[:3])


@dataclasses.dataclass(frozen=True)
class SourceKernel:
  """A kernel, and attributes as in `tile_ranking.KernelRanking`."""
  kernel: Optional[Kernel]  # None if the data set's features cannot hold it.
  copies: int = 1
  notes: tuple = ()
  share: Optional[float] = None
  compiled: tpu_compiler.CompiledKernel = _NOT_COMPILED

  @property
  def name(self) -> str:
    return self.kernel.tile_id if self.kernel else tpu_compiler.root_of(
        self.compiled.module).name

  @property
  def cycles(self) -> Optional[int]:
    return self.compiled.window and self.compiled.window.cycles


@dataclasses.dataclass(frozen=True)
class Source:
  """Kernels of one file or function."""
  name: str  # As the user gave it.
  kernels: list[SourceKernel]  # Each graph once.
  notes: list[str]  # How they were made and what was left out.
  faults: list[str]  # A message for each kernel that cannot be ranked.
  tpu: str = ''  # The generation to rank its tiles for; '': the model's.
  program: Optional[programs.Program] = None  # From which `compiled` has them.


def read_source(source: Any, shapes: Any = '', tpu: str = schema.DEFAULT_TPU,
                jax_python: str = '',
                progress: subprocesses.Progress = None) -> Source:
  """Reads a file or lowers a function, and compiles programs; or a UserError.

  The arguments are those of `CostModel.rank`.
  """
  return compiled(open_source(source, shapes, tpu, jax_python), progress)


def tile_id(source: str, number: int, name: str) -> str:
  """An id of a program's kernel as in the data set: what stands before the last
  underscore is the program."""
  place, _, function = os.path.basename(source.rstrip('/')).partition(':')
  program = '_'.join(filter(None, [place.lstrip('.').split('.')[0], function]))
  kernel = re.sub('[^0-9A-Za-z.]+', '-', name)[:80]
  return re.sub(r'[^\w-]', '_', program) + f'_{number:03}-{kernel}'


def is_program(source: Any) -> bool:
  """Whether it is a path, a function, its name, or lowered by `jax.jit`."""
  return (isinstance(source, (str, os.PathLike)) or callable(source)
          or hasattr(source, 'compiler_ir'))


def open_source(source: Any, shapes: Any = '', tpu: str = schema.DEFAULT_TPU,
                jax_python: str = '') -> Source:
  """The part of `read_source` before the compiler, which takes longest."""
  # What is wrong in the names is said before anything is lowered.
  tpu = libtpu.generation(tpu)
  if isinstance(source, os.PathLike):
    source = os.fspath(source)
  if not is_program(source):
    raise UserError('a program must be a file, a function, its name as module:'
                    'function, or what jax.jit(function).trace(...) returned; '
                    f'got {type(source).__name__}')
  _require_text(source, shapes)
  if not isinstance(source, str) or lowering.names_function(source):
    libtpu.library()
    name = source if isinstance(source, str) else getattr(
        source, '__name__', type(source).__name__)
    module = protos.as_module(lowered(source, shapes, jax_python))
    platforms = getattr(
        getattr(source, '_lowering', None), '_platforms', None) or ['tpu']
    notes = [] if 'tpu' in platforms else [
        f'lowered for {", ".join(platforms)}, for which JAX may write other '
        'operations: give what jax.jit(f).trace(...) returns instead']
    return Source(name, [], notes, [], tpu, programs.of_module(module))
  path = os.path.expanduser(source)
  if not os.path.exists(path):
    raise UserError(f'{source}: no such file; a function is named as '
                    'module:function')
  if lowering.is_saved_model(path):
    libtpu.library()
    module = protos.as_module(subprocesses.lower_named(path, shapes or ''))
    return Source(source, [], [], [], tpu, programs.of_module(module))
  if path.endswith('.npz'):
    return Source(source, [SourceKernel(readable(Kernel.load(path), path))],
                  [], [], tpu)
  content = files.read_file(path, unpack=True)
  if tuning.has_runs(content):
    return Source(source, list(map(
        SourceKernel, tuning.read_tile_kernels(path))), [], [], tpu)
  program = programs.read(source, content, jax_python)
  if program.optimized is None:
    libtpu.library()
  return Source(source, [], [], [], tpu, program)


def compiled(source: Source, progress: subprocesses.Progress = None) -> Source:
  """The kernels, with notes on what was left out; or a UserError."""
  program, notes = source.program, []
  if program is None:
    return source
  if program.optimized is None:
    notes.append(f'compiled for a TPU {source.tpu} by libtpu')
    devices = program.replicas * program.partitions
    if devices > 1:
      notes[0] += (f', for {devices} devices ({program.partitions} partitions, '
                   f'{program.replicas} replicas): the kernels of each')
    if b'_platform_index' in program.content:  # Of `jax.export`.
      notes.append('exported for several platforms, and operations count once '
                   'for each: export it for platforms=["tpu"] alone')
  elif not protos.is_for_tpu(program.optimized):
    notes.append("not known to be a TPU's: nothing in it says what compiler "
                 'optimised it')
  try:
    result = tpu_compiler.compile_program(program, source.tpu, progress)
  except UserError as error:
    raise UserError('; '.join(
        [f'{source.name}: {error}', *source.notes])) from error
  return dataclasses.replace(_from_compiled(
      source.name, result, [*notes, *source.notes]), tpu=source.tpu)


def open_all(names: Sequence[str], shapes: str, tpu: str,
             jax_python: str) -> list[Source]:
  """`open_source` for each; what is wrong becomes a fault of that source."""
  return [tried(name, open_source, name, shapes, tpu, jax_python)
          for name in names]


def tried(name: str, function: Callable, *arguments: Any) -> Any:
  """What a function returns; of a UserError a source with that fault."""
  try:
    return function(*arguments)
  except UserError as error:
    return Source(name, [], [], [str(error)])


@contextlib.contextmanager
def compiling(opened: Sequence[Source], progress: subprocesses.Progress = None
              ) -> Iterator[list[Future[Source]]]:
  """The sources, compiled beside what is done with them; see `compiled`.

  Faults become those of the source. Leaving ends the compiler.
  """
  with subprocesses.waiting(1) as pool:
    yield [pool.submit(tried, each.name, compiled, each, progress)
           for each in opened]


def lowered(function: Any, arguments: Any, jax_python: str = '') -> bytes:
  """A function of JAX or TensorFlow as a serialized `HloModuleProto`.

  One that is named is lowered in another process. `arguments` are their shapes
  as text; for a named function the name of another that returns them; or those
  of `lowering.lower`.
  """
  _require_text(function, arguments)
  if isinstance(function, str):
    lowering.require_names(function, arguments or '', jax_python)
    return subprocesses.lower_named(function, arguments or '', jax_python)
  if isinstance(arguments, str):
    arguments = lowering.arguments_of_shapes(function, arguments)
  return lowering.lower(function, arguments)


def _require_text(source: Any, shapes: Any) -> None:
  if isinstance(source, str) and not isinstance(shapes, (str, type(None))):
    raise UserError(
        f'shapes={shapes!r:.100}: goes with a function, or as text with a '
        "function's name; how many tiles to return is top=")


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


def _from_compiled(name: str, program: tpu_compiler.CompiledProgram,
                   notes: list[str]) -> Source:
  """Adds to the notes what was left out."""
  kernels = [kernel for kernel in program.kernels if _has_tiles(kernel)]
  if program.pallas:
    written = (f'{shortened(program.pallas)}: written in Pallas, so the author '
               "(you, a library or the compiler) chooses the blocks")
    if not kernels:
      raise UserError(f'{name}: has no kernel to rank. {written}. If it is one '
                      'matrix product, rank its blocks: --blocks usual with a '
                      'plain function of that product')
    notes.append(written)
  scalars = len(program.kernels) - len(kernels)
  left_out = {**program.passed_over, (
      'scalar operation' if scalars == 1 else 'scalar operations'): scalars}
  counts = [f'{count} {of}' for of, count in left_out.items() if count]
  if counts:
    notes.append('passed over, because they have no tiles, so in no share of '
                 'time: ' + ', '.join(counts))
  distinct, faults = _each_once(kernels)
  if not distinct and not faults:
    notes.append('it has no kernel with tiles')
  total = sum((kernel.cycles or 0) * kernel.copies for kernel in distinct)
  if total:  # The kernels with most estimated time first.
    distinct = sorted((dataclasses.replace(
        kernel, share=kernel.cycles and kernel.cycles * kernel.copies / total)
                       for kernel in distinct),
                      key=lambda kernel: -(kernel.share or 0))
    if untimed := [each.name for each in distinct if each.share is None]:
      notes.append('in no share of time, because the compiler estimates none: '
                   + shortened(untimed, 8))
  if program.conditionals:
    notes.append(f'conditionals: {program.conditionals}; all branches count')
  if program.open_loops:
    share = sum(kernel.share or 0 for kernel in distinct
                if kernel.compiled.in_open_loop)
    notes.append('loops with an unknown number of trips: '
                 f'{program.open_loops}; their kernels, marked *, count once: '
                 f'{100 * share:.1f} % of the time, or more')
  return Source(name, distinct, notes, [f'{name}: {fault}' for fault in faults])


def _has_tiles(kernel: tpu_compiler.CompiledKernel) -> bool:
  shape = tpu_compiler.root_of(kernel.module).shape
  return kernel.window is not None or any(
      part.dimensions for part in shape.tuple_shapes or [shape])


def _each_once(kernels: list[tpu_compiler.CompiledKernel]
               ) -> tuple[list[SourceKernel], list[str]]:
  """(kernels with different graphs, messages of those without features)."""
  distinct, faults, uses = {}, [], collections.Counter()
  for compiled in kernels:
    name = tpu_compiler.root_of(compiled.module).name  # Not the program's.
    uses[name] += 1
    name += f' ({uses[name]})' if uses[name] > 1 else ''
    try:
      made = source_kernel(compiled, name)
      key = (*(getattr(made.kernel, field).tobytes() for field in GRAPH),
             compiled.window, compiled.in_open_loop)
    except UserError as error:
      faults.append(str(error))
      made, key = SourceKernel(None, compiled.runs, compiled=compiled), name
    if key in distinct:
      copies = distinct[key].copies + made.copies
      made = dataclasses.replace(distinct[key], copies=copies)
    distinct[key] = made
  return list(distinct.values()), faults


def source_kernel(compiled: tpu_compiler.CompiledKernel,
                  name: str) -> SourceKernel:
  """A kernel as features, with the compiler's tile if any; or a UserError."""
  nodes = list(protos.nodes(compiled.module))
  for node in nodes:
    if len(node.shape.dimensions) > schema.MAX_DIMS:
      raise UserError(f'{name}: {node.name} has {len(node.shape.dimensions)} '
                      'dimensions; features have columns for '
                      f'{schema.MAX_DIMS}, so this kernel cannot be ranked')
  opcodes = sorted({node.opcode for node in nodes} - set(schema.OPCODES))
  types = sorted({protos.TYPE_NAMES.get(node.shape.element_type, 'new types')
                  for node in nodes} - set(schema.ELEMENT_TYPES))
  small = [name for name in types if tiles.listed_type(name)]
  large = [name for name in types if name not in small]
  notes = [f'{what}: no number of the data set stands for it' for what in (
      opcodes and f'the model does not know what {shortened(opcodes)} does',
      small and f'elements of {shortened(small)} count as S8',
      large and f'elements of {shortened(large)} count as 4 bytes each, so '
      'bytes, analytic time and legal tiles are off') if what]
  window, none = compiled.window, np.zeros(0, np.int64)
  arrays = features.module_arrays(
      _as_tiled(compiled.module, len(window.output_bounds)) if window
      else compiled.module)
  kernel = Kernel(name, *arrays[:3], np.zeros(
      (0, len(schema.CONFIG_FEATURES)), np.float32), none, none)
  if not window and tpu_compiler.root_of(compiled.module).backend_config:
    window = (), ()  # One tile, as real reshapes have.
    notes.append('the compiler cuts it into no tiles')
  if window:
    kernel = never_timed(kernel, features.config_features(
        window[1], window[:1]))
  return SourceKernel(kernel, compiled.runs, tuple(notes), compiled=compiled)


def _as_tiled(module: protos.HloModuleProto,
              rank: int) -> protos.HloModuleProto:
  """The module with results of `rank` dimensions, as the compiler tiles them.

  Beside windows it tiles what they slide over, such as a softmax's rows. A
  result that is the same with more dimensions, of size 1, is given without.
  """
  tiled = next((node.shape for node in protos.nodes(module)
                if node.opcode == 'reduce-window'
                and len(node.shape.dimensions) == rank), None)
  root = tpu_compiler.root_of(module).shape
  wider = [_dims_of(shape) for shape in root.tuple_shapes or [root]
           if tiled and len(shape.dimensions) > rank
           and stored.sizes_of(shape) == stored.sizes_of(tiled)]
  if not wider:
    return module
  changed = protos.HloModuleProto()
  changed.CopyFrom(module)
  for node in protos.nodes(changed):
    if _dims_of(node.shape) in wider:
      node.shape.dimensions[:] = tiled.dimensions
      node.shape.layout.minor_to_major[:] = tiled.layout.minor_to_major
  return changed


def _dims_of(shape: Any) -> tuple[list[int], list[int]]:
  return list(shape.dimensions), list(shape.layout.minor_to_major)
