"""Writes what the baseline's reader makes of a data root.

    dump_baseline_data.py DATA_ROOT BATCH CONFIGS OUT.npz [FLAG ...]
is a process of its own, because importing that reader defines global flags.
TPU_GRAPHS_ROOT names the checkout.
"""

import os
import sys

import numpy as np
import tensorflow_gnn as tfgnn


def main(data_root, batch_size, num_configs, out, *baseline_flags):
  sys.path.insert(0, os.environ['TPU_GRAPHS_ROOT'])
  from absl import flags
  from tpu_graphs.baselines.tiles import data
  flags.FLAGS([sys.argv[0], *baseline_flags])

  dataset = data.get_npz_dataset(data_root, min_train_configs=int(num_configs))
  dumped = {'num_ops': dataset.num_ops}
  for split in ('train', 'validation', 'test'):
    partition = getattr(dataset, split)
    for name in ('tile_id', 'node_feat', 'node_opcode', 'edge_index',
                 'config_feat', 'config_runtime',
                 'config_runtime_normalizers', 'node_ranges', 'edge_ranges',
                 'config_ranges'):
      value = getattr(partition, name).numpy()
      dumped[f'{split}.{name}'] = (
          value.astype(str) if name == 'tile_id' else value)

  graphs = dataset.validation.get_graph_tensors_dataset()
  dumped['kernel_spec'] = repr(graphs.element_spec)
  # Two kernels with all their configurations, then a batch.
  for i, graph in enumerate(graphs.take(2)):
    dumped |= {f'graph{i}.{name}': value for name, value in flat(graph).items()}
  sampled = dataset.train.get_graph_tensors_dataset(int(num_configs)).batch(
      int(batch_size), drop_remainder=True).map(
          tfgnn.GraphTensor.merge_batch_to_components)
  dumped['batch_spec'] = repr(sampled.element_spec)
  for graph in sampled.take(1):
    dumped |= {f'batch.{name}': value for name, value in flat(graph).items()}
  np.savez(out, **dumped)


def flat(graph) -> dict:
  """Every tensor of a graph under one name, as NumPy; text as str."""
  values = {'context': graph.context.sizes}
  for name, nodes in graph.node_sets.items():
    values[name + '.sizes'] = nodes.sizes
    for key, value in nodes.features.items():
      values[f'{name}.{key}'] = value
  for name, edges in graph.edge_sets.items():
    values[name + '.sizes'] = edges.sizes
    values[name + '.source'] = edges.adjacency.source
    values[name + '.target'] = edges.adjacency.target
  return {name: value.numpy().astype(str) if value.dtype == 'string'
          else value.numpy() for name, value in values.items()}


if __name__ == '__main__':
  main(*sys.argv[1:])
