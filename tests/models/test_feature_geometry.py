"""Tile geometry from features that are scaled, real or degenerate."""

import dataclasses

import numpy as np

from support import feature_tiles, tiny_hlo, tiny_kernels
from support import model_checks as checks
from tpu_graphs_ext.analytic import explain, geometry
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import metrics
from tpu_graphs_ext.hlo import tuning

counts_of = feature_tiles.counts_of


def test_its_time_ranks_the_real_kernels(shared_data):
  """The machine's constants were fitted on them: not a blind number."""
  taus, slowdowns = [], []
  for kernel in tuning.read_tile_kernels(
      str(shared_data / 'op_tuning_data.pb')):
    if kernel.num_configs >= 10:
      loops, = geometry.loops_of([kernel])
      predicted = explain.terms(loops, loops.tiles_of(kernel.config_feat)).time
      taus.append(metrics.pair_agreement(kernel.runtime_rel, predicted)[1])
      slowdowns.append(metrics.slowdown_of(
          kernel.runtime_rel, np.argsort(predicted, kind='stable')[:5]))
  assert len(taus) == 8
  assert np.mean(taus) > 0.84  # 0.845
  assert np.mean(slowdowns) < 0.01  # 0.0


def test_other_statistics_are_told_by_whole_numbers():
  """Scaled with twice the largest sizes, as if other kernels were there."""
  kernels = [feature_tiles.kernel_of_module(module, *bounds)
             for module, *bounds in (
                 (tiny_hlo.elementwise([4096, 1000]), [[16, 8], [32, 3]]),
                 (tiny_hlo.product(16, 250, 512), [[2, 4]], [[24, 4]]),
                 (tiny_hlo.convolution(), [[2, 4, 1, 1]], [[3, 1, 16, 1]]))]
  train = checks.stats_of(kernels)
  larger = FeatureStats(*(dataclasses.replace(
      table, maximum=np.where(table.used, table.maximum * 1.7 + 3,
                              table.maximum).astype(np.float32))
                          for table in (train.node, train.config)))
  both = {**train.to_json(), 'all_kernels': larger.to_json()}
  for kernel in kernels:
    expected = counts_of(kernel, 'layout tiles', train)
    for stats in (train, larger):
      counts = counts_of(kernel, 'layout tiles', stats, both)
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
    loops, = geometry.loops_of([kernel])
    for counts in (counts_of(kernel, stats=checks.stats_of([kernel])),
                   loops.counts(loops.tiles_of(kernel.config_feat))):
      for name, values in counts.items():
        assert values.shape == (kernel.num_configs,)
        assert (np.isfinite(values) & (values >= 0)).all(), (
            kernel.tile_id, name)
