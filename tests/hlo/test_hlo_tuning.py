"""Tuning files: the rules on hand-made runs, and the real files."""

import logging
import os

import numpy as np
import pytest

from support.tiny_hlo import written
from support.tiny_tuning import featurized, layout_data, tile_data
from tpu_graphs_ext.data import check, schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import featurize, protos, tuning


def test_tile_runs_that_count():
  kernel, = tuning.tile_kernels(tile_data())
  assert kernel.tile_id == 'tanh_00000000000000ab'
  assert kernel.runtime_ns.tolist() == [100, 150]
  assert kernel.normalizer_ns.tolist() == [100, 100]
  first = schema.CONFIG_FEATURES.index('output_bounds_0')
  assert kernel.config_feat[:, first].tolist() == [2, 1]
  assert kernel.edge_index.tolist() == [[1, 0]]
  for field in schema.TILE_FIELDS[:4]:
    assert getattr(kernel, field.name).dtype == field.dtype
  # Names of files, without unsafe characters.
  kernel, = tuning.tile_kernels(tile_data(name='../a b/c'))
  assert kernel.tile_id == '_a_b_c_00000000000000ab'
  for program in ('alexnet', 'alexnet_00000000000000ab'):
    kernel, = tuning.tile_kernels(tile_data(), program=program)
    assert kernel.tile_id == 'alexnet_00000000000000ab'


def test_modules_that_are_left_out_are_reported(caplog):
  data = tile_data()
  for name in ('all_errors', 'no_bounds'):
    data.modules.add().CopyFrom(tile_data(name=name).modules[0])
  for run in data.modules[1].runs:
    run.error = True
  data.modules[2].runs[0].op_config.ClearField('tile_size_config')
  with caplog.at_level(logging.WARNING):
    kernels = tuning.tile_kernels(data)
  assert [kernel.program for kernel in kernels] == ['tanh']
  assert 'left out 2 of 3 modules' in caplog.text
  assert ': all_errors, no_bounds' in caplog.text


def test_repeated_kernels_are_joined_and_the_last_default_counts():
  data = tile_data()
  data.modules.add().CopyFrom(data.modules[0])
  data.modules[1].runs[1].profile.compute_time_ns = 120
  kernel, = tuning.tile_kernels(data)
  assert kernel.runtime_ns.tolist() == [100, 150, 120, 150]
  # A module name has one normalizer.
  assert kernel.normalizer_ns.tolist() == [120] * 4
  # Kernels that contradict themselves.
  data = tile_data()
  data.modules.add().CopyFrom(tile_data(size=4096).modules[0])
  with pytest.raises(UserError, match='two different modules have the tile '
                                      'id tanh_00000000000000ab'):
    tuning.tile_kernels(data)
  data = tile_data()
  data.modules[0].runs[1].is_default = False
  with pytest.raises(UserError,
                     match=r"'tanh': none of its 2 runs .* default"):
    tuning.tile_kernels(data)


def test_layout_runs(caplog):
  data = layout_data()
  graph, = tuning.layout_graphs(protos.TuningData(modules=[data]), name='unet')
  assert graph.name == 'unet'
  assert graph.config_runtime.tolist() == [70, 80]
  assert graph.node_config_ids.tolist() == [1]
  assert graph.node_splits.tolist() == [[0, 2]]
  # Output {1, 0}, input left to the compiler, kernel {2, 1, 0}.
  pad = schema.LAYOUT_PADDING
  assert graph.node_config_feat.tolist() == [
      [[pad] * 18],
      [[1, 0] + [pad] * 4 + [pad] * 6 + [2, 1, 0] + [pad] * 3]]
  for field in schema.LAYOUT_FIELDS:
    assert getattr(graph, field.name).dtype == field.dtype
  data.runs[0].is_default = False
  with caplog.at_level(logging.WARNING):
    graph, = tuning.layout_graphs(protos.TuningData(modules=[data]))
  assert graph.node_config_feat.shape == (0, 1, 18)
  assert 'no default run that counts: its 3 runs were left out' in caplog.text


def test_damaged_layout_data():
  for damage, message in (
      (lambda d: d.config_index_to_node.append(2), 'its largest is 2'),
      (lambda d: d.runs[0].module_config.layout_config.nodes.add(),
       'for 2 nodes and up to 1'),
      (lambda d: d.runs[2].module_config.layout_config.nodes[0].tensors.add(),
       'up to 4 tensors'),
      (lambda d: setattr(d.runs[0].profile, 'compute_time_ns', 0),
       'at least 1 ns; found 0')):
    data = layout_data()
    damage(data)
    with pytest.raises(UserError, match=message):
      tuning.layout_graphs(protos.TuningData(modules=[data]))


def test_kinds_of_file_are_told_apart(tmp_path):
  out = tmp_path / 'out'
  several = written(tmp_path / 'several.pb', tile_data())
  single = written(tmp_path / 'alexnet.pb', tile_data().modules[0])
  layout = written(tmp_path / 'unet.pb', layout_data())
  paths, faults = featurize.featurize([several, single], str(out))
  assert not faults
  before = sorted(os.listdir(out))
  with pytest.raises(UserError, match=r'tiles \(of .*alexnet_00.*layouts \(of '
                     r'.*unet\.pb\), and no command reads a folder of both'):
    featurized(layout, str(out))
  assert sorted(os.listdir(out)) == before
  out = tmp_path / 'layouts'
  paths += featurized(layout, str(out))
  with pytest.raises(UserError, match=r'tiles \(of .*single|tiles \(of .*alex'):
    featurized(single, str(out))
  assert [os.path.basename(path) for path in paths] == [
      'tanh_00000000000000ab.npz', 'alexnet_00000000000000ab.npz', 'unet.npz']
  assert before + os.listdir(out) == sorted(map(os.path.basename, paths))
  assert Kernel.load(paths[0]).runtime_ns.tolist() == [100, 150]
  with np.load(paths[-1]) as stored:
    assert list(stored) == [field.name for field in schema.LAYOUT_FIELDS]


def test_unknown_opcodes_are_written_as_0_and_named(tmp_path, caplog):
  data = tile_data()
  data.modules[0].module.computations[0].instructions[1].opcode = 'erf'
  path, = featurized(written(tmp_path / 'erf.pb', data), str(tmp_path / 'out'))
  assert Kernel.load(path).node_opcode[1] == schema.UNKNOWN_OPCODE
  assert (': 1 of 2 operations have no opcode in the data set and count as '
          'unknown (0)') in caplog.text
  assert not check.check_data(str(tmp_path / 'out')).faults
  caplog.clear()
  featurized(written(tmp_path / 'a.pb', tile_data()), str(tmp_path))
  assert 'unknown' not in caplog.text


def test_files_that_cannot_be_used(tmp_path):
  out = tmp_path / 'out'
  faulty = tile_data()
  faulty.modules[0].module.computations[0].instructions[1].operand_ids[0] = 5
  few = tile_data()
  del few.modules[0].runs[2:]
  cases = {
      str(tmp_path / 'missing.pb'): r'missing\.pb: cannot be read',
      str(tmp_path): 'cannot be read',
      written(tmp_path / 'hlo.pb', tile_data().modules[0].module):
          'bytes are not a whole Tuning',
      written(tmp_path / 'faulty.pb', faulty):
          r"faulty\.pb: .*'tanh': .* takes its input from 5",
      written(tmp_path / 'few.pb', few): 'none of its 1 modules has 2 usable'}
  for content in (b'', b'hello', b'\x00' * 64):
    (tmp_path / str(len(content))).write_bytes(content)
    cases[str(tmp_path / str(len(content)))] = 'bytes are not a whole'
  for path, message in cases.items():
    with pytest.raises(UserError, match=message):
      featurized(path, str(out))
  assert not out.exists()
  with pytest.raises(UserError, match='none of its 1 modules has 2 tile-size'):
    tuning.read_tile_kernels(str(tmp_path / 'few.pb'))
  path = written(tmp_path / 'a.pb', tile_data())
  with pytest.raises(UserError, match=r'a\.pb: cannot be written'):
    featurized(path, path)


# Of the 15, name: nodes, configs, distinct, best, worst, default time in ns.
REAL_KERNELS = {
    'fusion.232': (20, 61, 60, 57188, 390377, 57188),
    'fusion.191': (31, 579, 579, 137344, 3963794, 151565),
    'copy.24': (2, 10, 10, 3872, 33058, 3967),
    'reshape.37': (2, 3, 1, 238068, 504700, 270591)}


def test_real_tile_kernels(shared_data, tmp_path):
  paths = featurized(str(shared_data / 'op_tuning_data.pb'), str(tmp_path))
  kernels = {kernel.program: kernel for kernel in map(Kernel.load, paths)}
  assert len(kernels) == 15
  for name, expected in REAL_KERNELS.items():
    kernel = kernels[name]
    times = kernel.runtime_ns
    assert expected == (
        kernel.num_nodes, kernel.num_configs,
        len(np.unique(kernel.config_feat, axis=0)), times.min(), times.max(),
        kernel.normalizer_ns[0]), name
  assert kernels['fusion.191'].tile_id == 'fusion.191_4ae805e53b8d2b8a'


def test_real_layout_graph_is_the_published_one(shared_data, tmp_path):
  path = shared_data / 'module_tuning_data_layout.pb'
  made, = featurized(str(path), str(tmp_path))
  published = (shared_data / 'published_npz' /
               'layout__xla__default__valid__unet_3d.4x4.bf16.npz')
  with np.load(made) as ours, np.load(published) as theirs:
    assert sorted(ours) == sorted(theirs)
    for name in ('node_feat', 'node_opcode', 'edge_index', 'node_config_ids',
                 'node_splits'):
      assert ours[name].dtype == theirs[name].dtype
      np.testing.assert_array_equal(ours[name], theirs[name])
    # The file holds 112 of the 1,965 published runs.
    runs = {(row.tobytes(), time) for row, time in zip(
        theirs['node_config_feat'], theirs['config_runtime'].tolist())}
    assert ours['config_runtime'].dtype == theirs['config_runtime'].dtype
    assert ours['node_config_feat'].shape == (112, 62, 18)
    assert all((row.tobytes(), time) in runs for row, time in zip(
        ours['node_config_feat'], ours['config_runtime'].tolist()))
