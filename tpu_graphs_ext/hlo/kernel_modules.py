"""Writes kernels as programs with a tile each, to be timed on a TPU.

For each kernel the default tile and the model's first ones, in two forms:
NAME.pb, an optimised HLO module of the kernel alone, and NAME.tpu, what libtpu
compiled it to, which run_scripts/time_modules.py runs. modules.json lists them.

The compiler assigns layouts and fuses anew unless a module has a schedule, the
mark of one that has been through all that. With one it only chooses the
kernel's tile.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import (
  kernel_sources,
  libtpu,
  lowering,
  protos,
  subprocesses,
  tiles,
  tpu_compiler,
)

_AT_ONCE = 8  # Modules that a process compiles: it starts in half a second.
_MOST_PROCESSES = 4  # Of almost a gigabyte each.


def write(folder: str, sources: Sequence[kernel_sources.Source],
          rankings: Sequence[Any], tpu: str,
          processes: int = 1) -> tuple[int, list[str]]:
  """Compiles each tile, reads it back, and writes those that stayed.

  `rankings` are the `tile_ranking.SourceRanking`s of the sources. Compiles in
  as many `processes`, but in four at most.

  Returns how many, and a message for each tile that the compiler refuses or
  changes. Raises UserError if the folder exists, or nothing can be written.
  """
  rows, modules, number = [], [], itertools.count()
  for source, ranking in zip(sources, rankings):
    by_name = {kernel.name: kernel for kernel in source.kernels}
    for kernel in ranking.kernels:
      tile_id = kernel_sources.tile_id(source.name, next(number), kernel.name)
      for row, module in _tiles(by_name[kernel.name], kernel):
        rows.append({**row, 'module': f'{len(rows):03}_{row["module"]}',
                     'tile_id': tile_id})
        modules.append(module)
  if not rows:
    advice = '; give a program, not an .npz' if any(
        source.name.endswith('.npz') for source in sources) else ''
    raise UserError('--modules: no kernel here has a tile of the TPU compiler '
                    f'and others to choose from{advice}')
  kept, faults, contents = [], [], {}
  for row, module, (optimized, executable, reason) in zip(
      rows, modules, _compiled(modules, tpu, processes)):
    fault = reason or _changed(row, optimized)
    if fault:
      faults.append(f'{row["kernel"]}, tile {row["output_bounds"]} '
                    f'{row["kernel_bounds"]}: {fault}')
      continue
    contents[row['module']] = module.SerializeToString()
    contents[row['module'].removesuffix('.pb') + '.tpu'] = executable
    kept.append(row)
  contents['modules.json'] = json.dumps(
      {'tpu': libtpu.generation(tpu), 'modules': kept}, indent=1).encode()
  try:
    with files.new_folder(files.full_path(folder), lambda: files.require_new(
        '--modules', folder)) as temporary:
      for name, content in contents.items():
        files.write_file(os.path.join(temporary, name), content)
  except OSError as error:
    raise files.cannot_be_written(folder, error) from error
  return len(kept), faults


def _compiled(modules: Sequence[Any], tpu: str,
              processes: int) -> Iterator[tuple[bytes, bytes, str]]:
  """Of each module what `subprocesses.compile_all` returns."""
  calls = [(module.SerializeToString(), 'hlo', tpu_compiler.compile_options(
      shape=module.host_program_shape), True) for module in modules]
  compiled = functools.partial(
      subprocesses.compile_all, libtpu.library(), libtpu.topology_of(tpu))
  with subprocesses.waiting(min(processes, _MOST_PROCESSES)) as pool, tqdm(
      total=len(calls), desc='modules', unit='module', disable=None) as bar:
    for results in pool.map(compiled, [
        calls[first:first + _AT_ONCE]
        for first in range(0, len(calls), _AT_ONCE)]):
      yield from results
      bar.update(len(results))


def _tiles(source: kernel_sources.SourceKernel, kernel: Any):
  """(row of the list, module) of the default and of the first choices."""
  if kernel.default_from != kernel_sources.FROM_COMPILER:
    return  # No choice, no tile, or one of another tensor.
  default = source.compiled.window[:2]
  places = {default: 0}  # In order of place; 0: the default.
  for choice in kernel.choices:
    places.setdefault(
        (choice.tile.output_bounds, choice.tile.kernel_bounds), choice.place)
  for bounds, place in places.items():
    module = with_tile(source.compiled.module, *bounds)
    shape = module.host_program_shape
    name = re.sub(r'[^\w.-]', '_', kernel.name)[:80]
    yield {
        'module': f'{name}.{place or "default"}.pb', 'kernel': kernel.name,
        'operation': kernel.op_name, 'is_default': bounds == default,
        'output_bounds': list(bounds[0]), 'kernel_bounds': list(bounds[1]),
        'arguments': list(map(_tensor, shape.parameters)), 'results': list(
            map(_tensor, shape.result.tuple_shapes or [shape.result]))}, module


def _tensor(shape) -> dict[str, Any]:
  """Type, sizes and layout, as JAX names them."""
  name = protos.TYPE_NAMES.get(shape.element_type, '').lower()
  return {'dtype': lowering.NUMPY_NAMES.get(name, name),
          'shape': list(shape.dimensions),
          'major_to_minor': list(shape.layout.minor_to_major)[::-1]}


def _changed(row: dict[str, Any], optimized: bytes) -> str:
  """What became of a tile, by the program that was compiled; '': it stayed."""
  windows = [kernel.window for kernel in tpu_compiler.kernels_of(
      tpu_compiler.parse_optimized(optimized)).kernels]
  wanted = tuple(row['output_bounds']), tuple(row['kernel_bounds'])
  if len(windows) == 1 and windows[0] and windows[0][:2] == wanted:
    return ''
  return f'the compiler made {[each and each[:2] for each in windows]} of it'


# --- One kernel ---------------------------------------------------------------


def with_tile(kernel, output_bounds: Sequence[int],
              kernel_bounds: Sequence[int] = ()) -> protos.HloModuleProto:
  """The kernel alone as an optimised module, its tile set to these bounds.

  All tensors are in main memory. The compiler keeps the tile, and estimates
  nothing. Bounds are those of `tpu_compiler.Window`.

  It must have a tile of the compiler's.
  """
  module = renumbered(kernel)
  root = tpu_compiler.root_of(module)
  config = tpu_compiler.config_of(root)
  window = config['window_config']
  turns = root.opcode == 'copy' and window.get('input_window_bounds')
  for name in ('estimated_cycles', 'iteration_bounds', 'input_window_bounds'):
    window.pop(name, None)
  if turns:
    window['input_window_bounds'] = _read_bounds(module, root, output_bounds)
  window['output_window_bounds'] = list(map(str, output_bounds))
  window['kernel_window_bounds'] = list(map(str, kernel_bounds))
  for name in ('used_scoped_memory_configs', 'retry_config'):
    config.pop(name, None)
  root.backend_config = json.dumps(config).encode()
  complete(module)
  return module


def _read_bounds(module, copy, output_bounds: Sequence[int]) -> list[str]:
  """Bounds of what a copy reads: the same elements in the other layout."""
  operand = protos.by_id(protos.nodes(module))[copy.operand_ids[0]]
  sizes, units = copy.shape.dimensions, []
  for layout in copy.shape.layout, operand.shape.layout:
    dims = tiles.physical_dims(layout.minor_to_major, len(sizes))
    units.append(dict(zip(dims, tiles.layout_units([sizes[d] for d in dims]))))
  elements = {dim: min(bound * unit, sizes[dim]) for bound, (dim, unit) in zip(
      output_bounds, units[0].items())}
  return [str(-(-elements[dim] // unit)) for dim, unit in units[1].items()]


def complete(module) -> None:
  """Makes a kernel's module a program with a schedule, all in main memory."""
  for node in protos.nodes(module):
    for shape in (node.shape, *node.shape.tuple_shapes):
      if shape.HasField('layout'):
        shape.layout.memory_space = 0
  fused = {called for node in protos.nodes(module) if node.opcode == 'fusion'
           for called in node.called_computation_ids}
  for computation in module.computations:
    _set_signature(computation)
    if computation.id not in fused:
      module.schedule.sequences[computation.id].instruction_ids[:] = [
          node.id for node in computation.instructions]
    if computation.id == module.entry_computation_id:
      module.host_program_shape.CopyFrom(computation.program_shape)


def renumbered(kernel):
  """The kernel with ids from 1 on, for XLA asks for unique ones."""
  module, ids = protos.HloModuleProto(), {}
  module.CopyFrom(kernel)
  for computation in module.computations:
    for node in computation.instructions:
      ids[node.id] = node.id = len(ids) + 1
    ids['c', computation.id] = computation.id = len(ids) + 1
  for computation in module.computations:
    computation.root_id = ids[computation.root_id]
    for node in computation.instructions:
      node.operand_ids[:] = [ids[i] for i in node.operand_ids]
      node.called_computation_ids[:] = [
          ids['c', i] for i in node.called_computation_ids]
      node.ClearField('control_predecessor_ids')  # The order among kernels.
  module.entry_computation_id = ids['c', module.entry_computation_id]
  return module


def _set_signature(computation) -> None:
  """Its `program_shape`, by its parameters and its root."""
  shape = computation.program_shape
  shape.Clear()
  for node in sorted(
      (n for n in computation.instructions if n.opcode == 'parameter'),
      key=lambda node: node.parameter_number):
    shape.parameters.add().CopyFrom(node.shape)
    shape.parameter_names.append(node.name)
  shape.result.CopyFrom(
      protos.by_id(computation.instructions)[computation.root_id].shape)
