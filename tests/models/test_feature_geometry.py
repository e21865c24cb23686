"""Tile geometry from features that are scaled, real or degenerate."""

import dataclasses

import numpy as np
import pytest

from support import feature_tiles, tiny_hlo, tiny_kernels
from support import model_checks as checks
from tpu_graphs_ext.analytic import explain, geometry
from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import metrics
from tpu_graphs_ext.hlo import protos, tuning
from tpu_graphs_ext.sample import write

counts_of = feature_tiles.counts_of


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
  assert np.mean(taus) > 0.84  # 0.845
  assert np.mean(slowdowns) < 0.01  # 0.0


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
    expected = counts_of(kernel, 'layout tiles', train)
    for stats in (train, larger):
      counts = counts_of(kernel, 'layout tiles', stats, both)
      for name in counts:
        np.testing.assert_allclose(counts[name], expected[name], rtol=1e-5)


def fused(dims):
  """entry: fusion calls tanh(parameter)."""
  module = protos.HloModuleProto(name='fused', entry_computation_id=2)
  body = module.computations.add(id=1, root_id=11)
  tiny_hlo.add(body, 10, 'parameter', dims)
  tiny_hlo.add(body, 11, 'tanh', dims, None, [10])
  entry = module.computations.add(id=2, root_id=21)
  tiny_hlo.add(entry, 20, 'parameter', dims)
  tiny_hlo.add(entry, 21, 'fusion', dims, None, [20],
               called_computation_ids=[1])
  return module


def test_large_tiles_are_crowded_and_those_of_one_operation_sooner():
  """16 x 8, 32 x 8, 256 x 8 and all of the 512 x 8 layout tiles, over 128 or
  1,024, which are small enough. Of products any number is, and of a single
  tile."""
  dims, bounds = [4096, 1024], [[16, 8], [32, 8], [256, 8], [512, 8]]
  for module, crowding in (
      (tiny_hlo.elementwise(dims), [1, 2, 16, 0]),
      (tiny_hlo.elementwise(dims, opcode='copy'), [1 / 8, 1 / 4, 2, 0]),
      (fused(dims), [1 / 8, 1 / 4, 2, 0]),
      (tiny_hlo.product(4096, 1024, 1024), [0, 0, 0, 0])):
    kernel = feature_tiles.kernel_of_module(
        module, bounds, [[128, 8]] * 4 if 'conv' in str(module) else [()] * 4)
    explainer = explain.Explainer(kernel)
    np.testing.assert_allclose(explainer.loops.counts(
        explainer.tiles(kernel.config_feat))['crowding'], crowding, atol=1e-6)


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
    loops, = geometry.loops_of([kernel])
    for counts in (counts_of(kernel, stats=checks.stats_of([kernel])),
                   loops.counts(loops.tiles_of(kernel.config_feat))):
      for name, values in counts.items():
        assert values.shape == (kernel.num_configs,)
        assert (np.isfinite(values) & (values >= 0)).all(), (
            kernel.tile_id, name)
