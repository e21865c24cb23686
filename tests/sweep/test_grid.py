"""Reading the file of a sweep, and every fault that it may have."""

import json

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid
from tpu_graphs_ext.sweep.grid import Configuration


@pytest.fixture
def read(tmp_path):
  """Returns a function of a file's content that reads it."""
  def of(given):
    path = tmp_path / 'grid.json'
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    return grid.read(str(path))

  return of


def test_a_model_is_enough(read):
  found = read({'models': ['MLP']})
  assert list(found.configurations()) == [Configuration('MLP', {}, {})]
  assert found.seeds == (0,) and found.num_trials == 1 and found.prune is None
  assert found.goal == 'opa' and found.highest_is_best
  assert found.data_roots[0].endswith('/data/tpugraphs/npz/tile/xla')


def test_a_models_own_values_go_before_those_of_all(read):
  found = read({
      'models': ['MLP', {'model': 'EarlyJoinSAGE', 'kwargs': {'hidden_dim': 8},
                         'settings': {'lr': 0.5}}],
      'kwargs': {'hidden_dim': [16, 32]}, 'settings': {'lr': [0.1, 0.2]},
      'seeds': [3, 4], 'data_roots': ['/a', '/b'], 'goal': 'top5'})
  assert list(found.configurations()) == [
      Configuration('MLP', {'hidden_dim': width}, {'lr': lr})
      for width in (16, 32) for lr in (0.1, 0.2)] + [
          Configuration('EarlyJoinSAGE', {'hidden_dim': 8}, {'lr': 0.5})]
  assert found.num_trials == 20
  assert not found.highest_is_best


def test_a_search(read):
  found = read({'models': ['MLP'], 'prune': True,
                'search': {'method': 'bayes', 'configurations': 7, 'seed': 5},
                'settings': {'lr': {'min': 1e-4, 'max': 1e-2, 'log': True}}})
  assert (found.method, found.draws, found.search_seed) == ('bayes', 7, 5)
  assert found.prune == grid.Prune() and found.num_trials == 7


def test_the_layout_task(read):
  found = read({'task': 'layout', 'models': ['ResModel'], 'goal': 'kendall',
                'settings': {'source': 'nlp', 'keep_nodes': 100}})
  configuration, = found.configurations()
  assert configuration.settings == {'source': 'nlp', 'keep_nodes': 100}
  assert found.data_roots[0].endswith('npz/layout')


MODEL = {'models': ['MLP']}


@pytest.mark.parametrize('given, said', [
    ('{', 'is not JSON'),
    ([], 'must be a JSON object, as {"models": ["MLP"]}; got a list'),
    ({}, 'models: must be a list of at least one model'),
    ({'model': ['MLP']}, "there is no key 'model'; did you mean models?"),
    ({'models': ['MLQ']}, "models[0]: there is no model 'MLQ' in models.py; "
                          'did you mean MLP'),
    ({'models': [{'kwargs': {}}]}, 'models[0]: must be the name of a model'),
    ({'models': [{'model': 'MLP', 'kwarg': {}}]},
     "there is no key 'models[0].kwarg'; did you mean kwargs"),
    ({'models': [{'model': 'MLP', 'kwargs': {'hiden_dim': 3}}]},
     'models[0].kwargs.hiden_dim: MLP has no such argument; did you mean '
     'hidden_dim?'),
    ({**MODEL, 'kwargs': {'hiden_dim': 3}},
     ': kwargs.hiden_dim: MLP has no such argument'),
    ({**MODEL, 'kwargs': 3}, 'kwargs: must be an object of names and values'),
    ({**MODEL, 'settings': {'epoch': 3}},
     'settings.epoch: train has no such flag; did you mean epochs?'),
    ({**MODEL, 'settings': {'seed': 3}},
     'settings.seed: cannot be set here: "seeds" does'),
    ({**MODEL, 'settings': {'lr': [0.1, -1]}},
     ': settings.lr: --lr=-1: must be a positive number'),
    ({**MODEL, 'settings': {'lr': {'min': 0.0, 'max': 1.0, 'step': 0.5}}},
     ': settings.lr: --lr=0.0: must be a positive number'),
    ({**MODEL, 'settings': {'epochs': 2.5}},
     "settings.epochs: must be a whole number; got 2.5"),
    ({**MODEL, 'settings': {'lr_schedule': 'cosin'}},
     'settings.lr_schedule: must be one of constant, cosine; did you mean '
     "cosine?; got 'cosin'"),
    ({**MODEL, 'settings': {'toy_data': 1}},
     'settings.toy_data: must be true or false; got 1'),
    ({**MODEL, 'settings': {'models_py': ['a.py', 'b.py']}},
     'settings.models_py: must be one value'),
    ({**MODEL, 'settings': {'lr': {'min': 1, 'max': 0}}},
     'settings.lr: min must be below max'),
    ({**MODEL, 'seeds': []}, 'seeds: must be a list of whole numbers; got []'),
    ({**MODEL, 'seeds': [-1]}, 'seeds: must be from 0 to 4294967295'),
    ({**MODEL, 'seeds': [1, 1]}, 'seeds: has one of [1, 1] twice'),
    ({**MODEL, 'data_roots': 'a'}, 'data_roots: must be a list of paths'),
    ({**MODEL, 'data_roots': ['']}, 'data_roots is empty'),
    ({**MODEL, 'goal': 'top_5'}, 'goal: must be one of opa, top1, top5, top10; '
                                 "got 'top_5'; did you mean top5"),
    ({**MODEL, 'search': {'method': 'baies'}},
     'search.method: must be one of grid, random, bayes; got '
     "'baies'; did you mean bayes?"),
    ({**MODEL, 'search': {'method': 'bayes'}},
     "search.configurations: how many shall 'bayes' try?"),
    ({**MODEL, 'search': {'configurations': 3}},
     'search.configurations: a grid has all; leave it out'),
    ({**MODEL, 'search': {'method': 'random', 'configurations': 2,
                          'seed': None}},
     'search.seed: must be a whole number from 0 to 4294967295; got None'),
    ({**MODEL, 'prune': {'factor': 1}},
     'prune.factor: must be a whole number from 2 to 4294967295; got 1'),
    ({**MODEL, 'task': 'tiles'}, 'task: must be one of tile, layout'),
    ({'task': 'layout', **MODEL}, "models[0]: there is no model 'MLP'"),
])
def test_faults(read, given, said):
  with pytest.raises(UserError) as caught:
    read(given)
  assert 'grid.json: ' in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize('given, expected', [
    (3, [3]), (None, [None]), ([1, 2.5], [1, 2.5]),
    ([[1], {'a': 2}], [[1], {'a': 2}]), ({'value': [1, 2]}, [[1, 2]]),
    ({'min': 1, 'max': 4, 'step': 1}, [1, 2, 3, 4]),
    ({'min': 1, 'max': 4, 'step': 2}, [1, 3]),
    ({'min': 0, 'max': 0.3, 'step': 0.1}, [0, 0.1, 0.2, 0.30000000000000004]),
    ({'min': 1e-4, 'max': 1e-2, 'count': 3, 'log': True}, [1e-4, 1e-3, 1e-2]),
    ({'min': 8, 'max': 128, 'count': 5, 'log': True}, [8, 16, 32, 64, 128]),
    ({'min': 1, 'max': 3, 'count': 9}, [1, 2, 3]),  # Whole ones, once each.
])
def test_values(given, expected):
  found = grid.values_of(given, 'x', False)
  assert found == expected and type(found[-1]) is type(expected[-1])


@pytest.mark.parametrize('given, said', [
    ([], 'x: is an empty list'), ([1, 2, 1], 'x: has 1 twice'),
    ({'min': 1, 'max': 2, 'cuont': 2}, "key 'cuont'; did you mean count"),
    ({'a': 1}, 'write an object that is itself the value as {"value"'),
    ({'min': 1}, "x: is a range without 'max'"),
    ({'min': 'a', 'max': 2}, "x.min: must be a number; got 'a'"),
    ({'min': True, 'max': 2}, 'x.min: must be a number; got True'),
    ({'min': 2, 'max': 2, 'step': 1}, 'min must be below max; got 2 and 2'),
    ({'min': 1, 'max': 2}, 'x: how many numbers?'),
    ({'min': 1, 'max': 2, 'count': 1}, 'x.count: must be a whole'),
    ({'min': 1, 'max': 2, 'step': 0}, 'x.step: must be above 0'),
    ({'min': 1, 'max': 2, 'step': 1e-9}, 'x.step: gives more than 10000'),
    ({'min': 1, 'max': 2, 'step': 1, 'count': 2}, 'step goes with neither'),
    ({'min': 0, 'max': 2, 'count': 2, 'log': True}, 'x.min: must be above 0'),
    ({'min': 1, 'max': 2, 'log': 'yes'}, "x.log: must be true or false; got"),
])
def test_faults_of_values(given, said):
  with pytest.raises(UserError) as caught:
    grid.values_of(given, 'x', False)
  assert said in str(caught.value)


class Draws:
  """Stands for Optuna's trial: draws the last there is, and notes how."""

  def __init__(self):
    self.asked = []

  def suggest_categorical(self, name, choices):
    self.asked.append((name, choices))
    return choices[-1]

  def suggest_int(self, name, low, high, **options):
    self.asked.append((name, low, high, options))
    return high

  suggest_float = suggest_int


def test_what_a_search_draws(read):
  found = read({
      'search': {'method': 'random', 'configurations': 1},
      'models': ['MLP', {'model': 'MLP', 'kwargs': {'hidden_dim': [[8], 16]}}],
      'kwargs': {'hidden_dim': {'min': 1, 'max': 9, 'step': 2}}, 'settings': {
          'lr': {'min': 0.5, 'max': 9, 'log': True}, 'epochs': 7}})
  draws = Draws()
  assert found.drawn(draws) == Configuration(
      'MLP', {'hidden_dim': 16}, {'lr': 9, 'epochs': 7})
  assert draws.asked == [
      ('model', [0, 1]), ('models[1].kwargs.hidden_dim', ['[8]', '16']),
      ('settings.lr', 0.5, 9, {'log': True})]
  draws = Draws()
  draws.suggest_categorical = lambda *_: 0
  assert found.drawn(draws).kwargs == {'hidden_dim': 9}
  assert draws.asked[0] == ('kwargs.hidden_dim', 1, 9,
                            {'log': False, 'step': 2})
  with pytest.raises(UserError, match='a search draws between'):
    grid.values_of({'min': 1, 'max': 2, 'count': 3}, 'x', True)


def test_too_many_trials_are_counted_not_listed(read):
  # 1,000 ** 3 trials, of which none is made.
  ranged = {'min': 1, 'max': 1000, 'step': 1}
  with pytest.raises(UserError, match='asks for 1,000,000,000 trials; 100,000'):
    read({'models': ['MLP'], 'settings': {
        'epochs': ranged, 'batch': ranged, 'configs': ranged}})


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(UserError, match=r'no\.json: cannot be read'):
    grid.read(str(tmp_path / 'no.json'))
