"""Small kernels and data roots for the tests.

Every node, edge and configuration has a value of its own, so that a wrong
index changes the answer.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import zlib

import numpy as np

from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel

NODE_WIDTH = 140
CONFIG_WIDTH = 24


def make_kernel(tile_id: str = 'tiny_net_0', *, num_nodes: int = 3,
                edges=((1, 0), (2, 1)), num_configs: int = 4,
                node_width: int = NODE_WIDTH,
                config_width: int = CONFIG_WIDTH, base: int = 0) -> Kernel:
  """A kernel whose rows all differ, a pure function of the arguments.

  Node r has opcode base % 50 + r + 2 and features base + r + column / 256;
  configuration r has features base + 2 r + column / 32, runtime
  1000 (base + r + 1) ns and normalizer 1000 + r ns.
  """
  node = np.arange(num_nodes)
  config = np.arange(num_configs)
  return Kernel(
      tile_id=tile_id, node_feat=(base + node[:, np.newaxis]
                 + np.arange(node_width) / 256).astype(np.float32),
      node_opcode=(base % 50 + node + 2).astype(np.uint8),
      edge_index=np.array(edges, np.int64).reshape(-1, 2),
      config_feat=(base + 2 * config[:, np.newaxis]
                   + np.arange(config_width) / 32).astype(np.float32),
      runtime_ns=(1000 * (base + config + 1)).astype(np.int64),
      normalizer_ns=(1000 + config).astype(np.int64))


one_node = functools.partial(make_kernel, 'one_node_0', num_nodes=1, edges=())
chain = functools.partial(make_kernel, 'chain_0', base=10)  # 0 -> 1 -> 2.
# 1 and 2 consume 0, and 3 consumes both.
diamond = functools.partial(
    make_kernel, 'diamond_0', num_nodes=4, num_configs=5,
    edges=((1, 0), (2, 0), (3, 1), (3, 2)), base=20)
no_edges = functools.partial(
    make_kernel, 'no_edges_0', num_nodes=2, edges=(), base=30)
one_config = functools.partial(
    make_kernel, 'one_config_0', num_configs=1, base=40)


def identical_configs() -> Kernel:
  """Four configurations with equal features and different runtimes."""
  kernel = make_kernel('identical_configs_0', base=50)
  kernel.config_feat[:] = 0
  return kernel


def corner_cases() -> list[Kernel]:
  """One of each of the above."""
  return [one_node(), chain(), diamond(), no_edges(), one_config(),
          identical_configs()]


def assert_same(kernel: Kernel, expected: Kernel) -> None:
  """Fails unless name, values and dtypes are equal."""
  assert kernel.tile_id == expected.tile_id
  for name in STORED_NAMES:
    np.testing.assert_array_equal(getattr(kernel, name),
                                  getattr(expected, name))
    assert getattr(kernel, name).dtype == getattr(expected, name).dtype


def lawful(kernel: Kernel) -> Kernel:
  """The kernel with columns that do not contradict each other.

  Row r has element type r % 19, and r + 1 and 2 as dimensions and bounds,
  configurations have them twice; times of the default tile hardly differ.
  """
  node_feat, config_feat = kernel.node_feat.copy(), kernel.config_feat.copy()
  node_feat[:, 1:21] = 0
  node_feat[range(kernel.num_nodes), 2 + np.arange(kernel.num_nodes) % 19] = 1
  config_feat[:] = 0
  for table, starts in ((node_feat, (21, 37, 45, 53, 61, 69, 77)),
                        (config_feat, (0, 8))):
    first = np.arange(len(table)) + 1
    for start in starts:
      table[:, start:start + 8] = 0
      table[:, start], table[:, start + 1] = first, 2
      table[:, start + 6], table[:, start + 7] = first + 2, 2 * first
  return dataclasses.replace(
      kernel, node_feat=node_feat, config_feat=config_feat)


def write_lawful_root(folder) -> pathlib.Path:
  """`write_data_root` with columns that do not contradict each other."""
  root = write_data_root(folder)
  for path in root.glob('*/*.npz'):
    kernel = lawful(Kernel.load(str(path)))
    # Kernels of equal shapes do not become the same.
    kernel.node_feat[:, 139] = zlib.crc32(path.name.encode()) % 1000
    kernel.save(str(path.parent))
  return root


def learnable_kernel(tile_id: str, rng: np.random.Generator,
                     num_configs: int) -> Kernel:
  """A random graph of 2 to 8 nodes, whose tiles follow one rule.

  With t the first configuration column, a shuffle of 0 ... configs - 1, and
  d that of configuration 0 (the default tile):
      runtime = 1000 (t + 1) ns,  normalizer = 1000 (d + 1) ns
  so configuration t = 0 is the fastest in every kernel. Odd configurations
  were measured on a machine that is 1 ns slower on the default tile. Node
  columns 5-7 and the last configuration column are constant.
  """
  num_nodes = int(rng.integers(2, 9))
  edges = [(node, int(rng.integers(node))) for node in range(1, num_nodes)]
  if num_nodes > 2:  # The root also consumes node 0, where it does not yet.
    edges = sorted({*edges, (num_nodes - 1, 0)})
  tile = rng.permutation(num_configs)
  config_feat = rng.integers(
      0, 64, (num_configs, CONFIG_WIDTH)).astype(np.float32)
  config_feat[:, 0] = tile
  config_feat[:, CONFIG_WIDTH - 1] = 0
  node_feat = rng.integers(-2, 1000, (num_nodes, NODE_WIDTH)).astype(np.float32)
  node_feat[:, 5:8] = 1
  return Kernel(
      tile_id=tile_id, node_feat=node_feat,
      node_opcode=rng.integers(2, 60, num_nodes).astype(np.uint8),
      edge_index=np.array(edges, np.int64), config_feat=config_feat,
      runtime_ns=(1000 * (tile + 1)).astype(np.int64),
      normalizer_ns=1000 * (tile[0] + 1) + np.arange(num_configs) % 2)


def write_data_root(folder, *, num_train: int = 24, num_valid: int = 12,
                    num_test: int = 6, seed: int = 0) -> pathlib.Path:
  """Writes train, valid, test (labels blanked) and test_labelled into folder.

  Kernels are `learnable_kernel`s of 12 to 40 configurations, but the second
  of each split has 3. Train has three programs; valid and test have one each
  that train lacks. Test names are a hash alone, as in the public data.
  """
  root = pathlib.Path(folder)
  rng = np.random.default_rng(seed)
  for split, programs, number in (
      ('train', ('alpha_net', 'beta_net', 'gamma_net_v2'), num_train),
      ('valid', ('delta_net',), num_valid), ('test', (None,), num_test)):
    for name in (split, 'test_labelled') if split == 'test' else (split,):
      (root / name).mkdir(parents=True, exist_ok=True)
    for i in range(number):
      digest = rng.bytes(16).hex()
      program = programs[i % len(programs)]
      tile_id = f'{program}_{digest[:16]}' if program else digest
      num_configs = 3 if i == 1 else int(rng.integers(12, 41))
      kernel = learnable_kernel(tile_id, rng, num_configs)
      if split == 'test':
        kernel.save(str(root / 'test_labelled'))
        kernel.runtime_ns[:] = 0
        kernel.normalizer_ns[:] = 1
      kernel.save(str(root / split))
  return root
