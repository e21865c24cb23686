"""What one tile does, by hand and as models.py has it."""

import dataclasses

import numpy as np
import pytest

from support import feature_tiles
from support import model_checks as checks
from support.feature_tiles import explained
from support.feature_tiles import kernel_of_module as kernel_of
from support.tiny_hlo import elementwise, product
from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic import explain
from tpu_graphs_ext.errors import UserError

models = load_models.models_module()
# Counts are times; what is shorter of memory and arithmetic hides wholly.
ONES = {'launch_ns': 5.0, 'wait_ns': 1.0, 'step_ns': 0.5, 'bytes_per_ns': 1.0,
        'piece_ns': 1.0, 'matrix_row_ns': 1.0, 'vector_ns': 1.0,
        'unhidden': 0.0}


def test_a_tile_by_hand():
  """f32 [20, 256] in 3 x 2 layout tiles of 8 x 128, 4096 bytes each.

  A bound of 2 out of 3 cuts it into 2, each as long as the longer one. There
  are two steps, and each waits once.
  """
  kernel = kernel_of(elementwise([20, 256], opcode='sqrt'), [[2, 2], [0, 0]])
  explanation = explained(kernel, kernel.config_feat[0], ONES)
  assert explanation == explain.Explanation(
      output_bounds=(2, 2), kernel_bounds=(), output_elements=(16, 256),
      kernel_elements=(), output_tiles=2, kernel_tiles=1, streams=2,
      moved_bytes=2 * 2 * 4 * 4096, least_bytes=2 * 6 * 4096,
      block_bytes=2 * 4 * 4096, footprint_bytes=2 * 2 * 4 * 4096,
      padding=1.2, rounding=1.3333, terms=explain.Terms(
          launch=5.0, steps=1.0, traffic=65536.0, pieces=6.0, matrix=0.0,
          vector=8.0, first_transfer=32768.0, unhidden=0.0))
  assert type(explanation.terms.traffic) is float  # Printed by NumPy 2.
  assert explanation.steps == 2
  assert explanation.time_ns == 5 + 1 + 65542 + 32768
  assert explanation.text() == (
      '2 steps, 64.0 KiB moved (1.33 x the least), padding 60 %, bound by '
      'moving bytes')
  assert explanation.to_json()['bound_by'] == 'moving bytes'
  whole = explained(kernel, kernel.config_feat[1], ONES)
  assert whole.output_bounds == (3, 2) and whole.output_elements == (20, 256)
  assert whole.text().startswith('1 step, 48.0 KiB moved (1.00 x')


def test_the_longest_term_that_nothing_hides_bounds():
  for longest in explain.BOUND_BY:
    terms = {name: 1.0 for name in explain.BOUND_BY} | {longest: 9.0}
    assert explain.Terms(**terms, unhidden=0.0).bound == longest
  terms = {name: 0.0 for name in explain.BOUND_BY}
  # 6 of memory hide behind 4 + 4 of arithmetic; 7 of steps are less than 8.
  terms.update(traffic=6.0, matrix=4.0, vector=4.0, steps=7.0)
  assert explain.Terms(**terms, unhidden=0.0).bound == 'matrix'
  assert explain.Terms(**terms, unhidden=0.5).time == 7 + 8 + 3


def test_the_time_is_that_of_the_analytic_model():
  kernel = kernel_of(product(1024, 256, 512), [[64, 8], [32, 4]],
                     [[32, 4], [32, 2]])
  stats = checks.stats_of([kernel])
  geo, loops, cut = feature_tiles.tensorflow_tiles(kernel, stats)
  machine = models._Machine()
  machine.build(None)
  machine.changes.assign([0.02 * i for i in range(machine.changes.shape[0])])
  log_ns = machine(geo.counts(loops, cut)[0], loops.hardware)[0].numpy()[0]
  constants = {name: float(value) for name, value in
               machine.constants(loops.hardware).items()}
  assert [explained(kernel, row, constants).time_ns for row
          in kernel.config_feat] == pytest.approx(np.exp(log_ns), rel=1e-4)


def test_a_graph_without_nodes():
  kernel = kernel_of(elementwise([24, 256]), [[1, 1]])
  empty = dataclasses.replace(
      kernel, node_feat=kernel.node_feat[:0],
      node_opcode=kernel.node_opcode[:0], edge_index=kernel.edge_index[:0])
  with pytest.raises(UserError, match='net_0: its graph has no loops'):
    explained(empty, kernel.config_feat[0])


def test_a_dimension_beyond_any_memory():
  """Listing its bounds would take all memory."""
  for size, is_taken in (2**37, True), (2**62, False):
    kernel = kernel_of(elementwise([size, 256]), [[1, 1]])
    if is_taken:
      explained(kernel, kernel.config_feat[0])
      continue
    with pytest.raises(UserError, match=r'net_0: .* dimension of 4.612e\+18 e'):
      explained(kernel, kernel.config_feat[0])


