"""Choosing among all legal tiles with a model of fixed scores."""

import dataclasses
import json
import logging
from concurrent.futures import Future

import numpy as np
import pytest

from support import model_checks as checks
from support.tiny_hlo import add, elementwise, product, written
from tpu_graphs_ext import cli
from tpu_graphs_ext.analytic import explain, geometry
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, kernel_sources, libtpu, tpu_compiler
from tpu_graphs_ext.serving import compiler_report, tile_ranking, tile_search
from tpu_graphs_ext.serving.tile_search import rank_kernel
from tpu_graphs_ext.tasks import TILE
from tpu_graphs_ext.tasks.feature_stats import what_tiles_count


class LargestFirst:
  """The more layout tiles of the output, the faster."""

  def forward(self, graph, num_configs):
    feats = graph.node_sets['config']['feats'].numpy()
    return -feats[np.newaxis, :, schema.CONFIG_FEATURES.index(
        'output_bounds_product')]

  def constants(self):
    return {'launch_ns': 1000.0}


def source_kernel_of(module) -> kernel_sources.SourceKernel:
  return kernel_sources.source_kernel(
      tpu_compiler.CompiledKernel(module, '', None, 1), module.name)


def measured(source_kernel, bounds, times):
  """The same with runs; the first is the default."""
  return dataclasses.replace(source_kernel, kernel=dataclasses.replace(
      source_kernel.kernel, config_feat=features.config_features([], bounds),
      runtime_ns=np.array(times), normalizer_ns=np.full(len(times), times[0])))


def with_window(source_kernel, bounds, cycles=None, **fields):
  """The same with a tile of the compiler's."""
  return kernel_sources.source_kernel(source_kernel.compiled._replace(
      window=tpu_compiler.Window(bounds, (), cycles), **fields),
                                      source_kernel.name)


def ranker_of(source_kernel) -> scoring.Ranker:
  stats = checks.stats_of([kernel_sources.never_timed(
      source_kernel.kernel, np.tile(np.float32([[0], [99]]), 24))])
  return scoring.Ranker(LargestFirst(), stats, schema.NUM_OPCODES, TILE)


def text_of(kernels, rankings) -> str:
  return tile_ranking.SourceRanking(
      'f', rankings, [], [], compiler_report.report_of(
          kernel_sources.Source('f', kernels, [], []))).text()


@pytest.fixture(scope='module')
def source_kernel():
  """f32 [32, 256]: bounds 4, 2, 1 by 2, 1."""
  return source_kernel_of(elementwise([32, 256]))


def test_the_best_first_and_why(source_kernel):
  ranking = rank_kernel(ranker_of(source_kernel), source_kernel, 2)
  assert (ranking.scored, ranking.fitting, ranking.combinations) == (6, 6, 6)
  first, second = ranking.choices
  assert (first.place, first.tile.output_bounds) == (1, (4, 2))
  # [4, 1] and [2, 2] have one score; the analytic time puts whole rows first.
  assert second.tile.output_bounds == (2, 2)
  assert ranking.default_from == kernel_sources.FROM_TIME
  assert ranking.default.over_default == 1
  assert first.measured_ns is None


def test_runs_of_the_file_give_the_default_and_times(source_kernel):
  """A measured tile of 3 rows is not legal; it is scored too."""
  timed = measured(source_kernel, [[1, 2], [4, 2], [3, 2], [4, 2]],
                   [200, 100, 170, 90])
  ranking = rank_kernel(ranker_of(source_kernel), timed, None)
  assert ranking.default_from == kernel_sources.FROM_FILE
  assert ranking.default.tile.output_bounds == (1, 2)
  assert ranking.default.measured_ns == 200
  assert len(ranking.choices) == ranking.scored == 7
  assert [choice.measured_ns for choice in ranking.choices][:2] == [90, 170]
  assert sorted(choice.place for choice in ranking.choices) == list(range(1, 8))
  withheld = measured(source_kernel, [[1, 2], [4, 2], [4, 2]], [0, 0, 0])
  ranking = rank_kernel(ranker_of(source_kernel), withheld, None)
  assert {choice.measured_ns for choice in ranking.choices} == {None}


def test_tiles_that_count_elements_are_not_taken_for_a_tpus(source_kernel):
  """256 x 2,048 elements are 32 x 16 layout tiles; 64 x 512 would exceed."""
  large = source_kernel_of(elementwise([256, 2048]))
  rank_kernel(ranker_of(source_kernel), measured(large, [[32, 16]], [5]))
  with pytest.raises(UserError, match='count elements, not layout'):
    rank_kernel(ranker_of(source_kernel), measured(large, [[64, 512]], [5]))


def test_a_few_tiles_that_fit_are_a_tpus_though_elements_suit_them_better():
  """64 x 16 x 1 x 1 layout tiles, but 8 is the first size in elements."""
  source = source_kernel_of(elementwise([8, 64, 16, 128], [3, 0, 2, 1]))
  bounds = [[8 - row % 8, 1 + row // 8, 1, 1] for row in range(20)]
  few, again, many = (measured(source, rows, [5] * len(rows))
                      for rows in (bounds[:19], bounds[:1] * 25, bounds))
  for timed in (few, again, many):
    assert what_tiles_count([timed.kernel])[0] == 'elements'
  for timed in (few, again):
    assert rank_kernel(ranker_of(source), timed).default.tile.output_bounds == (
        8, 1, 1, 1)
  with pytest.raises(UserError, match='count elements, not layout'):
    rank_kernel(ranker_of(source), many)


def test_nodes_and_tiles_outside_the_training_data_are_named(
    source_kernel, monkeypatch, caplog):
  caplog.set_level(logging.DEBUG, 'tpu_graphs_ext')
  ranker = dataclasses.replace(
      ranker_of(source_kernel), in_elements=True,
      opcodes=frozenset(source_kernel.kernel.node_opcode.tolist()))
  monkeypatch.setattr(scoring, 'load_ranker', lambda *unused: ranker)
  with pytest.raises(UserError, match=r'counted in elements.*--data'):
    tile_search.rank_sources('model_x', [])
  ranker = dataclasses.replace(ranker, in_elements=False)

  def ranked(columns, opcode):
    source = Future()
    source.set_result(kernel_sources.Source('f', [source_kernel_of(elementwise(
        [32, columns], opcode=opcode))], [], []))
    return tile_search.rank_sources('model_x', [source])[0]

  ranking = ranked(256, 'tanh')
  assert not caplog.records and ranking.kernels[0].unfamiliar == []
  assert 'less certain' not in ranking.text()
  # 4 x 128 layout tiles: bounds from 1 to 4, and from 1 to 128.
  wide = ranked(64 * 256, 'negate')
  assert wide.text().split('\n')[4].startswith(
      '  its order is less certain, unlike in training: shape_dimensions_1 '
      '16,384 (256 to 256), ')
  assert caplog.records[0].message.startswith(
      '1 of 1 kernels have features that ')
  assert {'config_feat', 'node_feat', 'node_opcode'} == {
      each['table'] for each in wide.to_json()['kernels'][0]['unfamiliar']}


def test_a_window_of_another_tensor_is_not_a_default(source_kernel):
  for bounds, default_from in (((9, 2), kernel_sources.FROM_TIME),
                               ((2, 2), kernel_sources.FROM_COMPILER)):
    ranking = rank_kernel(ranker_of(source_kernel), with_window(
        source_kernel, bounds), 1)
    assert ranking.default_from == default_from
    assert (ranking.default.tile.output_bounds == (2, 2)) or ranking.notes == [
        "the compiler's tile, output [9, 2], kernel [], belongs to another "
        'tensor than the one that is tiled here']


def test_a_module_has_nothing_on_the_chip():
  """f32 [64, 512] x [512, 256]: of a v6e's product all but half a MiB is free.

  Whole, it needs a copy of each operand in bfloat16 and the result, 64 + 256 +
  64 KiB, and in main memory the operands' blocks of 128 and 512 KiB too.
  """
  module = product(64, 512, 256)
  for node in module.computations[0].instructions[:2]:
    node.shape.layout.memory_space = 1
  root, free = tpu_compiler.root_of(module), 64 + 256 + 64
  for kib, fits in ((free - 1, (False, False)), (free, (True, False)),
                    (free + 639, (True, False)), (free + 640, (True, True))):
    root.backend_config = json.dumps({'scoped_memory_configs': [{
        'memory_space': '1', 'size': str((kib + 512) * 1024)}]}).encode()
    kernel = kernel_sources.source_kernel(tpu_compiler.CompiledKernel(
        module, '', tpu_compiler.Window((1, 1), (16, 1), None), 1), 'product')
    for alone, is_listed in zip((False, True), fits):
      ranking = rank_kernel(
          ranker_of(kernel), kernel, None, tpu='v6e', alone=alone)
      assert is_listed == any(
          (choice.tile.output_bounds, choice.tile.kernel_bounds)
          == ((8, 2), (64, 2)) for choice in ranking.choices)


def test_a_kernel_of_less_memory_has_the_times_that_the_model_learned():
  module = elementwise([32, 256])
  tpu_compiler.root_of(module).backend_config = json.dumps({
      'scoped_memory_configs': [{'memory_space': '1', 'size': '40000'}]
  }).encode()
  kernel = with_window(source_kernel_of(module), (2, 2))
  ranking = rank_kernel(ranker_of(kernel), kernel)
  assert ranking.fitting < ranking.combinations
  assert ranking.default.tile.terms.launch == 1000


def test_kernels_of_one_tile():
  source_kernel = source_kernel_of(elementwise([8, 100]))
  ranking = rank_kernel(ranker_of(source_kernel), source_kernel)
  assert not ranking.choices and ranking.default is None
  assert text_of([source_kernel], [ranking]).endswith(
      'nothing to choose, with one legal tile: elementwise')


def test_parts_give_what_the_whole_gives(monkeypatch):
  source_kernel = source_kernel_of(product(1024, 512, 384))
  ranker = ranker_of(source_kernel)
  whole = rank_kernel(ranker, source_kernel, 20)
  monkeypatch.setattr(tile_search, '_AT_ONCE', 60)
  assert rank_kernel(ranker, source_kernel, 20) == whole
  monkeypatch.setattr(tile_search, 'MOST_TILES', 30)
  some = rank_kernel(ranker, source_kernel, None)
  assert len(some.choices) == 30 and some.fitting == whole.scored > 30


def test_a_summary_of_a_compiled_program(source_kernel):
  """The TPU compiler's tile, 2x1, is the model's fifth choice of six."""
  known = dataclasses.replace(with_window(
      source_kernel, (2, 1), 70, op_name='jit(f)/tanh'), copies=3, share=0.875)
  other = dataclasses.replace(with_window(
      source_kernel, (9, 1), 30, in_open_loop=True), share=0.125)
  ranker = ranker_of(source_kernel)
  rankings = [rank_kernel(ranker, kernel, 1) for kernel in (known, other)]
  text = text_of([known, other], rankings)
  assert [line.split() for line in text.split('\n\n')[1].split('\n')] == [
      ['kernel', 'share', 'of', 'time', 'cycles', 'tile', 'GFLOP', 'MiB', 'of',
       'HBM', 'FLOP/byte', 'MiB', 'on', 'chip', 'operation'],
      # 8,192 tanh; f32 [32, 256] read and written.
      ['elementwise', 'x3', '87.5', '%', '70', '2x1', '0.000', '0.06', '0.06',
       '0.1', '0.00', 'jit(f)/tanh'],
      ['elementwise', '12.5', '%', '*', '30', '9x1', '0.000', '0.06', '0.06',
       '0.1', '0.00']]
  assert [line.split() for line in text.split('\n\n')[2].split('\n')] == [
      ['kernel', 'best', 'tile', 'analytic', 'time', 'default', 'tile', 'its',
       'place'], ['elementwise', '4x2', '-33.4', '%', '2x1', '5', 'of', '6'],
      ['elementwise', '4x2', '0.0', '%'],
      ('analytic time: change from the default to the best tile, by formula; '
       'it does not predict the gain, so measure both').split()]
  assert "default, the TPU compiler's; the model puts it at place 5" in text


def test_kernels_with_several_products_are_not_ranked():
  """f32 [64, 256] x [256, 512] x [512, 128], as one kernel."""
  module = product(64, 256, 512)
  entry = module.computations[0]
  add(entry, 13, 'parameter', [512, 128], parameter_number=2)
  root = add(entry, 14, 'convolution', [64, 128], None, [12, 13])
  root.convolution_dimension_numbers.CopyFrom(
      entry.instructions[2].convolution_dimension_numbers)
  entry.root_id = 14
  source_kernel = source_kernel_of(module)
  ranking = rank_kernel(ranker_of(source_kernel), source_kernel)
  assert not ranking.choices and ranking.product is None
  assert ranking.notes == [
      'it fuses 2 products, and only tiles of a single one are understood, so '
      'it is not ranked']
  assert text_of([], [ranking]).endswith(
      'not ranked, because they fuse several products: product')


def test_layout_tiles_of_16_rows_are_read_from_the_kernels_hlo():
  """bf16 [64, 512] x [512, 384]: rows [8, 4, 3, 2, 1] by 3 columns by 3."""
  module = product(64, 512, 384, element_type='BF16')
  for listed in (5 * 3 * 3, 3 * 3 * 3):  # Then without 3 and 1.
    source_kernel = source_kernel_of(module)
    assert rank_kernel(ranker_of(source_kernel), source_kernel).scored == listed
    module.computations[0].instructions[0].shape.layout.tiles.add(
        dimensions=(16, 128))


def test_a_file_whose_tiles_have_no_bounds_has_one_tile():
  """As real reshapes, which were not tiled; so a scatter in a program."""
  module = elementwise([2 ** 14, 2 ** 14], opcode='reshape')
  source_kernel = source_kernel_of(module)
  assert rank_kernel(ranker_of(source_kernel), source_kernel, 1).scored > 50
  tpu_compiler.root_of(module).backend_config = b'{"flag_configs": []}'
  for untiled in measured(source_kernel, [[0]], [5]), source_kernel_of(module):
    ranking = rank_kernel(ranker_of(source_kernel), untiled)
    assert ranking.scored == 1 and not ranking.choices
  assert ranking.notes[0] == 'the compiler cuts it into no tiles'


def test_the_command(source_kernel, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(
      scoring, 'load_ranker', lambda *unused: ranker_of(source_kernel))
  path = written(tmp_path / 'a.after_optimizations.hlo.pb',
                 elementwise([32, 256]))
  command = ['rank', path]
  assert cli.main([*command, '--top_k=1']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[:8] == [
      f'{path}: 1 kernel',
      "  not known to be a TPU's: nothing in it says what compiler optimised "
      'it',
      '  bounds: layout tiles and elements of each physical dimension, most '
      'major first',
      '', 'elementwise: 2 nodes (tanh), 6 tiles',
      '  1  output 4x2 = 32x256 elements',
      '     analytic time 1.5 us, 0.0 % against the default; 64.0 KiB on chip',
      '     1 step, 64.0 KiB moved (1.00 x the least), padding 0 %, bound by '
      'launching it']
  assert lines[8].startswith('  default, fastest by the formula')
  assert cli.main([*command, 'none.pb', '--json', '--all']) == 1
  printed = capsys.readouterr()
  assert printed.err.splitlines()[-1] == (
      'error: none.pb: no such file; a function is named as module:function')
  ranked, none = json.loads(printed.out)
  assert none['faults'] and not none['kernels']
  kernel, = ranked['kernels']
  assert len(kernel['choices']) == kernel['scored'] == 6
  assert kernel['default']['tile']['bound_by']
  assert cli.main(['rank', 'none.pb', '--json']) == 1
  assert json.loads(capsys.readouterr().out) == [none]


def test_typos_are_named_at_once(tmp_path, monkeypatch, capsys):
  """Before TensorFlow loads, or the user's module runs."""
  (tmp_path / 'layers.py').write_text('def dense(x, w): pass\n')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(scoring, 'load_ranker', lambda *unused: 1 / 0)
  monkeypatch.setattr(libtpu, 'library', lambda: 'libtpu.so')
  for arguments, rule in (
      (['layers.py:dens'], "has no 'dens'; did you mean 'dense'?"),
      (['layers.py:dense', '--shapes', 'argument'], "has no 'argument'"),
      (['layer.py:dense'], 'layer.py:dense: no such file: layer.py'),
      (['layer:dense'], "there is no module 'layer'"),
      (['layers.py:dense', '--shapes', 'f32[3'], 'cannot be read; write'),
      (['layers.py:dense', '--tpu', 'v9'], "'v9' is not a TPU generation"),
      (['layers.py', '--blocks', 'usual'], 'layers.py: names no function; na'),
      (['layers.py:dense', '--dir', 'none'], 'no such model folder')):
    for verb in ('rank', 'kernels'):
      if verb == 'rank' or not {'--dir', '--blocks'} & {*arguments}:
        assert cli.main([verb, *arguments]) == 1
        assert rule in capsys.readouterr().err


def test_times_of_another_generation_are_by_its_own_constants():
  """Not by those of the package's model, which is for a TPU v3."""
  module = product(4096, 8192, 4096, element_type='BF16')
  kernel = source_kernel_of(module)
  ranked = [tile_search.rank_source(
      ranker_of(kernel), kernel_sources.Source('f', [kernel], [], [], tpu=tpu),
      1).kernels[0] for tpu in ('v3', 'v6e')]
  of_v3, of_v6e = (kernel.default.predicted_ns for kernel in ranked)
  peak_ns = 2 * 4096 * 8192 * 4096 / MACHINES['v6e'].flops_per_ns
  assert peak_ns < of_v6e < 1.53 * peak_ns < of_v3 / 5
  # A model of that generation explains by the same constants.
  times = []
  for of_model, tpu in ('', 'v6e'), ('v6e', ''), ('', ''):
    ranker = dataclasses.replace(ranker_of(kernel), tpu=of_model)
    loops, = geometry.loops_of(
        [kernel.kernel], tile_search.machine_of(ranker, tpu))
    times.append(explain.terms(loops, loops.whole[np.newaxis],
                               tile_search.constants_of(ranker, loops)).time)
  assert times[0] == times[1] != times[2]
