"""docs/extending.md: its model is the file, and its commands do what it says.
"""

import pathlib
import re
import shlex

import numpy as np
import pytest
import tensorflow as tf

from support import eager_training, tiny_kernels
from support import model_checks as checks
from support.places import PROJECT
from tpu_graphs_ext import cli, load_models
from tpu_graphs_ext.course import allowed_imports
from tpu_graphs_ext.tasks import tile_batches

PAGE = (PROJECT / 'docs' / 'extending.md').read_text(encoding='utf-8')
(PYTHON, COMMANDS) = re.findall(
    r'^```\w*\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)
DATA = 'out/quickstart/sample_data'
# Fewer seconds; nothing that the example changes.
SMALL = ('--epochs 1 --batch 8 --seed 1 --cache_dir= --model_kwargs_json '
         """'{"feature_stats": null, "node_rounds": 1, """
         """"head_layers": 1, "averaging": 0, "pooling": ["mean"]}'""")


@pytest.fixture
def my_models(tmp_path, monkeypatch):
  """What the page's first command writes, in a folder with data."""
  tiny_kernels.write_data_root(tmp_path / DATA)
  monkeypatch.chdir(tmp_path)
  pathlib.Path('my_models.py').write_text(''.join(
      (PROJECT / name).read_text() for name in ('models.py',
                                                'docs/my_model.py')))
  return 'my_models.py'


def test_the_page_shows_the_file_and_names_what_models_py_has():
  assert (PROJECT / 'docs' / 'my_model.py').read_text().endswith(
      f'\n\n\n{PYTHON}')
  statements = re.sub(r'""".*?"""', '', PYTHON)
  assert len([line for line in statements.splitlines() if line.strip()]) <= 10
  names = re.findall(r'`(_?[A-Za-z]\w+)`', PAGE.split('\n## ')[2])
  source = (PROJECT / 'models.py').read_text(encoding='utf-8')
  assert len(names) > 10
  for name in names:
    assert re.search(rf'^ *(class|def) {name}\b|^{name} = ', source,
                     re.MULTILINE), name


def test_its_messages_are_those_of_the_formula(my_models):
  models = load_models.models_module(my_models)
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


def test_its_commands_train_and_rank(my_models, capsys):
  assert allowed_imports.faults_of(my_models) == []
  for line in COMMANDS.splitlines()[1:]:
    program, verb, *words = shlex.split(line)
    assert program == 'tpu-graphs-ext'
    if verb == 'train':
      words += shlex.split(SMALL)
    with eager_training.eager_steps():
      assert cli.main([verb, *words]) == 0
  ranked = capsys.readouterr().out
  paths = list(pathlib.Path(DATA, 'test').glob('*.npz'))
  assert len(paths) > 1
  assert all(f'\n{path.stem}: ' in f'\n{ranked}' for path in paths)
