"""Exported models: scores, errors, and the folder that they are in."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks, saved_run, tiny_kernels
from support.places import PROJECT, SUPPORT
from support.saved_run import KERNELS
from tpu_graphs_ext import cli, files, load_models
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.serving import export, tf_program
from tpu_graphs_ext.tasks import TILE
from tpu_graphs_ext.tasks.tile import LoadSettings

PAGE = PROJECT / 'docs' / 'serving.md'
KERNEL = saved_run.arrays_of(KERNELS[0])
ALL = [*KERNELS, *tiny_kernels.corner_cases()]


@pytest.fixture(scope='module')
def exported(saved_model_dir, tmp_path_factory):
  out = str(tmp_path_factory.mktemp('served') / 'tiles' / '1')
  assert export.export(saved_model_dir, out).out == out
  with open(os.path.join(out, export.MARK), encoding='utf-8') as file:
    mark = json.load(file)
  assert mark['model'] == saved_run.NAME and mark['num_ops'] == 108
  return out


@pytest.fixture(scope='module')
def loaded(exported):
  return tf.saved_model.load(exported)


@pytest.fixture(scope='module')
def expected(saved_model_dir):
  """Scores of `ALL`."""
  ranker = scoring.load_ranker(saved_model_dir, LoadSettings())
  return [ranker.scored(kernel).given for kernel in ALL]


def run(loaded, arrays):
  return loaded.signatures[export.SIGNATURE](**{
      name: tf.constant(array) for name, array in arrays.items()
  })['scores'].numpy()


def test_scores_of_kernels(loaded, expected):
  for kernel, scores in zip(ALL, expected):
    np.testing.assert_allclose(run(loaded, saved_run.arrays_of(kernel)), scores,
                               rtol=1e-5, atol=1e-5)
  opcode = KERNEL['node_opcode'].copy()
  opcode[0] = 0
  known = run(loaded, {**KERNEL, 'node_opcode': opcode})
  opcode[0] = model_checks.NUM_OPS  # The model never saw it.
  np.testing.assert_array_equal(
      run(loaded, {**KERNEL, 'node_opcode': opcode}), known)
  assert (known != expected[0]).any()


def test_the_signature_says_types_and_shapes(loaded):
  _, inputs = loaded.signatures[export.SIGNATURE].structured_input_signature
  assert {name: (spec.dtype.name, spec.shape.as_list())
          for name, spec in inputs.items()} == {
      'node_feat': ('float32', [None, 140]), 'node_opcode': ('uint8', [None]),
      'edge_index': ('int64', [None, 2]),
      'config_feat': ('float32', [None, 24])}


def test_tensors_that_make_no_sense(loaded):
  for name, array, message in (
      ('node_feat', KERNEL['node_feat'][:, 1:],
       r'Shape of tensor node_feat \[\d+,139\] is not compatible with .*140'),
      ('node_opcode', KERNEL['node_opcode'][1:],
       'node_feat and node_opcode must have one row for each node; they have'),
      ('node_feat', KERNEL['node_feat'] * np.float32(np.nan),
       'node_feat has values that are NaN or infinite'),
      ('edge_index', np.array([[1, -1]]), 'edge_index must hold nodes of the'),
      ('edge_index', np.array([[99, 0]]), 'edge_index must hold nodes of the'),
      ('config_feat', KERNEL['config_feat'][:0], 'config_feat has no rows')):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      run(loaded, {**KERNEL, name: array})


def test_where_there_is_only_tensorflow(exported, expected, tmp_path):
  """The page's example, and `saved_model_cli`, with nothing of ours there."""
  shutil.copytree(exported, tmp_path / 'served' / 'tiles' / '1')
  os.rename(KERNELS[0].save(str(tmp_path)), tmp_path / 'kernel.npz')
  done = subprocess.run(
      [sys.executable, '-I', str(SUPPORT / 'foreign_host.py'), str(PAGE),
       str(tmp_path)], capture_output=True, text=True, check=False,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'})
  assert done.returncode == 0, done.stderr[-3000:]
  said, by_tool = done.stdout.split('Result for output key scores:\n')
  order, = re.findall(r'^\[([\d ]+)\]$', said, re.MULTILINE)
  assert [int(i) for i in order.split()] == np.argsort(
      expected[0], kind='stable')[:5].tolist()
  numbers = [float(number) for number in re.findall(r'-?\d\S*\d', by_tool)]
  np.testing.assert_allclose(numbers[:8], expected[0], rtol=1e-4, atol=1e-4)


CASES = [name + suffix for name in load_models.model_names()
         for suffix in ('', model_checks.RAW)
         if not suffix or load_models.takes(name, 'feature_stats')]


@pytest.mark.slow  # Tracing one takes seconds.
@pytest.mark.parametrize('name', CASES)
def test_exported_scores_of_every_model(name, tmp_path):
  kernels = [*model_checks.kernels(), *ALL]
  stats = model_checks.stats_of(model_checks.kernels())
  model = model_checks.make(name)
  ranker = scoring.Ranker(model, stats, model_checks.NUM_OPS, TILE)
  expected = [model_checks.scores(model, kernel, stats) for kernel in kernels]
  module = tf.Module()
  module.model_variables = list(model.variables)
  tf.saved_model.save(module, str(tmp_path / 'out'), signatures={
      export.SIGNATURE: tf_program.compiled(ranker, for_export=True)})
  loaded = tf.saved_model.load(str(tmp_path / 'out'))
  for kernel, scores in zip(kernels, expected):
    np.testing.assert_allclose(
        run(loaded, saved_run.arrays_of(kernel)), scores, rtol=1e-5, atol=1e-5)


def names_in(folder):
  return sorted(name for name, _ in files.contents(folder))


@pytest.fixture
def unsaved(monkeypatch):
  """Nothing is traced or saved, but a file of that name; a model loads once."""
  monkeypatch.setattr(
      scoring, 'load_ranker', functools.cache(scoring.load_ranker))
  monkeypatch.setattr(
      tf_program, 'compiled', lambda *unused, **options: tf.function(
          lambda x: x, input_signature=[tf.TensorSpec([None], name='x')]))
  monkeypatch.setattr(
      tf.saved_model, 'save', lambda module, folder, signatures:
      open(os.path.join(folder, 'saved_model.pb'), 'w').close())


def test_only_what_is_ours_is_replaced(saved_model_dir, tmp_path, unsaved):
  for number, spoil in enumerate((
      lambda out: (out / 'mine.txt').write_text('x'),
      lambda out: (out / 'saved_model.pb').write_text('changed'),
      lambda out: (out / export.MARK).write_text('{}'),
      lambda out: os.symlink('saved_model.pb', out / 'link'))):
    out = tmp_path / str(number)
    out.mkdir()  # An empty folder is nobody's.
    for _ in range(2):  # The second replaces the first.
      export.export(saved_model_dir, str(out) + '/')
    assert names_in(out) == [export.MARK, 'saved_model.pb']
    spoil(out)
    before = names_in(out)
    with pytest.raises(UserError, match='which this command did not write, or'):
      export.export(saved_model_dir, str(out))
    assert names_in(out) == before


def test_places_that_cannot_be(saved_model_dir, tmp_path):
  (tmp_path / 'file').write_text('x')
  for out, message in (
      (' ', 'out is empty'),
      (tmp_path / 'file', 'is a link, a file, a device or a pipe'),
      (tmp_path / 'file' / 'x', 'cannot be written'),
      (os.path.dirname(saved_model_dir), 'which this command did not wri')):
    with pytest.raises(UserError, match=message):
      export.export(saved_model_dir, str(out))


def test_an_interrupted_export_and_a_full_disk_change_nothing(
    saved_model_dir, tmp_path, monkeypatch, unsaved):
  out = tmp_path / 'out'
  export.export(saved_model_dir, str(out))

  def broken(module, folder, signatures):
    open(os.path.join(folder, 'half'), 'w').close()
    raise KeyboardInterrupt

  def full(module, folder, signatures):
    raise tf.errors.ResourceExhaustedError(None, None, 'No space left')

  monkeypatch.setattr(tf.saved_model, 'save', broken)
  with pytest.raises(KeyboardInterrupt):
    export.export(saved_model_dir, str(out))
  monkeypatch.setattr(tf.saved_model, 'save', full)
  with pytest.raises(UserError, match=r'No space left\)?; free some space'):
    export.export(saved_model_dir, str(out))
  assert os.listdir(tmp_path) == ['out']
  assert names_in(out) == [export.MARK, 'saved_model.pb']


def test_from_the_command_line(saved_model_dir, tmp_path, capsys, unsaved):
  out = str(tmp_path / 'out')
  assert cli.main(['export', '--dir', saved_model_dir, '--out', out]) == 0
  assert f'{out}: EarlyJoinSAGE as a SavedModel' in capsys.readouterr().out
  assert cli.main(['export', '--dir', '/nowhere/model_x', '--out', out]) == 1
  assert 'there is no such model folder' in capsys.readouterr().err
