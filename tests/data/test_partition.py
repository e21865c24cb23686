"""Several kernels, and what is kept out."""

from __future__ import annotations

import numpy as np
import pytest

from support import tiny_kernels
from support.tiny_kernels import assert_same
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.errors import UserError

KERNELS = tiny_kernels.corner_cases()


def test_kernels_are_checked_and_widened():
  partition = Partition.from_kernels(KERNELS)
  assert partition.num_configs.tolist() == [4, 4, 5, 4, 1, 4]
  # Opcodes are base % 50 + node + 2: the largest is 40 + 2 + 2 = 44.
  assert partition.max_opcode == 44
  kernel = tiny_kernels.chain()
  object.__setattr__(kernel, 'edge_index', kernel.edge_index.astype(np.int32))
  assert_same(Partition.from_kernels([kernel])[0], KERNELS[1])


def test_selection_keeps_order_and_shares_memory():
  partition = Partition.from_kernels(KERNELS)
  for chosen in ([4, 1, 1], np.array([False, True, False, True, True, False])):
    selected = partition.select(chosen)
    assert selected == [partition[i] for i in np.arange(6)[chosen]]
  assert partition.select([]) == [] and partition.select([]).max_opcode == -1


def test_kernels_that_make_no_sense():
  for field, value, message in (  # tests/data/test_check.py breaks each rule.
      ('config_feat', np.zeros((4, 24), bool), 'config_feat has dtype bool'),
      ('node_feat', np.zeros((3, 140), np.int8), 'node_feat has dtype int8')):
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
