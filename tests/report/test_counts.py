"""Counts of configurations: by hand, and of those asked for."""

import numpy as np

from support import tiny_hlo, tiny_kernels
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import features
from tpu_graphs_ext.report import counts


def kernel_of(module, kernel_bounds, output_bounds):
  arrays = features.module_arrays(module)
  configs = features.config_features(
      np.array(kernel_bounds), np.array(output_bounds))
  number = len(configs)
  return Kernel('net_0', arrays.node_feat, arrays.node_opcode,
                arrays.edge_index, configs, np.arange(number) + 1,
                np.ones(number, np.int64))


def test_an_elementwise_kernel_by_hand():
  """f32 [256, 512] is 32 x 4 layout tiles of 8 x 128; it is read and written.

  Tiles of 8 x 2: 4 x 2 steps of 64 * 256 * 4 bytes in and out. Tiles of 5 x 4:
  7 steps, which are 35 rows of layout tiles instead of 32.
  """
  kernel = kernel_of(tiny_hlo.elementwise([256, 512]),
                     np.zeros([2, 0], int), [[8, 2], [5, 4]])
  found = counts.counts_of(kernel, [0, 1], in_elements=False)
  assert found['steps'].tolist() == [8, 7]
  assert found['block_bytes'].tolist() == [2 * 64 * 256 * 4, 2 * 40 * 512 * 4]
  assert found['moved_bytes'][0] == 2 * 256 * 512 * 4
  assert found['padding'].tolist() == [1, 1]
  assert found['rounding'].tolist() == [1, 35 / 32]
  assert found['matrix_rows'].tolist() == [0, 0]


def test_only_the_configurations_asked_for_in_that_order():
  kernel = kernel_of(tiny_hlo.convolution(),
                     [[3, 3, 16, 3], [1, 3, 32, 1], [3, 1, 7, 2]],
                     [[4, 4, 4, 3], [1, 2, 4, 1], [3, 4, 1, 2]])
  every = counts.counts_of(kernel, range(3), False)
  found = counts.counts_of(kernel, [2, 0], in_elements=False)
  assert set(found) == {count.name for count in counts.COUNTS}
  for name, values in found.items():
    assert values.tolist() == every[name][[2, 0]].tolist()
  in_elements = counts.counts_of(kernel, [0], in_elements=True)
  assert in_elements['steps'] > every['steps'][0]  # A tile is smaller.


def test_odd_kernels_have_finite_counts():
  for kernel in (tiny_kernels.no_edges(), tiny_kernels.one_config()):
    found = counts.counts_of(kernel, [0], False)
    assert all(np.isfinite(values).all() for values in found.values())
