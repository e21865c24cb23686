"""Several kernels, and what is kept out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support import tiny_kernels
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.errors import UserError

KERNELS = tiny_kernels.corner_cases()


def test_counts_of_all_kernels():
  partition = Partition.from_kernels(KERNELS)
  assert partition.num_configs.tolist() == [4, 4, 5, 4, 1, 4]
  # Opcodes are base % 50 + node + 2: the largest is 40 + 2 + 2 = 44.
  assert partition.max_opcode == 44


def test_selection_keeps_order_and_shares_memory():
  partition = Partition.from_kernels(KERNELS)
  for chosen in ([4, 1, 1], np.array([False, True, False, True, True, False])):
    selected = partition.select(chosen)
    assert selected == [partition[i] for i in np.arange(6)[chosen]]
  assert partition.select([]) == [] and partition.select([]).max_opcode == -1


def test_narrower_numbers_are_widened():
  """Division of uint8 would give float16."""
  kernel = tiny_kernels.chain()
  narrow = dataclasses.replace(
      kernel, node_feat=kernel.node_feat.astype('>f4'),
      config_feat=np.round(kernel.config_feat).astype(np.float16),
      edge_index=kernel.edge_index.astype(np.uint8),
      runtime_ns=np.full(kernel.num_configs, 201, np.uint8),
      normalizer_ns=np.full(kernel.num_configs, 7, np.int8))
  wide, = Partition.from_kernels([narrow])
  for name, array in vars(kernel).items():
    if name != 'tile_id':
      assert getattr(wide, name).dtype == array.dtype, name
  assert (wide.runtime_rel == 201 / 7).all()
  np.testing.assert_array_equal(wide.edge_index, kernel.edge_index)


def test_kernels_that_make_no_sense():
  for field, value, message in (  # tests/data/test_check.py breaks each rule.
      ('config_feat', np.zeros((4, 24), bool), 'config_feat has dtype bool'),
      *((field, np.zeros(shape, dtype), f'{field} has dtype {dtype}; it must '
         'be float32')
        for field, shape in (('node_feat', (3, 140)), ('config_feat', (4, 24)))
        for dtype in ('int8', 'uint8', 'uint16', 'int64', 'float64')),
      ('runtime_ns', np.ones(4, np.uint64), 'config_runtime has dtype uint64'),
      ('edge_index', np.zeros((2, 2), np.float32), 'edge_index has dtype f')):
    kernel = tiny_kernels.chain()
    object.__setattr__(kernel, field, value)
    with pytest.raises(UserError, match=message):
      Partition.from_kernels([kernel])
  with pytest.raises(UserError, match='no kernels'):
    Partition.from_kernels([])
  with pytest.raises(UserError, match='chain_0: node_feat has 5 columns, but '
                     'in one_node_0 it has 140'):
    Partition.from_kernels(
        [tiny_kernels.one_node(), tiny_kernels.chain(node_width=5)])
