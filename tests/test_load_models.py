"""A models.py is imported by its content, not by its path."""

import os
import subprocess
import traceback

import pytest
import tensorflow as tf

from support import tiny_kernels, tiny_models
from tpu_graphs_ext import children, load_models
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import compiled_model
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks.tile import TILE

SOURCE = '''
import dataclasses
import inspect
\x0c
import tensorflow as tf


@dataclasses.dataclass
class Sizes:
  width: int = {number}


class Model(tf.keras.Model):

  def __init__(self, num_configs, num_ops, width=Sizes().width):
    super().__init__()
    self.width = width

  def call(self, x):
    if tf.reduce_sum(x) > 0:  # AutoGraph converts it.
      return x + {number}
    return x - {number}


def source():
  return inspect.getsource(source)  # {number}


def fail():
  raise ValueError('here')  # {number}
'''


def write(path, number: int):
  """The same length and the same time: only the content tells."""
  path.write_text(SOURCE.format(number=number))
  os.utime(path, (10 ** 9, 10 ** 9))


def test_an_edited_file_is_imported_anew(tmp_path):
  path = tmp_path / 'models.py'
  modules = []
  for number in (1, 2, 1):
    write(path, number)
    modules.append(load_models.models_module(str(path)))
    assert load_models.model_names(str(path)) == ['Model']
    assert load_models.build('Model', 10, 5, {}, str(path)).width == number
  first, second, again = modules
  assert first is again and first is not second
  assert first.__file__ == second.__file__ == str(path)
  # What was made before keeps its own lines, which AutoGraph converts.
  for module, number in ((first, 1), (second, 2)):
    assert f'# {number}' in module.source()
    converted = tf.function(module.Model(10, 5).call)
    assert [float(converted(tf.constant(x))) for x in (1.0, -1.0)] == [
        1 + number, -1 - number]
    with pytest.raises(ValueError) as error:
      module.fail()
    assert f"'here')  # {number}" in ''.join(
        traceback.format_exception(error.type, error.value, error.tb))


def test_a_function_that_makes_a_model(tmp_path):
  """The baseline's scripts and the graders only call what has the name."""
  path = tmp_path / 'models.py'
  path.write_text(SOURCE.format(number=3) + """
def made(num_configs, num_ops, width=5, **others):
  return Model(num_configs, num_ops, width, **others)


def _helper(num_configs, num_ops):
  return Model(num_configs, num_ops)


class Bare(tf.keras.Model):
  pass
""")
  at = str(path)
  assert load_models.model_names(at) == ['Model', 'Bare']
  assert load_models.build('made', 10, 5, {'width': 7}, at).width == 7
  assert load_models.constructor_arguments(
      load_models.model_class('made', at)) == ({'width': 5}, True)
  assert load_models.constructor_arguments(
      load_models.model_class('Bare', at)) == ({}, False)
  with pytest.raises(UserError, match=r"^Bare: its constructor has no argument "
                     "'num_configs'; it must take num_configs and num_ops, by"):
    load_models.build('Bare', 10, 5, {}, at)
  path.write_text(path.read_text().replace('num_ops', 'ops'))
  with pytest.raises(UserError, match=r"^Model: its con.* argument 'num_ops'"):
    load_models.class_taking('Model', {}, at)
  for name in ('_helper', 'Sizes', 'dataclasses'):
    with pytest.raises(UserError, match=f'no model {name!r} in models.py'):
      load_models.class_taking(name, {}, at)
  path.write_text('')
  with pytest.raises(UserError, match=r'; the models are none$'):
    load_models.class_taking('made', {}, at)


OF_OURS = """

class Bad(MyEarlyJoinSAGE):

  def forward(self, graph, num_configs):
    {body}
"""


@pytest.mark.parametrize('body, message', [
    ('raise ValueError("odd")', 'Bad: ValueError: odd; see .*my_models.py, '
     r'line \d+: raise ValueError'),
    ('return self.nothing', "Bad: AttributeError: .* 'nothing'; see .*, line"),
    ('return tf.zeros([1])', r'Bad: forward returns float32 \(1,\); return')])
def test_a_subclass_of_ours_fails_before_it_is_trained(tmp_path, body, message):
  """As docs/extending.md makes one: the fault is yours, so one line says it."""
  path = tmp_path / 'my_models.py'
  with open(load_models.models_path()) as file:
    path.write_text(file.read() + OF_OURS.format(body=body))
  partition = Partition.from_kernels([tiny_kernels.chain()])
  graph = TILE.sample_graph(FeatureStats.of_partition(partition))
  settings = tiny_models.tiny_settings(
      tmp_path, tmp_path, model='Bad', models_py=str(path),
      model_kwargs_json='{"feature_stats": null}')
  with pytest.raises(UserError, match=message):
    compiled_model.model(settings, 121, graph, loss=None, steps=1)


def test_an_edit_of_the_packages_file_is_named_too():
  code = {}
  exec(compile('def call():\n  return nothing', load_models.models_path(),
               'exec'), code)
  model = load_models.build('MLP', 10, 121, {})
  with pytest.raises(UserError, match=r"^MLP: cannot be trained \(NameError: .*"
                     r"; see .*/models.py, line 2\b"):
    with load_models.errors_of_model(model, 'be trained', 'call(graph)'):
      code['call']()


def test_only_faults_of_the_package_keep_their_traceback(
    tmp_path, monkeypatch):
  path = tmp_path / 'my_models.py'
  with open(load_models.models_path()) as file:
    path.write_text(file.read())
  for models_py, expected in (('', LookupError), (str(path), UserError)):
    model = load_models.build('MyEarlyJoinSAGE', 10, 121, {}, models_py)
    # As where none of the package's own files was loaded.
    monkeypatch.setattr(load_models, '_packaged', {})
    with pytest.raises(expected) as raised, load_models.errors_of_model(
        model, 'be trained', 'call(graph, training)'):
      raise LookupError
    assert '; see' not in str(raised.value)  # No line of a models.py.


def test_the_checkout_s_own_package(tmp_path):
  folder = tmp_path / 'tpu_graphs' / 'baselines' / 'tiles'
  folder.mkdir(parents=True)
  (folder / 'implicit.py').write_text('A = 1')
  path = tmp_path / 'models.py'
  path.write_text('from tpu_graphs.baselines.tiles import implicit\n'
                  'from .implicit import A\nB = implicit.A + A')
  done = subprocess.run(
      children.command(f'from tpu_graphs_ext import load_models; print('
                       f'load_models.models_module({str(path)!r}).B)'),
      env={**os.environ, load_models.ROOT_VARIABLE: str(tmp_path)},
      capture_output=True, text=True, check=False)
  assert done.stdout == '2\n', done.stderr


def test_a_file_that_cannot_be_imported_and_then_can(tmp_path, monkeypatch):
  monkeypatch.delenv(load_models.ROOT_VARIABLE, raising=False)
  path = tmp_path / 'models.py'
  for content, said in (('import nowhere_x', 'cannot be imported.*nowhere_x'),
                        ('raise SystemExit(3)', 'SystemExit: 3'),
                        ('def f(:', 'SyntaxError'), ('\0', 'null bytes')):
    path.write_text(content)
    with pytest.raises(UserError, match=said):
      load_models.models_module(str(path))
  path.write_text('raise KeyboardInterrupt')
  for _ in range(2):  # Half of a module does not stay.
    with pytest.raises(KeyboardInterrupt):
      load_models.models_module(str(path))
  write(path, 3)
  assert load_models.models_module(str(path)).Sizes().width == 3
  for content in ('from tpu_graphs.baselines.tiles import implicit',
                  'from . import metrics'):
    path.write_text(content)
    with pytest.raises(UserError, match='set TPU_GRAPHS_ROOT to the checkout'):
      load_models.models_module(str(path))
  for missing in (tmp_path / 'no.py', tmp_path):
    with pytest.raises(UserError, match=r'--models_py: .* be read .* name'):
      load_models.models_module(str(missing))


def test_the_packages_file_has_one_module_until_it_is_edited(monkeypatch):
  from tpu_graphs_ext import layout_models, models
  for path, module in (('', models), (load_models.models_path(), models),
                       (load_models.models_path('layout_models.py'),
                        layout_models)):
    assert load_models.models_module(path) is module
  # As if the file had been another one when it was imported.
  monkeypatch.setitem(load_models._packaged, load_models.models_path(), b'old')
  edited = load_models.models_module()
  assert edited is not models and edited is load_models.models_module()
  assert edited.MLP is not models.MLP and edited.MLP.__module__ != 'models'
