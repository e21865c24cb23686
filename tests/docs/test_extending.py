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
from tpu_graphs_ext.data.read import read_split
from tpu_graphs_ext.tasks import tile_batches

PAGE = (PROJECT / 'docs' / 'extending.md').read_text(encoding='utf-8')
MODEL = PROJECT / 'docs' / 'my_model.py'
DATA = 'out/quickstart/sample_data'
SECTION = PAGE.split('\n## ')[1]  # In ten lines.
# The least of everything that the example does not change: fewer seconds.
SMALL = ('--epochs 1 --batch 8 --seed 1 --cache_dir= --model_kwargs_json '
         """'{"feature_stats": null, "node_rounds": 1, """
         """"head_layers": 1, "averaging": 0, "pooling": ["mean"]}'""")


def blocks(language):
  return [block for found, block in re.findall(
      r'^```(\w*)\n(.*?)^```', SECTION, re.DOTALL | re.MULTILINE)
          if found == language]


@pytest.fixture
def here(tmp_path, monkeypatch):
  """A working folder with what the page expects there."""
  for name in ('models.py', 'docs'):
    (tmp_path / name).symlink_to(PROJECT / name)
  tiny_kernels.write_data_root(tmp_path / DATA)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def joined(here) -> str:
  """What `cat models.py docs/my_model.py > my_models.py` writes."""
  command, *_ = blocks('')[0].splitlines()
  cat, *parts, arrow, path = shlex.split(command)
  assert (cat, arrow) == ('cat', '>')
  text = ''.join(pathlib.Path(part).read_text() for part in parts)
  (here / path).write_text(text)
  return path


def test_the_page_shows_the_file_and_it_has_ten_lines():
  shown, = blocks('python')
  assert MODEL.read_text().endswith(f'\n\n\n{shown}')
  statements = re.sub(r'""".*?"""', '', shown)
  assert len([line for line in statements.splitlines() if line.strip()]) <= 10


def test_what_it_points_to_is_in_the_file():
  names = re.findall(r'`(_?[A-Za-z]\w+)`', PAGE.split('\n## ')[2])
  source = (PROJECT / 'models.py').read_text(encoding='utf-8')
  assert len(names) > 10
  for name in names:
    assert re.search(
        rf'^ *(class|def) {name}\b|^{name} = ', source, re.MULTILINE), name


def test_graders_can_import_it_and_it_takes_what_its_base_takes(here):
  path = joined(here)
  assert allowed_imports.faults_of(path) == []
  kernels = checks.kernels()
  stats = checks.stats_of(kernels)
  model = load_models.build('MyModel', 10, checks.NUM_OPS, {
      'feature_stats': stats.to_json(), 'node_rounds': 1}, path)
  scores = checks.scores_untraced(model, kernels[0], stats)
  assert np.isfinite(scores).all() and len(np.unique(scores)) > 1
  assert model.constants()['step_ns'] > 0


def test_its_messages_are_those_of_the_formula(here):
  models = load_models.models_module(joined(here))
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


def test_its_commands_train_and_rank(here, capsys):
  joined(here)
  for line in blocks('')[0].splitlines()[1:]:
    program, verb, *words = shlex.split(line)
    assert program == 'tpu-graphs-ext'
    if verb == 'train':
      words += shlex.split(SMALL)
    else:
      (model_dir,) = (here / 'out' / 'mine').glob('model_*')
      words = [word.replace('model_<hash>', model_dir.name) for word in words]
      words += ['--cache_dir=']
    with eager_training.eager_steps():
      assert cli.main([verb, *words]) == 0
  ranked = capsys.readouterr().out
  kernels = read_split(f'{DATA}/test')
  assert len(kernels) > 1
  assert all(f'\n{kernel.tile_id}: ' in f'\n{ranked}' for kernel in kernels)
