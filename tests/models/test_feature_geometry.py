"""Tile geometry from features that are scaled, real or degenerate."""

import dataclasses

import numpy as np
import pytest

from support import feature_tiles, tiny_kernels
from support import model_checks as checks
from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic import explain, geometry
from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import metrics
from tpu_graphs_ext.hlo import tuning
from tpu_graphs_ext.sample import write

models = load_models.models_module()


def tensorflow_counts(kernel, stats, model_stats=None, tiles='layout tiles'):
  """Name -> float64 [configs], from scaled features."""
  geo, loops, cut = feature_tiles.tensorflow_tiles(
      kernel, stats, model_stats, tiles)
  return {name: value.numpy()[0].astype(float)
          for name, value in geo.counts(loops, cut)[0]._asdict().items()}


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
      counts = tensorflow_counts(kernel, stats, model_stats=both)
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
    loops, = geometry.loops_of([kernel])
    for counts in (tensorflow_counts(kernel, stats, tiles='elements'),
                   tensorflow_counts(kernel, stats),
                   loops.counts(loops.tiles_of(kernel.config_feat))):
      for name, values in counts.items():
        assert values.shape == (kernel.num_configs,)
        assert (np.isfinite(values) & (values >= 0)).all(), (
            kernel.tile_id, name)
