"""Models that rank the layout configurations of whole TPU programs.

This one file replaces `tpu_graphs/baselines/layout/models.py` of the tpu_graphs
baseline, so it imports only TensorFlow, TF-GNN, NumPy (which TensorFlow needs
itself) and the standard library.

What `layout_train.py` and `layout_evaluate.py` rely on:
  * `ResModel(num_configs, num_ops, **kwargs)`, which is all that they ever
    make. They have flags `--model` and `--model_kwargs_json` and ignore them;
    `ResModel` here honours both: see `_asked_for`.
  * `model(graph, training)` and `model.forward(graph, num_configs)` take a
    scalar `GraphTensor` of several programs and return float32
    `[graphs, configs]`; the lowest score is the fastest configuration.
    `forward` also takes `backprop`, which the scripts give.
  * Trainable variables are the whole state. They are created in an order that
    does not depend on the data, because the scripts copy them by position.

The models:
  * `ResModel`: the baseline's. Same constructor, variables and scores (to float
    rounding).

Programs have thousands of nodes, of which tens to hundreds have layouts to
choose ("configurable nodes"). No model here copies configurations onto the
other nodes: what does not depend on them is computed once a program, and
`forward` takes configurations in chunks, so memory does not grow with their
number.

Chapters, each of which uses only names of earlier ones:
  tensors: a batch of programs as tensors, segments, neighbours, reach.
  arguments: checks of what constructors are given, and the scripts' flags.
  objectives: losses, by which models learn to rank.
  layers: embedded opcodes, dense layers.
  base: what all models share.
  baseline: the baseline's model.

Letters in shape remarks: `graphs` in the batch, `nodes`, `edges` and
`configurable` nodes of all graphs together, `configs` of each graph, `reached`
nodes whose states depend on a configuration, `F` and `G` columns of node and
config features, `width` of a hidden layer.

Sources:
  [GCN] Kipf and Welling, ICLR 2017.  [TpuGraphs] Phothilimthana et al., 2023.
  [GST] Cao et al., Learning Large Graph Property Prediction via Graph Segment
  Training, NeurIPS 2023.  [ListMLE] Xia et al., ICML 2008.
"""

import difflib
import functools
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf
import tensorflow_gnn as tfgnn

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
  edges = tf.gather(mask, inputs.consumer) & tf.gather(mask, inputs.producer)
  configs = tf.gather(mask, inputs.config_node)
  config_graph = _graph_numbers(inputs.config_counts)
  cut = inputs._replace(
      consumer=tf.boolean_mask(inputs.consumer, edges),
      producer=tf.boolean_mask(inputs.producer, edges),
      config_feats=tf.boolean_mask(inputs.config_feats, configs),
      config_node=tf.boolean_mask(inputs.config_node, configs),
      config_counts=_sums_by(tf.cast(configs, tf.int32), config_graph,
                             tf.size(inputs.config_counts)))
  if keep_nodes:
    return cut
  place = tf.cumsum(tf.cast(mask, tf.int32)) - 1
  return cut._replace(
      opcode=tf.boolean_mask(inputs.opcode, mask),
      node_feats=tf.boolean_mask(inputs.node_feats, mask),
      selected=tf.boolean_mask(mask, mask),
      node_counts=_sums_by(
          tf.cast(mask, tf.int32), _graph_numbers(inputs.node_counts),
          tf.size(inputs.node_counts)),
      consumer=tf.gather(place, cut.consumer),
      producer=tf.gather(place, cut.producer),
      config_node=tf.gather(place, cut.config_node))


def _graph_numbers(counts: tf.Tensor) -> tf.Tensor:
  """[graphs] numbers of rows -> int32 [rows], the graph of each."""
  return tf.repeat(tf.range(tf.size(counts)), counts)


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

  def pool_nodes(self, x: tf.Tensor, weight: Optional[tf.Tensor]) -> tf.Tensor:
    """Sums over each graph's nodes: [nodes, width] -> [graphs, width].

    `weight` is float32 [nodes] or None, which is 1.
    """
    if weight is not None:
      x *= weight[:, tf.newaxis]
    return _sums_by(x, self.node_graph, self.graphs)


class _Level(NamedTuple):
  """The nodes whose states depend on a configuration after some rounds."""
  nodes: tf.Tensor  # int32 [reached], ascending
  place: tf.Tensor  # int32 [nodes], row in `nodes`, or -1


def _levels(graph: _Graph, links: Sequence[_Link], rounds: int) -> list:
  """Which nodes depend on a configuration before and after each round.

  Before the first round those that have one. A round takes it on to the
  receivers of those; other states need not be computed once a configuration.

  Args:
    graph: the batch's graph.
    links: whom a round sends from and to, each node to itself among them.
    rounds: how many.

  Returns:
    rounds + 1 levels.
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
        tf.cast(tf.where(mask > 0)[:, 0], tf.int32),
        tf.where(mask > 0, tf.cumsum(mask) - 1, -1)))
  return levels


def _between(link: _Link, before: _Level, after: _Level) -> _Link:
  """The entries that take a round from level to level, as rows of those."""
  sender = tf.gather(before.place, link.sender)
  from_before = sender >= 0
  return _Link(
      tf.boolean_mask(sender, from_before),
      tf.gather(after.place, tf.boolean_mask(link.receiver, from_before)),
      tf.boolean_mask(link.weight, from_before))


def _with_changed(base: tf.Tensor, changed: tf.Tensor, before: _Level,
                  after: _Level) -> tf.Tensor:
  """States of a level from those of the level before.

  Args:
    base: float32 [nodes, width], states without any configuration.
    changed: float32 [reached, configs, width], those of `before`.
    before: the level that is known.
    after: the next level; its other nodes have the states of `base`.

  Returns:
    float32 [reached, configs, width].
  """
  change = changed - tf.gather(base, before.nodes)[:, tf.newaxis]
  return tf.gather(base, after.nodes)[:, tf.newaxis] + _sums_by(
      change, tf.gather(after.place, before.nodes), tf.size(after.nodes))


def _matmul(x: tf.Tensor, w: tf.Tensor,
            bias: Optional[tf.Tensor] = None) -> tf.Tensor:
  """[..., a] times [a, b], plus [b] -> [..., b], as one matrix product."""
  y = tf.reshape(x, [-1, x.shape[-1]]) @ w
  if bias is not None:
    y = tf.nn.bias_add(y, bias)
  if x.shape.rank == 2:
    return y
  y = tf.reshape(y, tf.concat([tf.shape(x)[:-1], [w.shape[-1]]], 0))
  y.set_shape([*x.shape[:-1], w.shape[-1]])
  return y


# ----------------------------------------------------------- chapter: arguments


def _check_choice(argument: str, value: Any, allowed: Sequence[str]) -> None:
  """Raises a ValueError that names the nearest allowed value."""
  if value not in allowed:
    nearest = difflib.get_close_matches(str(value), allowed, 1, cutoff=0.3)
    hint = f' Did you mean {nearest[0]!r}?' if nearest else ''
    raise ValueError(f'{argument} must be one of {", ".join(allowed)}; '
                     f'got {value!r}.{hint}')


def _check_integers(minimum: int, **arguments: Any) -> None:
  """Raises a ValueError unless all are integers of at least `minimum`."""
  for name, value in arguments.items():
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
      raise ValueError(
          f'{name} must be an integer of at least {minimum}; got {value!r}.')


def _check_activation(name: Any) -> None:
  """Raises a ValueError unless it is a function of tf.nn."""
  if not callable(getattr(tf.nn, str(name), None)):
    raise ValueError('hidden_activation must name a function of tf.nn, such as '
                     f'leaky_relu, relu or gelu; got {name!r}.')


def _script_flags() -> Any:
  """The flags of the running script of the baseline, or None."""
  absl_flags = sys.modules.get('absl.flags')  # There, if a script has flags.
  given = absl_flags.FLAGS if absl_flags else None
  return given if given and given.is_parsed() else None


def _asked_for() -> tuple:
  """Which model the running script was asked for: (name, arguments).

  `layout_train.py` says so in its flags. ('ResModel', {}) where no such script
  is running.

  Raises:
    ValueError: the arguments are no JSON object.
  """
  flags = _script_flags()
  name = getattr(flags, 'model', None)
  if not isinstance(name, str) or not hasattr(flags, 'keep_nodes'):
    return 'ResModel', {}
  text = getattr(flags, 'model_kwargs_json', '') or '{}'
  try:
    arguments = json.loads(text)
  except ValueError as error:
    raise ValueError(f'--model_kwargs_json is no JSON ({error}); got {text!r}.'
                     ) from error
  if not isinstance(arguments, dict):
    raise ValueError('--model_kwargs_json must be a JSON object, such as '
                     f'{{"hidden_dim": 64}}; got {text!r}.')
  return name, arguments


def _check_arguments(cls: type, arguments: Mapping[str, Any]) -> None:
  """Raises a ValueError for the first that the class does not have."""
  allowed = [name for name in inspect.signature(cls.__init__).parameters
             if name not in ('self', 'num_configs', 'num_ops')]
  for name in arguments:
    _check_choice(f'--model_kwargs_json: an argument of {cls.__name__}', name,
                  allowed)


# -------------------------------------------------------------- chapter: layers


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


# ---------------------------------------------------------------- chapter: base


# What to do with nodes outside of the selected segment.
_DROPOUTS = ('fullgraph', 'dropout', 'backpropdropout')


class _LayoutModel(tf.keras.Model):
  """Scores the configurations of programs, in three stages.

  `_encode` computes, once a graph, all that does not depend on a
  configuration. `_sums` adds up, over the nodes of each graph, what does.
  `_head` makes scores of the sums. `forward` runs the last two on chunks of
  configurations, so a score must depend on its own configuration alone.

  Segments: a graph may say by the feature 'selected' that only a part of its
  nodes is to be learned from. `dropout` says what to do then:
    'backpropdropout': the sums of that part have gradients; those of the other
      nodes, in the whole graph, are added without.
    'dropout': the other nodes lose their edges and configurations.
    'fullgraph': nothing, all nodes are alike.

  Subclasses define `_build_layers`, `_encode`, `_rows`, `_sums` and `_head`.
  """
  # Floats of one [rows, chunk, width] tensor: 1.5 MiB, so that what is alive
  # at once fits in a shared cache.
  _CHUNK_FLOATS = 3 * 2 ** 17

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

  @tf.autograph.experimental.do_not_convert
  def call(self, graph: tfgnn.GraphTensor, training: bool = False) -> tf.Tensor:
    """Scores all configurations at once: float32 [graphs, configs]."""
    inputs = _inputs_of(graph)
    self._create_variables(inputs)
    # Embedded by the layer, which adds its regularizer to the losses.
    embedded = self._op_embedding(graph).node_sets['op']['op_e']
    return tf.cond(
        tf.reduce_all(inputs.selected),
        lambda: self._scores(inputs, embedded, training, 'fullgraph'),
        lambda: self._scores(inputs, embedded, training, self.dropout))

  def forward(self, graph: tfgnn.GraphTensor, num_configs: int,
              dropout: Optional[str] = None,
              backprop: bool = True) -> tf.Tensor:
    """Scores any number of configurations in bounded memory.

    Args:
      graph: scalar GraphTensor of one or more programs.
      num_configs: configurations of each program in `graph`.
      dropout: stands in for the model's own.
      backprop: False is the same as dropout 'fullgraph', as the scripts mean
        it.

    Returns:
      float32 [graphs, num_configs]; lower is faster.
    """
    del num_configs  # The graph says it too.
    inputs = _inputs_of(graph)
    self._create_variables(inputs)
    dropout = dropout or self.dropout
    _check_choice('dropout', dropout, _DROPOUTS)
    if not backprop or (tf.executing_eagerly() and bool(
        tf.reduce_all(inputs.selected))):
      dropout = 'fullgraph'
    return self._rank(dropout)(*inputs)

  def _create_variables(self, inputs: _Inputs) -> None:
    """Creates all variables when the first graph tells the column counts."""
    widths = (inputs.node_feats.shape[-1], inputs.config_feats.shape[-1])
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

  def _scores(self, inputs, embedded, training, dropout):
    """Scores of all configurations at once, float32 [graphs, configs]."""
    return self._joined_scores(
        self._parts(inputs, embedded, training, dropout), inputs, inputs)

  def _joined_scores(self, parts, inputs, chunk):
    """From the sums of all parts: float32 [graphs, configs]."""
    return self._head(
        tf.add_n([part(chunk.config_feats) for part in parts]),
        tf.cast(inputs.node_counts, tf.float32),
        tf.cast(inputs.config_counts, tf.float32))

  def _rank_in_chunks(self, dropout: str, *tensors: tf.Tensor) -> tf.Tensor:
    """`_encode` once, the rest on chunks: float32 [graphs, configs]."""
    inputs = _Inputs(*tensors)
    embedded = tf.gather(
        self._op_embedding.embedding_layer.embeddings, inputs.opcode)
    parts = self._parts(inputs, embedded, False, dropout)
    rows = functools.reduce(tf.maximum, [part.rows for part in parts])
    configs = tf.shape(inputs.config_feats)[1]
    chunk = tf.clip_by_value(
        self._CHUNK_FLOATS // tf.maximum(1, rows * self._width), 8, 4096)
    chunks = (configs + chunk - 1) // chunk

    def score_chunk(i, scores):
      of_chunk = self._joined_scores(parts, inputs, inputs._replace(
          config_feats=inputs.config_feats[:, i * chunk:(i + 1) * chunk]))
      return i + 1, scores.write(i, tf.transpose(of_chunk))

    scores = tf.while_loop(
        lambda i, unused_scores: i < chunks, score_chunk,
        (0, tf.TensorArray(tf.float32, chunks, infer_shape=False,
                           element_shape=[None, None])),
        parallel_iterations=1)[1]
    return tf.transpose(scores.concat())

  def _parts(self, inputs, embedded, training, dropout) -> list:
    """The parts of a batch whose sums make a score."""
    if dropout == 'fullgraph':
      return [_Part(self, inputs, embedded, training)]
    configs = tf.gather(inputs.selected, inputs.config_node)
    if dropout == 'dropout':
      return [_Part(self, _segment_of(inputs, keep_nodes=True), embedded,
                    training, configs=configs)]
    return [
        _Part(self, _segment_of(inputs),
              tf.boolean_mask(embedded, inputs.selected), training,
              configs=configs),
        _Part(self, inputs, embedded, False, gradients=False,
              weight=tf.cast(~inputs.selected, tf.float32))]

  def _build_layers(self, node_width: int, config_width: int) -> None:
    """Builds all layers, in the order of their attributes."""
    raise NotImplementedError

  def _encode(self, graph: _Graph, embedded: tf.Tensor, training: bool) -> Any:
    """What does not depend on a configuration: any structure of tensors.

    Args:
      graph: the graph of a part.
      embedded: float32 [nodes, op_embed_dim], opcodes.
      training: whether the model is trained.
    """
    raise NotImplementedError

  def _rows(self, graph: _Graph, encoded: Any) -> tf.Tensor:
    """Number of rows of the largest tensor of each configuration, int32 []."""
    raise NotImplementedError

  def _sums(self, graph: _Graph, encoded: Any, config_feats: tf.Tensor,
            weight: Optional[tf.Tensor]) -> tf.Tensor:
    """Sums over nodes, float32 [graphs, configs, any number].

    Args:
      graph: as in `_encode`.
      encoded: what `_encode` gave.
      config_feats: float32 [configurable, configs, G].
      weight: float32 [nodes], how much of a node is summed; None: all.
    """
    raise NotImplementedError

  def _head(self, sums: tf.Tensor, nodes: tf.Tensor,
            configurable: tf.Tensor) -> tf.Tensor:
    """Scores from sums.

    Shapes: sums float32 [graphs, configs, any number]; nodes, configurable
    float32 [graphs], how many there are -> [graphs, configs].
    """
    raise NotImplementedError


class _Part:
  """A part of a batch, encoded; called, its sums for some configurations."""

  def __init__(self, model, inputs, embedded, training, configs=None,
               gradients=True, weight=None):
    """Encodes.

    Args:
      model: a `_LayoutModel`.
      inputs: of this part.
      embedded: float32 [nodes, op_embed_dim].
      training: given to the model.
      configs: bool [configurable of the batch], those that are in this part;
        None: all.
      gradients: whether it is learned from.
      weight: float32 [nodes], see `_LayoutModel._sums`.
    """
    self._model, self._configs, self._weight = model, configs, weight
    self._stop = (lambda x: x) if gradients else tf.stop_gradient
    self._graph = _Graph(inputs)
    self._encoded = model._encode(self._graph, embedded, training)
    self.rows = model._rows(self._graph, self._encoded)

  def __call__(self, config_feats: tf.Tensor) -> tf.Tensor:
    if self._configs is not None:
      config_feats = tf.boolean_mask(config_feats, self._configs)
    return self._stop(self._model._sums(
        self._graph, self._encoded, config_feats, self._weight))


# ------------------------------------------------------------ chapter: baseline


class _Round(NamedTuple):
  """What a round of `ResModel` needs that no configuration changes."""
  base: tf.Tensor     # float32 [nodes, width], states before it
  product: tf.Tensor  # float32 [nodes, links * width], base times weights
  summed: tf.Tensor   # float32 [reached, width], links times product
  between: tuple      # a _Link from level to level, for each of the links


class ResModel(_LayoutModel):
  """The baseline's model: graph convolutions with residual links.

      f_v = 100 * config features of node v, 0 where it has none
      x_v = act(MLP([f_v, node features, embedded opcode]))
      x  <- x + act(MLP(L [f, x]))                        num_gnns times
      z   = [mean of x over all nodes, l2(sum of x over all nodes),
             l2(sum of x over configurable nodes)]
      score = MLP(z), without biases
  L is D^-1/2 (A + A' + I) D^-1/2 with 'sym', and with 'asym' both D^-1 (A + I)
  and D^-1 (A' + I), side by side; A_uv counts the edges from v to u.
  Source: [TpuGraphs], `layout/models.py`; same variables and scores. There each
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
    dropout: what to do with nodes outside of the selected segment: see
      `_LayoutModel`.
  """

  def __new__(cls, *args, **kwargs):
    name, arguments = _asked_for() if cls is ResModel else ('ResModel', {})
    if name == 'ResModel':
      return super().__new__(cls, *args, **kwargs)
    _check_choice('--model', name, list(_models()))
    _check_arguments(_models()[name], arguments)
    return _models()[name](*args, **{**arguments, **kwargs})

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int = 32,
               num_gnns: int = 2, mlp_layers: int = 2,
               hidden_activation: str = 'leaky_relu', hidden_dim: int = 32,
               adj_normalization: str = 'sym',
               dropout: str = 'backpropdropout'):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim, dropout)
    _check_integers(0, num_gnns=num_gnns)
    _check_integers(1, mlp_layers=mlp_layers)
    _check_activation(hidden_activation)
    _check_choice('adj_normalization', adj_normalization, ['sym', 'asym'])
    self._adj_normalization = adj_normalization
    self._embed_width = op_embed_dim
    self._act = getattr(tf.nn, hidden_activation)
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

  def _split(self, mlp, links):
    """Weights of an MLP's first layer: (config rows, other rows), by link."""
    parts = tf.split(mlp.layers[0].kernel, links, axis=0)
    config_width = self._input_widths[1]
    return (tf.concat([part[:config_width] for part in parts], -1),
            tf.concat([part[config_width:] for part in parts], -1))

  def _encode(self, graph, embedded, training):
    """(levels, what the prenet adds to config columns, rounds, last states)."""
    links = self._links(graph)
    levels = _levels(graph, links, len(self._gc_layers))
    start = _matmul(
        tf.concat([graph.inputs.node_feats, embedded], -1),
        self._split(self._prenet, 1)[1])
    base, rounds = self._act(_after_first(self._prenet, start)), []
    for i, layer in enumerate(self._gc_layers):
      product = _matmul(base, self._split(layer, len(links))[1])
      summed = tf.add_n([link.times(part, graph.nodes) for link, part in zip(
          links, tf.split(product, len(links), -1))])
      rounds.append(_Round(
          base, product, tf.gather(summed, levels[i + 1].nodes),
          tuple(_between(link, *levels[i:i + 2]) for link in links)))
      base += self._act(_after_first(layer, summed))
    return levels, tf.gather(start, levels[0].nodes), rounds, base

  def _rows(self, graph, encoded):
    return tf.size(encoded[0][-1].nodes)

  def _sums(self, graph, encoded, config_feats, weight):
    """[sum over nodes, sum over configurable nodes], each of `width`."""
    levels, start, rounds, last = encoded
    config_node = graph.inputs.config_node

    def configs(mlp, links, level):
      """Config features times their weights, on the rows of a level."""
      x = 100 * _matmul(config_feats, self._split(mlp, links)[0])
      return _sums_by(x, tf.gather(level.place, config_node),
                      tf.size(level.nodes))

    x = self._act(_after_first(self._prenet, start[:, tf.newaxis] + configs(
        self._prenet, 1, levels[0])))  # [reached, configs, width]
    for i, (layer, fixed) in enumerate(zip(self._gc_layers, rounds)):
      before, after = levels[i:i + 2]
      links = len(fixed.between)
      y = (_matmul(x, self._split(layer, links)[1])
           + configs(layer, links, before)
           - tf.gather(fixed.product, before.nodes)[:, tf.newaxis])
      y = fixed.summed[:, tf.newaxis] + tf.add_n([
          link.times(part, tf.size(after.nodes))
          for link, part in zip(fixed.between, tf.split(y, links, -1))])
      x = (_with_changed(fixed.base, x, before, after)
           + self._act(_after_first(layer, y)))
    level = levels[-1]
    change = x - tf.gather(last, level.nodes)[:, tf.newaxis]
    if weight is not None:
      change *= tf.gather(weight, level.nodes)[:, tf.newaxis, tf.newaxis]
    over_nodes = graph.pool_nodes(last, weight)[:, tf.newaxis] + _sums_by(
        change, tf.gather(graph.node_graph, level.nodes), graph.graphs)
    if weight is not None:  # The baseline pools those of the segment only.
      return tf.concat([over_nodes, tf.zeros_like(over_nodes)], -1)
    over_configs = _sums_by(
        tf.gather(x, tf.gather(level.place, config_node)), graph.config_graph,
        graph.graphs)
    return tf.concat([over_nodes, over_configs], -1)

  def _head(self, sums, nodes, configurable):
    of_nodes, of_configs = tf.split(sums, 2, -1)
    z = tf.concat([
        of_nodes / tf.maximum(1.0, nodes)[:, tf.newaxis, tf.newaxis],
        tf.nn.l2_normalize(of_nodes, -1), tf.nn.l2_normalize(of_configs, -1)
    ], -1)
    first = self._postnet.layers[0]
    return tf.squeeze(_after_first(
        self._postnet, _matmul(z, first.kernel)), -1)


def _models() -> dict:
  """Name -> class of every public model."""
  return {name: value for name, value in globals().items()
          if inspect.isclass(value) and issubclass(value, _LayoutModel)
          and not name.startswith('_')}
