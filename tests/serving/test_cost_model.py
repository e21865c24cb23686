"""A trained model as an object: what it takes, says and refuses."""

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import pickle
import signal

import numpy as np
import pytest
import tensorflow as tf

import tpu_graphs_ext
from support import model_checks, saved_run, tiny_hlo
from support.feature_tiles import explained, kernel_of_module
from support.saved_run import KERNELS
from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic import candidates, geometry
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.engine import rank, scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, kernel_sources, tpu_compiler
from tpu_graphs_ext.serving import cost_model, tile_search
from tpu_graphs_ext.serving.cost_model import CostModel
from tpu_graphs_ext.tasks import TILE, api
from tpu_graphs_ext.tasks.tile import LoadSettings

KERNEL, REPEATING = KERNELS[:2]
TILES = KERNEL.config_feat
# 256 x 64 layout tiles.
TILED = kernel_of_module(tiny_hlo.elementwise([2048, 8192]),
                         [[2 * i + 1, 64 - i] for i in range(8)])
CONVOLUTION = kernel_of_module(tiny_hlo.convolution(), [[2, 4, 1, 1]])


@pytest.fixture(scope='module')
def model(saved_model_dir):
  return tpu_graphs_ext.CostModel.load(os.path.relpath(saved_model_dir))


@pytest.fixture(scope='module')
def ranker(saved_model_dir):
  return scoring.load_ranker(saved_model_dir, LoadSettings())


def test_scores_are_those_of_forward(model, ranker, tmp_path, monkeypatch):
  for kernel in KERNELS:
    np.testing.assert_allclose(
        model.score(kernel), ranker.scored(kernel).given, **model_checks.CLOSE)
  monkeypatch.setenv('HOME', str(tmp_path))
  expected, path = model.score(KERNEL), KERNEL.save('~/kernels')
  arrays = saved_run.arrays_of(KERNEL)
  for kernel in (path, pathlib.Path('~/kernels/net_0.npz'), arrays,
                 dict(np.load(path))):
    np.testing.assert_array_equal(model.score(kernel), expected)
  del arrays['config_feat']
  np.testing.assert_array_equal(model.score(arrays, TILES), expected)


def test_tiles_are_bounds_pairs_or_rows(model):
  lists = dataclasses.replace(TILED, edge_index=TILED.edge_index.tolist())
  row = features.config_features([], [16, 32])
  for tile in [16, 32], np.array([16, 32]), ([16, 32], ()), row.tolist():
    said = model.explain(lists, tile)
    assert said == explained(TILED, row)
  choice = model.rank(TILED, top=1, bounds=[[16, 32]]).choices[0]
  assert model.explain(saved_run.arrays_of(TILED), choice) == said
  tile = (np.array([2, 4, 1, 1]), (3, 1, 16, 1))
  assert model.explain(CONVOLUTION, tile).kernel_bounds == tile[1]
  assert model.score(CONVOLUTION, [tile]).shape == (1,)
  for kernel, bad, message in (
      (TILED, [16], r'bounds \[16.0\] of the tiled tensor; they must be 2 '),
      (TILED, [16, 65], r'at least 1 and at most \[256, 64\]'),
      (TILED, [float('nan')] * 24, 'values must be finite'),
      (CONVOLUTION, (tile[0], [3, 1, 99, 1]), "of a product's filter; they"),
      (CONVOLUTION, tile[0], r'this kernel has a filter: give pairs, as \(\['),
      (CONVOLUTION, [1.5, 4, 1, 1], r'bounds \[1.5, .* of the tiled tensor'),
      (TILED, ([16, 32], [1]), r'has no filter: .*, as \[256, 64\] for')):
    with pytest.raises(UserError, match=message):
      model.explain(kernel, bad)


def test_ranking_is_that_of_the_command(model, ranker):
  for kernel in KERNELS:
    (_, scores), = ranker.score_all(Partition.from_kernels([kernel]), 'rank')
    assert [choice.index for choice in model.rank(kernel).choices] == [
        choice.index for choice in rank.ranking_of(kernel, scores, 5).choices]
  indices = [choice.index for choice in model.rank(REPEATING, top=20).choices]
  assert sorted(indices) == list(range(20))
  assert set(indices[-3:]) == {3, 7, 19}


def test_ranking_of_given_tiles(model):
  tiles = [[2, 3], [16, 32], [64, 1], [16, 32]]
  ranking = model.rank(TILED, top=2, bounds=tiles)
  scores = model.score(TILED, tiles)
  assert scores[1] == scores[3] != scores[0]
  best = ranking.choices[0]
  assert best.output_bounds == tiles[np.argmin(scores)]
  assert best.runtime_ns is None  # What was measured is of other tiles.


def test_ranking_of_all_legal_tiles(model):
  arrays = saved_run.arrays_of(CONVOLUTION)
  del arrays['config_feat']
  legal = candidates.candidates(*geometry.loops_of([CONVOLUTION]))
  ranking = model.rank(arrays, top=3)
  assert ranking.configs == len(legal.tiles) > 100
  scores = model.score(CONVOLUTION, [(
      each.output_bounds, each.kernel_bounds) for each in ranking.choices])
  assert scores.tolist() == sorted(scores.tolist())


def test_a_pickled_model_is_its_folder(model, saved_model_dir):
  content = pickle.dumps(model)
  assert len(content) < 1000 and str(saved_model_dir).encode() in content
  np.testing.assert_array_equal(
      pickle.loads(content).score(KERNEL), model.score(KERNEL))


def test_after_a_fork_there_is_one_error(model, saved_model_dir):
  """TensorFlow would hang; a child whose call raises leaves with 7."""
  content = pickle.dumps(model)

  def unpickled():
    try:
      return pickle.loads(content)
    except UserError:  # A multiprocessing.Pool would wait forever.
      os._exit(3)

  for call in (lambda: model.score(KERNEL),
               lambda: CostModel.load(saved_model_dir),
               lambda: unpickled().score(KERNEL)):
    child = os.fork()
    if not child:
      code = 1
      signal.alarm(30)
      try:
        call()
      except UserError as error:
        code = 7 if "get_context('spawn')" in str(error) else 2
      finally:
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_files_that_the_command_takes(model, tmp_path):
  path = tmp_path / 'a.after_optimizations.txt'
  path.write_bytes(tiny_hlo.elementwise([32, 256]).SerializeToString())
  for name in (path, str(path)):
    ranking = model.rank(name, top=2)
    assert [kernel.name for kernel in ranking.kernels] == ['elementwise']
    assert len(ranking.kernels[0].choices) == 2


def test_threads_get_what_one_gets(model):
  expected = [model.score(kernel) for kernel in KERNELS]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    for scores, kernel in [
        (pool.submit(model.score, kernel), number)
        for _ in range(25) for number, kernel in enumerate(KERNELS)]:
      np.testing.assert_array_equal(scores.result(), expected[kernel])


def test_nothing_is_compiled_after_loading(saved_model_dir, monkeypatch):
  made = load_models.model_class(saved_run.NAME)
  traced, forward = [], made.forward
  monkeypatch.setattr(made, 'forward', lambda self, *args: traced.append(
      tf.inside_function()) or forward(self, *args))
  model = CostModel.load(saved_model_dir)
  assert traced.count(True) == 1
  calls = len(traced)
  for kernel in KERNELS:
    model.rank(kernel)
  assert len(traced) == calls


class WithConstants:

  def forward(self, graph, num_configs):
    return tf.zeros([1, num_configs])

  def constants(self):
    return {'bytes_per_ns': 3.0}


class SumsOfNodes:

  def forward(self, graph, num_configs):
    return tf.fill([1, num_configs],
                   tf.reduce_sum(graph.node_sets['op']['feats']))

  def constants(self):
    return {}


@pytest.mark.parametrize('known, scores', [
    ('U8 BF16 PRED', {'S8': 4, 'F8E4M3FN': 4, 'S4': 4, 'U8': 4, 'F16': 6,
                      'U16': 6, 'PRED': 8, 'F32': 0, 'F64': 0}),
    ('F32 PRED', {'S8': 6, 'F16': 0}), ('S8 U8', {'S8': 4, 'U8': 6})])
def test_types_that_training_lacked_count_as_others_of_as_many_bytes(
    known, scores, tmp_path, monkeypatch):
  """Each of two nodes counts 2 of the first known type, 3 of the second."""
  first = schema.NODE_COLUMN['shape_element_type_is_invalid_type']
  none = np.zeros(len(schema.NODE_FEATURES), np.float32)
  largest = none.copy()
  for number, name in enumerate(known.split(), 2):
    largest[first + schema.ELEMENT_TYPES.index(name)] = 1 / number
  ranker = scoring.Ranker(SumsOfNodes(), FeatureStats(
      ColumnStats(none, largest),
      ColumnStats(np.zeros(24, np.float32), np.ones(24, np.float32))),
                          108, TILE)
  model = CostModel(ranker)
  monkeypatch.setattr(api, 'load_ranker', lambda *_: ranker)
  for name, score in scores.items():
    source = kernel_sources.source_kernel(tpu_compiler.CompiledKernel(
        tiny_hlo.elementwise([64, 256], element_type=name), '', None, 1), '')
    assert model.score(source.kernel, [[8, 2]]) == [score]
    assert tile_search.rank_kernel(ranker, source).choices[0].score == score
    path = kernel_sources.never_timed(
        source.kernel, TILES[:1]).save(str(tmp_path))
    ranking, = api.rank('model', path, loading=LoadSettings(cache_dir=''))
    assert ranking.choices[0].score == score


class Untraceable:

  def forward(self, graph, num_configs):
    return np.zeros((1, int(num_configs)))  # Known only when it runs.


def test_models_of_ones_own():
  stats = model_checks.stats_of(KERNELS)
  ranker = scoring.Ranker(WithConstants(), stats, 108, TILE)
  model = CostModel(ranker)
  assert model.constants == {'bytes_per_ns': 3.0}
  row = features.config_features([], [16, 4])
  assert model.explain(TILED, [16, 4]) == explained(
      TILED, row, {'bytes_per_ns': 3.0})
  model = CostModel(dataclasses.replace(ranker, in_elements=True))
  assert model.score(TILED, TILED.config_feat).shape == (8,)
  for ask in (model.explain, lambda kernel, *tiles: model.score(kernel, tiles)):
    with pytest.raises(UserError, match='counted in elements'):
      ask(TILED, [2048, 4])
  with pytest.raises(UserError, match='forward of Untraceable cannot be comp'):
    CostModel(scoring.Ranker(Untraceable(), stats, 108, TILE))


def test_arguments_that_are_refused(model):
  arrays = saved_run.arrays_of(KERNEL)
  graph = {**arrays}
  del graph['config_feat']
  for kernel, message in (
      (3, 'a kernel must be the path of an .npz file, .*; got int'),
      ('/nowhere/k.npz', '/nowhere/k.npz: cannot be read as a tile file'),
      (graph, 'has no config_feat; name the tiles'),
      ({**arrays, 'config_feats': 1, 2: 3}, r"got \['2', .*'config_feats'"),
      ({**arrays, 'edge_index': [[1], [1, 0]]}, 'has rows of different len'),
      ({**arrays, 'edge_index': [[1, 99]]}, '^kernel: edge_index row 0 is'),
      ({**arrays, 'node_feat': KERNEL.node_feat.tolist()},
       '^kernel: node_feat has dtype float64; it must be float32; docs/data.md '
       'describes the arrays$'),
      ({**arrays, 'config_feat': 1}, 'config_feat has dtype'),
      ({**arrays, 'node_feat': KERNEL.node_feat[:, 1:]},
       'node_feat has 139 columns')):
    with pytest.raises(UserError, match=message):
      model.score(kernel)
  for bounds in ([], '16x32', 16, [99], [None], [[1, 2], [1]], {'a': 1},
                 [[10**400, 1]], [([[16, 32]], [[1]])]):
    with pytest.raises(UserError, match='must be a list of at least one tile'):
      model.score(TILED, bounds)
  for bounds in ([[16, 0]], [[1.5, 2]], [[float('nan'), 2.0]]):
    with pytest.raises(UserError, match='whole numbers of at least 1'):
      model.score(TILED, bounds)
  for wrong, message in (
      (dict(blocks='usual'), 'blocks= go with a program, not a kernel'),
      (dict(vmem_limit=9), 'vmem_limit= goes with blocks=')):
    with pytest.raises(UserError, match=message):
      model.rank(KERNEL, **wrong)
  for rank_or_report in (model.rank, tpu_graphs_ext.kernels, functools.partial(
      model.rank, blocks='usual')):
    for shapes in 5, (tf.TensorSpec([8]),):
      with pytest.raises(UserError, match='as text with a function\'s name'):
        rank_or_report('my_model.py:step', shapes)


def test_tiles_of_a_kernel_are_of_one_generation(model, ranker):
  kernel = {**saved_run.arrays_of(TILED), 'config_feat': []}
  counts = [model.rank(kernel, tpu=tpu).configs for tpu in ('', 'v3', 'v5e')]
  assert counts[0] == counts[1] != counts[2]
  ours = CostModel(dataclasses.replace(ranker, tpu='v5e'))
  assert ours.rank(kernel, tpu='v5litepod-8').configs == counts[2]
  with pytest.raises(UserError, match=r"tpu='v3': .* of a TPU v5e"):
    ours.rank(KERNEL, tpu='v3')


@pytest.fixture
def counted(ranker, monkeypatch):
  """A model that caches 16 tiles, and a list of the tiles of each call."""
  monkeypatch.setattr(cost_model, '_CACHED_TILES', 16)
  model, calls = CostModel(ranker), []
  program = model._program
  monkeypatch.setattr(model, '_program', lambda *tensors: calls.append(
      len(tensors[-1])) or program(*tensors))
  return model, calls


def test_equal_arrays_are_scored_once(counted, tmp_path):
  model, calls = counted
  expected = model.score(KERNEL)
  for kernel in (KERNEL.save(str(tmp_path)), saved_run.arrays_of(KERNEL)):
    np.testing.assert_array_equal(model.score(kernel), expected)
  assert calls == [8]
  expected[0] = 9  # A caller's own copy.
  assert model.score(KERNEL)[0] != 9
  arrays = saved_run.arrays_of(KERNEL)
  model.score({**arrays, 'node_feat': arrays['node_feat'] + 1})
  model.score({**arrays, 'config_feat': TILES[::-1]})
  assert len(calls) == 3


def test_the_cache_keeps_the_last_tiles(counted):
  model, calls = counted
  for shift in (0, 1, 0, 2, 0, 1):  # Two kernels of eight tiles fit.
    model.score(KERNEL, TILES + shift)
  assert len(calls) == 4
  for _ in range(2):  # More than the cache holds.
    model.score(REPEATING)
  assert len(calls) == 6
