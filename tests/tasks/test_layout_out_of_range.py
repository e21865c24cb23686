"""Programs with opcodes, sizes and layouts that training did not have."""

import dataclasses
import logging

import numpy as np
import pytest

from support import tiny_layout_models
from tpu_graphs_ext.data import programs, schema
from tpu_graphs_ext.engine import out_of_range, scoring
from tpu_graphs_ext.tasks import LAYOUT, api, layout_batches
from tpu_graphs_ext.tasks.layout import LayoutLoadSettings

SIZE = schema.NODE_COLUMN['shape_dimensions_0']


@pytest.fixture(autouse=True)
def verbose(caplog):
  caplog.set_level(logging.DEBUG, out_of_range.__name__)


@pytest.fixture(scope='module')
def train(layout_run):
  return programs.read_programs(f'{layout_run[1]}/xla/random/train')


@pytest.fixture(scope='module')
def ranker(train):
  return scoring.Ranker(
      None, train.stats, 256, LAYOUT, 'model_x',
      opcodes=frozenset(train.opcodes))


def test_a_size_an_opcode_and_a_layout_beyond_training(
    ranker, train, monkeypatch, caplog):
  # 5 configurable nodes of 40, 12 configurations: 60 layouts of nodes.
  program = train[0]
  node_feat, opcode = program.node_feat.copy(), program.node_opcode.copy()
  node_feat[3, SIZE], opcode[:2] = 1e6, 255
  layouts = program.layouts(np.arange(12))
  layouts[[0, 4, 11], 1, 3] = 5  # Of three dimensions, so always -1.
  config = dataclasses.replace(
      program.bounds.config, maximum=layouts.max((0, 1)))
  wild = dataclasses.replace(
      program, name='wild', node_feat=node_feat, node_opcode=opcode,
      bounds=dataclasses.replace(program.bounds, config=config),
      read_layouts=lambda configs: layouts[configs])
  monkeypatch.setattr(layout_batches, 'COUNTED_FLOATS', 5 * 5 * 18)
  out_of_range.warn(ranker, programs.Programs([program, wild]))
  largest = int(ranker.stats.node.maximum[SIZE])
  least = int(ranker.stats.node.minimum[SIZE])
  assert caplog.records[0].message.splitlines() == [
      '1 of 2 programs have features that model_x was not trained on; their '
      'order is less certain:',
      f'  shape_dimensions_0 is 1,000,000 ({least} to {largest} in training) '
      'in wild', '  opcode number 255 (unseen in training) in wild',
      f'  {schema.LAYOUT_CONFIG_FEATURES[3]} is 5 (-1 to -1 in training) in '
      'wild']


def test_rank_and_predict_warn(layout_run, tmp_path, caplog):
  trained, root = layout_run
  loading = LayoutLoadSettings(
      data_root=root, cache_dir='', models_py=tiny_layout_models.__file__)
  ranker = scoring.load_ranker(trained.model_dir, loading)
  api.rank(trained.model_dir, f'{root}/xla/random/train/train_0.npz',
           loading=loading)
  assert not caplog.records
  test = programs.read_programs(f'{root}/xla/random/test')
  strange = sorted(set(test.opcodes) - ranker.opcodes)  # Drawn for each.
  api.rank(trained.model_dir, loading=loading)
  api.predict(trained.model_dir, loading=loading, out=str(tmp_path / 'p.csv'))
  for message in caplog.messages:
    assert f'opcode {schema.OPCODE_NAMES[strange[0]]} (unseen' in message
  assert len(caplog.messages) == 2
