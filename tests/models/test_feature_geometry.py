"""Tile geometry from features: by hand, and in both codes."""

import dataclasses

import numpy as np
import pytest

from support import feature_tiles, tiny_hlo, tiny_kernels
from support import model_checks as checks
from support.feature_tiles import kernel_of_module as kernel_of
from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic import explain, feature_loops, tile_counts
from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import metrics
from tpu_graphs_ext.hlo import tuning
from tpu_graphs_ext.sample import write

models = load_models.models_module()


def numpy_counts(kernel):
  """Name -> float64 [configs], of the package."""
  loops = feature_loops.kernel_loops(kernel)
  return tile_counts.counts(
      loops, feature_loops.loop_tiles(loops, kernel.config_feat))


def tensorflow_counts(kernel, stats, given=None, tiles='layout tiles'):
  """Name -> float64 [configs], of models.py."""
  geo, loops, cut = feature_tiles.tensorflow_tiles(
      kernel, stats, given, tiles)
  return {name: value.numpy()[0].astype(float)
          for name, value in geo.counts(loops, cut)[0]._asdict().items()}


def assert_both_agree(some_kernels):
  stats = checks.stats_of(some_kernels)
  for kernel in some_kernels:
    ours = tensorflow_counts(kernel, stats)
    expected = numpy_counts(kernel)
    assert set(ours) == set(expected)
    for name, values in expected.items():
      np.testing.assert_allclose(
          ours[name], values, rtol=1e-5, err_msg=f'{kernel.tile_id} {name}')


def test_a_copy_by_hand():
  """f32 [24, 256]: 3 x 2 layout tiles of 8 x 128, 4096 bytes each."""
  module = tiny_hlo.elementwise([24, 256], opcode='sqrt')
  kernel = kernel_of(module, [[3, 2], [2, 2], [1, 1], [0, 0]])
  counts = numpy_counts(kernel)
  expected = {
      'output_tiles': [1, 2, 6, 1], 'kernel_tiles': [1] * 4,
      'steps': [1, 2, 6, 1], 'streams': [2] * 4,
      # 6, 4 and 1 layout tiles in and out; no bound is the whole tensor.
      'block_bytes': [49152, 32768, 8192, 49152],
      # A bound of 2 out of 3 moves 2 * 4 tiles instead of 6.
      'moved_bytes': [49152, 65536, 49152, 49152],
      # Of a single tile there is no next one.
      'footprint_bytes': [49152, 65536, 16384, 49152],
      # Whole rows are one piece; a tile of one layout tile is one as well.
      'pieces': [2, 4, 12, 2], 'matrix_rows': [0] * 4,
      'vector_registers': [48, 64, 48, 48],  # A root costs 8 a layout tile.
      'tile_elements': [6144, 4096, 1024, 6144], 'padding': [1] * 4,
      'rounding': [1, 4 / 3, 1, 1]}
  for name, values in expected.items():
    np.testing.assert_allclose(counts[name], values, err_msg=name)
  assert set(counts) == set(expected)
  assert_both_agree([kernel, dataclasses.replace(
      kernel, config_feat=kernel.config_feat * 2, tile_id='net_1')])


def test_of_several_products_the_last_is_tiled():
  """f32 [64, 256] x [256, 1024] x [1024, 128]: the first makes an operand."""
  module = tiny_hlo.product(64, 256, 1024)
  entry = module.computations[0]
  tiny_hlo.add(entry, 13, 'parameter', [1024, 128], parameter_number=2)
  root = tiny_hlo.add(entry, 14, 'convolution', [64, 128], None, [12, 13])
  root.convolution_dimension_numbers.CopyFrom(
      entry.instructions[2].convolution_dimension_numbers)
  entry.root_id = 14
  kernel = kernel_of(module, [[8, 1], [4, 1]], [[128, 1], [64, 1]])
  axes = feature_loops.kernel_loops(kernel).grid.axes
  assert [(axis.size, axis.unit) for axis in axes] == [
      (64, 8), (128, 128), (1024, 8)]
  assert_both_agree([kernel])


@pytest.mark.parametrize('window', [
    {'window_dilation': 2},
    {'base_dilation': 2, 'stride': 1},
    {'base_dilation': 3, 'stride': 2},  # A batch.
])
def test_both_agree_on_windows(window):
  module = tiny_hlo.convolution()
  for dimension in module.computations[0].instructions[3].window.dimensions:
    for name, value in window.items():
      setattr(dimension, name, value)
  for number, parameter in enumerate(module.computations[1].instructions[:3]):
    parameter.parameter_number = number
  kernel = kernel_of(module, [[2, 4, 1, 1], [4, 1, 2, 3]],
                     [[3, 1, 16, 1], [2, 3, 32, 3]])
  assert_both_agree([kernel])


def test_a_convolution_without_its_columns():
  """As after training on none: NHWC and HWIO, strides by the sizes."""
  kernel = kernel_of(
      tiny_hlo.convolution(), [[2, 4, 1, 1], [4, 1, 2, 3]],
      [[3, 1, 16, 1], [2, 3, 32, 3]])
  node_feat = kernel.node_feat.copy()
  node_feat[:, 37:109] = 0  # Windows, dimension numbers, groups.
  bare = dataclasses.replace(kernel, node_feat=node_feat)
  counts = tensorflow_counts(bare, checks.stats_of([bare]))
  for name, values in numpy_counts(kernel).items():
    np.testing.assert_allclose(counts[name], values, rtol=1e-5, err_msg=name)


@pytest.fixture(scope='module')
def real(shared_data):
  """The 15 real kernels."""
  return tuning.read_tile_kernels(str(shared_data / 'op_tuning_data.pb'))


def test_its_time_ranks_the_real_kernels(real):
  """The machine's constants were fitted on them: not a blind number."""
  taus, slowdowns = [], []
  for kernel in real:
    if kernel.num_configs >= 10:
      explainer = explain.Explainer(kernel)
      predicted = explainer.terms(explainer.tiles(kernel.config_feat)).time
      taus.append(metrics.pair_agreement(kernel.runtime_rel, predicted)[1])
      slowdowns.append(metrics.slowdown_of(
          kernel.runtime_rel, np.argsort(predicted, kind='stable')[:5]))
  assert len(taus) == 8
  assert np.mean(taus) > 0.85  # 0.877
  assert np.mean(slowdowns) < 0.01  # 0.0


def test_both_agree_on_the_real_kernels(real):
  assert_both_agree(real)


@pytest.fixture(scope='module')
def sample(tmp_path_factory) -> list[Kernel]:
  """Two kernels of each program that the sample data have."""
  out = str(tmp_path_factory.mktemp('sample') / 'data')
  write.write_sample_data(write.SampleDataSettings(out, kernels=56))
  return list(read.read_kernels(out + '/train'))


def test_other_statistics_are_told_by_whole_numbers(sample):
  """Scaled with twice the largest sizes, as if other kernels were there."""
  train = checks.stats_of(sample)
  larger = FeatureStats(*(dataclasses.replace(
      table, maximum=np.where(table.used, table.maximum * 1.7 + 3,
                              table.maximum).astype(np.float32))
                          for table in (train.node, train.config)))
  both = {**train.to_json(), 'all_kernels': larger.to_json()}
  for kernel in sample[:5]:
    expected = tensorflow_counts(kernel, train)
    for stats in (train, larger):
      counts = tensorflow_counts(kernel, stats, given=both)
      for name in counts:
        np.testing.assert_allclose(counts[name], expected[name], rtol=1e-5)


# --- Degenerate input --------------------------------------------------------


def degenerate_kernels():
  zeros = tiny_kernels.make_kernel('zeros_0')
  zeros.node_feat[:] = 0
  zeros.config_feat[:] = 0
  ring = ((0, 1), (1, 2), (2, 0))
  odd = []
  for edges, opcodes in (
      ((), ['convolution']), ((), ['dot']), (ring, ['dot'] * 3),
      (ring, ['fusion', 'convolution', 'tuple'])):
    odd.append(tiny_kernels.make_kernel(
        '_'.join(opcodes), num_nodes=len(opcodes), edges=edges))
    odd[-1].node_opcode[:] = [schema.OPCODES[name] for name in opcodes]
  return [*tiny_kernels.corner_cases(), zeros, *odd,
          tiny_kernels.make_kernel('narrow_0', node_width=9, config_width=3)]


def test_degenerate_kernels_have_finite_counts():
  for kernel in degenerate_kernels():
    stats = checks.stats_of([kernel])
    for counts in (tensorflow_counts(kernel, stats, tiles='elements'),
                   tensorflow_counts(kernel, stats), numpy_counts(kernel)):
      for name, values in counts.items():
        assert values.shape == (kernel.num_configs,)
        assert (np.isfinite(values) & (values >= 0)).all(), (
            kernel.tile_id, name)
