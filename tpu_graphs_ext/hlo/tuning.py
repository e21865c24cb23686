"""Tuning files (.pb) -> kernels and layout graphs -> .npz files.

A `TuningData` file holds many modules, a `ModuleTuningData` file one; which of
the two a file is, and whether its runs chose tile sizes or layouts, is told
from its content. Runs are kept, dropped and normalised by the rules of the
data set's own encoder:

- a tile run counts if it is no error and took more than 1 ns; a kernel needs
  two such runs, bounds on every run, and a default run that counts, whose time
  is the normalizer of all runs of that module name;
- a layout run counts if it is no error and has a profile; without a default
  run among them, none counts.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import os
import re
from collections.abc import Sequence
from typing import Optional, Union

import numpy as np
from google.protobuf.message import DecodeError

from tpu_graphs_ext import files
from tpu_graphs_ext.data import npz, schema
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import features, protos

_log = logging.getLogger(__name__)

MIN_RUNS = 2  # Fewer leave nothing to rank.
_MAX_LAYOUT_VALUES = 1 << 28  # A gigabyte.
_MAX_NAME = 180  # Characters of a program's name that a file name keeps.


@dataclasses.dataclass(frozen=True, eq=False)
class LayoutGraph:
  """A whole program and its measured layouts; see `schema.LAYOUT_FIELDS`.

  Attributes:
    name: file name without ending.
    node_feat: float32 [nodes, 140].
    node_opcode: uint8 [nodes].
    edge_index: int64 [edges, 2], rows (consumer, producer).
    node_config_feat: float32 [configs, configurable nodes, 18].
    node_config_ids: int64 [configurable nodes].
    config_runtime: int64 [configs], ns.
    node_splits: int64 [1, splits].
  """
  name: str
  node_feat: np.ndarray
  node_opcode: np.ndarray
  edge_index: np.ndarray
  node_config_feat: np.ndarray
  node_config_ids: np.ndarray
  config_runtime: np.ndarray
  node_splits: np.ndarray

  def save(self, folder: str) -> str:
    """Writes `<folder>/<name>.npz`, whole or not at all; returns its path."""
    path = os.path.join(folder, self.name + '.npz')
    arrays = {field.name: getattr(self, field.name)
              for field in schema.LAYOUT_FIELDS}
    with files.new_file(path) as file:
      np.savez_compressed(file, **arrays)
    return path


# ----------------------------------------------------------- files


def featurize_file(path: str, out_dir: str) -> list:
  """Writes one .npz a kernel or layout graph of a tuning file.

  Args:
    path: `TuningData` or `ModuleTuningData`, serialized.
    out_dir: folder to write to, made if missing.

  Returns:
    Paths written, in the file's order.

  Raises:
    UserError: the file cannot be read, is something else or is damaged, holds
      nothing to write, or the folder cannot be written. Nothing is written
      before the whole file has been understood.
  """
  out_dir = files.require_path('--out', out_dir)
  modules, stem = _read(path)
  try:
    results = [*tile_kernels(modules, stem), *layout_graphs(modules, stem)]
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  if not results:
    raise UserError(f'{path}: none of its {len(modules.modules)} modules has '
                    f'{MIN_RUNS} runs that can be used; nothing was written')
  _require_own(out_dir, results)
  _warn_of_unknown_opcodes(path, modules)
  try:
    os.makedirs(out_dir, exist_ok=True)
    return [result.save(out_dir) for result in results]
  except OSError as error:
    raise UserError(f'{out_dir}: cannot be written ({error}); choose another '
                    'folder') from error


def _require_own(out_dir: str, results: list) -> None:
  """Raises a UserError where a file in the way holds other values.

  Whoever wrote it, nothing is lost by replacing equal arrays.
  """
  for result in results:
    tile = isinstance(result, Kernel)
    path = os.path.join(out_dir, (result.tile_id if tile else result.name)
                        + '.npz')
    if not os.path.lexists(path):
      continue
    arrays = ({key: getattr(result, name)
               for name, key in STORED_NAMES.items()} if tile else
              {field.name: getattr(result, field.name)
               for field in schema.LAYOUT_FIELDS})
    if not _holds(path, arrays):
      raise UserError(
          f'{path}: does not hold what featurize would write, so it is not '
          'replaced; move it away, or choose another folder')


def _holds(path: str, arrays: dict[str, np.ndarray]) -> bool:
  """Whether an .npz file has these arrays and no others."""
  try:
    if npz.array_names(path) != set(arrays):
      return False
    found, _ = npz.read_arrays(
        path, list(arrays), max(array.nbytes for array in arrays.values())
        + npz.MAX_BYTES)
  except npz.DamagedError:
    return False
  return all(name in found and found[name].dtype == array.dtype
             and np.array_equal(found[name], array)
             for name, array in arrays.items())


def _warn_of_unknown_opcodes(path: str, modules) -> None:
  """Names opcodes that the table does not have; they get the number 0."""
  unknown = collections.Counter(
      instruction.opcode for data in modules.modules
      for computation in data.module.computations
      for instruction in computation.instructions
      if instruction.opcode not in schema.OPCODES)
  if unknown:
    named = shortened([f'{name[:40]!r} ({count:,} nodes)'
                       for name, count in unknown.most_common()])
    _log.warning(
        '%s: %d opcodes are not in the table and are written as 0, as the '
        'baseline does: %s', path, len(unknown), named)


def read_tile_kernels(path: str) -> list:
  """The tile kernels of a tuning file, as `tile_kernels` has them.

  Raises:
    UserError: the file cannot be read, is something else or is damaged, or
      has no tile kernel.
  """
  modules, stem = _read(path)
  try:
    kernels = tile_kernels(modules, stem)
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  if not kernels:
    raise UserError(f'{path}: none of its {len(modules.modules)} modules has '
                    f'{MIN_RUNS} tile-size runs that can be used')
  return kernels


def _read(path: str) -> tuple:
  """(TuningData, file name without ending if it has one module, else '')."""
  serialized = _content(path)
  found = data_in(path, serialized)
  if found is not None:
    return found
  module = _parsed(protos.HloModuleProto, serialized)
  if module is not None and _is_module(module):
    raise UserError(f'{path}: holds an HLO module, but no measured runs; give '
                    'a TuningData or ModuleTuningData protobuf')
  raise UserError(
      f'{path}: its {len(serialized)} bytes are no whole TuningData or '
      'ModuleTuningData protobuf; the file is cut short, damaged or of another '
      'kind: copy it again')


def data_in(path: str, serialized: bytes) -> Optional[tuple]:
  """What `_read` gives, of a file's content; None if it is something else."""
  single = _parsed(protos.ModuleTuningData, serialized)
  if single is not None and _is_module(single.module):
    stem = os.path.splitext(os.path.basename(path))[0]
    return protos.TuningData(modules=[single]), stem
  several = _parsed(protos.TuningData, serialized)
  if several is not None and any(_is_module(m.module)
                                 for m in several.modules):
    return several, ''
  return None


def _content(path: str) -> bytes:
  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      serialized = file.read(protos.MAX_FILE_BYTES + 1)
  except (OSError, ValueError) as error:
    raise UserError(f'{path}: cannot be read ({error})') from error
  if len(serialized) > protos.MAX_FILE_BYTES:
    raise UserError(f'{path}: has more than {protos.MAX_FILE_BYTES:,} bytes, '
                    'the most that a tuning file may have; split it')
  return serialized


def _parsed(message_class, serialized: bytes):
  try:
    return message_class.FromString(serialized)
  except DecodeError:
    return None


def _is_module(module) -> bool:
  """Whether this is HLO, not other bytes that happen to parse as such."""
  return any(instruction.opcode for computation in module.computations
             for instruction in computation.instructions)


# ----------------------------------------------------------- tiles


def tile_kernels(tuning_data: Union[protos.TuningData, bytes],
                 program: str = '') -> list:
  """The kernels of a file whose runs chose tile sizes.

  Args:
    tuning_data: `TuningData`, as message or serialized. Modules with layout
      runs are passed over.
    program: name for the tile ids; not given: each module's own name. The
      tile id is `<program>_<16 hex digits of the fingerprint>`.

  Returns:
    `Kernel`s in the file's order. Runs of modules that have the same tile id
    and graph are one kernel. Modules without enough runs are left out, and
    reported once through `logging`.

  Raises:
    UserError: the data is damaged, or a kernel has no default run that counts.
  """
  modules = [m for m in _as_tuning_data(tuning_data).modules
             if not _is_layout(m)]
  defaults, kernels, left_out = {}, {}, []
  for data in modules:
    default = next((run for run in _counting(data) if run.is_default), None)
    if default is not None and _all_have_bounds(data):
      defaults[data.module.name] = default.profile.compute_time_ns
  for data in modules:
    name = data.module.name
    runs = _counting(data)
    if len(runs) < MIN_RUNS or not _all_have_bounds(data):
      left_out.append(name or '(no name)')
      continue
    if not any(run.is_default for run in runs):
      raise UserError(
          f'module {name!r}: none of its {len(runs)} runs that count is the '
          'default, so that times cannot be normalised; measure the default')
    kernel = _kernel(data, runs, defaults[name], program)
    kernels.setdefault(kernel.tile_id, []).append(kernel)
  if left_out:
    _log.warning(
        'left out %d of %d modules, which have fewer than %d runs that count '
        'or runs without tile sizes: %s', len(left_out), len(modules),
        MIN_RUNS, ' '.join(left_out[:10]) + ' ...' * (len(left_out) > 10))
  return [_joined(parts) for parts in kernels.values()]


def _as_tuning_data(tuning_data):
  if isinstance(tuning_data, protos.TuningData):
    return tuning_data
  parsed = _parsed(protos.TuningData, tuning_data)
  if parsed is None:
    raise UserError('not a serialized TuningData protobuf')
  return parsed


def _is_layout(data) -> bool:
  return bool(data.config_index_to_node) or any(
      run.HasField('module_config') for run in data.runs)


def _counting(data) -> list:
  """Tile runs that count."""
  return [run for run in data.runs
          if not run.error and run.profile.compute_time_ns > 1]


def _all_have_bounds(data) -> bool:
  """True also for a reshape, whose runs have bounds for no dimension."""
  return all(run.op_config.HasField('tile_size_config') for run in data.runs)


def _kernel(data, runs: Sequence, normalizer_ns: int, program: str) -> Kernel:
  graph = features.module_arrays(data.module)
  configs = [run.op_config.tile_size_config for run in runs]
  return Kernel(
      tile_id=_tile_id(program or data.module.name, data.fingerprint),
      node_feat=graph.node_feat, node_opcode=graph.node_opcode,
      edge_index=graph.edge_index,
      config_feat=np.stack([
          features.config_features(c.kernel_bounds, c.output_bounds,
                                c.input_bounds) for c in configs]),
      runtime_ns=np.array([run.profile.compute_time_ns for run in runs],
                          np.int64),
      normalizer_ns=np.full(len(runs), normalizer_ns, np.int64))


def _joined(parts: Sequence[Kernel]) -> Kernel:
  """One kernel with the runs of all."""
  first, *others = parts
  if not others:
    return first
  same = all(np.array_equal(getattr(first, name), getattr(other, name))
             for name in ('node_feat', 'node_opcode', 'edge_index')
             for other in others)
  if not same:
    raise UserError(f'two different modules have the tile id {first.tile_id}; '
                    'give them different names or fingerprints')
  return dataclasses.replace(first, **{
      name: np.concatenate([getattr(part, name) for part in parts])
      for name in ('config_feat', 'runtime_ns', 'normalizer_ns')})


def _tile_id(program: str, fingerprint: int) -> str:
  digits = f'{fingerprint:016x}'
  program = _file_name(program)
  if program.endswith('_' + digits):  # A file that is named like its kernel.
    return program
  return f'{program}_{digits}'


def _file_name(name: str) -> str:
  """A name without characters that do not belong in file names."""
  safe = re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:_MAX_NAME]
  return safe.lstrip('.') or 'module'


# --------------------------------------------------------- layouts


def layout_graphs(tuning_data: Union[protos.TuningData, bytes],
                  name: str = '') -> list:
  """The graphs of a file whose runs chose layouts.

  Args:
    tuning_data: `TuningData`, as message or serialized. Modules with tile
      runs are passed over.
    name: name of the only graph; not given: `<module>_<fingerprint>`.

  Returns:
    `LayoutGraph`s in the file's order. One whose runs do not count has no
    configurations, which is reported through `logging`.

  Raises:
    UserError: the data is damaged.
  """
  return [_layout_graph(data, name)
          for data in _as_tuning_data(tuning_data).modules if _is_layout(data)]


def _layout_graph(data, name: str) -> LayoutGraph:
  module = data.module.name
  graph = features.module_arrays(data.module)
  nodes = list(data.config_index_to_node)
  if not nodes or max(nodes) >= len(graph.node_opcode):
    raise UserError(
        f'module {module!r}: config_index_to_node must name at least one of '
        f'its {len(graph.node_opcode)} nodes and no other; its largest is '
        f'{max(nodes, default="missing")}')
  runs = [run for run in data.runs if not run.error
          and run.HasField('module_config') and run.HasField('profile')]
  if not any(run.is_default for run in runs):
    _log.warning('module %s has no default run that counts: its %d runs were '
                 'left out', module, len(data.runs))
    runs = []
  times = [run.profile.compute_time_ns for run in runs]
  if any(time < 1 for time in times):
    raise UserError(f'module {module!r}: the time of a run without error must '
                    f'be at least 1 ns; found {min(times)}')
  return LayoutGraph(
      name=_file_name(name) if name else _tile_id(module, data.fingerprint),
      node_feat=graph.node_feat, node_opcode=graph.node_opcode,
      edge_index=graph.edge_index,
      node_config_feat=_layouts(module, runs, len(nodes)),
      node_config_ids=np.array(nodes, np.int64),
      config_runtime=np.array(times, np.int64),
      node_splits=graph.node_splits)


def _layouts(module: str, runs: Sequence, num_nodes: int) -> np.ndarray:
  """float32 [runs, nodes, 18]: the layouts asked for; -1 where none."""
  for run in runs:
    count = len(run.module_config.layout_config.nodes)
    if count != num_nodes:
      raise UserError(f'module {module!r}: a run has layouts for {count} '
                      f'nodes; config_index_to_node names {num_nodes}')
  groups = list(schema.LAYOUT_CONFIG_GROUPS.values())
  shape = len(runs), num_nodes, len(schema.LAYOUT_CONFIG_FEATURES)
  if math.prod(shape) > _MAX_LAYOUT_VALUES:
    raise UserError(f'module {module!r}: the layouts of {len(runs):,} runs of '
                    f'{num_nodes:,} nodes do not fit into memory; give fewer '
                    'runs')
  layouts = np.full(shape, schema.LAYOUT_PADDING, np.float32)
  for layout, run in zip(layouts, runs):
    for row, node in zip(layout, run.module_config.layout_config.nodes):
      if len(node.tensors) > len(groups):
        raise UserError(
            f'module {module!r}: a node has layouts for {len(node.tensors)} '
            f'tensors; at most {len(groups)} have columns')
      for columns, tensor in zip(groups, node.tensors):
        dims = tensor.dims[:schema.MAX_DIMS]
        row[columns][:len(dims)] = dims
  return layouts
