"""What models.py and layout_models.py must be to be handed in alone, and what
the baseline's scripts need of them."""

import ast
import dataclasses
import itertools
import os
import re
import sys

import numpy as np
import pytest

from support import imported
from support import model_checks as checks
from support.places import PROJECT
from tpu_graphs_ext import load_models, models
from tpu_graphs_ext.analytic import geometry
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.hlo import tiles
from tpu_graphs_ext.tasks import tile_batches

FILES = {'tile': 'models.py', 'layout': 'layout_models.py'}
SOURCES = {task: (PROJECT / name).read_text() for task, name in FILES.items()}
both = pytest.mark.parametrize('task', FILES)


@both
def test_the_package_reaches_the_one_copy(task):
  assert (PROJECT / FILES[task]).samefile(load_models.models_path(FILES[task]))


@pytest.mark.skipif(sys.version_info < (3, 10),
                    reason='sys.stdlib_module_names came with Python 3.10')
@both
def test_it_imports_nothing_but_what_the_graders_have_installed(task):
  names = imported.packages(SOURCES[task])
  assert names - set(sys.stdlib_module_names) == {
      'numpy', 'tensorflow', 'tensorflow_gnn'}


def test_chapters_are_listed_and_use_names_of_earlier_ones():
  source = SOURCES['tile']
  module = ast.parse(source)
  headings = {line: match[1] for line, text in enumerate(
      source.splitlines(), 1)
              if (match := re.fullmatch(r'# -+ chapter: (.+)', text))}
  listed = re.search(
      r'\nChapters.*?:\n((?:  .+\n)+)', ast.get_docstring(module))
  assert re.findall(r'^  (\S.*?): ', listed[1], re.MULTILINE) == list(
      headings.values())

  def chapter(node):
    """Number of the heading above a node; 0 at the beginning of the file."""
    return sum(line < node.lineno for line in headings)

  home = {name: chapter(node) for node in module.body for name in (
      [node.name] if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else
      [target.id for part in getattr(node, 'targets', [])
       for target in ast.walk(part) if isinstance(target, ast.Name)])}
  assert len(home) > 50
  faults = [f'line {node.lineno}: uses {node.id} of a later chapter'
            for node in ast.walk(module) if isinstance(node, ast.Name)
            and home.get(node.id, 0) > chapter(node)]
  assert not faults


def test_the_shared_chapter_is_the_same_in_both_files():
  """Each file must work alone, so there are two copies of it."""
  chapters = []
  for text, other in zip(SOURCES.values(), reversed(FILES.values())):
    heading = re.search(
        rf'^# -+ chapter: shared with {re.escape(other)}$', text, re.MULTILINE)
    chapters.append(re.split(
        r'^# -+ chapter: ', text[heading.end():], flags=re.MULTILINE)[0])
  assert chapters[0] == chapters[1] and chapters[0].count('\ndef ') >= 3


def test_the_layout_baselines_op_embedding_is_there():
  kernel = checks.kernels()[0]
  graph = tile_batches.kernel_graph(kernel, checks.stats_of([kernel]))
  layer = models._OpEmbedding(checks.NUM_OPS, 5)
  embedded = layer(graph).node_sets['op']['op_e']
  table = layer.embedding_layer.embeddings.numpy()
  np.testing.assert_array_equal(embedded, table[kernel.node_opcode])


def test_the_layout_baselines_mlp_is_there():
  """Two layers of ones without bias on [1, 2]: 2 * relu(3) = 6."""
  mlp = models._mlp([2, 1], 'relu', use_bias=False)
  x = np.array([[1., 2.]], np.float32)
  mlp(x)
  assert [weight.shape for weight in mlp.weights] == [(2, 2), (2, 1)]
  for weight in mlp.weights:
    weight.assign(np.ones(weight.shape))
  np.testing.assert_array_equal(mlp(x), [[6.]])


# --- Threads of an operation in the baseline's scripts ------------------------

VARIABLE = 'TF_NUM_INTRAOP_THREADS'
TRAINER, RANKER = '/somewhere/tiles_train.py', '/somewhere/tiles_evaluate.py'


@pytest.mark.parametrize('script, cores, threads, expected', [
    (TRAINER, 4, None, '1'), (TRAINER, 5, None, None), (RANKER, 3, None, None),
    (TRAINER, 2, '2', '2'),  # What is set already stays.
])
def test_on_few_cores_the_baselines_scripts_get_one(
    monkeypatch, script, cores, threads, expected):
  tree = ast.parse(SOURCES['tile'])
  tree.body = list(itertools.takewhile(
      lambda node: not isinstance(node, ast.ClassDef), tree.body))
  variables = {} if threads is None else {VARIABLE: threads}
  monkeypatch.setattr(os, 'environ', variables)
  monkeypatch.setattr(os, 'cpu_count', lambda: cores)
  monkeypatch.setattr(sys, 'argv', [script])
  exec(compile(tree, models.__file__, 'exec'), {'__name__': 'head_of_models'})
  assert variables.get(VARIABLE) == expected
  assert variables.keys() <= {VARIABLE}  # models.py sets nothing else.


# --- What models.py repeats of the package ------------------------------------


def test_columns_and_opcodes_are_those_of_the_files():
  columns = {
      'is_root': 'is_root', 'on_chip': 'element_size_in_bits',
      'element_type': 'shape_element_type_is_invalid_type',
      'shape': 'shape_dimensions_0', 'parameter_number': 'parameter_number',
      'dimensions': 'dimensions_0', 'window': 'window_size_0',
      'stride': 'window_stride_0',
      'window_dilation': 'window_window_dilation_0',
      'base_dilation': 'window_base_dilation_0',
      'convolution': 'convolution_dim_numbers_input_batch_dim',
      'feature_groups': 'feature_group_count',
      'minor_to_major': 'layout_minor_to_major_0'}
  assert {name: schema.NODE_COLUMN[column]
          for name, column in columns.items()} == {
              name: first for name, (first, _) in models._NODE_COLUMNS.items()}
  assert models._BOUNDS == tuple(
      schema.CONFIG_FEATURES.index(f'{of}_bounds_0')
      for of in ('output', 'kernel'))
  assert tuple(models._TABLE_WIDTHS.values()) == (
      len(schema.NODE_FEATURES), len(schema.CONFIG_FEATURES))
  assert (models._DIMS, models._SPATIAL) == (
      schema.MAX_DIMS, schema.MAX_SPATIAL_DIMS)
  for name in ('convolution', 'dot', 'fusion', 'parameter', 'reduce',
               'reduce-window', 'slice', 'dynamic-slice',
               'dynamic-update-slice', 'transpose', 'tuple'):
    assert getattr(models, '_' + name.upper().replace('-', '_')) == (
        schema.OPCODES[name]), name
  assert [models._KINDS[kind] for kind in (
      geometry.INPUT, geometry.OUTPUT)] == ['input', 'output']


def test_opcodes_without_vector_instructions():
  names = {number: name for name, number in schema.OPCODES.items()}
  assert {names[n] for n in models._FREE_OPCODES} == {
      'parameter', 'constant', 'bitcast', 'tuple', 'fusion', 'iota', 'dot',
      'get-tuple-element', 'convolution', 'reshape', 'broadcast'}


def test_elements_have_as_many_bytes():
  assert models._ELEMENT_BYTES == tuple(
      tiles.element_bytes(name) for name in schema.ELEMENT_TYPES)


def test_the_machine_is_the_one_of_the_analytic_model():
  preset = models._MACHINES[0]._asdict()
  assert not preset.pop('in_elements')
  assert preset.pop('lanes') == preset.pop('matrix_side') == tiles.LANES
  assert preset.pop('sublanes') == tiles.SUBLANES
  assert preset.pop('cores') == 1
  assert preset == dataclasses.asdict(MACHINES['v3'].constants)
