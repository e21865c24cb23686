"""Tuning files of one module, made by hand."""

from support import tiny_hlo
from tpu_graphs_ext.hlo import protos, tuning


def featurized(path, out):
  """The .npz files of a tuning file."""
  return tuning.write_results(path, tuning.read_results(path), out)


def fill_module(module, name='tanh', size=2048):
  """entry: tanh(parameter), of rank 1."""
  module.CopyFrom(tiny_hlo.elementwise([size]))
  module.name = name


def add_tile_run(data, bounds, time_ns, error=False, default=False):
  run = data.runs.add(error=error, is_default=default)
  run.op_config.tile_size_config.output_bounds.extend(bounds)
  run.profile.compute_time_ns = time_ns


def tile_data(**module):
  """One kernel: default [2] in 100 ns, [1] in 150 ns, an error, a blank."""
  data = protos.TuningData()
  entry = data.modules.add(fingerprint=0xAB)
  fill_module(entry.module, **module)
  add_tile_run(entry, [3], 0, error=True, default=True)
  add_tile_run(entry, [2], 100, default=True)
  add_tile_run(entry, [1], 150)
  add_tile_run(entry, [1], 1)  # Not measured: 1 ns.
  return data


def add_layout_run(data, layouts, time_ns, error=False, default=False):
  """layouts: one list of tensors a node, one list of dimensions a tensor."""
  run = data.runs.add(error=error, is_default=default)
  run.profile.compute_time_ns = time_ns
  for tensors in layouts:
    node = run.module_config.layout_config.nodes.add()
    for dims in tensors:
      node.tensors.add(dims=dims)


def layout_data():
  data = protos.ModuleTuningData(config_index_to_node=[1])
  fill_module(data.module)
  add_layout_run(data, [[[]]], 70, default=True)
  add_layout_run(data, [[[]]], 0, error=True)
  add_layout_run(data, [[[1, 0], [], [2, 1, 0]]], 80)
  return data
