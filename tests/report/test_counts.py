"""Counts of configurations, worked out by hand."""

import numpy as np

from support import tiny_hlo, tiny_kernels
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import features
from tpu_graphs_ext.report import counts


def test_an_elementwise_kernel():
  """f32 [256, 512] is 32 x 4 layout tiles of 8 x 128; it is read and written.

  Tiles of 8 x 2: 4 x 2 steps of 64 * 256 * 4 bytes in and out. Tiles of 5 x 4:
  7 steps, which are 35 rows of layout tiles instead of 32.
  """
  arrays = features.module_arrays(tiny_hlo.elementwise([256, 512]))
  configs = features.config_features(np.zeros([3, 0]), np.array(
      [[1, 1], [8, 2], [5, 4]]))
  kernel = Kernel('net_0', arrays.node_feat, arrays.node_opcode,
                  arrays.edge_index, configs, np.arange(3) + 1,
                  np.ones(3, np.int64))
  found = counts.counts_of(kernel, [1, 2], in_elements=False)
  name = counts.COUNTS
  assert found[name['steps']].tolist() == [8, 7]
  assert found[name['block_bytes']].tolist() == [
      2 * 64 * 256 * 4, 2 * 40 * 512 * 4]
  assert found[name['moved_bytes']][0] == 2 * 256 * 512 * 4
  assert found[name['rounding']].tolist() == [1, 35 / 32]
  # Nothing is padded, and there is no product.
  assert not {name['padding'], name['matrix_rows']} & set(found)
  in_elements = counts.counts_of(kernel, [1], in_elements=True)
  assert in_elements['steps'] > found['steps'][0]  # A tile is smaller.


def test_odd_kernels_have_finite_counts():
  for kernel in (tiny_kernels.no_edges(), tiny_kernels.one_config()):
    found = counts.counts_of(kernel, [0], False)
    assert 'steps' in found
    assert all(np.isfinite(values).all() for values in found.values())
