"""Tuning files (.pb) -> kernels and layout graphs -> .npz files.

A `TuningData` file holds many modules, a `ModuleTuningData` file one, and their
runs chose tile sizes or layouts: the content says which. Runs count by the
rules of the data set's own encoder:

- A tile run counts if it has no error and took more than 1 ns. A kernel needs
  two such runs, bounds on every run, and a default run that counts; the
  default's time is the normalizer of all runs of that module name.
- A layout run counts if it has no error and has a profile. If the default run
  is not among them, none counts.
"""

from __future__ import annotations

import collections
import dataclasses
import filecmp
import logging
import math
import os
import re
import tempfile
from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import features, protos

_log = logging.getLogger(__name__)

MIN_RUNS = 2  # Fewer leave nothing to rank.
_MAX_LAYOUT_VALUES = 1 << 28  # A gigabyte.
_MAX_NAME = 180  # Characters of a program's name that a file name keeps.


@dataclasses.dataclass(frozen=True, eq=False)
class LayoutGraph:
  """A whole program and its measured layouts.

  `name` is the file's, without the ending. `schema.LAYOUT_FIELDS` has shapes,
  types and units of the arrays.
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
    with files.new_file(path) as file:
      np.savez_compressed(file, **{
          field.name: getattr(self, field.name)
          for field in schema.LAYOUT_FIELDS})
    return path


# --- Files --------------------------------------------------------------------


def featurize_file(path: str, out_dir: str) -> list[str]:
  """Writes one .npz for each kernel or layout graph of a tuning file.

  Args:
    path: serialized `TuningData` or `ModuleTuningData`.
    out_dir: folder to write to; made if missing.

  Returns:
    Paths written, in the file's order.

  Raises:
    UserError: the file cannot be read, is something else or damaged, or has no
      usable runs; or the folder cannot be written, or holds other results
      under the same names. Nothing is written before the whole file is read.
  """
  out_dir = files.require_path('--out', out_dir)
  results = _read(path, 'usable runs', tile_kernels, layout_graphs)
  written = []
  try:
    with tempfile.TemporaryDirectory() as fresh:
      for result in results:
        source = result.save(fresh)
        target = os.path.join(out_dir, os.path.basename(source))
        if os.path.lexists(target) and not (
            os.path.isfile(target)
            and filecmp.cmp(source, target, shallow=False)):
          raise UserError(
              f'{target}: does not hold what featurize would write, so it is '
              'not replaced; move it away, or choose another folder')
        written.append((source, target))
      os.makedirs(out_dir, exist_ok=True)
      for source, target in written:
        with open(source, 'rb') as file:
          files.write_file(target, file.read())
  except OSError as error:
    raise UserError(f'{out_dir}: cannot be written ({error}); choose another '
                    'folder') from error
  return [target for _, target in written]


def read_tile_kernels(path: str) -> list[Kernel]:
  """Reads the tile kernels of a tuning file; see `tile_kernels`.

  Raises:
    UserError: the file cannot be read, is something else or damaged, or has no
      tile kernel.
  """
  return _read(path, 'tile-size runs', tile_kernels)


def _read(path: str, wanted: str, *readers: Callable) -> list:
  """What the readers make of a file; names opcodes without a number."""
  serialized = protos.read_bytes(path)
  found = parse_tuning_data(path, serialized)
  if found is None:
    module = protos.parse(protos.HloModuleProto, serialized)
    if module is not None and protos.has_opcodes(module):
      raise UserError(f'{path}: holds an HLO module, but no measured runs; '
                      'give a TuningData or ModuleTuningData protobuf')
    raise UserError(
        f'{path}: its {len(serialized)} bytes are not a whole TuningData or '
        'ModuleTuningData protobuf; the file is cut short, damaged or of '
        'another kind: copy it again')
  modules = found[0].modules
  try:
    results = [result for read in readers for result in read(*found)]
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  if not results:
    raise UserError(
        f'{path}: none of its {len(modules)} modules has {MIN_RUNS} {wanted}')
  unknown = collections.Counter(
      node.opcode for data in modules for node in protos.nodes(data.module)
      if node.opcode not in schema.OPCODES)
  if unknown:
    named = shortened([f'{name[:40]!r} ({count:,} nodes)'
                       for name, count in unknown.most_common()])
    _log.warning(
        '%s: %d opcodes are not in the table and become 0, as in the '
        'baseline: %s', path, len(unknown), named)
  return results


def parse_tuning_data(path: str, serialized: bytes) -> Optional[tuple]:
  """(TuningData, the file's stem or ''); None for other content."""
  single = protos.parse(protos.ModuleTuningData, serialized)
  if single is not None and protos.has_opcodes(single.module):
    stem = os.path.splitext(os.path.basename(path))[0]
    return protos.TuningData(modules=[single]), stem
  several = protos.parse(protos.TuningData, serialized)
  if several is not None and any(protos.has_opcodes(data.module)
                                 for data in several.modules):
    return several, ''
  return None


# --- Tiles --------------------------------------------------------------------


def tile_kernels(tuning_data: protos.TuningData,
                 program: str = '') -> list[Kernel]:
  """The kernels whose runs chose tile sizes.

  Args:
    tuning_data: its modules with layout runs are skipped.
    program: name for the tile ids; by default each module's own. The tile id
      is `<program>_<16 hex digits of the fingerprint>`.

  Returns:
    `Kernel`s in the file's order, one for all modules with the same tile id and
    graph. Modules without enough runs are left out with one warning.

  Raises:
    UserError: the data is damaged, or a kernel has no default run that counts.
  """
  modules = [data for data in tuning_data.modules if not _is_layout(data)]
  defaults, kernels, left_out = {}, {}, []
  for data in modules:
    default = next((run for run in _counting(data) if run.is_default), None)
    if default is not None:
      defaults[data.module.name] = default.profile.compute_time_ns
  for data in modules:
    name, runs = data.module.name, _counting(data)
    if len(runs) < MIN_RUNS:
      left_out.append(name or '(no name)')
      continue
    if not any(run.is_default for run in runs):
      raise UserError(
          f'module {name!r}: none of its {len(runs)} runs that count is the '
          'default, so its times cannot be normalised; measure the default')
    kernel = _kernel(data, runs, defaults[name], program)
    kernels.setdefault(kernel.tile_id, []).append(kernel)
  if left_out:
    _log.warning(
        'left out %d of %d modules, which have fewer than %d runs that count '
        'or runs without tile sizes: %s', len(left_out), len(modules),
        MIN_RUNS, ' '.join(left_out[:10]) + ' ...' * (len(left_out) > 10))
  return [_joined(parts) for parts in kernels.values()]


def _is_layout(data) -> bool:
  return bool(data.config_index_to_node) or any(
      run.HasField('module_config') for run in data.runs)


def _counting(data) -> list:
  """Tile runs that count; none unless all have bounds, if only of rank 0."""
  if not all(run.op_config.HasField('tile_size_config') for run in data.runs):
    return []
  return [run for run in data.runs
          if not run.error and run.profile.compute_time_ns > 1]


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
  if not all(np.array_equal(getattr(first, name), getattr(other, name))
             for name in ('node_feat', 'node_opcode', 'edge_index')
             for other in others):
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
  """The name, made safe for a file name."""
  safe = re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:_MAX_NAME]
  return safe.lstrip('.') or 'module'


# --- Layouts ------------------------------------------------------------------


def layout_graphs(tuning_data: protos.TuningData,
                  name: str = '') -> list[LayoutGraph]:
  """The graphs whose runs chose layouts.

  Args:
    tuning_data: its modules with tile runs are skipped.
    name: of the only graph; by default `<module>_<fingerprint>`.

  Returns:
    `LayoutGraph`s in the file's order. One whose runs do not count has no
    configurations, with a warning.

  Raises:
    UserError: the data is damaged.
  """
  return [_layout_graph(data, name)
          for data in tuning_data.modules if _is_layout(data)]


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
  if times and min(times) < 1:
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
  """float32 [runs, nodes, 18]: the layouts that runs set, else -1."""
  groups = list(schema.LAYOUT_CONFIG_GROUPS.values())
  shape = len(runs), num_nodes, len(schema.LAYOUT_CONFIG_FEATURES)
  if math.prod(shape) > _MAX_LAYOUT_VALUES:
    raise UserError(f'module {module!r}: the layouts of {len(runs):,} runs of '
                    f'{num_nodes:,} nodes do not fit into memory; give fewer '
                    'runs')
  layouts = np.full(shape, schema.LAYOUT_PADDING, np.float32)
  for layout, run in zip(layouts, runs):
    nodes = run.module_config.layout_config.nodes
    if len(nodes) != num_nodes:
      raise UserError(f'module {module!r}: a run has layouts for {len(nodes)} '
                      f'nodes; config_index_to_node names {num_nodes}')
    for row, node in zip(layout, nodes):
      if len(node.tensors) > len(groups):
        raise UserError(
            f'module {module!r}: a node has layouts for {len(node.tensors)} '
            f'tensors; at most {len(groups)} have columns')
      for columns, tensor in zip(groups, node.tensors):
        dims = tensor.dims[:schema.MAX_DIMS]
        row[columns][:len(dims)] = dims
  return layouts
