"""Values and columns that training did not have."""

import dataclasses
import logging

import numpy as np
import pytest

from support import tiny_kernels
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import out_of_range, scoring
from tpu_graphs_ext.tasks import TILE

U8 = schema.NODE_COLUMN['shape_element_type_is_u8']
SIZE = schema.NODE_COLUMN['shape_dimensions_0']
BOUND = schema.CONFIG_FEATURES.index('kernel_bounds_0')


def kernel_of(tile_id='net_0', u8=(0, 0, 0, 0), size=(0, 1024, 7, 7),
              bound=(1, 64, 8)):
  """Four nodes and three configurations; all else is 0."""
  kernel = tiny_kernels.make_kernel(tile_id, num_nodes=4, num_configs=3)
  node_feat = np.zeros_like(kernel.node_feat)
  node_feat[:, U8], node_feat[:, SIZE] = u8, size
  config_feat = np.zeros_like(kernel.config_feat)
  config_feat[:, BOUND] = bound
  return dataclasses.replace(
      kernel, node_feat=node_feat, config_feat=config_feat)


def found_in(stats, kernel, opcodes=None):
  return out_of_range.of_problem(
      scoring.Ranker(None, stats, 256, TILE, opcodes=opcodes), kernel)


def warn(stats, kernels, opcodes=None):
  out_of_range.warn(
      scoring.Ranker(None, stats, 256, TILE, 'model_x', opcodes=opcodes),
      Partition.from_kernels(kernels))


@pytest.fixture(autouse=True)
def verbose(caplog):
  caplog.set_level(logging.DEBUG, out_of_range.__name__)


@pytest.fixture(scope='module')
def stats():
  return FeatureStats.of_partition(Partition.from_kernels([kernel_of()]))


def test_values_beyond_the_range_and_unknown_columns(stats, caplog):
  kernel = kernel_of(size=(0, 1024, 1, 500), bound=(64, 1, 2))
  assert found_in(stats, kernel) == []
  warn(stats, [kernel])
  assert not caplog.records
  kernel = kernel_of('new_0', u8=(0, 1, 1, 1), size=(2048, 4816896, -5, 7),
                     bound=(0, 64, 1))
  values = found_in(stats, kernel)
  assert values == [
      out_of_range.OutOfRange(
          'new_0', 'node_feat', 'shape_element_type_is_u8', 1.0, 0.0, 0.0),
      out_of_range.OutOfRange(
          'new_0', 'node_feat', 'shape_dimensions_0', 4816896.0, 0.0, 1024.0),
      out_of_range.OutOfRange(
          'new_0', 'config_feat', 'kernel_bounds_0', 0.0, 1.0, 64.0)]
  assert out_of_range.of_rows(
      stats.config, 'new_0', 'config_feat',
      np.split(kernel.config_feat, [1, 2])) == values[2:]  # In blocks.


def test_opcodes_that_no_kernel_of_training_had(stats, caplog):
  kernel = kernel_of('a_0')
  kernel.node_opcode[:] = [2, 13, 0, 255]
  warn(stats, [kernel])  # The opcodes of training are unknown.
  warn(stats, [kernel], [0, 2, 13, 255])
  assert not caplog.records
  assert found_in(stats, kernel, [2]) == [
      out_of_range.OutOfRange('a_0', 'node_opcode', name, number, 0.0, 0.0)
      for name, number in (('unknown', 0.0), (schema.OPCODE_NAMES[13], 13.0),
                           ('number 255', 255.0))]
  warn(stats, [kernel], [0, 2, 13])
  assert caplog.messages[0].splitlines()[1:] == [
      '  opcode number 255 (unseen in training) in a_0']


@pytest.mark.parametrize('bounds, shown', [
    ([(66, 1, 8), (-4, 1, 8)], '-4'), ([(70, 1, 8), (-4, 1, 8)], '70'),
    ([(66, -4, 8)], '-4'), ([(70, -4, 8)], '70')])
def test_the_value_farthest_from_its_range_is_shown(
    stats, caplog, bounds, shown):
  """Of 1 to 64, above it or below it, in one kernel or among several."""
  warn(stats, [kernel_of(f'a_{number}', bound=bound)
               for number, bound in enumerate(bounds)])
  assert f'  kernel_bounds_0 is {shown} (1 to 64 in training)' in caplog.text


def test_one_line_a_column_names_kernels(stats, caplog):
  kernels = [kernel_of('a_0', u8=(0, 0, 0, 1), size=(2048, 0, 0, 0)),
             kernel_of('b_0', size=(4816896, 1, 2, 2049)),
             kernel_of('c_0', bound=(128, 65, 64)), kernel_of('d_0')]
  warn(stats, kernels)
  heading = ('3 of 4 kernels have features that model_x was not trained on; '
             'their order is less certain')
  assert caplog.messages[0].splitlines() == [
      heading + ':',
      '  shape_element_type_is_u8 is 1 (0 to 0 in training) in a_0',
      '  shape_dimensions_0 is 4,816,896 (0 to 1,024 in training) in a_0, b_0',
      '  kernel_bounds_0 is 128 (1 to 64 in training) in c_0']
  caplog.set_level(logging.INFO, out_of_range.__name__)
  warn(stats, kernels)
  assert caplog.messages[1] == (
      heading + ' (columns or opcodes: 3; --verbose lists them)')
