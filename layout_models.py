"""Models that rank the layout configurations of whole TPU programs.

This one file replaces `tpu_graphs/baselines/layout/models.py` of the tpu_graphs
baseline, so it imports only TensorFlow, TF-GNN, NumPy and the standard library.

What `layout_train.py` and `layout_evaluate.py` rely on:
  * `ResModel(num_configs, num_ops, **kwargs)`, the only class that they name.
    They ignore their flags `--model` and `--model_kwargs_json`; `ResModel` here
    honours both, for `MyLayoutSAGE` and others: see `_asked_for`.
  * `model(graph, training)` and `model.forward(graph, num_configs, backprop)`
    take a scalar `GraphTensor` of several programs and return float32
    `[graphs, configs]`; the lowest score is the fastest configuration.
  * Trainable variables are the whole state, in an order that does not depend on
    the data, because the scripts copy them by position.

Shapes: `graphs` in the batch; `nodes`, `edges` and `configurable` nodes, which
have layouts to choose, of all graphs together; `configs` of each graph;
`reached` nodes whose states depend on a configuration; `F` and `G` columns of
node and config features; `width` of a hidden layer.
"""

import functools
import gzip
import hashlib
import json
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

_log = logging.getLogger(__name__)


# ------------------------------------------- chapter: shared with models.py
#
# Byte for byte the same in both files, because each must work alone.


def _matmul(x: tf.Tensor, w: tf.Tensor,
            bias: Optional[tf.Tensor] = None) -> tf.Tensor:
  """[..., a] times [a, b], plus [b] -> [..., b], as one matrix product."""
  is_flat = x.shape.rank == 2
  flat = (x if is_flat else tf.reshape(x, [-1, w.shape[0]])) @ w
  if bias is not None:
    flat = tf.nn.bias_add(flat, bias)
  if is_flat:
    return flat
  y = tf.reshape(flat, tf.concat([tf.shape(x)[:-1], [w.shape[1]]], 0))
  y.set_shape(x.shape[:-1] + [w.shape[1]])
  return y


def _check_choice(argument: str, value: Any, allowed: Sequence[str]) -> None:
  """Raises a ValueError that names the allowed values."""
  if value not in allowed:
    raise ValueError(f'{argument} must be one of {", ".join(allowed)}; '
                     f'got {value!r}.')


def _check_integers(minimum: int, **arguments: Any) -> None:
  """Raises a ValueError unless all are integers of at least `minimum`."""
  for name, value in arguments.items():
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
      raise ValueError(
          f'{name} must be an integer of at least {minimum}; got {value!r}.')


def _activation(name: Any) -> Callable[[tf.Tensor], tf.Tensor]:
  """The function `tf.nn.<name>`, for example 'leaky_relu' or 'gelu'."""
  function = getattr(tf.nn, str(name), None)
  if not callable(function):
    raise ValueError('hidden_activation must name a function of tf.nn, such as '
                     f'leaky_relu, relu or gelu; got {name!r}.')
  return function


class _Objective(tf.keras.losses.Loss):
  """A loss without settings; subclasses define `call` and a docstring."""

  def __init__(self, reduction=tf.keras.losses.Reduction.AUTO, name=None):
    super().__init__(reduction=reduction, name=name or type(self).__name__)


def _mlp(dims, hidden_activation, l2reg=1e-4, use_bias=True):
  """Dense layers of sizes `dims` with the activation between them."""
  layers = []
  for dim in dims:
    if layers:
      layers.append(tf.keras.layers.Activation(hidden_activation))
    layers.append(tf.keras.layers.Dense(
        dim, use_bias=use_bias,
        kernel_regularizer=tf.keras.regularizers.l2(l2reg)))
  return tf.keras.Sequential(layers)


class _OpEmbedding(tf.keras.Model):
  """Adds feature 'op_e', the embedded opcode, to node set 'op'."""

  def __init__(self, num_ops: int, embed_d: int, l2reg: float = 1e-4):
    super().__init__()
    self.embedding_layer = tf.keras.layers.Embedding(
        num_ops, embed_d, activity_regularizer=tf.keras.regularizers.l2(l2reg))

  def call(self, graph: tfgnn.GraphTensor,
           training: bool = False) -> tfgnn.GraphTensor:
    del training
    opcode = tf.cast(graph.node_sets['op']['op'], tf.int32)  # [nodes]
    features = dict(graph.node_sets['op'].features)
    features['op_e'] = self.embedding_layer(opcode)  # [nodes, embed_d]
    return graph.replace_features(node_sets={'op': features})


# ------------------------------------------------------------- chapter: tensors


class _Inputs(NamedTuple):
  """What a model may look at: a batch of programs without labels."""
  opcode: tf.Tensor         # int32 [nodes]
  node_feats: tf.Tensor     # float32 [nodes, F]
  selected: tf.Tensor       # bool [nodes], nodes of the segment to learn from
  node_counts: tf.Tensor    # int32 [graphs]
  consumer: tf.Tensor       # int32 [edges], node that reads
  producer: tf.Tensor       # int32 [edges], node that is read
  config_feats: tf.Tensor   # float32 [configurable, configs, G]
  config_node: tf.Tensor    # int32 [configurable], node that has the layouts
  config_counts: tf.Tensor  # int32 [graphs]


def _inputs_of(graph: tfgnn.GraphTensor) -> _Inputs:
  """Takes the input tensors out of a graph, and leaves the labels behind."""
  ops, configs = graph.node_sets['op'], graph.node_sets['nconfig']
  feed, config = (graph.edge_sets[name].adjacency for name in (
      'feed', 'config'))
  feats = configs['feats']
  return _Inputs(
      opcode=tf.cast(ops['op'], tf.int32), node_feats=ops['feats'],
      selected=ops['selected'], node_counts=tf.cast(ops.sizes, tf.int32),
      consumer=tf.cast(feed.source, tf.int32),
      producer=tf.cast(feed.target, tf.int32), config_feats=feats,
      config_node=tf.scatter_nd(
          tf.cast(config.source, tf.int32)[:, tf.newaxis],
          tf.cast(config.target, tf.int32), tf.shape(feats)[:1]),
      config_counts=tf.cast(configs.sizes, tf.int32))


def _input_specs(node_width: int, config_width: int) -> _Inputs:
  """Shapes for which one trace serves every batch."""
  ints = _Inputs(*[tf.TensorSpec([None], tf.int32)] * len(_Inputs._fields))
  return ints._replace(
      node_feats=tf.TensorSpec([None, node_width]),
      selected=tf.TensorSpec([None], tf.bool),
      config_feats=tf.TensorSpec([None, None, config_width]))


def _segment_of(inputs: _Inputs, keep_nodes: bool) -> _Inputs:
  """The batch without the edges and configurations of nodes that are not
  selected, and without these nodes unless `keep_nodes`."""
  mask = inputs.selected
  is_kept = tf.gather(mask, inputs.config_node)
  edges, configs, nodes = map(_rows_where, (
      tf.gather(mask, inputs.consumer) & tf.gather(mask, inputs.producer),
      is_kept, mask))

  def kept(rows, counts):
    return _sums_by(
        tf.cast(rows, tf.int32), _graph_numbers(counts), tf.size(counts))

  cut = inputs._replace(
      consumer=tf.gather(inputs.consumer, edges),
      producer=tf.gather(inputs.producer, edges),
      config_feats=tf.gather(inputs.config_feats, configs),
      config_node=tf.gather(inputs.config_node, configs),
      config_counts=kept(is_kept, inputs.config_counts))
  if keep_nodes:
    return cut
  place = tf.cumsum(tf.cast(mask, tf.int32)) - 1
  return cut._replace(
      opcode=tf.gather(inputs.opcode, nodes),
      node_feats=tf.gather(inputs.node_feats, nodes),
      selected=tf.gather(mask, nodes),
      node_counts=kept(mask, inputs.node_counts),
      **{name: tf.gather(place, getattr(cut, name)) for name in (
          'consumer', 'producer', 'config_node')})


def _graph_numbers(counts: tf.Tensor) -> tf.Tensor:
  """[graphs] numbers of rows -> int32 [rows], the graph of each."""
  return tf.raw_ops.UpperBound(  # A sixth of the operations of tf.repeat.
      sorted_inputs=tf.cumsum(counts)[tf.newaxis],
      values=tf.range(tf.reduce_sum(counts))[tf.newaxis])[0]


def _rows_where(mask: tf.Tensor) -> tf.Tensor:
  """bool [rows] -> int32 [any], the rows that are True, ascending."""
  return tf.cast(tf.reshape(tf.where(mask), [-1]), tf.int32)


def _sums_by(x: tf.Tensor, number: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Sums rows with the same number: [rows, ...] -> [numbers, ...]."""
  return tf.math.unsorted_segment_sum(x, number, numbers)


class _Link(NamedTuple):
  """A matrix [nodes, nodes] by its entries: rows receive from columns."""
  sender: tf.Tensor    # int32 [entries]
  receiver: tf.Tensor  # int32 [entries]
  weight: tf.Tensor    # float32 [entries]

  def times(self, x: tf.Tensor, rows: Any) -> tf.Tensor:
    """Sums weighted senders: x [senders, ..., width] -> [rows, ..., width]."""
    shape = tf.cast(tf.stack([rows, tf.shape(x)[0]]), tf.int64)
    places = tf.cast(tf.stack([self.receiver, self.sender], -1), tf.int64)
    y = tf.sparse.sparse_dense_matmul(
        tf.SparseTensor(places, self.weight, shape),
        tf.reshape(x, tf.stack([tf.shape(x)[0], -1])))
    y = tf.reshape(y, tf.concat([[rows], tf.shape(x)[1:]], 0))
    y.set_shape([None, *x.shape[1:]])
    return y


class _Graph:
  """Neighbours and pooling over a batch of programs."""

  def __init__(self, inputs: _Inputs):
    self.inputs = inputs
    self.nodes = tf.size(inputs.opcode)
    self.graphs = tf.size(inputs.node_counts)
    self.node_graph = _graph_numbers(inputs.node_counts)  # int32 [nodes]
    self.config_graph = _graph_numbers(inputs.config_counts)

  def neighbours(self, of: str) -> _Link:
    """Weights 1 from each node itself and its 'consumers', 'producers', 'both'.
    """
    consumer, producer = self.inputs.consumer, self.inputs.producer
    ends = {'consumers': ([consumer], [producer]),
            'producers': ([producer], [consumer]),
            'both': ([consumer, producer], [producer, consumer])}[of]
    sender, receiver = (
        tf.concat([*end, tf.range(self.nodes)], 0) for end in ends)
    return _Link(sender, receiver, tf.ones_like(receiver, tf.float32))

  def averaged(self, link: _Link) -> _Link:
    """The same in rows that add up to 1."""
    degree = _sums_by(link.weight, link.receiver, self.nodes)
    return link._replace(
        weight=link.weight / tf.gather(degree, link.receiver))

  def symmetric(self, link: _Link) -> _Link:
    """D^-1/2 L D^-1/2 of a symmetric link L, D its row sums."""
    scale = tf.math.rsqrt(_sums_by(link.weight, link.receiver, self.nodes))
    return link._replace(weight=link.weight * tf.gather(
        scale, link.receiver) * tf.gather(scale, link.sender))


class _Level(NamedTuple):
  """The nodes whose states depend on a configuration after some rounds."""
  nodes: tf.Tensor  # int32 [reached], ascending
  place: tf.Tensor  # int32 [nodes], row in `nodes`, or -1


def _levels(graph: _Graph, links: Sequence[_Link], rounds: int) -> list:
  """Which nodes depend on a configuration: rounds + 1 levels.

  At first those that have one; a round takes it on to the receivers of its
  links, each node itself among them.
  """
  mask = tf.minimum(1, _sums_by(
      tf.ones_like(graph.inputs.config_node), graph.inputs.config_node,
      graph.nodes))
  levels = []
  for i in range(rounds + 1):
    if i:
      mask = functools.reduce(tf.maximum, [
          tf.math.unsorted_segment_max(
              tf.gather(mask, link.sender), link.receiver, graph.nodes)
          for link in links])
    levels.append(_Level(
        _rows_where(mask > 0), tf.where(mask > 0, tf.cumsum(mask) - 1, -1)))
  return levels


def _round(links: Sequence[_Link], before: _Level, after: _Level,
           product: tf.Tensor, finish: Callable) -> tuple:
  """Sends products along links, and has `finish` make states of their sums.

  Products are float32 [nodes, links * width]: each link sends its own columns.
  Returns the states, [nodes, width], and a function from what configurations
  add to products, [reached, configs, links * width], to what they add to the
  states, [reached, configs, width].
  """

  def sums(links, product, rows):
    parts = tf.split(product, len(links), -1)
    return tf.add_n([
        link.times(part, rows) for link, part in zip(links, parts)])

  between = []  # The links' entries among reached nodes.
  for link in links:
    sender = tf.gather(before.place, link.sender)
    entries = _rows_where(sender >= 0)
    between.append(_Link(
        tf.gather(sender, entries),
        tf.gather(after.place, tf.gather(link.receiver, entries)),
        tf.gather(link.weight, entries)))
  summed = sums(links, product, tf.shape(product)[0])
  states = finish(summed)
  of_reached, fixed = (
      tf.gather(x, after.nodes)[:, tf.newaxis] for x in (summed, states))
  return states, lambda change: finish(
      of_reached + sums(between, change, tf.size(after.nodes))) - fixed


def _pooled(graph: _Graph, base: tf.Tensor, change: tf.Tensor, level: _Level,
            weight: Optional[tf.Tensor]) -> list:
  """Sums of base plus change: [over nodes, over configurable nodes].

  Shapes: base float32 [nodes, width]; change float32 [reached, configs, width]
  -> float32 [graphs, configs, width] each.
  """
  if weight is not None:
    base *= weight[:, tf.newaxis]
    change *= tf.gather(weight, level.nodes)[:, tf.newaxis, tf.newaxis]
  node = graph.inputs.config_node
  states = tf.gather(base, node)[:, tf.newaxis] + tf.gather(
      change, tf.gather(level.place, node))
  return [
      _sums_by(base, graph.node_graph, graph.graphs)[:, tf.newaxis] + _sums_by(
          change, tf.gather(graph.node_graph, level.nodes), graph.graphs),
      _sums_by(states, graph.config_graph, graph.graphs)]


# ----------------------------------------------------------- chapter: arguments


def _script_flags() -> Any:
  """The flags of the running script of the baseline, or None."""
  absl_flags = sys.modules.get('absl.flags')  # There, if a script has flags.
  flags = absl_flags.FLAGS if absl_flags else None
  return flags if flags and flags.is_parsed() else None


def _asked_for() -> Optional[tuple]:
  """(name, arguments) of the model that the running script was asked for.

  `layout_train.py` has both in flags that it ignores itself. For
  `layout_evaluate.py`, which gives the arguments, the name is in the run files
  of its `--dirs`. None where no such script is running.
  """
  flags = _script_flags()
  if hasattr(flags, 'keep_nodes'):
    text = flags.model_kwargs_json or '{}'
    try:
      arguments = json.loads(text)
    except ValueError:
      arguments = None
    if not isinstance(arguments, dict):
      raise ValueError('--model_kwargs_json must be a JSON object, such as '
                       f'{{"hidden_dim": 64}}; got {text!r}.')
    return flags.model, arguments
  if hasattr(flags, 'secret_path'):
    names = set()
    for model_dir in flags.dirs.split(','):
      path = os.path.expanduser(model_dir).replace('/model_', '/run_')
      with tf.io.gfile.GFile(path + '.jsonz', 'rb') as file:
        names.add(json.loads(gzip.decompress(file.read()))['args']['model'])
    if len(names) > 1:
      raise ValueError('--dirs: evaluate models of one kind at a time; there '
                       f'are {", ".join(sorted(names))}.')
    return names.pop(), {}
  return None


# ---------------------------------------------------------- chapter: objectives
#
# Labels are runtimes, float32 [graphs, configs]; scores have the same shape,
# the lowest meaning the fastest. Each loss is the mean over graphs.


_NOISE = 1e-4  # Part of a runtime by which repeated runs differ.
_registered = tf.keras.saving.register_keras_serializable(
    'tpu_graphs_ext.layout')  # A saved model finds its loss again.


@_registered
class ListMLEFastestFirst(_Objective):
  """Negative log likelihood of drawing a list from the fastest on.

      sum over i of  log(sum over j of exp(-s_j)) + s_i,
      j over all that are not faster than i
  Runtimes that differ by less than 1e-4 count as equal: in real files of unet3d
  those of one configuration, measured over and over by a search, differ by up
  to 8e-5. Equal ones share one denominator (Breslow, 1972), so their order in
  memory does not matter.
  Source: Xia et al., ICML 2008, with scores and labels negated.
  """

  def call(self, y_true, y_pred):
    least = (1 - _NOISE) * y_true
    remains = y_true[:, tf.newaxis] >= least[:, :, tf.newaxis]  # [g, i, j]
    utilities = tf.where(remains, -y_pred[:, tf.newaxis], y_pred.dtype.min)
    return tf.reduce_sum(tf.reduce_logsumexp(utilities, -1) + y_pred, -1)


@_registered
class LayoutMinMaxMSE(_Objective):
  """Mean squared error to runtimes scaled to [0, 1] over a graph's list."""

  def call(self, y_true, y_pred):
    low = tf.reduce_min(y_true, -1, keepdims=True)
    high = tf.reduce_max(y_true, -1, keepdims=True)
    target = tf.math.divide_no_nan(y_true - low, high - low)
    return tf.reduce_mean((y_pred - target) ** 2, -1)


# -------------------------------------------------------------- chapter: layers


def _after_first(mlp: tf.keras.Sequential, x: tf.Tensor) -> tf.Tensor:
  """The layers of an `_mlp` after its first product: adds that one's bias."""
  first, *rest = mlp.layers
  if first.use_bias:
    x = tf.nn.bias_add(x, first.bias)
  for layer in rest:
    if isinstance(layer, tf.keras.layers.Dense):
      x = _matmul(x, layer.kernel, layer.bias if layer.use_bias else None)
    else:
      x = layer(x)
  return x


def _log_scales(x: tf.Tensor) -> tf.Tensor:
  """Columns on two logarithmic scales: sign(x) log(1 + s |x|) / log(1 + s).

  Scaling sizes by their maximum squashes most of them to almost 0. A large s
  tells small values apart, a small one large ones.
  Shapes: float32 [..., F] -> [..., 2 F].
  """
  return tf.concat([
      tf.sign(x) * tf.math.log1p(s * tf.abs(x)) / math.log1p(s)
      for s in (1e2, 1e5)], -1)


# ---------------------------------------------------------------- chapter: base


_DROPOUTS = ('fullgraph', 'dropout', 'backpropdropout')


class _LayoutModel(tf.keras.Model):
  """Scores the configurations of programs, in three stages.

  Subclasses define
    `_build_layers(node_width, config_width)`: builds all layers, in the order
      of their attributes.
    `_encode(graph, embedded)`: all that does not depend on a configuration,
      once a batch; `embedded` is float32 [nodes, op_embed_dim], the opcodes.
      Returns the number of rows of the largest tensor of each configuration,
      int32 [], and any structure of tensors.
    `_sums(graph, encoded, config_feats, weight)`: sums over each graph's nodes
      of all that does, float32 [graphs, configs, any number], from that
      structure and float32 [configurable, configs, G]; `weight`, float32
      [nodes], says how much of a node is summed; None: all.
    `_head(sums, nodes, configurable, training)`: scores [graphs, configs];
      the numbers of nodes are float32 [graphs].
  `forward` runs the last two on chunks of configurations, so a score must
  depend on its own configuration alone.

  Segments: a graph says by the feature 'selected' which of its nodes are to be
  learned from. `dropout` says what to do if these are not all:
    'backpropdropout': the sums of that part have gradients; those of the other
      nodes, in the whole graph, are added without. Source: Cao et al., Learning
      Large Graph Property Prediction via Graph Segment Training, 2023.
    'dropout': the other nodes lose their edges and configurations.
    'fullgraph': nothing, all nodes are alike.
  """
  # Floats of one [rows, chunk, width] tensor: 1.5 MiB, so that what is alive
  # at once fits in a shared cache.
  _CHUNK_FLOATS = 3 * 2 ** 17
  _OWN_LOSS = None  # Instead of the loss of the training script.

  def __init__(self, num_configs: int, num_ops: int, width: int, dropout: str,
               op_embed_dim: int = 32):
    super().__init__()
    _check_choice('dropout', dropout, _DROPOUTS)
    _check_integers(1, num_configs=num_configs, num_ops=num_ops,
                    op_embed_dim=op_embed_dim, hidden_dim=width)
    self.dropout = dropout
    self._width, self._embed_width = width, op_embed_dim
    self._op_embedding = _OpEmbedding(num_ops, op_embed_dim)
    self._input_widths = None  # (F, G), known from the first graph on.

  def compile(self, optimizer='rmsprop', loss=None, **kwargs):
    """Like Keras's; the model's own loss comes before the given one."""
    super().compile(optimizer=optimizer, **kwargs,
                    loss=self._OWN_LOSS() if self._OWN_LOSS else loss)

  def fit(self, x=None, *args, **kwargs):
    """Like Keras's; a step that makes variables would be traced twice."""
    spec = getattr(x, 'element_spec', None)
    if isinstance(spec, tuple) and isinstance(spec[0], tfgnn.GraphTensorSpec):
      self._create_for(*(
          spec[0].node_sets_spec[name].features_spec['feats'].shape[-1]
          for name in ('op', 'nconfig')))
      self.optimizer.build(self.trainable_variables)
    return super().fit(x, *args, **kwargs)

  @tf.autograph.experimental.do_not_convert
  def call(self, graph: tfgnn.GraphTensor, training: bool = False) -> tf.Tensor:
    """Scores all configurations at once: float32 [graphs, configs]."""
    inputs = _inputs_of(graph)
    self._create_for(inputs.node_feats.shape[-1], inputs.config_feats.shape[-1])
    # Embedded by the layer, which adds its regularizer to the losses.
    embedded = self._op_embedding(graph).node_sets['op']['op_e']
    if tf.inside_function() and not training:
      return self._at_once()(inputs, embedded)
    return self._score_at_once(inputs, embedded, training)

  def _score_at_once(self, inputs, embedded, training):
    def scored(dropout):
      return self._scores(inputs, inputs.config_feats, self._parts(
          inputs, embedded, dropout), training)

    return tf.cond(tf.reduce_all(inputs.selected),
                   lambda: scored('fullgraph'), lambda: scored(self.dropout))

  def forward(self, graph: tfgnn.GraphTensor, num_configs: int,
              backprop: bool = True) -> tf.Tensor:
    """Scores any number of configurations in bounded memory.

    Args:
      graph: scalar GraphTensor of one or more programs.
      num_configs: configurations of each program in `graph`.
      backprop: False, as in the scripts, means dropout 'fullgraph'.

    Returns:
      float32 [graphs, num_configs]; lower is faster.
    """
    del num_configs  # The graph says it too.
    inputs = _inputs_of(graph)
    self._create_for(inputs.node_feats.shape[-1], inputs.config_feats.shape[-1])
    is_whole = not backprop or (
        tf.executing_eagerly() and bool(tf.reduce_all(inputs.selected)))
    return self._rank('fullgraph' if is_whole else self.dropout)(*inputs)

  def _create_for(self, node_width: int, config_width: int) -> None:
    """Creates all variables, for these numbers of feature columns."""
    widths = (node_width, config_width)
    if self._input_widths is None:
      with tf.init_scope():
        self._op_embedding.embedding_layer.build([None])
        self._build_layers(*widths)
      self._input_widths = widths
      # A function, so that Keras does not save the traces.
      self._rank = {
          dropout: tf.function(
              functools.partial(self._rank_in_chunks, dropout), autograph=False,
              input_signature=_input_specs(*widths))
          for dropout in _DROPOUTS}.get
      # Validation and Keras, to save a model, would each trace it anew.
      self._at_once = functools.cache(tf.function(
          lambda inputs, embedded: self._score_at_once(inputs, embedded, False),
          autograph=False, input_signature=[
              _input_specs(*widths), tf.TensorSpec([None, self._embed_width])
          ]).get_concrete_function)
    elif widths != self._input_widths:
      raise ValueError(
          f'the graph has {node_width} node and {config_width} config columns, '
          'the model was built for {} and {}; was it normalised with other '
          'data?'.format(*self._input_widths))

  def _scores(self, inputs, config_feats, parts, training=False):
    """From the sums of all parts: float32 [graphs, configs]."""
    return self._head(
        tf.add_n([sums(config_feats) for _, sums in parts]),
        tf.cast(inputs.node_counts, tf.float32),
        tf.cast(inputs.config_counts, tf.float32), training)

  def _rank_in_chunks(self, dropout: str, *tensors: tf.Tensor) -> tf.Tensor:
    """`_encode` once, the rest on chunks: float32 [graphs, configs]."""
    inputs = _Inputs(*tensors)
    embedded = tf.gather(
        self._op_embedding.embedding_layer.embeddings, inputs.opcode)
    parts = self._parts(inputs, embedded, dropout)
    rows = functools.reduce(tf.maximum, [rows for rows, _ in parts])
    configs = tf.shape(inputs.config_feats)[1]
    chunk = tf.clip_by_value(
        self._CHUNK_FLOATS // tf.maximum(1, rows * self._width), 8, 4096)
    chunks = (configs + chunk - 1) // chunk

    def score_chunk(i, scores):
      of_chunk = self._scores(
          inputs, inputs.config_feats[:, i * chunk:(i + 1) * chunk], parts)
      return i + 1, scores.write(i, tf.transpose(of_chunk))

    scores = tf.while_loop(
        lambda i, unused_scores: i < chunks, score_chunk,
        (0, tf.TensorArray(tf.float32, chunks, infer_shape=False,
                           element_shape=[None, None])),
        parallel_iterations=1)[1]
    return tf.transpose(scores.concat())

  def _parts(self, inputs, embedded, dropout) -> list:
    """(rows, function from config_feats to sums) of each part of a batch."""

    def part(inputs, embedded, weight=None):
      graph = _Graph(inputs)
      rows, encoded = self._encode(graph, embedded)
      return rows, lambda feats: self._sums(graph, encoded, feats, weight)

    if dropout == 'fullgraph':
      return [part(inputs, embedded)]
    configs = _rows_where(tf.gather(inputs.selected, inputs.config_node))
    keeps = dropout == 'dropout'
    rows, sums = part(
        _segment_of(inputs, keeps), embedded if keeps else tf.gather(
            embedded, _rows_where(inputs.selected)))
    parts = [(rows, lambda feats: sums(tf.gather(feats, configs)))]
    if not keeps:
      rows, others = part(
          inputs, embedded, tf.cast(~inputs.selected, tf.float32))
      parts.append((rows, lambda feats: tf.stop_gradient(others(feats))))
    return parts


# ------------------------------------------------------------ chapter: baseline


class _ResModel(_LayoutModel):
  """`ResModel`, whatever script is running."""

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int = 32,
               num_gnns: int = 2, mlp_layers: int = 2,
               hidden_activation: str = 'leaky_relu', hidden_dim: int = 32,
               adj_normalization: str = 'sym',
               dropout: str = 'backpropdropout'):
    super().__init__(num_configs, num_ops, hidden_dim, dropout, op_embed_dim)
    _check_integers(0, num_gnns=num_gnns)
    _check_integers(1, mlp_layers=mlp_layers)
    _check_choice('adj_normalization', adj_normalization, ['sym', 'asym'])
    self._adj_normalization = adj_normalization
    self._act = _activation(hidden_activation)
    self._prenet = _mlp([hidden_dim] * mlp_layers, hidden_activation)
    self._gc_layers = [_mlp([hidden_dim] * mlp_layers, hidden_activation)
                       for _ in range(num_gnns)]
    self._postnet = _mlp([hidden_dim, 1], hidden_activation, use_bias=False)

  def _build_layers(self, node_width, config_width):
    self._prenet.build([None, config_width + node_width + self._embed_width])
    links = {'sym': 1, 'asym': 2}[self._adj_normalization]
    for layer in self._gc_layers:
      layer.build([None, links * (config_width + self._width)])
    self._postnet.build([None, 3 * self._width])

  def _links(self, graph):
    if self._adj_normalization == 'sym':
      return [graph.symmetric(graph.neighbours('both'))]
    # A takes from the source of an edge, the consumer.
    return [graph.averaged(graph.neighbours('consumers')),
            graph.averaged(graph.neighbours('producers'))]

  def _first_weights(self, mlp, links):
    """Of an MLP's first layer, by link: (of config columns, of all others)."""
    parts = tf.split(mlp.layers[0].kernel, links, axis=0)
    columns = self._input_widths[1]
    return (tf.concat([part[:columns] for part in parts], -1),
            tf.concat([part[columns:] for part in parts], -1))

  def _finish(self, mlp, x):
    """All of an MLP that comes after its first product, and the activation."""
    return self._act(_after_first(mlp, x))

  def _encode(self, graph, embedded):
    links = self._links(graph)
    levels = _levels(graph, links, len(self._gc_layers))
    # Two products: in one the columns would be copied, and have gradients.
    of_feats, of_opcode = tf.split(
        self._first_weights(self._prenet, 1)[1], [-1, self._embed_width])
    start = (_matmul(graph.inputs.node_feats, of_feats)
             + _matmul(embedded, of_opcode))
    states = first = self._finish(self._prenet, start)
    rounds = []
    for i, layer in enumerate(self._gc_layers):
      update, change_of = _round(
          links, *levels[i:i + 2],
          _matmul(states, self._first_weights(layer, len(links))[1]),
          functools.partial(self._finish, layer))
      rounds.append(change_of)
      states += update
    start, first = (tf.gather(x, levels[0].nodes)[:, tf.newaxis]
                    for x in (start, first))
    return tf.size(levels[-1].nodes), (
        len(links), levels, start, first, rounds, states)

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum over nodes, sum over configurable nodes], each of `width`."""
    links, levels, start, first, rounds, last = encoded

    def configs(weights, level):
      """Config features times their weights, on the rows of a level."""
      return _sums_by(
          100 * _matmul(config_feats, weights),
          tf.gather(level.place, graph.inputs.config_node),
          tf.size(level.nodes))

    change = self._finish(self._prenet, start + configs(
        self._first_weights(self._prenet, 1)[0], levels[0])) - first
    for i, (layer, change_of) in enumerate(zip(self._gc_layers, rounds)):
      before, after = levels[i:i + 2]
      of_configs, others = self._first_weights(layer, links)
      update = change_of(
          _matmul(change, others) + configs(of_configs, before))
      change = update + _sums_by(
          change, tf.gather(after.place, before.nodes), tf.size(after.nodes))
    over_nodes, over_configs = _pooled(graph, last, change, levels[-1], weight)
    if weight is not None:  # The baseline pools those of the segment only.
      over_configs = tf.zeros_like(over_configs)
    return tf.concat([over_nodes, over_configs], -1)

  def _head(self, sums, nodes, configurable, training):
    of_nodes, of_configs = tf.split(sums, 2, -1)
    z = tf.concat([
        of_nodes / tf.maximum(1.0, nodes)[:, tf.newaxis, tf.newaxis],
        tf.nn.l2_normalize(of_nodes, -1), tf.nn.l2_normalize(of_configs, -1)
    ], -1)
    product = _matmul(z, self._postnet.layers[0].kernel)
    return tf.squeeze(_after_first(self._postnet, product), -1)


class ResModel(_ResModel):
  """The baseline's model: graph convolutions with residual links.

      f_v = 100 * config features of node v, 0 where it has none
      x_v = act(MLP([f_v, node features, embedded opcode]))
      x  <- x + act(MLP(L [f, x]))                        num_gnns times
      z   = [mean of x over all nodes, l2(sum of x over all nodes),
             l2(sum of x over configurable nodes)]
      score = MLP(z), without biases
  L is D^-1/2 (A + A' + I) D^-1/2 with 'sym', and with 'asym' both D^-1 (A + I)
  and D^-1 (A' + I), side by side; A_uv counts the edges from v to u.
  Source: Phothilimthana et al., TpuGraphs, 2023; same variables and scores.
  There each configuration has a state for every node. Here nodes have one
  state, but those that a configuration can reach in num_gnns rounds; the first
  dense layer of each MLP is linear, so it is applied before L, at hidden width.

  In a script of the baseline it makes the model that the script's flags name:
  see `_asked_for`.

  Args:
    num_configs: configurations of each graph in training.
    num_ops: number of opcodes.
    op_embed_dim: width of an embedded opcode.
    num_gnns: rounds of message passing.
    mlp_layers: dense layers of each MLP.
    hidden_activation: a function of `tf.nn`.
    hidden_dim: width of hidden layers.
    adj_normalization: 'sym' or 'asym'.
    dropout: see `_LayoutModel`.
  """

  def __new__(cls, *args, **kwargs):
    asked = _asked_for() if cls is ResModel else None
    if asked is None:
      return super().__new__(cls, *args, **kwargs)
    name, arguments = asked
    _check_choice('--model', name, list(_MODELS))
    return _MODELS[name](*args, **{**arguments, **kwargs})


# ---------------------------------------------------------- chapter: statistics

_TABLE_WIDTHS = {'node': 140, 'config': 18}  # Columns of the files.


class _Statistics(tf.keras.layers.Layer):
  """Takes scaled features back to their own units.

  The scripts hand models features scaled to [0, 1], without the columns that
  are constant, and nothing to undo that with. The minima and maxima are a
  variable, so that they go where the weights go; its gradient is 0.

  Args:
    stored: {'node': {'minimum': [...], 'maximum': [...]}, 'config': ...} over
      all columns of the files, of the data that features are scaled with; None:
      nothing is known, and all units are 0.
    widths: columns of the scaled features of each table.
  """

  def __init__(self, stored: Optional[Mapping[str, Any]], **widths: int):
    super().__init__()
    bounds = self._bounds_of(stored)
    for table, part in zip(_TABLE_WIDTHS, np.split(
        bounds[0] != bounds[1], [_TABLE_WIDTHS['node']])):
      if stored is not None and part.sum() != widths[table]:
        raise ValueError(
            f'feature_stats has {part.sum()} {table} columns that vary, but '
            f'the features have {widths[table]}; they are of other data.')
    self.table = self.add_weight(
        'feature_stats', bounds.shape,
        initializer=lambda shape, dtype: tf.constant(bounds))

  def _bounds_of(self, stored):
    """[minima, maxima], float32 [2, columns of both tables]."""
    bounds = np.zeros([2, sum(_TABLE_WIDTHS.values())], np.float32)
    if stored is None:
      return bounds
    try:
      numbers = np.concatenate([
          np.float32([stored[table]['minimum'], stored[table]['maximum']])
          for table in _TABLE_WIDTHS], -1)
    except (KeyError, TypeError, ValueError):
      numbers = np.zeros(0)
    if numbers.shape != bounds.shape or not np.isfinite(numbers).all():
      raise ValueError(
          'feature_stats must hold, under node and under config, lists minimum '
          f'and maximum of {_TABLE_WIDTHS["node"]} and '
          f'{_TABLE_WIDTHS["config"]} finite numbers.')
    return numbers

  def raw(self, table: str, x: tf.Tensor,
          columns: Optional[Sequence[int]] = None) -> tf.Tensor:
    """float32 [..., columns that vary] -> [..., all or some of the files']."""
    start = 0 if table == 'node' else _TABLE_WIDTHS['node']
    low, high = tf.unstack(tf.stop_gradient(self.table)[
        :, start:start + _TABLE_WIDTHS[table]])
    used = low != high
    place = tf.cumsum(tf.cast(used, tf.int32)) - 1
    zeros = x.shape[-1]  # The column of zeros that is appended.
    x = tf.pad(x, [[0, 0]] * (x.shape.rank - 1) + [[0, 1]])
    place = tf.where(used, place, zeros)
    if columns is not None:
      low, high, place = (
          tf.gather(of, list(columns)) for of in (low, high, place))
    x = tf.gather(x, place, axis=-1)
    return tf.clip_by_value(tf.round(x * (high - low) + low), -1e12, 1e12)


def _of_running_script() -> Optional[dict]:
  """Statistics of the data that `layout_train.py` scales features with.

  They are in its cache of the train split. None where no such script is
  running, or it keeps no cache.
  """
  flags = _script_flags()
  if not hasattr(flags, 'keep_nodes'):
    return None
  if not flags.cache_dir:
    _log.warning('No feature_stats: they are in the cache of the script, and '
                 '--cache_dir is empty.')
    return None
  folder = os.path.join(os.path.expanduser(flags.data_root), flags.source,
                        flags.search, 'train')
  of = f'{folder}:{flags.configs}:{flags.max_configs}:{flags.toy_data}'
  cache = os.path.join(os.path.expanduser(flags.cache_dir),
                       f'{hashlib.md5(of.encode()).hexdigest()}-cache.npz')
  with tf.io.gfile.GFile(cache, 'rb') as file, np.load(file) as arrays:
    return {table: {'minimum': arrays[field].min(0).tolist(),
                    'maximum': arrays[field].max(0).tolist()}
            for table, field in (
                ('node', 'node_feat'), ('config', 'node_config_feat'))}


# ------------------------------------------------------------- chapter: layouts
#
# A configuration gives a node up to three layouts: of its output, its input and
# its kernel (a filter, the right side of a product), each a list of dimension
# numbers, the closest-packed first, -1 where there are no more.

_DIMS, _LAYOUTS = 6, 3
_CLOSEST = [0, 1, 6, 7, 12, 13]  # Config columns, two of each layout.
_SHAPE, _OWN_LAYOUT = 21, 134  # First of six node columns each.
_CONVOLUTION_OP, _RESHAPE_OP = 26, 75  # Opcodes of the files.
_CONCATENATE_OP, _TRANSPOSE_OP, _TUPLE_OP = 22, 98, 99
# Those whose output has a layout of its own: convolution, dot, gather, reduce,
# reshape, scatter, slice, sort, transpose; and those that XLA duplicates per
# consumer: broadcast, constant, iota.
_NEW_LAYOUT = [26, 34, 42, 70, 75, 82, 92, 93, _TRANSPOSE_OP]
_SHARED = [13, 24, 48]
# Node columns of a convolution: batch and features of its input, input and
# output features of its kernel, batch and features of its output.
_CONVOLUTION = [93, 94, 99, 100, 105, 106]
# Node columns of the element types, pred to c128, and their bytes.
_TYPES, _BYTES = slice(3, 18), [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16]


class _Tensors(NamedTuple):
  """The output, input and kernel of each configurable node."""
  node: tf.Tensor      # int32 [configurable, 3], that makes them
  sizes: tf.Tensor     # float32 [configurable, 3, 6], 0: no dimension
  bytes: tf.Tensor     # float32 [configurable, 3], without padding, in 2^16
  gradient: tf.Tensor  # bool [configurable], of a convolution's filter
  stored: tf.Tensor    # int32 [configurable, 3, 2], closest-packed dimensions
  decider: tf.Tensor   # int32 [configurable, 3], row * 3 + tensor; see below
  fallback: tf.Tensor  # The same, where the decider asks for nothing


def _tensors_of(graph: _Graph, raw: tf.Tensor) -> _Tensors:
  """From the nodes' features in their own units, float32 [nodes, 140].

  Files list operands by node number, not by place; those of a convolution are
  distinguished by their sizes. A node without an operand stands in for it.
  """
  inputs, config_node = graph.inputs, graph.inputs.config_node
  first, last = (
      tf.gather(of(inputs.producer, inputs.consumer, graph.nodes), config_node)
      for of in (tf.math.unsorted_segment_min, tf.math.unsorted_segment_max))
  first = tf.where(first < graph.nodes, first, config_node)
  last = tf.where(last >= 0, last, config_node)
  sizes = raw[:, _SHAPE:_SHAPE + _DIMS]
  dims = tf.cast(tf.gather(
      tf.gather(raw, config_node), _CONVOLUTION, axis=1), tf.int32)

  def size(node, dim):
    return _sizes_at(tf.gather(sizes, node), dims[:, dim:dim + 1])

  def fit(input_, kernel):
    return tf.equal(size(input_, 0), size(config_node, 4)) & tf.equal(
        size(kernel, 3), size(config_node, 5))

  nodes = tf.where(fit(last, first) & ~fit(first, last),
                   tf.stack([config_node, last, first], -1),
                   tf.stack([config_node, first, last], -1))
  element = tf.linalg.matvec(raw[:, _TYPES], tf.constant(_BYTES, tf.float32))
  element = tf.where(element > 0, element, 4.0)
  bytes_ = tf.gather(_elements(sizes) * element, nodes)
  gradient = tf.equal(
      tf.gather(inputs.opcode, config_node), _CONVOLUTION_OP) & (
          bytes_[:, 0] < tf.reduce_min(bytes_[:, 1:], -1)) & (
              dims[:, 1] < dims[:, 0])
  deciders = tf.where(
      gradient[:, tf.newaxis] & [True, False, False],
      3 * tf.range(tf.size(config_node))[:, tf.newaxis],
      _deciders(graph, sizes, nodes))
  stored = tf.gather(raw[:, _OWN_LAYOUT:_OWN_LAYOUT + 2], nodes)
  return _Tensors(nodes, tf.gather(sizes, nodes), bytes_, gradient,
                  tf.cast(stored, tf.int32), *tf.unstack(deciders))


def _deciders(graph: _Graph, sizes: tf.Tensor, tensors: tf.Tensor
              ) -> tf.Tensor:
  """Which requests decide each tensor's layout: int32 [2, configurable, 3].

  XLA hands a layout on through operations that keep the rank of what they read,
  and through convolutions that keep its sizes, but for the features of a
  concatenate. Of the configurable nodes that ask for layouts of tensors so
  connected, the last one decides, and what it reads before what it writes. A
  reshape may ask for nothing; then the last of the other requests decides. It
  has no kernel: in that place stands what it asks of its output.
  """
  inputs, config_node = graph.inputs, graph.inputs.config_node
  read, reads = (tf.gather(sizes, side)
                 for side in (inputs.producer, inputs.consumer))
  opcode, source = (tf.gather(inputs.opcode, side)[:, tf.newaxis]
                    for side in (inputs.consumer, inputs.producer))
  dims, dims_read, changed = (tf.math.count_nonzero(of, -1) for of in (
      reads > 0, read > 0, tf.not_equal(read, reads)))
  hands_on = tf.equal(dims, dims_read) & (dims > 1) & ~tf.reduce_any(
      tf.equal(opcode, _NEW_LAYOUT), -1) & ~tf.reduce_any(
          tf.equal(source, _SHARED), -1)
  hands_on |= tf.equal(opcode[:, 0], _CONVOLUTION_OP) & (dims > 3) & (
      changed <= tf.cast(tf.equal(source[:, 0], _CONCATENATE_OP), tf.int64))
  producer, consumer = (tf.boolean_mask(side, hands_on) for side in (
      inputs.producer, inputs.consumer))

  def spread(group, _):
    """Each node takes the largest number among its neighbours."""
    larger = tf.reduce_max([group, *(
        tf.math.unsorted_segment_max(tf.gather(group, of), to, graph.nodes)
        for of, to in ((producer, consumer), (consumer, producer)))], 0)
    larger = tf.gather(larger, larger)
    return larger, tf.reduce_any(larger > group)

  group, _ = tf.while_loop(lambda _, more: more, spread,
                           [tf.range(graph.nodes), tf.constant(True)])
  asks = tf.gather(group, tensors)
  order = 3 * config_node[:, tf.newaxis] + tf.range(3)
  row = tf.math.unsorted_segment_max(
      tf.range(tf.size(config_node)), config_node, graph.nodes)
  is_reshape = tf.equal(
      tf.gather(inputs.opcode, config_node), _RESHAPE_OP)[:, tf.newaxis]
  is_no_kernel = is_reshape & [False, False, True]

  def last_but(left_out):
    last = tf.gather(tf.math.unsorted_segment_max(
        tf.reshape(tf.where(left_out, -1, order), [-1]),
        tf.reshape(asks, [-1]), graph.nodes), asks)
    last = tf.where(last < 0, order, last)
    last = tf.where(is_no_kernel, order[:, :1], last)
    return 3 * tf.gather(row, last // 3) + last % 3

  return tf.stack([last_but(is_no_kernel), last_but(is_reshape)])


def _elements(sizes: tf.Tensor) -> tf.Tensor:
  """In 2^16: sizes float32 [..., 6] -> [...]; 0 without any dimension."""
  elements = tf.reduce_prod(tf.maximum(1.0, sizes), -1) / 2 ** 16
  return tf.where(
      tf.reduce_any(sizes > 0, -1), tf.minimum(elements, 1e8), 0.0)


def _sizes_at(sizes: tf.Tensor, dims: tf.Tensor) -> tf.Tensor:
  """[..., 6], int32 [..., any] -> [..., any]; arbitrary where a dim is -1."""
  return tf.gather(sizes, tf.clip_by_value(dims, 0, _DIMS - 1),
                   batch_dims=sizes.shape.rank - 1)


def _padding(minor: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
  """What padding to a TPU's layout tiles adds, as a share of the tensor.

      ceil(s_0 / 128) 128 / s_0 * ceil(s_1 / u) u / s_1 - 1, at most 63
  s are the sizes of the two closest-packed dimensions, any shapes; u is 8, or 2
  or 4 where s_1 is no larger.
  """
  unit = tf.where(second <= 2, 2.0, tf.where(second <= 4, 4.0, 8.0))
  return tf.minimum(63.0, (
      tf.math.ceil(minor / 128) * 128 / minor
      * tf.math.ceil(second / unit) * unit / second) - 1)


def _prices_of(graph: _Graph, tensors: _Tensors) -> tuple:
  """What layouts cost, in 2^16 bytes; training does not change it.

  Padding of what convolutions read and write costs its bytes, except in an
  output of the program, whose layout no request changes. Of products it costs a
  fifth, but for an output that nothing else decides, and nothing with four
  dimensions, which XLA merges. Weights cost nothing: they are laid out ahead of
  time. A filter's gradient has no weight, and padding of its output costs ten
  times its multiplications, the root of the product of the three tensors'
  elements. An input whose closest dimension is not the stored one costs 0.6 of
  its bytes, a square filter 0.1 of the padded output. A reshape that is asked
  for a layout costs its bytes, and three times as much again if that is not
  row-major, unless it reads a transpose. The prices were chosen on the sample
  data's train and validation programs, that of a gradient also on the public
  unet_3d.4x4.bf16.

  Returns the price of each pair of closest dimensions, float32 [configurable,
  3, 49], see `_of_pairs`; and that of padding which doubles all tensors of a
  node, [configurable].
  """
  inputs = graph.inputs
  opcode, source = (tf.gather(inputs.opcode, node) for node in (
      inputs.config_node, tensors.node[:, 1]))
  reads = tf.not_equal(tf.gather(inputs.opcode, inputs.consumer), _TUPLE_OP)
  readers = _sums_by(tf.cast(reads, tf.int32), inputs.producer, graph.nodes)
  is_read = tf.gather(readers, inputs.config_node) > 0
  is_reshape, is_convolution = (
      tf.equal(opcode, op) for op in (_RESHAPE_OP, _CONVOLUTION_OP))
  output, input_, kernel = tf.unstack(tensors.bytes, axis=-1)
  # Elements are in 2^16, so the root is in 2^24.
  multiplied = 2 ** 8 * tf.sqrt(tf.reduce_prod(_elements(tensors.sizes), -1))
  is_free = is_reshape[:, tf.newaxis] | (
      tf.math.count_nonzero(tensors.sizes, -1) > 3)
  rate = tf.where(  # [configurable, 3]
      is_convolution[:, tf.newaxis], 1.0, tf.where(is_free, 0.0, 0.2))
  is_last = (rate[:, 0] > 0) & tf.equal(tensors.decider[:, 0] % 3, 0)
  of_output = tf.where(is_convolution & ~is_read, 0.0,
                       tf.where(is_last, 1.0, rate[:, 0]))
  padding = tf.stack([
      tf.where(tensors.gradient, 10 * multiplied, output * of_output),
      input_ * rate[:, 1], tf.where(tensors.gradient, kernel, 0.0)], -1)
  sizes = tf.maximum(1.0, tensors.sizes)
  stored = _padding(*tf.unstack(_sizes_at(sizes, tensors.stored), axis=-1))
  features = _sizes_at(tensors.sizes[:, 2], tensors.stored[:, 2])
  is_square = is_convolution & ~tensors.gradient & tf.equal(
      features[:, 0], features[:, 1])
  other = tf.stack([
      tf.zeros_like(output),
      tf.where(is_reshape | tensors.gradient, 0.0, 0.6 * input_),
      tf.where(is_square, 0.1 * output * (1 + stored[:, 0]), 0.0)], -1)
  asked = tf.where(is_reshape, output, 0.0)
  turned = tf.where(tf.equal(source, _TRANSPOSE_OP), 0.0, 3 * asked)
  return (_of_pairs(tensors, stored, padding, other, asked, turned),
          tf.reduce_sum(padding, -1) + asked)


def _of_pairs(tensors: _Tensors, stored: tf.Tensor, padding: tf.Tensor,
              other: tf.Tensor, asked: tf.Tensor, turned: tf.Tensor
              ) -> tf.Tensor:
  """The price of each pair of closest dimensions, [configurable, 3, 49].

  A pair's place is 7 * minor + second; 6 means none, and as the minor dimension
  that no layout was asked for. Args: what the stored layout pads, the price of
  padding, and that of another minor dimension, float32 [configurable, 3]; of
  any layout that a reshape asks for, of one not row-major, [configurable].
  """
  sizes = tf.pad(tf.maximum(1.0, tensors.sizes), [[0, 0], [0, 0], [0, 1]],
                 constant_values=1.0)
  minor = sizes[..., :_DIMS, tf.newaxis]
  is_other = tf.not_equal(tf.range(_DIMS), tensors.stored[..., :1])
  prices = (
      _padding(minor, sizes[..., tf.newaxis, :]) * padding[..., tf.newaxis,
                                                           tf.newaxis]
      + tf.where(is_other, other[..., tf.newaxis], 0.0)[..., tf.newaxis])
  # Row-major: the last two dimensions of more than one element are closest.
  last = tf.math.top_k(tf.where(
      tensors.sizes[:, 0] > 1, tf.range(_DIMS), -1), 2)[0][..., tf.newaxis]
  is_turned = tf.not_equal(last[:, 0], tf.range(_DIMS))[..., tf.newaxis] | (
      tf.not_equal(last[:, 1], tf.range(_DIMS + 1))
      & (sizes[:, 0] > 1))[:, tf.newaxis]
  asked, turned = (x[:, tf.newaxis, tf.newaxis] for x in (asked, turned))
  of_reshape = asked + tf.where(is_turned, turned, 0.0)
  prices += of_reshape[:, tf.newaxis] * [[[0.0]], [[0.0]], [[1.0]]]
  left = tf.repeat((stored * padding)[..., tf.newaxis], _DIMS + 1, -1)
  return tf.concat([tf.reshape(
      prices, [-1, _LAYOUTS, _DIMS * (_DIMS + 1)]), left], -1)


def _costs(closest: tf.Tensor, tensors: _Tensors, prices: tf.Tensor
           ) -> tf.Tensor:
  """float32 [configurable, configs].

  `closest` has the two closest dimensions of each layout that is asked for,
  int32 [configurable, configs, 6].
  """
  place = tf.where(closest < 0, _DIMS, tf.minimum(closest, _DIMS - 1))
  pair = tf.transpose(
      (_DIMS + 1) * place[..., ::2] + place[..., 1::2], [0, 2, 1])
  shape = tf.shape(pair)  # [configurable, 3, configs]
  pair = tf.reshape(pair, [-1, shape[2]])
  pair, other = (tf.gather(pair, tf.reshape(of, [-1])) for of in (
      tensors.decider, tensors.fallback))
  pair = tf.where(pair < _DIMS * (_DIMS + 1), pair, other)
  first = prices.shape[-1] * tf.range(tf.shape(pair)[0])[:, tf.newaxis]
  return tf.reduce_sum(tf.reshape(
      tf.gather(tf.reshape(prices, [-1]), first + pair), shape), 1)


# ------------------------------------------------------- chapter: convolutions


class _PlainGNN(_LayoutModel):
  """A graph network as published: features in, rounds, pooling, linear score.

      H = [config features, embedded opcode, log scales of node features]
      H <- leaky_relu(round of H W)      num_gnns times
      score = [sum of H over nodes / sqrt n,
               sum of H over configurable nodes / sqrt K] w + b
  Config features are 0 at nodes that have none. Subclasses define the round.
  Source: Xu et al., Based on TPUGRAPHS Predicting Model Runtimes Using Graph
  Neural Networks, 2023, figure 1; ours are the logarithmic scales, edges in
  both directions and the second pooling.
  """

  def __init__(self, num_configs: int, num_ops: int, num_gnns: int = 3,
               hidden_dim: int = 64, dropout: str = 'backpropdropout'):
    super().__init__(num_configs, num_ops, hidden_dim, dropout)
    _check_integers(1, num_gnns=num_gnns)
    self._rounds = [tf.keras.layers.Dense(hidden_dim, use_bias=False)
                    for _ in range(num_gnns)]
    self._scorer = tf.keras.layers.Dense(1)

  def _build_layers(self, node_width, config_width):
    width = config_width + self._embed_width + 2 * node_width
    for layer in self._rounds:
      layer.build([None, width])
      width = self._width
    self._scorer.build([None, 2 * self._width])

  def _of_nodes(self, graph, embedded):
    """What node features add to the first H W: float32 [nodes, width]."""
    feats = tf.concat([embedded, _log_scales(graph.inputs.node_feats)], -1)
    return _matmul(feats, self._rounds[0].kernel[self._input_widths[1]:])

  def _of_configs(self, config_feats):
    """And config features: float32 [configurable, configs, width]."""
    return _matmul(
        config_feats, self._rounds[0].kernel[:self._input_widths[1]])

  def _head(self, sums, nodes, configurable, training):
    over_nodes, over_configs = tf.split(sums, 2, -1)
    z = tf.concat([
        part / tf.sqrt(tf.maximum(1.0, count))[:, tf.newaxis, tf.newaxis]
        for part, count in ((over_nodes, nodes),
                            (over_configs, configurable))], -1)
    return tf.squeeze(_matmul(z, self._scorer.kernel, self._scorer.bias), -1)


class LayoutGCN(_PlainGNN):
  """Graph convolutions: H <- leaky_relu(D^-1/2 A D^-1/2 H W).

  A counts the edges between two nodes in either direction, plus 1 on the
  diagonal, so that a node keeps what it knows; D holds the row sums of A.
  Nodes have one state, but those that a configuration can reach in num_gnns
  rounds. Source: Kipf and Welling, ICLR 2017; Xu et al. 2023, eq. 1. The rest:
  see `_PlainGNN`.
  """

  def _encode(self, graph, embedded):
    link = graph.symmetric(graph.neighbours('both'))
    levels = _levels(graph, [link], len(self._rounds))
    product, states, rounds = self._of_nodes(graph, embedded), None, []
    for i, layer in enumerate(self._rounds):
      if i:
        product = _matmul(states, layer.kernel)
      states, change_of = _round(
          [link], *levels[i:i + 2], product, tf.nn.leaky_relu)
      rounds.append(change_of)
    return tf.size(levels[-1].nodes), (levels, rounds, states)

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum over nodes, sum over configurable nodes], each of `width`."""
    levels, rounds, last = encoded
    config_node = graph.inputs.config_node
    change = _sums_by(
        self._of_configs(config_feats),
        tf.gather(levels[0].place, config_node), tf.size(levels[0].nodes))
    for i, (layer, change_of) in enumerate(zip(self._rounds, rounds)):
      if i:
        change = _matmul(change, layer.kernel)
      change = change_of(change)
    return tf.concat(_pooled(graph, last, change, levels[-1], weight), -1)


class MyLayoutSAGE(LayoutGCN):
  """The bytes that layouts pad, plus what graph convolutions learn.

      x = (sum over k of  padding_k . price_k + copies_k)
          / (sum over k of price_k)
      score = price_weight * log(1 + x) + score of `LayoutGCN`
  k runs over the configurable nodes; padding_k is that of output, input and
  kernel to whole layout tiles (`_padding`), in the layouts that they end up
  with: `_deciders` says whose, as XLA overrides most of what is asked.
  `_prices_of` says what padding and copies cost. All this carries over to any
  program and is not learned. The convolutions see what is asked; they learn
  without the first term, since what few programs teach beyond it is mostly
  noise. Without `feature_stats` it is 0.

  Args:
    node_rounds: rounds of message passing; others: see `ResModel`.
    price_weight: see above. 40 overrules what few programs teach; with many
      programs less may rank better.
    feature_stats: see `_Statistics`; 'auto' reads them from the cache of the
      running `layout_train.py`.
  """

  _OWN_LOSS = ListMLEFastestFirst

  def __init__(self, num_configs: int, num_ops: int, hidden_dim: int = 32,
               node_rounds: int = 1, dropout: str = 'backpropdropout',
               price_weight: float = 40.0, feature_stats: Any = 'auto'):
    _check_integers(1, node_rounds=node_rounds)
    super().__init__(num_configs, num_ops, node_rounds, hidden_dim, dropout)
    self._price_weight = float(price_weight)
    self._stored = lambda: feature_stats  # Keras would save the dict itself.

  def _build_layers(self, node_width, config_width):
    stored = self._stored()
    if stored == 'auto':
      stored = _of_running_script()
    self._statistics = _Statistics(
        stored, node=node_width, config=config_width)
    super()._build_layers(node_width, config_width)

  def _encode(self, graph, embedded):
    raw = self._statistics.raw('node', graph.inputs.node_feats)
    tensors = _tensors_of(graph, raw)
    rows, encoded = super()._encode(graph, embedded)
    return rows, (encoded, tensors, *_prices_of(graph, tensors))

  def _sums(self, graph, encoded, config_feats, weight):
    """[sums of `LayoutGCN`, sum of the costs, sum of the prices]."""
    encoded, tensors, prices, whole = encoded
    costs = _costs(tf.cast(self._statistics.raw(
        'config', config_feats, _CLOSEST), tf.int32), tensors, prices)
    pair = tf.stack([costs, whole[:, tf.newaxis] + tf.zeros_like(costs)], -1)
    if weight is not None:
      pair *= tf.gather(weight, graph.inputs.config_node)[
          :, tf.newaxis, tf.newaxis]
    return tf.concat([
        super()._sums(graph, encoded, config_feats, weight),
        _sums_by(pair, graph.config_graph, graph.graphs)], -1)

  def _head(self, sums, nodes, configurable, training):
    learned, costs, prices = tf.split(sums, [2 * self._width, 1, 1], -1)
    score = super()._head(learned, nodes, configurable, training)
    score += 0 * tf.reduce_sum(self._statistics.table)  # Gives it a gradient.
    if training:
      return score
    return score + self._price_weight * tf.math.log1p(
        tf.squeeze(tf.math.divide_no_nan(costs, prices), -1))


# ---------------------------------------------------------- chapter: comparison


class LayoutGAT(_PlainGNN):
  """Attention over the neighbours of a node, in either direction, and itself.

      a_ij = softmax over j of leaky_relu(s . [W h_i, W h_j])
      h_i <- leaky_relu(sum over j of a_ij W h_j)
  for each of `num_heads` heads, side by side.
  Source: Velickovic et al., ICLR 2018; Xu et al. 2023, eq. 2 and 3. The rest:
  see `_PlainGNN`.

  Args:
    num_heads: divides `hidden_dim`.
    others: see `LayoutGCN`.
  """

  def __init__(self, num_configs: int, num_ops: int, num_gnns: int = 3,
               hidden_dim: int = 64, dropout: str = 'backpropdropout',
               num_heads: int = 4):
    super().__init__(num_configs, num_ops, num_gnns, hidden_dim, dropout)
    _check_integers(1, num_heads=num_heads)
    if hidden_dim % num_heads:
      raise ValueError(f'hidden_dim must be a multiple of num_heads; got '
                       f'{hidden_dim} and {num_heads}.')
    self._heads = num_heads
    self._attend = [tf.keras.layers.Dense(2 * num_heads, use_bias=False)
                    for _ in range(num_gnns)]

  def _build_layers(self, node_width, config_width):
    super()._build_layers(node_width, config_width)
    for layer in self._attend:
      layer.build([None, self._width // self._heads])

  def _encode(self, graph, embedded):
    link = graph.neighbours('both')
    rows = graph.nodes + tf.size(link.sender)
    return rows, (link, self._of_nodes(graph, embedded))

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum over nodes, sum over configurable nodes], each of `width`.

    Every configuration has a state of every node.
    """
    link, product = encoded
    config_node = graph.inputs.config_node
    product = product[:, tf.newaxis] + _sums_by(
        self._of_configs(config_feats), config_node, graph.nodes)
    states = None
    for i, layer in enumerate(self._rounds):
      if i:
        product = _matmul(states, layer.kernel)
      states = tf.nn.leaky_relu(self._attended(i, graph, link, product))
    if weight is not None:
      states *= weight[:, tf.newaxis, tf.newaxis]
    return tf.concat([
        _sums_by(states, graph.node_graph, graph.graphs),
        _sums_by(tf.gather(states, config_node), graph.config_graph,
                 graph.graphs)], -1)

  def _attended(self, i, graph, link, product):
    """Round `i`: H W float32 [nodes, configs, width] -> same."""
    width = self._width // self._heads
    shape = tf.shape(product)
    x = tf.reshape(product, [shape[0], shape[1], self._heads, width])
    # What a node adds to the scores of its edges: as receiver, as sender.
    received, sent = tf.unstack(tf.einsum(
        'nchd,dth->ncth', x, tf.reshape(
            self._attend[i].kernel, [width, 2, self._heads])), axis=2)
    scores = tf.nn.leaky_relu(
        tf.gather(received, link.receiver) + tf.gather(sent, link.sender))
    highest = tf.stop_gradient(tf.math.unsorted_segment_max(
        scores, link.receiver, graph.nodes))
    weights = tf.exp(scores - tf.gather(highest, link.receiver))
    total = _sums_by(weights[..., tf.newaxis] * tf.gather(x, link.sender),
                     link.receiver, graph.nodes)
    mean = total / _sums_by(
        weights, link.receiver, graph.nodes)[..., tf.newaxis]
    return tf.reshape(mean, shape)


class GRURuntimePredictor(_LayoutModel):
  """A recurrent network over the feature columns of a program.

      c_v = t(opcode of v) * log scales of node features of v
      c_v <- c_v + 2 (sum of c over producers) + (sum of c over consumers)
      c_k <- c_k + 1                                at configurable nodes
      x_f = mean over nodes of c_f                  for each column f
      y_f = mean over configurable nodes of c_kf * (config features of k)
      h_f = GRU(h_{f-1}, relu(x_f) relu(y_f))       f = 1, 2, ...
      score = mean over f of  h_f w + b
  trained by the mean squared error.
  Source: a public notebook on the layout collections, "GRURuntimePredictor";
  GRU: Cho et al., EMNLP 2014. Ours: t is learned (softplus), not a table of
  assumed times; means on logarithmic scales instead of raw sums, which reach
  1e12; edges in any order; labels scaled to [0, 1] over a list. `dropout` is
  'fullgraph', since opcodes and columns alone distinguish nodes.

  Args:
    hidden_dim: width of the GRU's state; others: see `ResModel`.
  """

  _OWN_LOSS = LayoutMinMaxMSE

  def __init__(self, num_configs: int, num_ops: int, hidden_dim: int = 32):
    super().__init__(num_configs, num_ops, hidden_dim, 'fullgraph', 1)
    self._gru = tf.keras.layers.GRU(hidden_dim, return_sequences=True)
    self._scorer = tf.keras.layers.Dense(1)

  def _build_layers(self, node_width, config_width):
    self._gru.build((None, 2 * node_width, config_width))
    self._scorer.build([None, self._width])

  def _encode(self, graph, embedded):
    """c [nodes, 2 F], and the first configurable node of each graph."""
    inputs = graph.inputs
    c = tf.nn.softplus(embedded) * _log_scales(inputs.node_feats)
    producers, consumers = (
        _Link(sender, receiver, tf.ones_like(sender, tf.float32)).times(
            c, graph.nodes)
        for sender, receiver in ((inputs.producer, inputs.consumer),
                                 (inputs.consumer, inputs.producer)))
    is_configurable = _levels(graph, [], 0)[0].place >= 0
    c += 2 * producers + consumers + tf.cast(
        is_configurable, tf.float32)[:, tf.newaxis]
    rows = tf.constant(c.shape[-1])
    return rows, (c, tf.cumsum(tf.pad(inputs.config_counts, [[1, 0]])))

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum of c over nodes, sum of c times config features], [2 F, 1 + G]."""
    c, starts = encoded
    at_configs = tf.gather(c, graph.inputs.config_node)

    def of_graph(i):
      rows = slice(starts[i], starts[i + 1])
      return tf.einsum('kf,kcg->cfg', at_configs[rows], config_feats[rows])

    y = tf.map_fn(of_graph, tf.range(graph.graphs),
                  fn_output_signature=tf.TensorSpec(
                      [None, c.shape[-1], config_feats.shape[-1]]))
    x = _sums_by(c, graph.node_graph, graph.graphs)[
        :, tf.newaxis, :, tf.newaxis]
    return tf.concat([x + tf.zeros_like(y[..., :1]), y], -1)

  def _head(self, sums, nodes, configurable, training):
    x, y = (
        tf.nn.relu(part / tf.reshape(tf.maximum(1.0, count), [-1, 1, 1, 1]))
        for part, count in ((sums[..., :1], nodes),
                            (sums[..., 1:], configurable)))
    steps = tf.reshape(x * y, [-1, *y.shape[2:]])
    mean = tf.reduce_mean(self._gru(steps), 1)
    return tf.reshape(_matmul(mean, self._scorer.kernel, self._scorer.bias),
                      tf.shape(sums)[:2])


# What `--model` can name. A call of `ResModel` would ask for the flags again.
_MODELS = {
    'ResModel': _ResModel, 'LayoutGCN': LayoutGCN, 'MyLayoutSAGE': MyLayoutSAGE,
    'LayoutGAT': LayoutGAT, 'GRURuntimePredictor': GRURuntimePredictor}
