"""Reading the file of a sweep, and the faults that it may have."""

import json
import math
import re

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid
from tpu_graphs_ext.sweep.grid import Configuration


def read(folder, content):
  path = folder / 'grid.json'
  path.write_text(content if isinstance(content, str) else json.dumps(content))
  return grid.read(str(path))


def test_a_models_own_values_go_before_those_of_all(tmp_path):
  parsed = read(tmp_path, {
      'models': ['MLP', {'model': 'EarlyJoinSAGE', 'kwargs': {'hidden_dim': 8},
                         'settings': {'lr': 0.5}}],
      'kwargs': {'hidden_dim': [16, 32]}, 'settings': {'lr': [0.1, 0.2]},
      'seeds': [3, 4], 'data_root': '/a', 'goal': 'top5'})
  assert list(parsed.configurations()) == [
      Configuration('MLP', {'hidden_dim': width}, {'lr': lr})
      for width in (16, 32) for lr in (0.1, 0.2)] + [
          Configuration('EarlyJoinSAGE', {'hidden_dim': 8}, {'lr': 0.5})]
  assert parsed.num_trials == 10 and not parsed.highest_is_best


MODEL = {'models': ['MLP']}
SEARCH = {**MODEL, 'search': {'method': 'bayes', 'configurations': 3}}
MANY = list(range(1, 1001))
FAULTS = [
    ('{', 'is not JSON'),
    ({}, 'grid.json: must have the key models; got {}'),
    ({'models': [{'kwargs': {}}]}, 'models[0]: must have the key model; got'),
    ({**SEARCH, 'settings': {'lr': {'min': 1}}}, 'lr: must have the key max;'),
    ({'models': []}, 'models must be a list of at least one'),
    ({**MODEL, 'seeds': []}, 'seeds must be a list of whole numbers'),
    ({**MODEL, 'settings': {'lr': []}}, '.lr: must list at least one value'),
    ({**SEARCH, 'settings': {'lr': {'min': 1, 'max': math.inf}}},
     'settings.lr: max: must be finite'),
    ({'model': ['MLP']}, 'may only have the keys models, task, kwargs, set'),
    ({'models': [{'model': 'MLP', 'kwargs': {'hiden_dim': 3}}]},
     "models[0]: --model_kwargs_json: MLP has no argument 'hiden_dim'"),
    ({**MODEL, 'settings': {'seed': 3}}, '[0]: settings: must be flags of t'),
    ({**MODEL, 'settings': {'task': 'tile'}}, '[0]: settings: must be flags'),
    ({**MODEL, 'settings': {'lr': [0.1, -1]}}, '--lr=-1: must be a positive'),
    ({**MODEL, 'settings': {'epochs': 2.5}}, '--epochs=2.5: must be a whole '),
    ({**MODEL, 'settings': {'lr': {'min': 1, 'max': 2}}}, 'only a "search" '),
    ({**SEARCH, 'settings': {'lr': {'min': 0, 'max': 1, 'log': True}}},
     'settings.lr: min must be below max and, where log is true, above 0'),
    ({**SEARCH, 'settings': {'lr': {'min': 1, 'max': 1}}}, 'min must be below'),
    *(({**MODEL, 'seeds': [0, seed]}, 'seeds must be a list of whole numbers')
      for seed in ('1', True, -1, 2**32)),
    ({**MODEL, 'prune': {'min_epochs': 0}}, 'min_epochs: must be at least 1; '),
    ({**MODEL, 'prune': {'factor': 1}}, 'prune: factor: must be at least 2; g'),
    ({**MODEL, 'prune': []}, 'prune: must be an object; got []'),
    ({**MODEL, 'data_root': ''}, 'data_root is empty'),
    ({**MODEL, 'goal': 'top_5'}, 'goal must be one of opa, top1, top5, top10'),
    ({**MODEL, 'search': {'method': 'bayes'}}, 'configurations must be at'),
    ({**MODEL, 'search': {'method': 'bays', 'configurations': 2}},
     'method: must be grid or random or bayes; got "bays"'),
    ({**SEARCH, 'search': {'seed': -1}}, 'search: seed: must be 0 to 4294967'),
    ({'task': 'layout', **MODEL}, "there is no model 'MLP'"),
    ({'task': 'tiles', **MODEL}, 'task: must be tile or layout; got "tiles"'),
    # They are counted, not listed.
    ({**MODEL, 'settings': {'epochs': MANY, 'batch': MANY, 'configs': MANY}},
     'at most 100,000 trials are allowed'),
]


def test_faults(tmp_path):
  for content, said in FAULTS:
    with pytest.raises(UserError) as caught:
      read(tmp_path, content)
    assert 'grid.json: ' in str(caught.value) and said in str(caught.value)


def test_what_a_search_draws(tmp_path):
  optuna = pytest.importorskip('optuna', reason='needs the extra [scale]')
  parsed = read(tmp_path, {
      'search': {'method': 'random', 'configurations': 7}, 'prune': True,
      'models': ['MLP', {'model': 'MLP', 'kwargs': {'hidden_dim': [[8], 16]}}],
      'kwargs': {'hidden_dim': {'min': 0, 'max': 9}}, 'settings': {
          'lr': {'min': 0.5, 'max': 9, 'log': True}, 'epochs': 7}})
  assert parsed.prune == grid.Prune() and parsed.num_trials == 7
  assert [read(tmp_path, {**MODEL, 'prune': prune}).prune
          for prune in ({}, False, None)] == [grid.Prune(), None, None]
  # A search that draws for other seeds is another one.
  studies = [read(tmp_path, {**content, 'seeds': [seed]}).study_name
             for content in (MODEL, SEARCH) for seed in (1, 2)]
  assert studies[0] == studies[1] and len(set(studies)) == 3
  # The same argument of two models has two names.
  first = optuna.trial.FixedTrial({
      'model': 0, 'models[0].kwargs.hidden_dim': 3, 'models[0].settings.lr': 1})
  assert parsed.drawn(first) == Configuration(
      'MLP', {'hidden_dim': 3}, {'lr': 1, 'epochs': 7})
  second = optuna.trial.FixedTrial({
      'model': 1, 'models[1].kwargs.hidden_dim': '[8]',
      'models[1].settings.lr': 9})
  assert parsed.drawn(second).kwargs == {'hidden_dim': [8]}
  lr = second.distributions['models[1].settings.lr']
  assert (lr.low, lr.high, lr.log) == (0.5, 9, True)
  assert first.distributions['models[0].kwargs.hidden_dim'] == (
      optuna.distributions.IntDistribution(0, 9))


MODELS = '''
import os
import tensorflow as tf
from elsewhere import Imported
os.close(os.open(os.environ['RAN'], os.O_CREAT))
class Base(tf.keras.Model):
  def __init__(self, num_configs, num_ops, width=4): pass
class Wide(Base):
  def __init__(self, num_configs, num_ops, *, depth=2, **kwargs): pass
class Same(Wide): pass
Other = Wide
class Outer:
  class Wide:
    def __init__(self, num_configs, num_ops): pass
for name in ('Listed', '*'):
  globals()[name] = Wide
if tf.__version__ > '2':
  class Twice(Wide): pass
else:
  class Twice:
    def __init__(self, num_configs, num_ops, other): pass
'''


@pytest.mark.parametrize('model, argument, fault', [
    ('Base', 'width', ''), ('Wide', 'depth', ''), ('Wide', 'width', ''),
    ('Same', 'depth', ''), ('Other', 'anything', ''),
    ('Imported', 'anything', ''), ('Listed', 'anything', ''),
    ('Twice', 'depth', ''),
    ('Base', 'depth', "Base has no argument 'depth'; it takes width"),
    ('Base', 'num_ops', "Base has no argument 'num_ops'; it takes width"),
    ('Wide', 'height', "no argument 'height'; it takes depth, width"),
    ('Same', 'height', "no argument 'height'; it takes depth, width"),
    ('MLP', 'width', "there is no model 'MLP' in helper.txt; the models are")])
def test_models_py_is_checked_without_running_it(
    tmp_path, monkeypatch, model, argument, fault):
  monkeypatch.setenv('RAN', str(tmp_path / 'ran'))
  (tmp_path / 'helper.txt').write_text(MODELS)
  path = tmp_path / 'grid.json'
  path.write_text(json.dumps({
      'models': [{'model': model, 'kwargs': {argument: 1}}],
      'settings': {'models_py': 'helper.txt'}}))
  monkeypatch.chdir(tmp_path)
  if fault:
    with pytest.raises(UserError, match=re.escape(fault)):
      grid.read(str(path))
  else:
    configuration, = grid.read(str(path)).configurations()
    assert configuration.settings == {'models_py': f'{tmp_path}/helper.txt'}
  (tmp_path / 'helper.txt').write_text('(' * 9999)
  with pytest.raises(UserError, match='is not a Python file'):
    grid.read(str(path))
  assert not (tmp_path / 'ran').exists()
