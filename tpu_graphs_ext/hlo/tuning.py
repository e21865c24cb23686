"""Tuning files (.pb) -> kernels and layout graphs -> .npz files.

A `TuningData` file holds many modules, a `ModuleTuningData` file one; their
runs chose tile sizes or layouts. As in the data set's own encoder:

- A tile run counts if it has no error and took more than 1 ns. A kernel needs
  two such runs, bounds on every run, and a default run that counts; the
  default's time is the normalizer of all runs of that module name.
- A layout run counts if it has no error and has a profile. If the default run
  is not among them, none counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Sequence
from typing import Callable, Optional, Union

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data import npz, schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import features, protos

_log = logging.getLogger(__name__)

MIN_RUNS = 2  # Fewer leave nothing to rank.
_MAX_LAYOUT_VALUES = 1 << 28  # A gigabyte.
_MAX_NAME = 180  # Characters of a program's name that a file name keeps.


@dataclasses.dataclass(frozen=True, eq=False)
class LayoutGraph:
  """A whole program and its measured layouts; see `schema.LAYOUT_FIELDS`."""
  name: str  # The file's, without the ending.
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
          each.name: getattr(self, each.name) for each in schema.LAYOUT_FIELDS})
    return path


def read_results(path: str) -> list[Union[Kernel, LayoutGraph]]:
  """The kernels and layout graphs of a file; a UserError if it has none."""
  return _read(path, 'usable runs', tile_kernels, layout_graphs)


def write_results(path: str, results: Sequence[Union[Kernel, LayoutGraph]],
                  out_dir: str) -> list[str]:
  """Writes one .npz for each kernel or layout graph of a file; the paths.

  Raises UserError, before anything is written, if the folder holds other
  results under the same names, or of another task.
  """
  out_dir = files.require_path('--out', out_dir)
  _require_one_task(path, results, out_dir)
  contents = {}  # By the path to write.
  try:
    with tempfile.TemporaryDirectory() as fresh:
      for result in results:
        source = pathlib.Path(result.save(fresh))
        target = pathlib.Path(out_dir, source.name)
        contents[target] = source.read_bytes()
        if os.path.lexists(target) and (
            not target.is_file()
            or files.read_file(str(target)) != contents[target]):
          raise UserError(
              f'{target}: does not hold what featurize would write, so it is '
              'not replaced; move it away, or choose another folder')
    os.makedirs(out_dir, exist_ok=True)
  except OSError as error:
    raise files.cannot_be_written(out_dir, error) from error
  for target, content in contents.items():
    files.write_file(str(target), content)
  for result in results:
    if unknown := int((result.node_opcode == schema.UNKNOWN_OPCODE).sum()):
      _log.warning('%s: %d of %d operations have no opcode in the data set '
                   'and count as unknown (%d)', result.name, unknown,
                   len(result.node_opcode), schema.UNKNOWN_OPCODE)
  return list(map(str, contents))


def _require_one_task(path: str, results: Sequence, folder: str) -> None:
  """Raises UserError if a folder would have files of both tasks."""
  source_of = {isinstance(result, LayoutGraph): path for result in results}
  for there in sorted(pathlib.Path(folder).glob('*.npz')):
    with contextlib.suppress(npz.DamagedError):
      names = npz.array_names(str(there))
      source_of.setdefault('node_config_feat' in names, there)
  if len(source_of) == 2:
    raise UserError(
        f'{folder}: would hold kernels with tiles (of {source_of[False]}) and '
        f'programs with layouts (of {source_of[True]}), and no command reads a '
        'folder of both; choose another --out')


def read_tile_kernels(path: str) -> list[Kernel]:
  """`tile_kernels` of a file; a UserError also if it has none."""
  return _read(path, 'tile-size runs', tile_kernels)


def _read(path: str, wanted: str, *readers: Callable) -> list:
  """What the readers make of a file."""
  serialized = files.read_file(path, unpack=True)
  data = parse_tuning_data(path, serialized)
  if data is None:
    raise UserError(
        f'{path}: its {len(serialized)} bytes are not a whole TuningData or '
        'ModuleTuningData protobuf, which has measured runs of HLO modules; '
        'the file is cut short, damaged or of another kind')
  try:
    results = [result for read in readers for result in read(*data)]
  except UserError as error:
    raise UserError(f'{path}: {error}') from error
  if not results:
    raise UserError(f'{path}: none of its {len(data[0].modules)} modules has '
                    f'{MIN_RUNS} {wanted}')
  return results


def parse_tuning_data(path: str, serialized: bytes) -> Optional[tuple]:
  """(TuningData, the file's stem or ''); None for other content."""
  single = protos.parse(protos.ModuleTuningData, serialized)
  if single and protos.has_opcodes(single.module):
    return protos.TuningData(modules=[single]), pathlib.Path(path).stem
  several = protos.parse(protos.TuningData, serialized)
  if several and any(protos.has_opcodes(data.module)
                     for data in several.modules):
    return several, ''
  return None


def has_runs(content: bytes) -> bool:
  """Whether this is tuning data with runs.

  XLA's own dumps have its first field too, and others that look like runs: a
  run of a tuner's has a tile, layouts, or its time.
  """
  data = parse_tuning_data('', content)
  return data is not None and any(
      run.op_config.HasField('tile_size_config')
      or run.module_config.HasField('layout_config')
      or run.profile.compute_time_ns
      for module in data[0].modules for run in module.runs)


def _require(condition: bool, data, rule: str) -> None:
  if not condition:
    raise UserError(f'module {data.module.name!r}: {rule}')


# --- Tiles --------------------------------------------------------------------


def tile_kernels(tuning_data: protos.TuningData,
                 program: str = '') -> list[Kernel]:
  """The kernels whose runs chose tile sizes, in the file's order.

  Modules with the same tile id, `<program>_<16 hex digits of the fingerprint>`,
  become one kernel. The program is by default the module's name.

  Raises UserError if the data is damaged, or a kernel has no default run.
  """
  modules = [data for data in tuning_data.modules if not _is_layout(data)]
  counting = list(map(_counting, modules))
  defaults = {}  # A module's name -> its last default time.
  for data, runs in zip(modules, counting):
    defaults.update((data.module.name, run.profile.compute_time_ns)
                    for run in reversed(runs) if run.is_default)
  kernels, left_out = {}, []
  for data, runs in zip(modules, counting):
    if len(runs) < MIN_RUNS:
      left_out.append(data.module.name or '(no name)')
      continue
    _require(any(run.is_default for run in runs), data,
             f'none of its {len(runs)} runs that count is the default, so its '
             'times cannot be normalised; measure the default')
    kernel = _kernel(data, runs, defaults[data.module.name], program)
    kernels.setdefault(kernel.tile_id, []).append(kernel)
  if left_out:
    _log.warning(
        'left out %d of %d modules, which have fewer than %d runs that count: '
        '%s', len(left_out), len(modules), MIN_RUNS, shortened(left_out, 10))
  return list(map(_joined, kernels.values()))


def _is_layout(data) -> bool:
  return bool(data.config_index_to_node) or any(
      run.HasField('module_config') for run in data.runs)


def _counting(data) -> list:
  """Tile runs that count; none unless all have bounds, if only of rank 0."""
  all_bounded = all(
      run.op_config.HasField('tile_size_config') for run in data.runs)
  return [run for run in data.runs if all_bounded and not run.error
          and run.profile.compute_time_ns > 1]


def _kernel(data, runs: Sequence, normalizer_ns: int, program: str) -> Kernel:
  graph = features.module_arrays(data.module)
  configs = [run.op_config.tile_size_config for run in runs]
  return Kernel(
      _tile_id(program or data.module.name, data.fingerprint), *graph[:3],
      np.stack([features.config_features(
          c.kernel_bounds, c.output_bounds, c.input_bounds) for c in configs]),
      np.array([run.profile.compute_time_ns for run in runs], np.int64),
      np.full(len(runs), normalizer_ns, np.int64))


def _joined(parts: Sequence[Kernel]) -> Kernel:
  """One kernel with the runs of all."""
  first = parts[0]
  if not all(np.array_equal(getattr(first, name), getattr(other, name))
             for name in ('node_feat', 'node_opcode', 'edge_index')
             for other in parts[1:]):
    raise UserError(f'two different modules have the tile id {first.tile_id}; '
                    'give them different names or fingerprints')
  return dataclasses.replace(first, **{
      name: np.concatenate([getattr(part, name) for part in parts])
      for name in ('config_feat', 'runtime_ns', 'normalizer_ns')})


def _tile_id(program: str, fingerprint: int) -> str:
  digits = f'_{fingerprint:016x}'  # A file may be named like its kernel.
  return _file_name(program).removesuffix(digits) + digits


def _file_name(name: str) -> str:
  safe = re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:_MAX_NAME]
  return safe.lstrip('.') or 'module'


# --- Layouts ------------------------------------------------------------------


def layout_graphs(tuning_data: protos.TuningData,
                  name: str = '') -> list[LayoutGraph]:
  """The graphs whose runs chose layouts, or a UserError for damaged data.

  Without a `name` they are `<module>_<fingerprint>`.
  """
  return [_layout_graph(data, name)
          for data in tuning_data.modules if _is_layout(data)]


def _layout_graph(data, name: str) -> LayoutGraph:
  graph = features.module_arrays(data.module)
  nodes = list(data.config_index_to_node)
  _require(0 < len(nodes) and max(nodes) < len(graph.node_opcode), data,
           'config_index_to_node must name at least one of its '
           f'{len(graph.node_opcode)} nodes and no other; its largest is '
           f'{max(nodes, default="missing")}')
  runs = [run for run in data.runs if not run.error
          and run.HasField('module_config') and run.HasField('profile')]
  if not any(run.is_default for run in runs):
    _log.warning('module %s has no default run that counts: its %d runs were '
                 'left out', data.module.name, len(data.runs))
    runs = []
  times = [run.profile.compute_time_ns for run in runs]
  _require(min(times, default=1) >= 1, data, 'the time of a run without error '
           f'must be at least 1 ns; found {min(times, default=1)}')
  return LayoutGraph(
      _file_name(name) if name else _tile_id(
          data.module.name, data.fingerprint),
      **graph._asdict(), node_config_feat=_layouts(data, runs, len(nodes)),
      node_config_ids=np.array(nodes, np.int64),
      config_runtime=np.array(times, np.int64))


def _layouts(data, runs: Sequence, num_nodes: int) -> np.ndarray:
  """float32 [runs, nodes, 18]: the layouts that runs set, else -1."""
  groups = list(schema.LAYOUT_CONFIG_GROUPS.values())
  shape = len(runs), num_nodes, len(schema.LAYOUT_CONFIG_FEATURES)
  _require(math.prod(shape) <= _MAX_LAYOUT_VALUES, data,
           f'the layouts of {len(runs):,} runs of {num_nodes:,} nodes do not '
           'fit into memory; give fewer runs')
  layouts = np.full(shape, schema.LAYOUT_PADDING, np.float32)
  for layout, run in zip(layouts, runs):
    nodes = run.module_config.layout_config.nodes
    tensors = max((len(node.tensors) for node in nodes), default=0)
    _require(len(nodes) == num_nodes and tensors <= len(groups), data,
             f'a run has layouts for {len(nodes)} nodes and up to {tensors} '
             f'tensors of each; they must be for the {num_nodes} nodes of '
             f'config_index_to_node and at most {len(groups)} tensors')
    for row, node in zip(layout, nodes):
      for columns, tensor in zip(groups, node.tensors):
        dims = tensor.dims[:schema.MAX_DIMS]
        row[columns][:len(dims)] = dims
  return layouts
