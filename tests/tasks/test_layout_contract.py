"""What must hold for every model of the layout task."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks, tiny_layouts
from support.model_checks import CLOSE
from tpu_graphs_ext import layout_models

PROGRAMS = [tiny_layouts.program('a', 40, 6, 7),
            tiny_layouts.program('b', 60, 9, 7)]
STATS = tiny_layouts.bounds(PROGRAMS)
CONFIGS = 7
SMALL = {'hidden_dim': 8}
every_model = pytest.mark.parametrize('name', list(layout_models._MODELS))
# Where the others go the same way, and tracing them takes seconds.
two_models_and_slowly_all = pytest.mark.parametrize('name', [
    name if name in ('ResModel', 'MyLayoutSAGE') else
    pytest.param(name, marks=pytest.mark.slow)
    for name in layout_models._MODELS])


def make(name: str, seed: int = 1, **kwargs) -> layout_models._LayoutModel:
  tf.keras.utils.set_random_seed(seed)
  if name == 'MyLayoutSAGE':
    kwargs = {'feature_stats': STATS, **kwargs}
  return getattr(layout_models, name)(
      CONFIGS, tiny_layouts.NUM_OPS, **{**SMALL, **kwargs})


def graph(programs=PROGRAMS, selected=None):
  return tiny_layouts.graph(programs, STATS, selected)


@pytest.fixture(scope='module')
def made():
  """name -> (model, its scores of PROGRAMS); made once."""
  known = {}

  def get(name):
    if name not in known:
      model = make(name)
      known[name] = model, model(graph()).numpy()
    return known[name]

  return get


@every_model
def test_scores_of_some_size_and_no_nan(made, name):
  _, scores = made(name)
  assert scores.shape == (2, CONFIGS) and np.isfinite(scores).all()
  assert (scores.std(-1) > 1e-7).all()


@every_model
def test_a_score_depends_on_its_own_program_and_configuration(made, name):
  model, scores = made(name)
  order = np.array([6, 2, 0, 1, 5, 4, 3])
  turned = [{**program, 'node_config_feat': program['node_config_feat'][order]}
            for program in PROGRAMS[::-1]]
  np.testing.assert_allclose(model(graph(turned)), scores[::-1, order], **CLOSE)
  alone = [{**PROGRAMS[1],
            'node_config_feat': PROGRAMS[1]['node_config_feat'][2:3]}]
  alone[0]['config_runtime'] = PROGRAMS[1]['config_runtime'][2:3]
  np.testing.assert_allclose(model(graph(alone)), scores[1:, 2:3], **CLOSE)


@every_model
def test_the_order_of_nodes_does_not_matter(made, name):
  model, scores = made(name)
  order = np.random.default_rng(2).permutation(40)
  if name == 'MyLayoutSAGE':  # First and last operands are by number.
    order = np.arange(40)
  place = np.argsort(order)
  program = PROGRAMS[0]
  turned = {**program, 'node_feat': program['node_feat'][order],
            'node_opcode': program['node_opcode'][order],
            'edge_index': place[program['edge_index'][::-1]],
            'node_config_ids': place[program['node_config_ids']][::-1],
            'node_config_feat': program['node_config_feat'][:, ::-1]}
  np.testing.assert_allclose(model(graph([turned])), scores[:1], **CLOSE)


@two_models_and_slowly_all
def test_forward_gives_the_same_in_chunks(made, name, monkeypatch):
  model, scores = made(name)
  monkeypatch.setattr(type(model), '_CHUNK_FLOATS', 1)  # Eight at a time.
  many = [{**program, **{name: np.concatenate([program[name]] * 3)
                         for name in ('node_config_feat', 'config_runtime')}}
          for program in PROGRAMS]
  np.testing.assert_allclose(
      model.forward(graph(many), 3 * CONFIGS), np.tile(scores, 3), **CLOSE)


@every_model
def test_every_variable_learns_from_segments(made, name):
  model, _ = made(name)
  selected = [np.arange(40) < 25, np.arange(60) >= 30]
  with tf.GradientTape() as tape:
    scores = model(graph(selected=selected), training=True)
    loss = tf.reduce_sum(tf.sin(3 * scores) + scores)
  gradients = tape.gradient(loss, model.trainable_variables)
  for variable, gradient in zip(model.trainable_variables, gradients):
    gradient = tf.convert_to_tensor(gradient).numpy()
    assert np.isfinite(gradient).all(), variable.name
    assert gradient.any() or 'feature_stats' in variable.name, variable.name


@pytest.mark.parametrize('saves', [
    False, pytest.param(True, marks=pytest.mark.slow)])
@two_models_and_slowly_all
def test_weights_are_the_whole_state(name, tmp_path, saves, monkeypatch):
  """As layout_evaluate.py has it: saved, loaded, copied by position."""
  saved = make(name)
  saved(graph())
  for variable in saved.trainable_variables:  # Some are almost 0 at first.
    if 'feature_stats' not in variable.name:
      variable.assign_add(tf.random.normal(variable.shape, stddev=0.1))
  scores = saved(graph()).numpy()
  if saves:
    traced, score = [], type(saved)._score_at_once
    monkeypatch.setattr(
        type(saved), '_score_at_once', lambda self, *inputs: traced.append(
            inputs[2]) or score(self, *inputs))
    tf.function(lambda: saved(graph()), autograph=False)()  # As in validation.
    saved.save(str(tmp_path / 'model'))
    assert traced == [False, True]  # By `training`; Keras calls it three times.
    saved = tf.keras.models.load_model(str(tmp_path / 'model'))
  copy = make(name, seed=2, **(
      {'feature_stats': None} if name == 'MyLayoutSAGE' else {}))
  copy(graph())
  model_checks.copy_weights(copy, saved)
  np.testing.assert_allclose(copy(graph()), scores, **CLOSE)


@every_model
def test_odd_programs_have_finite_scores(made, name):
  model, _ = made(name)
  whole = PROGRAMS[0]
  node = {'node_feat': whole['node_feat'][:1], 'node_config_ids': np.zeros(1),
          'node_opcode': whole['node_opcode'][:1],
          'node_config_feat': whole['node_config_feat'][:, :1]}
  odd = [
      {**whole, **node, 'edge_index': np.zeros([0, 2], np.int64)},
      {**whole, 'node_config_ids': np.zeros(0, np.int64),
       'node_config_feat': whole['node_config_feat'][:, :0]},
      {**whole, 'node_feat': whole['node_feat'] * 1e9,
       'node_config_feat': whole['node_config_feat'] * 0 - 1}]
  for program in odd:
    program['node_config_ids'] = program['node_config_ids'].astype(np.int64)
  scores = model(graph(odd)).numpy()
  assert np.isfinite(scores).all()
  np.testing.assert_allclose(scores[1:], scores[1:, :1] + 0 * scores[1:],
                             **CLOSE)


@every_model
def test_features_scaled_with_other_data_are_refused(made, name):
  model, _ = made(name)
  with pytest.raises(ValueError, match='normalised with other data'):
    model(tiny_layouts.graph(PROGRAMS[:1], {
        **STATS, 'config': {'minimum': [0.] * 18,
                            'maximum': [1.] * 17 + [0.]}}))


def test_arguments_are_checked_at_once():
  for name, kwargs, said in (
      ('ResModel', {'dropout': 'fulgraph'}, "got 'fulgraph'"),
      ('ResModel', {'adj_normalization': 'none'}, 'adj_normalization must be'),
      ('ResModel', {'hidden_activation': 'tanhh'}, 'a function of tf.nn'),
      ('LayoutGAT', {'num_heads': 3}, 'multiple of num_heads; got 8 and 3'),
      ('MyLayoutSAGE', {'node_rounds': -1}, 'node_rounds must be'),
      ('GRURuntimePredictor', {'hidden_dim': True}, 'hidden_dim must be')):
    with pytest.raises(ValueError, match=said):
      make(name, **kwargs)


def test_mylayoutsage_learns_without_prices_and_ranks_with_them(made):
  """What training sees, plus 40 log(1 + x), where x is the padded share."""
  model, scores = made('MyLayoutSAGE')
  learned = model(graph(), training=True).numpy()
  assert (scores >= learned).all() and np.ptp(scores - learned, -1).all()
  plain = make('MyLayoutSAGE', feature_stats=None)
  np.testing.assert_array_equal(plain(graph()), plain(graph(), training=True))
