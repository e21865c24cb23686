"""docs/extending.md: its model is the file, and does what it says."""

import re

import numpy as np
import tensorflow as tf

from support import model_checks as checks
from support import tiny_kernels
from support.places import PROJECT
from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import allowed_imports
from tpu_graphs_ext.tasks import tile_batches

PAGE = (PROJECT / 'docs' / 'extending.md').read_text(encoding='utf-8')
SOURCE = (PROJECT / 'models.py').read_text(encoding='utf-8')
EXAMPLE = (PROJECT / 'docs' / 'my_model.py').read_text(encoding='utf-8')


def test_the_file_is_short_and_the_page_names_what_models_py_has():
  statements = re.sub(r'(?s:""".*?""")|#.*', '', EXAMPLE)
  assert len([line for line in statements.splitlines() if line.strip()]) <= 22
  names = re.findall(r'`(_?[A-Za-z]\w+)`', PAGE.split('\n## ')[2])
  assert len(names) > 10
  for name in names:
    assert re.search(rf'^ *(class|def) {name}\b|^ *{name} = ', SOURCE,
                     re.MULTILINE), name


def test_its_messages_are_those_of_the_formula(tmp_path):
  path = tmp_path / 'my_models.py'
  path.write_text(SOURCE + EXAMPLE)
  assert allowed_imports.faults_of(str(path)) == []
  models = load_models.models_module(str(path))
  kernel = tiny_kernels.chain()  # 1 consumes 0 and 2 consumes 1.
  graph = models._Graph(models._inputs_of(tile_batches.kernel_graph(
      kernel, checks.stats_of([kernel]))))
  layer = models._GatedRound(2, 'relu')
  layer.build([None, 2])
  x = np.array([[1, 2], [-1, 0], [3, -3]], np.float32)
  heard = np.array([[0, 0], [1, 2], [-1, 0]])
  np.testing.assert_allclose(
      layer.update(graph, tf.constant(x)),
      x + layer(tf.constant(x)).numpy() / (1 + np.exp(-heard)), rtol=1e-5)
  # Faster pairs (0, 1), (0, 2), (1, 2); margins 1 + 2 - 0, 1 + 2 - 5, 1 - 5.
  np.testing.assert_allclose(models.PairHinge()(
      tf.constant([[1.0, 2.0, 3.0]]), tf.constant([[2.0, 0.0, 5.0]])), 1)
  assert tf.keras.saving.get_registered_object(
      'tpu_graphs_ext>PairHinge') is models.PairHinge
