"""Models that rank the layout configurations of whole TPU programs.

This one file replaces `tpu_graphs/baselines/layout/models.py` of the tpu_graphs
baseline, so it imports only TensorFlow, TF-GNN, NumPy (which TensorFlow needs
itself) and the standard library.

What `layout_train.py` and `layout_evaluate.py` rely on:
  * `ResModel(num_configs, num_ops, **kwargs)`, which is all that they ever
    make. They ignore their flags `--model` and `--model_kwargs_json`;
    `ResModel` here honours both: see `_asked_for`.
  * `model(graph, training)` and `model.forward(graph, num_configs, backprop)`
    take a scalar `GraphTensor` of several programs and return float32
    `[graphs, configs]`; the lowest score is the fastest configuration.
  * Trainable variables are the whole state, in an order that does not depend on
    the data, because the scripts copy them by position.

Models: `MyLayoutSAGE`, the one to train; `ResModel`, the baseline's, with the
same constructor, variables and scores (to float rounding); `LayoutGCN`,
`LayoutGAT` and `GRURuntimePredictor` for comparison.

Programs have thousands of nodes, of which tens to hundreds have layouts to
choose ("configurable nodes").

Chapters, each of which uses only names of earlier ones:
  shared with models.py: checks, products, layers of the baseline.
  tensors: a batch of programs as tensors, segments, neighbours, reach.
  arguments: the scripts' flags, and what they ask for.
  objectives: losses, by which models learn to rank.
  layers: dense layers, logarithmic scales.
  base: what all models share.
  baseline: the baseline's model.
  statistics: what features were scaled with, found and undone.
  layouts: what the layouts of a node's tensors cost.
  convolutions: `LayoutGCN` and `MyLayoutSAGE`.
  comparison: other models.

Letters in shape remarks: `graphs` in the batch, `nodes`, `edges` and
`configurable` nodes of all graphs together, `configs` of each graph, `reached`
nodes whose states depend on a configuration, `F` and `G` columns of node and
config features, `width` of a hidden layer.

Sources:
  [GCN] Kipf and Welling, ICLR 2017.  [GAT] Velickovic et al., ICLR 2018.
  [GRU] Cho et al., EMNLP 2014.  [TpuGraphs] Phothilimthana et al., 2023.
  [GST] Cao et al., Learning Large Graph Property Prediction via Graph Segment
  Training, NeurIPS 2023.  [ListMLE] Xia et al., ICML 2008.  [Breslow] Breslow,
  discussion of Cox's regression models, 1972.
"""

import functools
import gzip
import hashlib
import inspect
import json
import logging
import math
import os
import sys
import zipfile
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
  flat = tf.reshape(x, [-1, w.shape[0]]) @ w
  if bias is not None:
    flat = tf.nn.bias_add(flat, bias)
  if x.shape.rank == 2:
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
  feed = graph.edge_sets['feed'].adjacency
  config = graph.edge_sets['config'].adjacency
  feats = configs['feats']  # [configurable, configs, G]
  node_of = tf.scatter_nd(
      tf.cast(config.source, tf.int32)[:, tf.newaxis],
      tf.cast(config.target, tf.int32), tf.shape(feats)[:1])
  opcode = tf.cast(ops['op'], tf.int32)
  selected = ops.features.get('selected')
  if selected is None:
    selected = tf.ones_like(opcode, tf.bool)
  return _Inputs(
      opcode=opcode, node_feats=ops['feats'], selected=selected,
      node_counts=tf.cast(ops.sizes, tf.int32),
      consumer=tf.cast(feed.source, tf.int32),
      producer=tf.cast(feed.target, tf.int32), config_feats=feats,
      config_node=node_of, config_counts=tf.cast(configs.sizes, tf.int32))


def _input_specs(node_width: int, config_width: int) -> _Inputs:
  """Shapes for which one trace serves every batch."""
  ints = tf.TensorSpec([None], tf.int32)
  return _Inputs(
      opcode=ints, node_feats=tf.TensorSpec([None, node_width]),
      selected=tf.TensorSpec([None], tf.bool), node_counts=ints, consumer=ints,
      producer=ints, config_feats=tf.TensorSpec([None, None, config_width]),
      config_node=ints, config_counts=ints)


def _segment_of(inputs: _Inputs, keep_nodes: bool = False) -> _Inputs:
  """The batch with the selected segments of its graphs alone.

  Edges to other nodes and configurations of those are left out.

  Args:
    inputs: the whole batch.
    keep_nodes: whether the other nodes stay, without any edge.
  """
  mask = inputs.selected
  edges = _rows_where(
      tf.gather(mask, inputs.consumer) & tf.gather(mask, inputs.producer))
  is_kept = tf.gather(mask, inputs.config_node)
  configs = _rows_where(is_kept)
  cut = inputs._replace(
      consumer=tf.gather(inputs.consumer, edges),
      producer=tf.gather(inputs.producer, edges),
      config_feats=tf.gather(inputs.config_feats, configs),
      config_node=tf.gather(inputs.config_node, configs),
      config_counts=_sums_by(
          tf.cast(is_kept, tf.int32), _graph_numbers(inputs.config_counts),
          tf.size(inputs.config_counts)))
  if keep_nodes:
    return cut
  place = tf.cumsum(tf.cast(mask, tf.int32)) - 1
  nodes = _rows_where(mask)
  return cut._replace(
      opcode=tf.gather(inputs.opcode, nodes),
      node_feats=tf.gather(inputs.node_feats, nodes),
      selected=tf.gather(mask, nodes),
      node_counts=_sums_by(
          tf.cast(mask, tf.int32), _graph_numbers(inputs.node_counts),
          tf.size(inputs.node_counts)),
      consumer=tf.gather(place, cut.consumer),
      producer=tf.gather(place, cut.producer),
      config_node=tf.gather(place, cut.config_node))


def _graph_numbers(counts: tf.Tensor) -> tf.Tensor:
  """[graphs] numbers of rows -> int32 [rows], the graph of each."""
  ends = tf.cumsum(counts)
  return tf.raw_ops.UpperBound(  # A sixth of the operations of tf.repeat.
      sorted_inputs=ends[tf.newaxis],
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

  def neighbours(self, of: str, own: bool = True) -> _Link:
    """Weights 1 from the 'consumers', the 'producers' or 'both' of each node.

    Args:
      of: who sends.
      own: whether each node also sends to itself.
    """
    consumer, producer = self.inputs.consumer, self.inputs.producer
    senders, receivers = {
        'consumers': ([consumer], [producer]),
        'producers': ([producer], [consumer]),
        'both': ([consumer, producer], [producer, consumer])}[of]
    if own:
      senders, receivers = (
          [*ends, tf.range(self.nodes)] for ends in (senders, receivers))
    receiver = tf.concat(receivers, 0)
    return _Link(tf.concat(senders, 0), receiver,
                 tf.ones_like(receiver, tf.float32))

  def averaged(self, link: _Link) -> _Link:
    """The same in rows that add up to 1, or to 0 without any entry."""
    degree = _sums_by(link.weight, link.receiver, self.nodes)
    return link._replace(
        weight=link.weight / tf.gather(degree, link.receiver))

  def symmetric(self, link: _Link) -> _Link:
    """D^-1/2 L D^-1/2 of a symmetric link L, D its row sums. Source: [GCN]."""
    scale = tf.math.rsqrt(_sums_by(link.weight, link.receiver, self.nodes))
    return link._replace(weight=link.weight * tf.gather(
        scale, link.receiver) * tf.gather(scale, link.sender))

  def pool_nodes(self, x: tf.Tensor) -> tf.Tensor:
    """Sums over each graph's nodes: [nodes, width] -> [graphs, width]."""
    return _sums_by(x, self.node_graph, self.graphs)


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
          tf.maximum(0, tf.math.unsorted_segment_max(
              tf.gather(mask, link.sender), link.receiver, graph.nodes))
          for link in links])
    levels.append(_Level(
        _rows_where(mask > 0), tf.where(mask > 0, tf.cumsum(mask) - 1, -1)))
  return levels


def _between(link: _Link, before: _Level, after: _Level) -> _Link:
  """The entries that take a round from level to level, as rows of those."""
  sender = tf.gather(before.place, link.sender)
  entries = _rows_where(sender >= 0)
  return _Link(
      tf.gather(sender, entries),
      tf.gather(after.place, tf.gather(link.receiver, entries)),
      tf.gather(link.weight, entries))


class _Round(NamedTuple):
  """What a round of messages needs that no configuration changes."""
  summed: tf.Tensor  # float32 [reached, width], links times the products
  states: tf.Tensor  # float32 [reached, width], what is made of these
  between: tuple     # a _Link from level to level, for each of the links

  @classmethod
  def of(cls, links: Sequence[_Link], before: _Level, after: _Level,
         summed: tf.Tensor, states: tf.Tensor) -> '_Round':
    """Of all nodes: float32 [nodes, width]."""
    return cls(tf.gather(summed, after.nodes), tf.gather(states, after.nodes),
               tuple(_between(link, before, after) for link in links))

  def receive(self, change: tf.Tensor) -> tf.Tensor:
    """What products that changed, [reached, configs, links * width], make."""
    parts = tf.split(change, len(self.between), -1)
    return self.summed[:, tf.newaxis] + tf.add_n([
        link.times(part, tf.shape(self.summed)[0])
        for link, part in zip(self.between, parts)])


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
      graph.pool_nodes(base)[:, tf.newaxis] + _sums_by(
          change, tf.gather(graph.node_graph, level.nodes), graph.graphs),
      _sums_by(states, graph.config_graph, graph.graphs)]


# ----------------------------------------------------------- chapter: arguments


def _script_flags() -> Any:
  """The flags of the running script of the baseline, or None."""
  absl_flags = sys.modules.get('absl.flags')  # There, if a script has flags.
  given = absl_flags.FLAGS if absl_flags else None
  return given if given and given.is_parsed() else None


def _asked_for() -> Optional[tuple]:
  """(name, arguments) of the model that the running script was asked for.

  `layout_train.py` has both in flags that it ignores itself. For
  `layout_evaluate.py`, which gives the arguments, the name is in the run files
  of its `--dirs`. None where no such script is running.
  """
  flags = _script_flags()
  if isinstance(getattr(flags, 'model', None), str) and hasattr(
      flags, 'keep_nodes'):
    return flags.model, _json_arguments(
        getattr(flags, 'model_kwargs_json', '') or '{}')
  if isinstance(getattr(flags, 'dirs', None), str) and hasattr(
      flags, 'secret_path'):
    names = sorted({_trained_name(path) for path in flags.dirs.split(',')})
    if len(names) > 1:
      raise ValueError('--dirs: evaluate models of one kind at a time; there '
                       f'are {", ".join(names)}.')
    return names[0], {}
  return None


def _json_arguments(text: str) -> dict:
  """What `--model_kwargs_json` holds."""
  try:
    arguments = json.loads(text)
  except ValueError as error:
    raise ValueError(f'--model_kwargs_json is not JSON ({error}); got {text!r}.'
                     ) from error
  if not isinstance(arguments, dict):
    raise ValueError('--model_kwargs_json must be a JSON object, such as '
                     f'{{"hidden_dim": 64}}; got {text!r}.')
  return arguments


def _trained_name(model_dir: str) -> str:
  """The model that `layout_train.py` was asked for, of its run file."""
  path = os.path.expanduser(model_dir).replace('/model_', '/run_') + '.jsonz'
  with tf.io.gfile.GFile(path, 'rb') as file, gzip.open(file, 'rb') as run:
    return json.load(run)['args']['model']


def _check_arguments(cls: type, arguments: Mapping[str, Any]) -> None:
  """Raises a ValueError for the first that the class does not have."""
  allowed = [name for name in inspect.signature(cls.__init__).parameters
             if name not in ('self', 'num_configs', 'num_ops')]
  for name in arguments:
    _check_choice(f'--model_kwargs_json: an argument of {cls.__name__}', name,
                  allowed)


# ---------------------------------------------------------- chapter: objectives
#
# Labels are runtimes, float32 [graphs, configs]; scores have the same shape,
# the lowest meaning the fastest. Each loss is the mean over graphs.


_NOISE = 1e-4  # Part of a runtime by which repeated runs differ.
# Lets a saved model find the class of its loss again.
_registered = tf.keras.saving.register_keras_serializable(
    'tpu_graphs_ext.layout')


@_registered
class ListMLEFastestFirst(_Objective):
  """Negative log likelihood of drawing a list from the fastest on.

      sum over i of  log(sum over j of exp(-s_j)) + s_i,
      j over all that are not faster than i
  Runtimes that differ by less than 1e-4 count as equal: in real files of unet3d
  those of one configuration, measured over and over by a search, differ by up
  to 8e-5. Equal ones share one denominator [Breslow], so their order in memory
  does not matter. Source: [ListMLE], with scores and labels negated.
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


# What to do with nodes outside of the selected segment.
_DROPOUTS = ('fullgraph', 'dropout', 'backpropdropout')
# Name -> class of every public model, in the order of the file.
_MODELS = {}


class _LayoutModel(tf.keras.Model):
  """Scores the configurations of programs, in three stages.

  `_encode` computes, once a graph, all that does not depend on a
  configuration. `_sums` adds up, over the nodes of each graph, what does.
  `_head` makes scores of the sums. `forward` runs the last two on chunks of
  configurations, so a score must depend on its own configuration alone.

  Segments: a graph may say by the feature 'selected' that only a part of its
  nodes is to be learned from. `dropout` says what to do then:
    'backpropdropout': the sums of that part have gradients; those of the other
      nodes, in the whole graph, are added without. Source: [GST].
    'dropout': the other nodes lose their edges and configurations.
    'fullgraph': nothing, all nodes are alike.

  Subclasses define `_build_layers`, `_encode`, `_rows`, `_sums` and `_head`.
  """
  # Floats of one [rows, chunk, width] tensor: 1.5 MiB, so that what is alive
  # at once fits in a shared cache.
  _CHUNK_FLOATS = 3 * 2 ** 17
  _OWN_LOSS = None  # Instead of the loss of the training script.

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int,
               width: int, dropout: str):
    super().__init__()
    _check_choice('dropout', dropout, _DROPOUTS)
    self.dropout = dropout
    _check_integers(1, num_configs=num_configs, num_ops=num_ops,
                    op_embed_dim=op_embed_dim, hidden_dim=width)
    self._num_configs = num_configs
    self._width = width
    self._op_embedding = _OpEmbedding(num_ops, op_embed_dim)
    self._input_widths = None  # (F, G), known from the first graph on.

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    if not cls.__name__.startswith('_'):
      _MODELS[cls.__name__] = cls

  def compile(self, optimizer='rmsprop', loss=None, **kwargs):
    """Like Keras's; the model's own loss comes before the given one."""
    super().compile(optimizer=optimizer, **kwargs,
                    loss=self._OWN_LOSS() if self._OWN_LOSS else loss)

  def fit(self, x=None, *args, **kwargs):
    """Like Keras's; makes all variables first.

    A step that makes variables is traced a second time.
    """
    spec = getattr(x, 'element_spec', None)
    if (isinstance(spec, tuple) and isinstance(spec[0], tfgnn.GraphTensorSpec)
        and not tf.distribute.has_strategy()):
      self._create_for(*(
          spec[0].node_sets_spec[name].features_spec['feats'].shape[-1]
          for name in ('op', 'nconfig')))
      if hasattr(self.optimizer, 'build'):  # Those of today.
        self.optimizer.build(self.trainable_variables)
    return super().fit(x, *args, **kwargs)

  @tf.autograph.experimental.do_not_convert
  def call(self, graph: tfgnn.GraphTensor, training: bool = False) -> tf.Tensor:
    """Scores all configurations at once: float32 [graphs, configs]."""
    inputs = _inputs_of(graph)
    self._create_for(inputs.node_feats.shape[-1], inputs.config_feats.shape[-1])
    # Embedded by the layer, which adds its regularizer to the losses.
    embedded = self._op_embedding(graph).node_sets['op']['op_e']

    def scored(dropout):
      return self._scores(inputs, inputs.config_feats, self._parts(
          inputs, embedded, dropout), training)

    return tf.cond(tf.reduce_all(inputs.selected),
                   lambda: scored('fullgraph'), lambda: scored(self.dropout))

  def forward(self, graph: tfgnn.GraphTensor, num_configs: int,
              dropout: Optional[str] = None,
              backprop: bool = True) -> tf.Tensor:
    """Scores any number of configurations in bounded memory.

    Args:
      graph: scalar GraphTensor of one or more programs.
      num_configs: configurations of each program in `graph`.
      dropout: stands in for the model's own.
      backprop: False means dropout 'fullgraph', as in the scripts.

    Returns:
      float32 [graphs, num_configs]; lower is faster.
    """
    del num_configs  # The graph says it too.
    inputs = _inputs_of(graph)
    self._create_for(inputs.node_feats.shape[-1], inputs.config_feats.shape[-1])
    dropout = dropout or self.dropout
    _check_choice('dropout', dropout, _DROPOUTS)
    if not backprop or (tf.executing_eagerly() and bool(
        tf.reduce_all(inputs.selected))):
      dropout = 'fullgraph'
    return self._rank(dropout)(*inputs)

  def _create_for(self, node_width: int, config_width: int) -> None:
    """Creates all variables, for these numbers of feature columns."""
    widths = (node_width, config_width)
    if self._input_widths is None:
      with tf.init_scope():
        self._op_embedding.embedding_layer.build([None])
        self._build_layers(*widths)
      self._input_widths = widths
      self._rank = self._compiled_rank()
    elif widths != self._input_widths:
      raise ValueError(
          'the graph has {} node and {} config columns, the model was built '
          'for {} and {}; was it normalised with other data?'.format(
              *widths, *self._input_widths))

  def _compiled_rank(self) -> Callable[[str], Any]:
    """`_rank_in_chunks` with one trace for each way to treat segments."""
    compiled = {
        dropout: tf.function(
            functools.partial(self._rank_in_chunks, dropout), autograph=False,
            input_signature=_input_specs(*self._input_widths))
        for dropout in _DROPOUTS}
    # A function, so that Keras does not save the traces.
    return lambda dropout: compiled[dropout]

  def _scores(self, inputs, config_feats, parts, training=False):
    """From the sums of all parts: float32 [graphs, configs]."""
    return self._head(
        tf.add_n([part(config_feats) for part in parts]),
        tf.cast(inputs.node_counts, tf.float32),
        tf.cast(inputs.config_counts, tf.float32), training)

  def _rank_in_chunks(self, dropout: str, *tensors: tf.Tensor) -> tf.Tensor:
    """`_encode` once, the rest on chunks: float32 [graphs, configs]."""
    inputs = _Inputs(*tensors)
    embedded = tf.gather(
        self._op_embedding.embedding_layer.embeddings, inputs.opcode)
    parts = self._parts(inputs, embedded, dropout)
    rows = functools.reduce(tf.maximum, [part.rows for part in parts])
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
    """The parts of a batch whose sums make a score."""
    if dropout == 'fullgraph':
      return [_Part(self, inputs, embedded)]
    configs = tf.gather(inputs.selected, inputs.config_node)
    if dropout == 'dropout':
      return [_Part(self, _segment_of(inputs, keep_nodes=True), embedded,
                    configs=configs)]
    rest = tf.cast(~inputs.selected, tf.float32)
    return [
        _Part(self, _segment_of(inputs),
              tf.gather(embedded, _rows_where(inputs.selected)),
              configs=configs),
        _Part(self, inputs, embedded, gradients=False, weight=rest)]

  def _build_layers(self, node_width: int, config_width: int) -> None:
    """Builds all layers, in the order of their attributes."""
    raise NotImplementedError

  def _encode(self, graph: _Graph, embedded: tf.Tensor) -> Any:
    """What does not depend on a configuration: any structure of tensors.

    `embedded` is float32 [nodes, op_embed_dim], the opcodes.
    """
    raise NotImplementedError

  def _rows(self, graph: _Graph, encoded: Any) -> tf.Tensor:
    """Number of rows of the largest tensor of each configuration, int32 []."""
    raise NotImplementedError

  def _sums(self, graph: _Graph, encoded: Any, config_feats: tf.Tensor,
            weight: Optional[tf.Tensor]) -> tf.Tensor:
    """Sums over nodes, float32 [graphs, configs, any number].

    `encoded` is from `_encode`, `config_feats` float32 [configurable, configs,
    G]; `weight`, float32 [nodes], says how much of a node is summed; None: all.
    """
    raise NotImplementedError

  def _head(self, sums: tf.Tensor, nodes: tf.Tensor, configurable: tf.Tensor,
            training: bool) -> tf.Tensor:
    """Scores [graphs, configs] from sums; float32 [graphs] numbers of nodes."""
    raise NotImplementedError


class _Part:
  """A part of a batch, encoded; called, its sums for some configurations."""

  def __init__(self, model, inputs, embedded, configs=None, gradients=True,
               weight=None):
    """Encodes a part of which `configs`, bool [configurable of the batch], are
    configured (None: all) and `weight` is summed, see `_LayoutModel._sums`."""
    self._model, self._configs, self._weight = model, configs, weight
    self._stop = (lambda x: x) if gradients else tf.stop_gradient
    self._graph = _Graph(inputs)
    self._encoded = model._encode(self._graph, embedded)
    self.rows = model._rows(self._graph, self._encoded)

  def __call__(self, config_feats: tf.Tensor) -> tf.Tensor:
    if self._configs is not None:
      config_feats = tf.gather(config_feats, _rows_where(self._configs))
    sums = self._model._sums(
        self._graph, self._encoded, config_feats, self._weight)
    return self._stop(sums)


# ------------------------------------------------------------ chapter: baseline


class _ResModel(_LayoutModel):
  """`ResModel`, whatever script is running."""

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int = 32,
               num_gnns: int = 2, mlp_layers: int = 2,
               hidden_activation: str = 'leaky_relu', hidden_dim: int = 32,
               adj_normalization: str = 'sym',
               dropout: str = 'backpropdropout'):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim, dropout)
    _check_integers(0, num_gnns=num_gnns)
    _check_integers(1, mlp_layers=mlp_layers)
    _check_choice('adj_normalization', adj_normalization, ['sym', 'asym'])
    self._adj_normalization = adj_normalization
    self._embed_width = op_embed_dim
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

  def _encode(self, graph, embedded):
    """(levels, what the prenet adds to, its states, rounds, last states)."""
    links = self._links(graph)
    levels = _levels(graph, links, len(self._gc_layers))
    # Two products: in one the columns would be copied, and have gradients.
    of_feats, of_opcode = tf.split(
        self._first_weights(self._prenet, 1)[1], [-1, self._embed_width])
    start = (_matmul(graph.inputs.node_feats, of_feats)
             + _matmul(embedded, of_opcode))
    states = first = self._act(_after_first(self._prenet, start))
    rounds = []
    for i, layer in enumerate(self._gc_layers):
      product = _matmul(states, self._first_weights(layer, len(links))[1])
      summed = tf.add_n([link.times(part, graph.nodes) for link, part in zip(
          links, tf.split(product, len(links), -1))])
      update = self._act(_after_first(layer, summed))
      rounds.append(_Round.of(links, *levels[i:i + 2], summed, update))
      states += update
    reached = levels[0].nodes
    return (levels, tf.gather(start, reached), tf.gather(first, reached),
            rounds, states)

  def _rows(self, graph, encoded):
    return tf.size(encoded[0][-1].nodes)

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum over nodes, sum over configurable nodes], each of `width`."""
    levels, start, first, rounds, last = encoded

    def configs(weights, level):
      """Config features times their weights, on the rows of a level."""
      return _sums_by(
          100 * _matmul(config_feats, weights),
          tf.gather(level.place, graph.inputs.config_node),
          tf.size(level.nodes))

    x = start[:, tf.newaxis] + configs(
        self._first_weights(self._prenet, 1)[0], levels[0])
    change = self._act(_after_first(self._prenet, x)) - first[:, tf.newaxis]
    for i, (layer, fixed) in enumerate(zip(self._gc_layers, rounds)):
      before, after = levels[i:i + 2]
      of_configs, others = self._first_weights(layer, len(fixed.between))
      update = self._act(_after_first(layer, fixed.receive(
          _matmul(change, others) + configs(of_configs, before)
      ))) - fixed.states[:, tf.newaxis]
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
    first = self._postnet.layers[0]
    return tf.squeeze(_after_first(
        self._postnet, _matmul(z, first.kernel)), -1)


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
  Source: [TpuGraphs], `layout_models.py`; same variables and scores. There each
  configuration has a state for every node. Here nodes have one state, but those
  that a configuration can reach in num_gnns rounds; the first dense layer of
  each MLP is linear, so it is applied before L, at hidden width.

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
    model = _MODELS[name]
    _check_arguments(model, arguments)
    if model is ResModel:  # Python would go on to make it without arguments.
      model = _ResModel
    return model(*args, **{**arguments, **kwargs})


# ---------------------------------------------------------- chapter: statistics

_TABLE_WIDTHS = {'node': 140, 'config': 18}  # Columns of the files.
_FIELDS = {'node': 'node_feat', 'config': 'node_config_feat'}


class _Statistics(tf.keras.layers.Layer):
  """Takes scaled features back to their own units.

  The scripts hand models features scaled to [0, 1], without the columns that
  are constant, and nothing to undo that with. The minima and maxima are a
  variable, so that they go where the weights go; its gradient is 0.

  Args:
    stored: {'node': {'minimum': [...], 'maximum': [...]}, 'config': ...} over
      all columns of the files, of the data that features are scaled with; None:
      nothing is known, and all units are 0.
  """

  def __init__(self, stored: Optional[Mapping[str, Any]]):
    super().__init__()
    self._initial = np.zeros([2, sum(_TABLE_WIDTHS.values())], np.float32)
    if stored is not None:
      self._initial = np.concatenate(
          [self._sides(stored, table) for table in _TABLE_WIDTHS], -1)

  def _sides(self, stored, table):
    """float32 [2, columns of a table]."""
    try:
      sides = np.array([stored[table][side] for side in (
          'minimum', 'maximum')], np.float32)
      if sides.shape == (2, _TABLE_WIDTHS[table]) and np.isfinite(sides).all():
        return sides
    except (KeyError, TypeError, ValueError):
      pass
    raise ValueError(
        'feature_stats must hold, under node and under config, lists minimum '
        f'and maximum of {_TABLE_WIDTHS["node"]} and {_TABLE_WIDTHS["config"]} '
        f'finite numbers; {table} does not.')

  def build_for(self, **widths: int) -> None:
    """Creates the variable, for this number of columns of each table.

    Raises:
      ValueError: the features were scaled with other data.
    """
    varies = self._initial[0] != self._initial[1]
    for table, part in zip(_TABLE_WIDTHS, np.split(
        varies, [_TABLE_WIDTHS['node']])):
      if varies.any() and part.sum() != widths[table]:
        raise ValueError(
            f'feature_stats has {part.sum()} {table} columns that vary, but '
            f'the features have {widths[table]}; they are of other data.')
    self._table = self.add_weight(
        'feature_stats', self._initial.shape,
        initializer=lambda shape, dtype: tf.constant(self._initial))
    self.built = True

  def raw(self, table: str, x: tf.Tensor) -> tf.Tensor:
    """float32 [..., columns that vary] -> [..., all columns of the files]."""
    start = 0 if table == 'node' else _TABLE_WIDTHS['node']
    low, high = tf.unstack(tf.stop_gradient(self._table)[
        :, start:start + _TABLE_WIDTHS[table]])
    used = low != high
    place = tf.cumsum(tf.cast(used, tf.int32)) - 1
    zeros = x.shape[-1]  # The column of zeros that is appended.
    x = tf.pad(x, [[0, 0]] * (x.shape.rank - 1) + [[0, 1]])
    x = tf.gather(
        x, tf.where(used, tf.minimum(place, zeros), zeros), axis=-1)
    return tf.clip_by_value(tf.round(x * (high - low) + low), -1e12, 1e12)

  def zero(self) -> tf.Tensor:
    """Added to a score, gives the variable a gradient: trainers expect one."""
    return 0 * tf.reduce_sum(self._table)


def _of_running_script(node_width: int, config_width: int) -> Optional[dict]:
  """Statistics of the data that `layout_train.py` scales features with.

  Of its cache where there is one, because it draws from files with more than
  `--max_configs` configurations; only features are read, no runtimes. None
  where no such script is running, or what it reads has other columns.
  """
  flags = _script_flags()
  if not all(isinstance(getattr(flags, name, None), str) for name in (
      'data_root', 'source', 'search', 'cache_dir')) or not flags.source:
    return None
  folder = os.path.join(os.path.expanduser(flags.data_root), flags.source,
                        flags.search, 'train')
  sizes = (getattr(flags, 'configs', -1), getattr(flags, 'max_configs', -1))
  toy = getattr(flags, 'toy_data', False)
  cache = os.path.join(
      os.path.expanduser(flags.cache_dir), hashlib.md5('{}:{}:{}:{}'.format(
          folder, *sizes, toy).encode()).hexdigest() + '-cache.npz')
  try:
    if flags.cache_dir and tf.io.gfile.exists(cache):
      found = [_bounds_of_file(cache, 0)]
    else:
      files = tf.io.gfile.glob(os.path.join(folder, '*.npz'))
      found = [_bounds_of_file(path, sizes[0])
               for path in (files[:5] if toy else files)]
    found = [one for one in found if one]
    stored = {table: {
        'minimum': np.min([one[table][0] for one in found], 0).tolist(),
        'maximum': np.max([one[table][1] for one in found], 0).tolist()}
              for table in _TABLE_WIDTHS}
    varying = [int(np.not_equal(of['minimum'], of['maximum']).sum())
               for of in stored.values()]
    if varying != [node_width, config_width]:
      raise ValueError(f'{varying} node and config columns vary, the features '
                       f'have {[node_width, config_width]}')
  except (KeyError, OSError, ValueError, zipfile.BadZipFile,
          tf.errors.OpError) as error:
    _log.warning('No feature_stats: the files of %s cannot be read (%s).',
                 folder, error)
    return None
  return stored


def _bounds_of_file(path: str, min_configs: int) -> Optional[dict]:
  """Table -> (minima, maxima); None with fewer configurations than that."""
  bounds = {}
  with tf.io.gfile.GFile(path, 'rb') as file, np.load(file) as stored:
    for table, field in _FIELDS.items():
      rows = stored[field]  # The script holds all of them itself.
      if rows.shape[-1] != _TABLE_WIDTHS[table]:
        raise ValueError(f'{field} has {rows.shape[-1]} columns instead of '
                         f'{_TABLE_WIDTHS[table]}')
      if table == 'config' and len(rows) < min_configs:
        return None
      rows = rows.reshape(-1, rows.shape[-1])
      bounds[table] = (rows.min(0, initial=np.inf),
                       rows.max(0, initial=-np.inf))
  return bounds


# ------------------------------------------------------------- chapter: layouts
#
# A configuration gives a node up to three layouts: of its output, its input and
# its kernel (a filter, the right side of a product), each a list of dimension
# numbers, the closest-packed first, -1 where there are no more.

_DIMS, _LAYOUTS = 6, 3
_SHAPE, _OWN_LAYOUT = 21, 134  # First of six node columns each.
_CONVOLUTION_OP, _RESHAPE_OP = 26, 75  # Opcodes of the files.
# Those whose output has a layout of its own: convolution, dot, gather, reduce,
# reshape, scatter, slice, sort, transpose; and what many read: broadcast,
# constant, iota, parameter.
_NEW_LAYOUT = [26, 34, 42, 70, 75, 82, 92, 93, 98]
_CONCATENATE_OP, _PARAMETER_OP = 22, 63
_SHARED = [13, 24, 48, _PARAMETER_OP]
# Node columns of a convolution: batch and features of its input, input and
# output features of its kernel, batch and features of its output.
_CONVOLUTION = [93, 94, 99, 100, 105, 106]
# Node columns of the element types, pred to c128, and their bytes.
_TYPES, _BYTES = slice(3, 18), [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16]
_LANES, _SUBLANES = 128.0, 8.0  # Elements of a TPU's layout tile, minor first.
_MAX_PADDING = 63.0


class _Tensors(NamedTuple):
  """The output, input and kernel of each configurable node."""
  node: tf.Tensor      # int32 [configurable, 3], that makes them
  sizes: tf.Tensor     # float32 [configurable, 3, 6], 0: no dimension
  bytes: tf.Tensor     # float32 [configurable, 3], without padding, in 2^16
  gradient: tf.Tensor  # bool [configurable], of a convolution's filter
  stored: tf.Tensor    # int32 [configurable, 3, 2], closest-packed dimensions
  decider: tf.Tensor   # int32 [configurable, 3], row * 3 + tensor; see below


def _tensors_of(graph: _Graph, raw: tf.Tensor) -> _Tensors:
  """From the nodes' features in their own units, float32 [nodes, 140].

  Files list operands by node number, not by place; those of a convolution are
  distinguished by their sizes. A node without an operand stands in for it.
  """
  inputs, own = graph.inputs, graph.inputs.config_node
  first = tf.gather(tf.math.unsorted_segment_min(
      inputs.producer, inputs.consumer, graph.nodes), own)
  last = tf.gather(tf.math.unsorted_segment_max(
      inputs.producer, inputs.consumer, graph.nodes), own)
  first = tf.where(first < graph.nodes, first, own)
  last = tf.where(last >= 0, last, own)
  sizes = raw[:, _SHAPE:_SHAPE + _DIMS]
  dims = tf.cast(tf.gather(
      tf.gather(raw, own), _CONVOLUTION, axis=1), tf.int32)

  def size(node, dim):
    return tf.gather(tf.gather(sizes, node), tf.clip_by_value(
        dims[:, dim], 0, _DIMS - 1), batch_dims=1)

  def fit(input_, kernel):
    return tf.equal(size(input_, 0), size(own, 4)) & tf.equal(
        size(kernel, 3), size(own, 5))

  turned = fit(last, first) & ~fit(first, last)
  nodes = tf.stack([own, tf.where(turned, last, first),
                    tf.where(turned, first, last)], -1)
  element = _matmul(raw[:, _TYPES], tf.constant(_BYTES, tf.float32, [15, 1]))
  element = tf.where(element > 0, element, 4.0)
  bytes_ = tf.gather(_elements(sizes) * element[:, 0], nodes)
  gradient = tf.equal(tf.gather(inputs.opcode, own), _CONVOLUTION_OP) & (
      bytes_[:, 0] < tf.reduce_min(bytes_[:, 1:], -1)) & (
          dims[:, 1] < dims[:, 0])
  decider = tf.where(
      gradient[:, tf.newaxis] & [True, False, False],
      3 * tf.range(tf.size(own))[:, tf.newaxis],
      _deciders(graph, sizes, nodes))
  return _Tensors(
      nodes, tf.gather(sizes, nodes), bytes_, gradient,
      tf.cast(tf.gather(raw[:, _OWN_LAYOUT:_OWN_LAYOUT + 2], nodes), tf.int32),
      decider)


def _deciders(graph: _Graph, sizes: tf.Tensor, tensors: tf.Tensor
              ) -> tf.Tensor:
  """Whose layout each tensor really gets: int32 [configurable, 3].

  XLA hands a layout on through operations that keep the rank of what they read,
  and through convolutions that keep its sizes, but for the features of a
  concatenate. Of the configurable nodes that ask for layouts of tensors so
  connected, the last one decides, and what it reads before what it writes.
  """
  inputs, own = graph.inputs, graph.inputs.config_node
  read, reads = (tf.gather(sizes, side)
                 for side in (inputs.producer, inputs.consumer))
  opcode, source = (tf.gather(inputs.opcode, side)[:, tf.newaxis]
                    for side in (inputs.consumer, inputs.producer))
  dims = tf.reduce_sum(tf.cast(reads > 0, tf.int32), -1)
  same_rank = tf.equal(
      dims, tf.reduce_sum(tf.cast(read > 0, tf.int32), -1)) & (dims > 1)
  hands_on = same_rank & ~tf.reduce_any(
      tf.equal(opcode, _NEW_LAYOUT), -1) & ~tf.reduce_any(
          tf.equal(source, _SHARED), -1)
  changed = tf.math.count_nonzero(
      tf.not_equal(read, reads), -1, dtype=tf.int32)
  hands_on |= tf.equal(opcode[:, 0], _CONVOLUTION_OP) & (dims > 3) & (
      changed <= tf.cast(tf.equal(source[:, 0], _CONCATENATE_OP), tf.int32))
  producer, consumer = (tf.boolean_mask(side, hands_on) for side in (
      inputs.producer, inputs.consumer))

  def spread(group, _):
    """Each node takes the largest number of its neighbours, and theirs."""
    larger = tf.reduce_max([group, *(
        tf.math.unsorted_segment_max(tf.gather(group, of), to, graph.nodes)
        for of, to in ((producer, consumer), (consumer, producer)))], 0)
    larger = tf.gather(larger, larger)
    return larger, tf.reduce_any(larger > group)

  group, _ = tf.while_loop(lambda _, more: more, spread,
                           [tf.range(graph.nodes), tf.constant(True)])
  asks = tf.gather(group, tensors)
  order = 3 * own[:, tf.newaxis] + tf.range(3)
  is_reshape = tf.equal(tf.gather(inputs.opcode, own), _RESHAPE_OP)
  has_none = is_reshape[:, tf.newaxis] & [False, False, True]
  latest = tf.gather(tf.math.unsorted_segment_max(
      tf.reshape(tf.where(has_none, -1, order), [-1]),
      tf.reshape(asks, [-1]), graph.nodes), asks)
  latest = tf.where(has_none, order, latest)
  row = tf.math.unsorted_segment_max(
      tf.range(tf.size(own)), own, graph.nodes)
  return 3 * tf.gather(row, latest // 3) + latest % 3


def _elements(sizes: tf.Tensor) -> tf.Tensor:
  """In 2^16: sizes float32 [..., 6] -> [...]; 0 without any dimension."""
  known = tf.cast(tf.reduce_any(sizes > 0, -1), tf.float32)
  return tf.minimum(
      known * tf.reduce_prod(tf.maximum(1.0, sizes), -1) / 2 ** 16, 1e8)


def _padding(order: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
  """What padding to whole layout tiles adds, as a share of the tensor.

      ceil(s_0 / 128) 128 / s_0 * ceil(s_1 / u) u / s_1 - 1, at most 63
  s are the sizes of the two closest-packed dimensions; u is 8, or 2 or 4 where
  s_1 is no larger. Shapes: int32 [configurable, 3, configs, 2], -1: no
  dimension, and float32 [configurable, 3, 6] -> [configurable, 3, configs].
  """
  minor, second = tf.unstack(tf.maximum(1.0, tf.where(order >= 0, tf.gather(
      sizes, tf.clip_by_value(order, 0, _DIMS - 1), batch_dims=2), 1.0
  )), axis=-1)
  unit = tf.where(second <= 2, 2.0, tf.where(second <= 4, 4.0, _SUBLANES))
  padded = (tf.math.ceil(minor / _LANES) * _LANES / minor
            * tf.math.ceil(second / unit) * unit / second)
  return tf.minimum(padded - 1, _MAX_PADDING)


class _Prices(NamedTuple):
  """What layouts of each configurable node cost, float32 in 2^16 bytes."""
  padding: tf.Tensor   # [configurable, 3], of output, input and kernel
  turned: tf.Tensor    # [configurable, 3], of those in another order
  reshaped: tf.Tensor  # [configurable], of a layout asked of a reshape


# Where a byte of a convolution's padding costs 1. They were chosen on the
# sample data's train and validation programs, that of a filter's gradient also
# on the public unet_3d.4x4.bf16.
_OF_PRODUCT, _OF_ARGUMENT, _OF_GRADIENT = 0.1, 0.3, 10.0
_OF_TURNED, _OF_SQUARE, _OF_RESHAPE, _OF_RESHAPE_TURNED = 0.3, 0.1, 1.0, 3.0


def _prices_of(graph: _Graph, tensors: _Tensors) -> _Prices:
  """Prices, which training does not change.

  Padding of what convolutions read and write costs its bytes, of an argument of
  the program 0.3 of them. Of products it costs a tenth, but for an output that
  nothing else decides. Weights cost nothing: they are laid out ahead of time.
  The kernel of a filter's gradient is no weight, and padding of its output
  costs ten times its multiplications, which are the root of the product of the
  three tensors' elements. An input whose closest-packed dimension is not the
  stored one costs 0.3 of its bytes, a square filter 0.1 of the padded output.
  A reshape that is asked for a layout costs its bytes, and three times more
  unless the layout is row-major.
  """
  opcode, read = (tf.gather(graph.inputs.opcode, node) for node in (
      graph.inputs.config_node, tensors.node[:, 1]))
  is_reshape, is_convolution = (
      tf.equal(opcode, op) for op in (_RESHAPE_OP, _CONVOLUTION_OP))
  is_forward = is_convolution & ~tensors.gradient
  output, input_, kernel = tf.unstack(tensors.bytes, axis=-1)
  # Elements are in 2^16, so the root is in 2^24.
  multiplied = 2 ** 8 * tf.sqrt(tf.reduce_prod(_elements(tensors.sizes), -1))
  rate = tf.where(is_convolution, 1.0, tf.where(is_reshape, 0.0, _OF_PRODUCT))
  is_last = ~is_reshape & tf.equal(tensors.decider[:, 0] % 3, 0)
  padding = [
      tf.where(tensors.gradient, _OF_GRADIENT * multiplied,
               output * tf.where(is_last, 1.0, rate)),
      input_ * tf.where(
          tf.equal(read, _PARAMETER_OP), _OF_ARGUMENT * rate, rate),
      tf.where(is_forward, 0.0, kernel * rate)]
  features = tf.gather(tensors.sizes[:, 2], tf.clip_by_value(
      tensors.stored[:, 2], 0, _DIMS - 1), batch_dims=1)
  is_square = is_forward & tf.equal(features[:, 0], features[:, 1])
  padded = output * (1 + _padding(
      tensors.stored[:, :, tf.newaxis], tensors.sizes)[:, 0, 0])
  moved = tf.where(is_reshape, output, 0.0)
  turned = [
      _OF_RESHAPE_TURNED * moved,
      tf.where(is_reshape | tensors.gradient, 0.0, _OF_TURNED * input_),
      tf.where(is_square, _OF_SQUARE * padded, 0.0)]
  return _Prices(tf.stack(padding, -1), tf.stack(turned, -1),
                 _OF_RESHAPE * moved)


def _costs(layouts: tf.Tensor, tensors: _Tensors, prices: _Prices) -> tf.Tensor:
  """int32 [configurable, configs, 18] -> float32 [configurable, configs]."""
  shape = tf.shape(layouts)
  layouts = tf.transpose(tf.reshape(
      layouts, [shape[0], shape[1], _LAYOUTS, _DIMS]), [0, 2, 1, 3])
  stored = tensors.stored[:, :, tf.newaxis]
  asked = layouts[..., :1] >= 0  # [configurable, 3, configs, 1]
  decided = tf.gather(tf.reshape(
      layouts[..., :2], [-1, shape[1], 2]), tensors.decider)
  padding = _padding(
      tf.where(decided[..., :1] >= 0, decided, stored), tensors.sizes)
  turned = tf.stack([
      _is_turned(layouts[:, 0], tensors.sizes[:, 0]),
      (decided[:, 1, :, 0] >= 0) & tf.not_equal(
          decided[:, 1, :, 0], stored[:, 1, :, 0]),
      asked[:, 2, :, 0] & tf.not_equal(
          layouts[:, 2, :, 0], stored[:, 2, :, 0])], 1)
  return (
      tf.reduce_sum(padding * prices.padding[..., tf.newaxis], 1)
      + tf.reduce_sum(tf.where(turned, prices.turned[..., tf.newaxis], 0.0), 1)
      + tf.where(asked[:, 0, :, 0], prices.reshaped[:, tf.newaxis], 0.0))


def _is_turned(layouts: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
  """Whether dimensions are not row-major, but for those of size 1.

  int32 [configurable, configs, 6], float32 [configurable, 6] -> bool.
  """
  many = tf.gather(
      sizes, tf.clip_by_value(layouts, 0, _DIMS - 1), batch_dims=1) > 1
  closer, farther = layouts[..., :-1], layouts[..., 1:]
  return tf.reduce_any((closer >= 0) & (closer < farther)
                       & many[..., :-1] & many[..., 1:], -1)


# ------------------------------------------------------- chapter: convolutions


class _PlainGNN(_LayoutModel):
  """A graph network as published: features in, rounds, pooling, linear score.

      H = [config features, embedded opcode, log scales of node features]
      H <- act(round of H W)      num_gnns times
      score = [sum of H over nodes / sqrt n,
               sum of H over configurable nodes / sqrt K] w + b
  Config features are 0 at nodes that have none. Subclasses define the round.
  Source: Xu et al., Based on TPUGRAPHS Predicting Model Runtimes Using Graph
  Neural Networks, 2023, figure 1; ours are the logarithmic scales, edges in
  both directions and the second pooling.
  """

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int = 32,
               num_gnns: int = 3, hidden_dim: int = 64,
               hidden_activation: str = 'leaky_relu',
               dropout: str = 'backpropdropout'):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim, dropout)
    _check_integers(1, num_gnns=num_gnns)
    self._embed_width = op_embed_dim
    self._act = _activation(hidden_activation)
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
  """Graph convolutions: H <- act(D^-1/2 A D^-1/2 H W).

  A counts the edges between two nodes in either direction, plus 1 on the
  diagonal, so that a node keeps what it knows; D holds the row sums of A.
  Nodes have one state, but those that a configuration can reach in num_gnns
  rounds. Source: Xu et al. 2023, eq. 1; [GCN]. The rest: see `_PlainGNN`.
  """

  def _encode(self, graph, embedded):
    """(levels, rounds, last states)."""
    link = graph.symmetric(graph.neighbours('both'))
    levels = _levels(graph, [link], len(self._rounds))
    product, states, rounds = self._of_nodes(graph, embedded), None, []
    for i, layer in enumerate(self._rounds):
      if i:
        product = _matmul(states, layer.kernel)
      summed = link.times(product, graph.nodes)
      states = self._act(summed)
      rounds.append(_Round.of([link], *levels[i:i + 2], summed, states))
    return levels, rounds, states

  def _rows(self, graph, encoded):
    return tf.size(encoded[0][-1].nodes)

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum over nodes, sum over configurable nodes], each of `width`."""
    levels, rounds, last = encoded
    config_node = graph.inputs.config_node
    change = _sums_by(
        self._of_configs(config_feats),
        tf.gather(levels[0].place, config_node), tf.size(levels[0].nodes))
    for i, (layer, fixed) in enumerate(zip(self._rounds, rounds)):
      if i:
        change = _matmul(change, layer.kernel)
      change = (self._act(fixed.receive(change))
                - fixed.states[:, tf.newaxis])
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
    feature_stats: see `_Statistics`; 'auto' reads them from the files of the
      running `layout_train.py`.
  """

  _OWN_LOSS = ListMLEFastestFirst

  def __init__(self, num_configs: int, num_ops: int, hidden_dim: int = 32,
               op_embed_dim: int = 32, node_rounds: int = 1,
               hidden_activation: str = 'leaky_relu',
               dropout: str = 'backpropdropout', price_weight: float = 40.0,
               feature_stats: Any = 'auto'):
    _check_integers(1, node_rounds=node_rounds)
    super().__init__(num_configs, num_ops, op_embed_dim, node_rounds,
                     hidden_dim, hidden_activation, dropout)
    self._price_weight = float(price_weight)
    self._stored = lambda: feature_stats  # Keras would save the dict itself.
    self._statistics = None  # Made with the variables.

  def _build_layers(self, node_width, config_width):
    stored = self._stored()
    if stored == 'auto':
      stored = _of_running_script(node_width, config_width)
    self._statistics = _Statistics(stored)
    self._statistics.build_for(node=node_width, config=config_width)
    super()._build_layers(node_width, config_width)

  def _encode(self, graph, embedded):
    """(what `LayoutGCN` encodes, tensors, prices)."""
    raw = self._statistics.raw('node', graph.inputs.node_feats)
    tensors = _tensors_of(graph, raw)
    return super()._encode(graph, embedded), tensors, _prices_of(
        graph, tensors)

  def _rows(self, graph, encoded):
    return super()._rows(graph, encoded[0])

  def _sums(self, graph, encoded, config_feats, weight):
    """[sums of `LayoutGCN`, sum of the costs, sum of the prices]."""
    encoded, tensors, prices = encoded
    layouts = tf.cast(self._statistics.raw('config', config_feats), tf.int32)
    costs = _costs(layouts, tensors, prices)
    whole = tf.reduce_sum(prices.padding, -1) + prices.reshaped
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
    score += self._statistics.zero()
    if training:
      return score
    return score + self._price_weight * tf.math.log1p(
        tf.squeeze(tf.math.divide_no_nan(costs, prices), -1))


# ---------------------------------------------------------- chapter: comparison


class LayoutGAT(_PlainGNN):
  """Attention over the neighbours of a node, in either direction, and itself.

      a_ij = softmax over j of leaky_relu(s . [W h_i, W h_j])
      h_i <- act(sum over j of a_ij W h_j)
  for each of `num_heads` heads, side by side.
  Source: Xu et al. 2023, eq. 2 and 3; [GAT]. The rest: see `_PlainGNN`.

  Args:
    num_heads: divides `hidden_dim`.
    others: see `LayoutGCN`.
  """

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int = 32,
               num_gnns: int = 3, hidden_dim: int = 64,
               hidden_activation: str = 'leaky_relu',
               dropout: str = 'backpropdropout', num_heads: int = 4):
    super().__init__(num_configs, num_ops, op_embed_dim, num_gnns, hidden_dim,
                     hidden_activation, dropout)
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
    return graph.neighbours('both'), self._of_nodes(graph, embedded)

  def _rows(self, graph, encoded):
    return graph.nodes + tf.size(encoded[0].sender)

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum over nodes, sum over configurable nodes], each of `width`.

    Every configuration has a state of every node.
    """
    link, product = encoded
    config_node = graph.inputs.config_node
    product = product[:, tf.newaxis] + _sums_by(
        self._of_configs(config_feats), config_node, graph.nodes)
    states = self._act(self._attended(0, graph, link, product))
    for i, layer in enumerate(self._rounds[1:], 1):
      states = self._act(self._attended(
          i, graph, link, _matmul(states, layer.kernel)))
    if weight is not None:
      states *= weight[:, tf.newaxis, tf.newaxis]
    return tf.concat([
        _sums_by(states, graph.node_graph, graph.graphs), _sums_by(
            tf.gather(states, config_node), graph.config_graph, graph.graphs)
    ], -1)

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
  GRU: [GRU]. Ours: t is learned (softplus), not a table of assumed times; means
  on logarithmic scales instead of raw sums, which reach 1e12; edges in any
  order; labels scaled to [0, 1] over a list. `dropout` is 'fullgraph', since
  opcodes and columns alone distinguish nodes.

  Args:
    num_configs: configurations of each graph in training.
    num_ops: number of opcodes.
    hidden_dim: width of the GRU's state.
  """

  _OWN_LOSS = LayoutMinMaxMSE

  def __init__(self, num_configs: int, num_ops: int, hidden_dim: int = 32):
    super().__init__(num_configs, num_ops, 1, hidden_dim, 'fullgraph')
    self._gru = tf.keras.layers.GRU(hidden_dim, return_sequences=True)
    self._scorer = tf.keras.layers.Dense(1)

  def _build_layers(self, node_width, config_width):
    self._gru.build((None, 2 * node_width, config_width))
    self._scorer.build([None, self._width])

  def _encode(self, graph, embedded):
    """(c [nodes, 2 F], first configurable node of each graph, and of none)."""
    inputs = graph.inputs
    c = tf.nn.softplus(embedded) * _log_scales(inputs.node_feats)
    producers, consumers = (
        graph.neighbours(of, own=False).times(c, graph.nodes)
        for of in ('producers', 'consumers'))
    configurable = tf.minimum(1, _sums_by(
        tf.ones_like(inputs.config_node), inputs.config_node, graph.nodes))
    c += 2 * producers + consumers + tf.cast(
        configurable, tf.float32)[:, tf.newaxis]
    return c, tf.cumsum(tf.pad(inputs.config_counts, [[1, 0]]))

  def _rows(self, graph, encoded):
    return tf.constant(encoded[0].shape[-1])

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum of c over nodes, sum of c times config features], 2 F (1 + G)."""
    c, starts = encoded
    columns, config_width = c.shape[-1], config_feats.shape[-1]
    at_configs = tf.gather(c, graph.inputs.config_node)
    configs = tf.shape(config_feats)[1]

    def of_graph(i):
      rows = slice(starts[i], starts[i + 1])
      return tf.reshape(tf.einsum(
          'kf,kcg->cfg', at_configs[rows], config_feats[rows]),
          [configs, columns * config_width])

    y = tf.map_fn(of_graph, tf.range(graph.graphs),
                  fn_output_signature=tf.TensorSpec(
                      [None, columns * config_width]))
    if weight is not None:
      c *= weight[:, tf.newaxis]
    x = graph.pool_nodes(c)[:, tf.newaxis]
    return tf.concat([x + tf.zeros_like(y[..., :1]), y], -1)

  def _head(self, sums, nodes, configurable, training):
    columns, config_width = 2 * self._input_widths[0], self._input_widths[1]
    x, y = tf.split(sums, [columns, columns * config_width], -1)
    shape = tf.shape(x)[:2]
    x = x / tf.maximum(1.0, nodes)[:, tf.newaxis, tf.newaxis]
    y = y / tf.maximum(1.0, configurable)[:, tf.newaxis, tf.newaxis]
    steps = tf.nn.relu(tf.reshape(x, [-1, columns, 1])) * tf.nn.relu(
        tf.reshape(y, [-1, columns, config_width]))
    mean = tf.reduce_mean(self._gru(steps), 1)
    return tf.reshape(
        _matmul(mean, self._scorer.kernel, self._scorer.bias), shape)
