"""The tile geometry of models.py for one kernel, and kernels to try it on."""

from __future__ import annotations

import dataclasses

import numpy as np

from support import model_checks as checks
from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic import explain, geometry
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import features, stored
from tpu_graphs_ext.tasks import tile_batches

models = load_models.models_module()


def kernel_of_module(module, output_bounds=((),), kernel_bounds=((),)):
  """The features of an HLO module with these tiles, and no runtimes."""
  arrays = features.module_arrays(module)
  config_feat = features.config_features(kernel_bounds, output_bounds)
  ones = np.ones(len(config_feat), np.int64)
  return Kernel('net_0', *arrays[:3], config_feat, ones, ones)


def explained(kernel, row, constants=None):
  """One row of `config_feat`, explained; `constants` replace a TPU v3's."""
  loops, = geometry.loops_of([kernel])
  return explain.explain(
      loops, loops.tiles_of(row[np.newaxis]),
      dataclasses.replace(loops.machine.constants, **(constants or {})))[0]


def loops_of(module, machine=MACHINES['v3']):
  """The loop nest of an HLO module."""
  loops, = geometry.loops_of([kernel_of_module(module)], machine)
  loops.note(stored.tensors_of(module),
             stored.limit_bytes(module))
  return loops


def tensorflow_tiles(kernel, stats, model_stats=None,
                     tiles='layout tiles') -> tuple:
  """(geometry, loops, tiles) of models.py, with features scaled by `stats`.

  The model is told that they are scaled by `model_stats`, and what `tiles`
  count.
  """
  statistics = models._Statistics(
      {**(model_stats or stats.to_json()), 'tiles': tiles}, keeps=False)
  statistics.build(None)
  geo = models._Geometry
  inputs = models._inputs_of(tile_batches.kernel_graph(kernel, stats))
  graph = models._Graph(inputs)
  loops = geo.loops(
      graph, statistics.raw('node', inputs.node_feats, graph),
      geo.hardware(statistics))
  return geo, loops, geo.tiles(
      loops, statistics.raw('config', inputs.config_feats))


def counts_of(kernel, tiles='elements', stats=None, model_stats=None) -> dict:
  """Name -> float64 [configs] of models.py; arguments: `tensorflow_tiles`."""
  stats = stats or checks.stats_of([kernel, dataclasses.replace(
      kernel, node_feat=kernel.node_feat + 7,
      config_feat=kernel.config_feat + 7, tile_id='other_0')])
  geo, loops, cut = tensorflow_tiles(kernel, stats, model_stats, tiles)
  return {name: value.numpy()[0].astype(float)
          for name, value in geo.counts(loops, cut)[0]._asdict().items()}


def kernel_of_nodes(nodes, output_bounds, kernel_bounds=((),),
                    tile_id='net_0') -> Kernel:
  """A kernel of float32 nodes; the last one is the root.

  Args:
    nodes: (opcode, sizes, producers) each, and a dict of groups of columns.
    output_bounds, kernel_bounds: a row a configuration, or one row for all.
    tile_id: its name.
  """
  node_feat = np.zeros((len(nodes), len(schema.NODE_FEATURES)), np.float32)
  edges = []
  for node, (_, sizes, producers, *groups) in enumerate(nodes):
    _fill(node_feat[node], 'shape_dimensions', sizes, schema.NODE_GROUPS)
    node_feat[node, schema.NODE_COLUMN['shape_dimensions_product']] = np.prod(
        sizes)
    node_feat[node, schema.NODE_COLUMN['parameter_number']] = node
    _fill(node_feat[node], 'layout_minor_to_major',
          range(len(sizes))[::-1], schema.NODE_GROUPS)
    for group, values in (groups[0] if groups else {}).items():
      _fill(node_feat[node], group, values, schema.NODE_GROUPS)
    edges += [(node, producer) for producer in sorted(set(producers))]
  node_feat[:, schema.NODE_COLUMN['shape_element_type_is_f32']] = 1
  node_feat[-1, schema.NODE_COLUMN['is_root']] = 1
  configs = len(output_bounds)
  config_feat = np.zeros((configs, len(schema.CONFIG_FEATURES)), np.float32)
  for config, row in enumerate(output_bounds):
    _fill(config_feat[config], 'output_bounds', row, schema.CONFIG_GROUPS)
    config_feat[config, schema.CONFIG_FEATURES.index(
        'output_bounds_product')] = np.prod(row)
    _fill(config_feat[config], 'kernel_bounds',
          kernel_bounds[config % len(kernel_bounds)], schema.CONFIG_GROUPS)
  ones = np.ones(configs, np.int64)
  return Kernel(
      tile_id, node_feat,
      np.array([schema.OPCODES[node[0]] for node in nodes], np.uint8),
      np.array(edges, np.int64).reshape(-1, 2), config_feat, ones, ones)


def _fill(row, group, values, groups):
  first = groups[group].start
  row[first:first + len(values)] = list(values)
