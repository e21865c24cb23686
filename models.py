"""Models that rank the tile-size configurations of TPU kernels.

This one file replaces `tpu_graphs/baselines/tiles/models.py` of the tpu_graphs
baseline, so it imports only TensorFlow, TF-GNN and the standard library.

What the training and prediction scripts rely on:
  * `Model(num_configs, num_ops, **kwargs)`; `num_configs` is the number of
    configurations a kernel has in training, `num_ops` the number of opcodes.
  * `model(graph, training)` and `model.forward(graph, num_configs)` take a
    scalar `GraphTensor` of several kernels and return float32
    `[kernels, configs]`; the lowest score is the fastest configuration.
  * Trainable variables are the whole state. They are created in an order that
    does not depend on the data, because the scripts copy them by position.

The models:
  * `MyEarlyJoinSAGE`: the one to train; see its docstring.
  * `EarlyJoinSAGE`, `LateJoinSAGE`, `EarlyJoinResGCN`, `LateJoinResGCN`, `MLP`:
    the baseline's five. Same constructors, variables and scores (to float
    rounding); computed without copying config features onto every node.
  * `EarlyJoinGCN`, `LateJoinGCN`, `EarlyJoinGAT`, `LateJoinGAT`,
    `EarlyLateJoinSAGE`: `MyEarlyJoinSAGE` with another convolution or join.
  * `LateJoinConcatPoolSAGE`, `EarlyJoinConcatPoolSAGE`, `WideSAGE`: plain
    GraphSAGE with mean aggregation, for comparison.
  * `EnsembleRanker`: several of these, trained and scored together.

Letters in shape remarks: `kernels` in the batch, `configs` of each kernel,
`nodes` and `edges` of all kernels together, `F` and `G` columns of node and
config features, `width` of a hidden layer.

Sources:
  [GCN] Kipf and Welling, ICLR 2017.  [GraphSAGE] Hamilton et al., NeurIPS 2017.
  [ListMLE] Xia et al., ICML 2008.  [TpuGraphs] Phothilimthana et al., 2023.
  [Breslow] Breslow, discussion of Cox's regression models, 1972.
  [GAT] Velickovic et al., ICLR 2018.  [GATv2] Brody et al., ICLR 2022.
"""

import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf
import tensorflow_gnn as tfgnn
from tensorflow_gnn.models import gat_v2

# --------------------------------------------------------------- tensor helpers


class _Inputs(NamedTuple):
  """What a model may look at: a batch of kernels without labels."""
  opcode: tf.Tensor        # int32 [nodes]
  node_feats: tf.Tensor    # float32 [nodes, F]
  node_counts: tf.Tensor   # int32 [kernels], nodes of each kernel
  consumer: tf.Tensor      # int32 [edges], node that reads
  producer: tf.Tensor      # int32 [edges], node that is read
  config_feats: tf.Tensor  # float32 [kernels, configs, G]


def _inputs_of(graph: tfgnn.GraphTensor) -> _Inputs:
  """Takes the input tensors out of a graph, and leaves the labels behind."""
  ops = graph.node_sets['op']
  configs = graph.node_sets['config']
  feed = graph.edge_sets['feed'].adjacency
  kernels = configs.sizes.shape[0]
  if kernels is None:
    kernels = tf.shape(configs.sizes)[0]
  config_feats = configs['feats']  # [kernels * configs, G]
  return _Inputs(
      opcode=tf.cast(ops['op'], tf.int32),
      node_feats=ops['feats'],
      node_counts=tf.cast(ops.sizes, tf.int32),
      consumer=tf.cast(feed.source, tf.int32),
      producer=tf.cast(feed.target, tf.int32),
      config_feats=tf.reshape(
          config_feats, [kernels, -1, config_feats.shape[-1]]))


def _input_specs(node_width: int, config_width: int,
                 kernels: Optional[int]) -> _Inputs:
  """Shapes for which one trace serves every kernel, or every batch (None)."""
  ints = tf.TensorSpec([None], tf.int32)
  return _Inputs(
      opcode=ints, node_feats=tf.TensorSpec([None, node_width]),
      node_counts=tf.TensorSpec([kernels], tf.int32), consumer=ints,
      producer=ints, config_feats=tf.TensorSpec([kernels, None, config_width]))


class _Graph:
  """Neighbour sums and pooling over a batch of kernels.

  Up to `_DENSE_NODES` nodes the adjacency is a dense matrix: kernels are small,
  and one matrix product is then faster than gathering edges.
  """
  _DENSE_NODES = 256

  def __init__(self, inputs: _Inputs):
    self.nodes = tf.shape(inputs.opcode)[0]
    self.node_counts = inputs.node_counts
    self._one_kernel = inputs.node_counts.shape[0] == 1
    self._kernel_of_node = tf.repeat(
        tf.range(tf.shape(inputs.node_counts)[0]), inputs.node_counts)
    self._edges = {  # Sum over: (sending nodes, receiving nodes), int32 [edges]
        'consumers': (inputs.consumer, inputs.producer),
        'producers': (inputs.producer, inputs.consumer),
        'both': (tf.concat([inputs.consumer, inputs.producer], 0),
                 tf.concat([inputs.producer, inputs.consumer], 0))}
    self._is_dense = self.nodes <= self._DENSE_NODES
    self._adjacency = {  # float32 [nodes, nodes], or [0, 0] where not dense
        of: self._dense_adjacency(*edges) for of, edges in self._edges.items()}

  def _dense_adjacency(self, senders: tf.Tensor, receivers: tf.Tensor):
    size = tf.where(self._is_dense, self.nodes, 0)
    entries = tf.where(self._is_dense, tf.size(senders), 0)
    return tf.scatter_nd(
        tf.stack([receivers, senders], -1)[:entries], tf.ones([entries]),
        [size, size])

  def sum_of(self, of: str, x: tf.Tensor) -> tf.Tensor:
    """Sums `x` over the 'consumers', the 'producers' or 'both' of each node.

    Shapes: x float32 [nodes, ...] -> same; zero where a node has no such edge.
    """
    def dense():
      flat = tf.reshape(x, [self.nodes, -1])
      return tf.reshape(self._adjacency[of] @ flat, tf.shape(x))

    def sparse():
      senders, receivers = self._edges[of]
      return tf.math.unsorted_segment_sum(
          tf.gather(x, senders), receivers, self.nodes)

    y = tf.cond(self._is_dense, dense, sparse)
    y.set_shape(x.shape)
    return y

  def mean_of(self, of: str, x: tf.Tensor) -> tf.Tensor:
    """Like `sum_of`, divided by the number of edges where there are any."""
    edges = tf.maximum(self.degree(of), 1)
    return self.sum_of(of, x) / tf.reshape(
        edges, [-1] + [1] * (x.shape.rank - 1))

  def degree(self, of: str) -> tf.Tensor:
    """float32 [nodes]: how many edges `sum_of(of, ...)` adds up."""
    receivers = self._edges[of][1]
    return tf.math.unsorted_segment_sum(
        tf.ones_like(receivers, tf.float32), receivers, self.nodes)

  def with_states(self, x: tf.Tensor) -> tfgnn.GraphTensor:
    """The nodes with states `x` and the edges from producer to consumer.

    TF-GNN wants to know every dimension of a state beforehand but the first, so
    each configuration gets a copy of the graph: node v of configuration c is
    node v * configs + c.
    Shapes: x float32 [nodes, ..., width] -> hidden states [nodes * ..., width].
    """
    states = tf.reshape(x, [-1, x.shape[-1]])
    copies = tf.shape(states)[0] // self.nodes

    def copied(nodes):
      return tf.reshape(nodes[:, tf.newaxis] * copies + tf.range(copies), [-1])

    consumer, producer = self._edges['consumers']
    return tfgnn.homogeneous(
        copied(producer), copied(consumer), node_features=states)

  def on_nodes(self, x: tf.Tensor) -> tf.Tensor:
    """Gives each node the row of its kernel: [kernels, ...] -> [nodes, ...].

    The row of a single kernel stays alone, [1, ...], and broadcasts.
    """
    return x if self._one_kernel else tf.gather(x, self._kernel_of_node)

  def pool(self, reduction: str, x: tf.Tensor) -> tf.Tensor:
    """Pools the nodes of each kernel: [nodes, ...] -> [kernels, ...]."""
    over_all, over_segments = _REDUCTIONS[reduction]
    if self._one_kernel:
      return over_all(x, axis=0, keepdims=True)
    return over_segments(x, self._kernel_of_node)


_REDUCTIONS = {
    'sum': (tf.reduce_sum, tf.math.segment_sum),
    'mean': (tf.reduce_mean, tf.math.segment_mean),
    'max': (tf.reduce_max, tf.math.segment_max),
    'min': (tf.reduce_min, tf.math.segment_min)}


def _check_choice(argument: str, value: Any, allowed: Sequence[str]) -> None:
  """Raises a ValueError that names the nearest allowed value."""
  if value not in allowed:
    nearest = difflib.get_close_matches(str(value), allowed, 1, cutoff=0.3)
    hint = f' Did you mean {nearest[0]!r}?' if nearest else ''
    raise ValueError(f'{argument} must be one of {", ".join(allowed)}; '
                     f'got {value!r}.{hint}')


def _check_positive(argument: str, value: Any, minimum: int = 1) -> None:
  """Raises a ValueError unless `value` is an integer of at least `minimum`."""
  if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
    raise ValueError(
        f'{argument} must be an integer of at least {minimum}; got {value!r}.')


def _check_fraction(argument: str, value: Any) -> None:
  """Raises a ValueError unless `value` is at least 0 and below 1."""
  if not isinstance(value, (int, float)) or not 0 <= value < 1:
    raise ValueError(
        f'{argument} must be at least 0 and below 1; got {value!r}.')


def _activation(name: Any) -> Callable[[tf.Tensor], tf.Tensor]:
  """The function `tf.nn.<name>`, for example 'leaky_relu' or 'gelu'."""
  function = getattr(tf.nn, str(name), None)
  if not callable(function):
    raise ValueError('hidden_activation must name a function of tf.nn, such as '
                     f'leaky_relu, relu or gelu; got {name!r}.')
  return function


def _dense(layer: tf.keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
  """`layer(x)` for any rank: one matrix product over all leading dimensions."""
  return _matmul(x, layer.kernel) + layer.bias


def _drop(x: tf.Tensor, rate: float, training: bool) -> tf.Tensor:
  """Sets a part of `x` to zero in training, and scales up the rest."""
  return tf.nn.dropout(x, rate) if training and rate else x


def _matmul(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """[..., a] times [a, b] -> [..., b], as one matrix product."""
  if x.shape.rank == 2:
    return x @ w
  flat = tf.reshape(x, [-1, x.shape[-1]]) @ w
  y = tf.reshape(flat, tf.concat([tf.shape(x)[:-1], [w.shape[-1]]], 0))
  y.set_shape(x.shape[:-1].as_list() + [w.shape[-1]])
  return y


# -------------------------------------------------------------- objectives
#
# Labels are relative runtimes, float32 [kernels, configs]; scores have the same
# shape, the lowest meaning the fastest. Each loss is the mean over kernels.


def _registered(loss_class):
  """Lets a saved model find the class of its loss again."""
  return tf.keras.saving.register_keras_serializable('tpu_graphs_ext')(
      loss_class)


class _Objective(tf.keras.losses.Loss):
  """A loss without settings; subclasses define `call` and a docstring."""

  def __init__(self, reduction=tf.keras.losses.Reduction.AUTO, name=None):
    super().__init__(reduction=reduction, name=name or type(self).__name__)


def _list_mle(priority: tf.Tensor, utility: tf.Tensor) -> tf.Tensor:
  """Negative log likelihood of drawing a list in order of its priority.

      sum over i of  log(sum over j of exp u_j) - u_i,
      j over all with priority_j <= priority_i
  This is ListMLE (Xia et al. 2008, Plackett-Luce). Items of one priority share
  one denominator [Breslow], so their order in memory does not matter. The
  denominators are logsumexps, so nothing under- or overflows.

  Shapes: priority, utility float32 [kernels, configs] -> [kernels].
  """
  remains = priority[:, tf.newaxis] <= priority[:, :, tf.newaxis]  # [k, i, j]
  utilities = tf.where(remains, utility[:, tf.newaxis], utility.dtype.min)
  return tf.reduce_sum(tf.reduce_logsumexp(utilities, -1) - utility, -1)


def _pair_mean(y_true: tf.Tensor, y_pred: tf.Tensor, loss) -> tf.Tensor:
  """Mean of loss(score_i - score_j) over the pairs where i is faster than j.

  Shapes: float32 [kernels, configs] twice -> [kernels]; 0 without such a pair.
  """
  faster = y_true[:, :, tf.newaxis] < y_true[:, tf.newaxis]  # [k, i, j]
  losses = loss(y_pred[:, :, tf.newaxis] - y_pred[:, tf.newaxis])
  faster = tf.cast(faster, losses.dtype)
  return tf.math.divide_no_nan(
      tf.reduce_sum(faster * losses, [1, 2]), tf.reduce_sum(faster, [1, 2]))


@_registered
class ListMLE(_Objective):
  """ListMLE that draws the slowest first, like TensorFlow Ranking's.

  Equal to `tfr.keras.losses.ListMLELoss()` to rounding where labels differ, but
  finite for scores of any spread. Source: [ListMLE].
  """

  def call(self, y_true, y_pred):
    return _list_mle(y_true, y_pred)


@_registered
class ListMLEFastestFirst(_Objective):
  """ListMLE that draws the fastest first, which is what ranking is for.

  The first factors of the likelihood compare the fastest configuration with all
  others; the last ones only sort the slow end. Source: [ListMLE], with scores
  and labels negated.
  """

  def call(self, y_true, y_pred):
    return _list_mle(-y_true, -y_pred)


@_registered
class PairwiseLogistic(_Objective):
  """Mean of log(1 + exp(score_i - score_j)) over pairs with i faster than j.

  Source: Burges et al. 2005, RankNet.
  """

  def call(self, y_true, y_pred):
    return _pair_mean(y_true, y_pred, tf.nn.softplus)


@_registered
class PairwiseHinge(_Objective):
  """Mean of max(0, 1 + score_i - score_j) over pairs with i faster than j.

  Source: Herbrich et al. 1999.
  """

  def call(self, y_true, y_pred):
    return _pair_mean(y_true, y_pred, lambda x: tf.nn.relu(1 + x))


@_registered
class MinMaxMSE(_Objective):
  """Mean squared error to runtimes scaled to [0, 1] over a kernel's list.

  A list of equal runtimes has labels 0.
  """

  def call(self, y_true, y_pred):
    low = tf.reduce_min(y_true, -1, keepdims=True)
    high = tf.reduce_max(y_true, -1, keepdims=True)
    target = tf.math.divide_no_nan(y_true - low, high - low)
    return tf.reduce_mean((y_pred - target) ** 2, -1)


@_registered
class StandardizedMSE(MinMaxMSE):
  """`MinMaxMSE` of scores with mean 0 and deviation 1 over a kernel's list.

  Standardising is part of the loss, not of the score, so that a score does not
  depend on which other configurations are ranked with it; the order of a list
  is the same either way. A list of equal scores is finite too.
  """

  def call(self, y_true, y_pred):
    y_pred -= tf.reduce_mean(y_pred, -1, keepdims=True)
    variance = tf.reduce_mean(y_pred ** 2, -1, keepdims=True)
    return super().call(y_true, y_pred * tf.math.rsqrt(variance + 1e-6))


# None keeps the loss that the training script compiles the model with.
_OBJECTIVES = {
    'flags': None, 'listmle': ListMLE,
    'listmle_fastest_first': ListMLEFastestFirst,
    'pairwise_logistic': PairwiseLogistic, 'pairwise_hinge': PairwiseHinge,
    'minmax_mse': MinMaxMSE, 'standardized_mse': StandardizedMSE}


# ------------------------------------------------------------ base classes


class _EpochAverage(tf.keras.callbacks.Callback):
  """Ends every epoch on the average of its last weights, before validation.

      a <- d a + (1 - d) w   after each step,  d = min(momentum, n / (9 + n))
      w <- a                 after the epoch
  with n steps of the epoch done before. The weights then lie in the middle of
  what the last steps walked around, which a falling learning rate would reach
  too; the scripts keep it constant. The average starts anew with each epoch, so
  nothing outlives an epoch but the weights. Source: averaging after Polyak and
  Juditsky 1992; starting again from the average is ours.
  """

  def __init__(self, momentum: float):
    super().__init__()
    self._momentum = momentum
    self._weights, self._averages = [], []
    self._steps = None  # Scalar variable, steps of this epoch.

  def update(self, weights: Sequence[tf.Variable]) -> None:
    """Adds the weights after a step; part of the compiled training step."""
    if self._steps is None:
      with tf.init_scope():
        self._steps = tf.Variable(0.0, trainable=False)
        self._weights = list(weights)
        self._averages = [
            tf.Variable(weight, trainable=False) for weight in weights]
    decay = tf.minimum(self._momentum, self._steps / (9 + self._steps))
    for average, weight in zip(self._averages, self._weights):
      average.assign_add((1 - decay) * (weight - average))
    self._steps.assign_add(1)

  def on_test_begin(self, logs=None):
    del logs
    self._take_average()

  def on_epoch_end(self, epoch, logs=None):
    del epoch, logs
    self._take_average()  # Where no validation came before.

  def _take_average(self) -> None:
    if self._steps is not None and self._steps > 0:
      for average, weight in zip(self._averages, self._weights):
        weight.assign(average)
      self._steps.assign(0)


class _TrainedModel(tf.keras.Model):
  """A Keras model that may bring its own loss and average its weights.

  Args:
    objective: one of `_OBJECTIVES`; 'flags' keeps the training script's loss.
    averaging: momentum of `_EpochAverage`; 0 leaves the weights as they are.
  """

  def __init__(self, objective: str = 'flags', averaging: float = 0.0):
    super().__init__()
    _check_choice('objective', objective, list(_OBJECTIVES))
    _check_fraction('averaging', averaging)
    self._objective = objective
    self._average = _EpochAverage(averaging) if averaging else None

  def compile(self, optimizer='rmsprop', loss=None, **kwargs):
    """Like Keras's; `objective` comes before the given loss."""
    own_loss = _OBJECTIVES[self._objective]
    super().compile(
        optimizer=optimizer, loss=own_loss() if own_loss else loss, **kwargs)

  def fit(self, *args, callbacks=None, **kwargs):
    """Like Keras's, with `_EpochAverage`."""
    if self._average:
      callbacks = [self._average, *(callbacks or [])]
    return super().fit(*args, callbacks=callbacks, **kwargs)

  def train_step(self, data):
    logs = self._loss_step(data)
    if self._average:
      self._average.update(self.trainable_variables)
    return logs

  def _loss_step(self, data):
    """One step of the optimizer on a batch (graph, labels); returns metrics."""
    return super().train_step(data)


class _Ranker(_TrainedModel):
  """Scores the configurations of kernels, in two stages.

  `_encode` computes, once a kernel, all that does not depend on a
  configuration; `_score` adds the configurations. In training both run once on
  the 10 sampled configurations. `forward` runs `_score` on chunks of
  configurations, so its working set stays in cache and its memory does not grow
  with their number; a score must therefore depend on its own configuration
  alone.

  Subclasses define `_build_layers`, `_encode` and `_score`.
  """
  # Floats of one [nodes, chunk, width] tensor: 2 MiB, about a core's cache.
  _CHUNK_FLOATS = 2 ** 19

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int,
               width: int, objective: str = 'flags', averaging: float = 0.0):
    super().__init__(objective, averaging)
    for argument, value in (('num_configs', num_configs), ('num_ops', num_ops),
                            ('op_embed_dim', op_embed_dim),
                            ('hidden_dim', width)):
      _check_positive(argument, value)
    self._num_configs = num_configs
    self._width = width
    self._state_width = width  # Of the tensors [nodes, configs, width].
    self._op_embedding = _OpEmbedding(num_ops, op_embed_dim)
    self._input_widths = None  # (F, G), known from the first graph on.

  def call(self, graph: tfgnn.GraphTensor, training: bool = False) -> tf.Tensor:
    """Scores all configurations at once: float32 [kernels, configs]."""
    inputs = _inputs_of(graph)
    self._create_variables(inputs)
    embedded = self._op_embedding(graph).node_sets['op']['op_e']
    kernel_graph = _Graph(inputs)
    encoded = self._encode(kernel_graph, embedded, inputs.node_feats, training)
    return self._score(kernel_graph, encoded, inputs.config_feats, training)

  def forward(self, graph: tfgnn.GraphTensor, num_configs: int) -> tf.Tensor:
    """Scores any number of configurations in bounded memory, without dropout.

    Args:
      graph: scalar GraphTensor of one or more kernels.
      num_configs: configurations of each kernel in `graph`.

    Returns:
      float32 [kernels, num_configs]; lower is faster.
    """
    del num_configs  # The graph says it too.
    inputs = _inputs_of(graph)
    self._create_variables(inputs)
    return self._rank(*inputs)

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

  def _compiled_rank(self) -> Callable[..., tf.Tensor]:
    """`_rank_in_chunks` with one trace for single kernels and one for batches.
    """
    compiled = {
        kernels: tf.function(
            # A partial, so that TensorFlow counts each model's traces apart.
            functools.partial(self._rank_in_chunks), autograph=False,
            input_signature=_input_specs(*self._input_widths, kernels))
        for kernels in (1, None)}

    def rank(*tensors):
      kernels = _Inputs(*tensors).node_counts.shape[0]
      return compiled[1 if kernels == 1 else None](*tensors)

    return rank  # A function, so that Keras does not save the traces.

  def _rank_in_chunks(self, *tensors: tf.Tensor) -> tf.Tensor:
    """`_encode` once, `_score` on chunks: float32 [kernels, configs]."""
    inputs = _Inputs(*tensors)
    kernel_graph = _Graph(inputs)
    embedded = tf.gather(
        self._op_embedding.embedding_layer.embeddings, inputs.opcode)
    encoded = self._encode(kernel_graph, embedded, inputs.node_feats, False)
    configs = tf.shape(inputs.config_feats)[1]
    chunk = tf.clip_by_value(
        self._CHUNK_FLOATS // (kernel_graph.nodes * self._state_width),
        16, 4096)
    chunks = (configs + chunk - 1) // chunk

    def score_chunk(i, scores):
      config_feats = inputs.config_feats[:, i * chunk:(i + 1) * chunk]
      chunk_scores = self._score(kernel_graph, encoded, config_feats, False)
      return i + 1, scores.write(i, tf.transpose(chunk_scores))

    scores = tf.while_loop(
        lambda i, unused_scores: i < chunks, score_chunk,
        (0, tf.TensorArray(tf.float32, chunks, infer_shape=False,
                           element_shape=[None, None])),
        parallel_iterations=1)[1]
    return tf.transpose(scores.concat())

  def _build_layers(self, node_width: int, config_width: int) -> None:
    """Builds all layers, in the order of their attributes."""
    raise NotImplementedError

  def _encode(self, graph: _Graph, embedded: tf.Tensor, node_feats: tf.Tensor,
              training: bool) -> Any:
    """What does not depend on a configuration.

    Args:
      graph: the batch's graph.
      embedded: float32 [nodes, op_embed_dim], opcodes.
      node_feats: float32 [nodes, F].
      training: whether dropout is on.

    Returns:
      Any structure of tensors, given to `_score` as it is.
    """
    raise NotImplementedError

  def _score(self, graph: _Graph, encoded: Any, config_feats: tf.Tensor,
             training: bool) -> tf.Tensor:
    """Scores: config_feats float32 [kernels, configs, G] -> [kernels, configs].
    """
    raise NotImplementedError


# --------------------------------------------- the baseline's five models


def _mlp(dims, hidden_activation, l2reg=1e-4, use_bias=True):
  """Dense layers of sizes `dims` with the activation between them.

  The baseline's layout models import this function by name.
  """
  layers = []
  for dim in dims:
    if layers:
      layers.append(tf.keras.layers.Activation(hidden_activation))
    layers.append(tf.keras.layers.Dense(
        dim, use_bias=use_bias,
        kernel_regularizer=tf.keras.regularizers.l2(l2reg)))
  return tf.keras.Sequential(layers)


class _OpEmbedding(tf.keras.Model):
  """Adds feature 'op_e', the embedded opcode, to node set 'op'.

  The baseline's layout models import this class by name.
  """

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


class _BaselineRanker(_Ranker):
  """What the baseline's models share: where config features join.

  An early join gives every node the columns [embedded opcode, config features,
  node features] before the first layer; a late join appends the config features
  to the pooled node states before the head.
  """
  _early = False
  _dropout = 0.0

  def _joined_width(self, node_width: int, config_width: int) -> int:
    """Columns that the first layer on nodes reads."""
    embed_width = self._op_embedding.embedding_layer.output_dim
    return embed_width + node_width + config_width * self._early

  def _head_width(self, pooled_width: int, config_width: int) -> int:
    """Columns that the head reads."""
    return pooled_width + config_width * (not self._early)

  def _rows(self, weights: tf.Tensor):
    """Splits a first layer's weights into (node rows, config rows).

    A late join has no config rows: [0, width].
    """
    embed_width = self._op_embedding.embedding_layer.output_dim
    config_width = self._input_widths[1] * self._early
    embed, config, feats = tf.split(
        weights, [embed_width, config_width, -1], axis=0)
    return tf.concat([embed, feats], 0), config

  def _head(self, head: tf.keras.Sequential, pooled: tf.Tensor,
            config_feats: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Scores [kernels, configs] from pooled states.

    Args:
      head: the final layers.
      pooled: float32 [kernels, configs, width], or [kernels, width] where
        configurations join here.
      config_feats: float32 [kernels, configs, G].
      training: whether dropout is on, after each activation.
    """
    first, *rest = head.layers
    if self._early:
      y = _dense(first, pooled)
    else:
      pooled_rows, config_rows = tf.split(
          first.kernel, [pooled.shape[-1], -1], axis=0)
      y = ((pooled @ pooled_rows + first.bias)[:, tf.newaxis]
           + _matmul(config_feats, config_rows))  # [kernels, configs, width]
    for layer in rest:
      if isinstance(layer, tf.keras.layers.Dense):
        y = _dense(layer, y)
      else:
        y = _drop(layer(y), self._dropout, training)
    return tf.squeeze(y, -1)


class _SAGE(_BaselineRanker):
  """GraphSAGE layers, and a head on the pooled nodes of a kernel.

      y_v = x_v W_self + a_v W_neighbor + b,   x_v <- finish(y_v)
  with a_v from the neighbours of node v. Subclasses say in `_aggregated` how
  they are put together, in `_finished` what a layer does after its linear part,
  and in `_pooling` how nodes are pooled.

  Source: [GraphSAGE].
  """
  _pooling = ('sum',)

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int,
               hidden_activation: str, widths: Sequence[int],
               head_widths: Sequence[int], dropout: float = 0.0,
               objective: str = 'flags'):
    super().__init__(
        num_configs, num_ops, op_embed_dim, max(widths), objective)
    _check_fraction('dropout', dropout)
    self._activation_fn = _activation(hidden_activation)
    self._widths, self._dropout = tuple(widths), dropout
    self._gnn_layers = [_mlp([width], hidden_activation) for width in widths]
    self._postnet = _mlp([*head_widths, 1], hidden_activation)

  def _build_layers(self, node_width: int, config_width: int) -> None:
    width = self._joined_width(node_width, config_width)
    leading = [None, None] if self._early else [None]
    for layer, next_width in zip(self._gnn_layers, self._widths):
      layer.build(leading + [2 * width])  # Neighbours first, then the node.
      width = next_width
    self._postnet.build([None, None, self._head_width(
        len(self._pooling) * width, config_width)])

  def _aggregated(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    """A linear function of each node's neighbours: [nodes, ...] -> same."""
    return graph.sum_of('both', x)

  def _finished(self, y: tf.Tensor, layer: int, training: bool) -> tf.Tensor:
    """From the linear part of a layer, counted from 0, to its output."""
    del layer
    return _drop(tf.nn.l2_normalize(self._activation_fn(y), axis=-1),
                 self._dropout, training)

  def _encode(self, graph, embedded, node_feats, training):
    """Layer 1 on the node columns; a late join does the other layers too.

    Returns the value of layer 1 before its activation, [nodes, width], or, for
    a late join, the pooled node states, [kernels, width].
    """
    layer = self._gnn_layers[0].layers[0]
    neighbor, own = tf.split(layer.kernel, 2, axis=0)
    x = tf.concat([embedded, node_feats], -1)  # [nodes, E + F]
    y = (self._aggregated(graph, x @ self._rows(neighbor)[0])
         + x @ self._rows(own)[0] + layer.bias)
    return y if self._early else self._pooled(graph, y, training)

  def _score(self, graph, encoded, config_feats, training):
    if not self._early:
      return self._head(self._postnet, encoded, config_feats, training)
    neighbor, own = tf.split(self._gnn_layers[0].layers[0].kernel, 2, axis=0)
    # Every neighbour of a node has the node's own config: what they add up to
    # is its columns times what ones add up to, such as the degree.
    ones = tf.ones_like(encoded[:, :1, tf.newaxis])  # [nodes, 1, 1]
    y = (encoded[:, tf.newaxis]  # [nodes, configs, width]
         + graph.on_nodes(_matmul(config_feats, self._rows(own)[1]))
         + self._aggregated(graph, ones) * graph.on_nodes(
             _matmul(config_feats, self._rows(neighbor)[1])))
    return self._head(
        self._postnet, self._pooled(graph, y, training), config_feats, training)

  def _pooled(self, graph: _Graph, y: tf.Tensor, training: bool) -> tf.Tensor:
    """From the first layer's linear part to the pooled states of the last.

    Shapes: y float32 [nodes, ..., width] -> [kernels, ..., poolings * width].
    """
    x = self._finished(y, 0, training)
    for i, gnn_layer in enumerate(self._gnn_layers[1:], 1):
      layer = gnn_layer.layers[0]
      neighbor, own = tf.split(layer.kernel, 2, axis=0)
      y = (self._aggregated(graph, _matmul(x, neighbor)) + _matmul(x, own)
           + layer.bias)
      x = self._finished(y, i, training)
    return tf.concat(
        [graph.pool(reduction, x) for reduction in self._pooling], -1)


class _SumSAGE(_SAGE):
  """GraphSAGE with summed neighbours, consumers and producers alike.

      y_v = x_v W_self + (sum of x_u over neighbours u of v) W_neighbor + b
      x_v <- act(y_v) / |act(y_v)|
  and a head on the sum of x over the nodes of a kernel.

  Source: [GraphSAGE]; the baseline's variant of it, weight for weight.
  """

  def __init__(self, num_configs: int, num_ops: int, num_gnns: int = 3,
               final_mlp_layers: int = 2, hidden_activation: str = 'leaky_relu',
               hidden_dim: int = 64, op_embed_dim: int = 64):
    _check_positive('num_gnns', num_gnns)
    _check_positive('final_mlp_layers', final_mlp_layers, 0)
    super().__init__(
        num_configs, num_ops, op_embed_dim, hidden_activation,
        [hidden_dim] * num_gnns, [hidden_dim] * final_mlp_layers)


class _ResGCN(_BaselineRanker):
  """Graph convolutions with residual links, and a layer before and after them.

      y_v = MLP(P act(x) + P' act(x) + act(x))_v,   x_v <- x_v + y_v
  P averages a node and its consumers, P' is its transpose. `directed` gives the
  three terms an MLP each.

  Source: [GCN]; the baseline's variant of it, weight for weight.
  """

  def __init__(self, num_configs: int, num_ops: int, num_gnns: int = 3,
               mlp_layers: int = 2, hidden_activation: str = 'leaky_relu',
               hidden_dim: int = 64, op_embed_dim: int = 32,
               directed: bool = False, reduction: str = 'sum'):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim)
    _check_positive('num_gnns', num_gnns, 0)
    _check_positive('mlp_layers', mlp_layers)
    _check_choice('reduction', reduction, list(_REDUCTIONS))
    activation = self._activation_fn = _activation(hidden_activation)
    self._directed = directed
    self._reduction = reduction
    self._gc_layers = []  # Before the others: variables follow this order.
    self._prenet = _mlp([hidden_dim, hidden_dim], activation)
    self._postnet = _mlp([hidden_dim, 1], activation)
    for _ in range(num_gnns):
      self._gc_layers.append(
          tuple(_mlp([hidden_dim] * mlp_layers, activation)
                for _ in range(3 if directed else 1)))

  def _build_layers(self, node_width: int, config_width: int) -> None:
    leading = [None, None] if self._early else [None]
    self._prenet.build(
        leading + [self._joined_width(node_width, config_width)])
    for layers in self._gc_layers:
      for layer in layers:
        layer.build(leading + [self._width])
    self._postnet.build(
        [None, None, self._head_width(self._width, config_width)])

  def _encode(self, graph, embedded, node_feats, training):
    """The first dense layer on the node columns; see `_SAGE._encode`."""
    first = self._prenet.layers[0]
    x = tf.concat([embedded, node_feats], -1)  # [nodes, E + F]
    y = x @ self._rows(first.kernel)[0] + first.bias
    return y if self._early else self._pooled(graph, y)

  def _score(self, graph, encoded, config_feats, training):
    if not self._early:
      return self._head(self._postnet, encoded, config_feats)
    config_rows = self._rows(self._prenet.layers[0].kernel)[1]
    y = (encoded[:, tf.newaxis]  # [nodes, configs, width]
         + graph.on_nodes(_matmul(config_feats, config_rows)))
    return self._head(self._postnet, self._pooled(graph, y), config_feats)

  def _pooled(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    """Shapes: x float32 [nodes, ..., width] -> [kernels, ..., width]."""
    for layer in self._prenet.layers[1:]:
      x = layer(x)
    scale = 1 / (graph.degree('consumers') + 1)  # [nodes]; P = scale (A + I)
    scale = tf.reshape(scale, [-1] + [1] * (x.shape.rank - 1))
    for layers in self._gc_layers:
      y = self._activation_fn(x)
      forward = scale * (graph.sum_of('consumers', y) + y)
      scaled = scale * y
      backward = graph.sum_of('producers', scaled) + scaled
      if self._directed:
        x += layers[0](forward) + layers[1](backward) + layers[2](y)
      else:
        x += layers[0](forward + backward + y)
    return graph.pool(self._reduction, self._activation_fn(x))


class LateJoinResGCN(_ResGCN):
  """`_ResGCN` on nodes; config features join at the head."""


class EarlyJoinResGCN(_ResGCN):
  """`_ResGCN` on nodes that carry config features from the start."""
  _early = True


class LateJoinSAGE(_SumSAGE):
  """`_SumSAGE` on nodes; config features join at the head."""


class EarlyJoinSAGE(_SumSAGE):
  """`_SumSAGE` on nodes that carry config features from the start."""
  _early = True


class MLP(_BaselineRanker):
  """Node features and embedded opcodes, pooled, then dense layers; no graph.

  Source: the baseline's model, weight for weight.
  """

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int = 32,
               mlp_layers: int = 2, hidden_activation: str = 'leaky_relu',
               hidden_dim: int = 64, reduction: str = 'sum'):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim)
    _check_positive('mlp_layers', mlp_layers, 0)
    _check_choice('reduction', reduction, list(_REDUCTIONS))
    self._reduction = reduction
    self._mlp = _mlp([hidden_dim] * mlp_layers + [1], hidden_activation)

  def _build_layers(self, node_width: int, config_width: int) -> None:
    pooled_width = self._joined_width(node_width, config_width)
    self._mlp.build([None, None, pooled_width + config_width])

  def _encode(self, graph, embedded, node_feats, training):
    """Pooled features [kernels, F + E]."""
    return graph.pool(
        self._reduction, tf.concat([node_feats, embedded], -1))

  def _score(self, graph, encoded, config_feats, training):
    return self._head(self._mlp, encoded, config_feats)


# --------------------------------------------------------------- the new models


class _LayerNorm(tf.keras.layers.Layer):
  """Zero mean and unit deviation over the last axis, then scale and shift.

  `tf.keras.layers.LayerNormalization` takes a detour on CPU that costs three
  times as much. Source: Ba et al. 2016.
  Shapes: float32 [..., width] -> same.
  """

  def build(self, input_shape):
    width = input_shape[-1]
    self.scale = self.add_weight('scale', [width], initializer='ones')
    self.shift = self.add_weight('shift', [width], initializer='zeros')
    super().build(input_shape)

  def call(self, x):
    x -= tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(x * x, -1, keepdims=True)
    return x * (tf.math.rsqrt(variance + 1e-6) * self.scale) + self.shift


class _DenseNorm(tf.keras.layers.Layer):
  """act(LayerNorm(x W + b)), with W x + b open to callers that share work."""

  def __init__(self, width: int, activation: str):
    super().__init__()
    self.dense = tf.keras.layers.Dense(width)
    self.norm = _LayerNorm()
    self._activation_fn = _activation(activation)

  def build(self, input_shape):
    self.dense.build(input_shape)
    self.norm.build([None, self.dense.units])
    super().build(input_shape)

  def call(self, x):
    return self.finish(_matmul(x, self.dense.kernel))

  def finish(self, linear: tf.Tensor) -> tf.Tensor:
    """From `x W`, however it was computed, to the layer's output."""
    return self._activation_fn(self.norm(linear + self.dense.bias))


class _SAGERound(_DenseNorm):
  """One round of mean message passing along both edge directions.

      x_v + N([p_v, c_v, x_v] W)
  with p_v and c_v the means over the producers and the consumers of node v,
  zeros where there are none. Source: [GraphSAGE], mean aggregator; ours are the
  second direction and the residual link.
  """

  def build(self, input_shape):
    super().build([None, 3 * input_shape[-1]])

  def update(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    """Shapes: x float32 [nodes, ..., width] -> same."""
    producers, consumers, own = tf.split(self.dense.kernel, 3, axis=0)
    return x + self.finish(
        graph.mean_of('producers', _matmul(x, producers))
        + graph.mean_of('consumers', _matmul(x, consumers))
        + _matmul(x, own))


class _GCNRound(_DenseNorm):
  """One graph convolution.

      x + N(D^-1/2 A D^-1/2 x W)
  A counts the edges between two nodes in either direction, plus 1 on the
  diagonal, so that every node has a neighbour; D holds the row sums of A.
  Source: [GCN]. There H <- act(D^-1/2 A D^-1/2 H W); ours are LayerNorm, the
  bias in N and the residual link.
  """

  def update(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    """Shapes: x float32 [nodes, ..., width] -> same."""
    scale = tf.math.rsqrt(graph.degree('both') + 1)  # [nodes], D^-1/2
    scale = tf.reshape(scale, [-1] + [1] * (x.shape.rank - 1))
    y = scale * _matmul(x, self.dense.kernel)
    return x + self.finish(scale * (graph.sum_of('both', y) + y))


class _GATRound(_DenseNorm):
  """One round of attention over the producers and over the consumers.

      x_v + N([p_v, c_v, x_v] W)
      p_v = sum of a_vu V x_u over the producers u of v
      a_vu = softmax over u of  k . leaky_relu(Q x_v + V x_u)
  for each head, heads side by side; c_v likewise over the consumers, with
  weights of its own. A node without producers or consumers receives zeros.
  Source: [GATv2], TF-GNN's layer. [GAT] scores k . [V x_v, V x_u] before the
  leaky_relu, attends along one direction and lets a node attend to itself; here
  its own state has its own weights.
  """

  def __init__(self, width: int, activation: str, num_heads: int):
    super().__init__(width, activation)
    _check_positive('num_heads', num_heads)
    if width % num_heads:
      raise ValueError('hidden_dim and joint_dim must be multiples of '
                       f'num_heads; got {width} and {num_heads}.')
    self.attend_producers, self.attend_consumers = (
        gat_v2.GATv2Conv(
            num_heads=num_heads, per_head_channels=width // num_heads,
            receiver_tag=receiver, activation='linear')
        for receiver in (tfgnn.TARGET, tfgnn.SOURCE))

  def build(self, input_shape):
    super().build([None, 3 * input_shape[-1]])
    loop = tfgnn.homogeneous(  # Any graph: layers of TF-GNN build when called.
        tf.constant([0]), tf.constant([0]),
        node_features=tf.zeros([1, input_shape[-1]]))
    for attend in (self.attend_producers, self.attend_consumers):
      attend(loop, edge_set_name='edges')

  def update(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    """Shapes: x float32 [nodes, ..., width] -> same."""
    states = graph.with_states(x)
    parts = [tf.reshape(attend(states, edge_set_name='edges'), tf.shape(x))
             for attend in (self.attend_producers, self.attend_consumers)]
    joined = tf.concat(parts + [x], -1)  # [nodes, ..., 3 width]
    return x + self.finish(_matmul(joined, self.dense.kernel))


_ROUNDS = {'sage': _SAGERound, 'gcn': _GCNRound, 'gat': _GATRound}


def _log_scales(x: tf.Tensor, scales: Sequence[float]) -> tf.Tensor:
  """Columns on logarithmic scales.

      sign(x) log(1 + s |x|) / log(1 + s)   for each s of `scales`
  Sizes span many orders of magnitude, and scaling by their maximum squashes
  most of them to almost 0. Large s tells small values apart, small s large
  ones. Far outside [0, 1] the columns grow slowly too. Without scales they stay
  as they are.
  Shapes: float32 [..., F] -> [..., max(1, len(scales)) F].
  """
  if not scales:
    return x
  return tf.concat([
      tf.sign(x) * tf.math.log1p(scale * tf.abs(x))
      / tf.math.log1p(tf.constant(scale, x.dtype)) for scale in scales], -1)


class _TileRanker(_Ranker):
  """The base of the new models: encode nodes, join configurations, pool, score.

  Every dense layer is followed by LayerNorm and the activation, N(.):
      h_v = N([embedded opcode, log scales of node features] W)
      h_v <- h_v + N([p_v, c_v, h_v] W)          node_rounds times
      x_v = N(h_v W + (1 + h_v U) * (g W') + b)  the join, per configuration
      x_v <- x_v + N([p_v, c_v, x_v] W)          joint_rounds times
      z = [pooled x, log scales of config features],  z <- N(z W)  head_layers
      score = z w + b
  with p_v and c_v the means over the producers and the consumers of node v
  (zeros where there are none) and g the encoded config features; `convolution`
  exchanges the rounds, `join` leaves g out of x or the config features out of
  z. Rounds before the join cost next to nothing: they run once a kernel, not
  once a configuration.

  Sources: [GraphSAGE] mean aggregation; ours are the two directions, the
  residual links, the logarithmic scales and the gated join by addition.

  Args:
    num_configs: configurations of each kernel in training.
    num_ops: number of opcodes.
    hidden_dim: width of the layers before the join and after pooling.
    joint_dim: width from the join to pooling, where most of the work is.
    op_embed_dim: width of an embedded opcode.
    node_rounds: rounds of message passing before the join.
    joint_rounds: rounds after it.
    head_layers: layers between pooling and the score.
    pooling: what to join of 'mean', 'max', 'sum' and 'min' over the nodes.
    log_scales: see `_log_scales`.
    hidden_activation: a function of `tf.nn`.
    dropout: part of the outputs of each head layer that is dropped in training.
    averaging: momentum of `_EpochAverage`; 0 leaves the weights as they are.
    objective: one of `_OBJECTIVES`; 'flags' keeps the training script's loss.
    join: where configurations come in: 'early', at the nodes; 'late', at the
      head, which leaves no rounds after the join; or 'both'.
    convolution: kind of the rounds, one of `_ROUNDS`.
    num_heads: attention heads of convolution 'gat'.
  """

  def __init__(self, num_configs: int, num_ops: int, *, hidden_dim: int = 128,
               joint_dim: int = 64, op_embed_dim: int = 32,
               node_rounds: int = 2, joint_rounds: int = 1,
               head_layers: int = 2,
               pooling: Sequence[str] = ('mean', 'max', 'sum'),
               log_scales: Sequence[float] = (1e2, 1e4, 1e6),
               hidden_activation: str = 'leaky_relu', dropout: float = 0.1,
               averaging: float = 0.99,
               objective: str = 'listmle_fastest_first', join: str = 'both',
               convolution: str = 'sage', num_heads: int = 4):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim, objective,
                     averaging)
    _check_positive('joint_dim', joint_dim)
    for argument, value in (('node_rounds', node_rounds),
                            ('joint_rounds', joint_rounds),
                            ('head_layers', head_layers)):
      _check_positive(argument, value, 0)
    _check_choice('join', join, ['early', 'late', 'both'])
    if join == 'late' and joint_rounds:
      raise ValueError('joint_rounds must be 0 with a late join; '
                       f'got {joint_rounds!r}.')
    _check_choice('convolution', convolution, list(_ROUNDS))
    for reduction in pooling:
      _check_choice('pooling', reduction, list(_REDUCTIONS))
    if not pooling:
      raise ValueError('pooling must name at least one of '
                       f'{", ".join(_REDUCTIONS)}; got {pooling!r}.')
    _check_fraction('dropout', dropout)
    self._early, self._late = join != 'late', join != 'early'
    self._dropout = dropout
    self._pooling, self._scales = tuple(pooling), tuple(log_scales)
    self._state_width = joint_dim

    def rounds(number, width):
      heads = {'num_heads': num_heads} if convolution == 'gat' else {}
      return [_ROUNDS[convolution](width, hidden_activation, **heads)
              for _ in range(number)]

    self._node_encoder = _DenseNorm(hidden_dim, hidden_activation)
    self._node_rounds = rounds(node_rounds, hidden_dim)
    if self._early:
      self._config_encoder = _DenseNorm(hidden_dim, hidden_activation)
      self._join = _DenseNorm(joint_dim, hidden_activation)
      self._join_gate = tf.keras.layers.Dense(joint_dim)
      self._join_config = tf.keras.layers.Dense(joint_dim, use_bias=False)
    self._joint_rounds = rounds(joint_rounds, joint_dim)
    self._head = [_DenseNorm(hidden_dim, hidden_activation)
                  for _ in range(head_layers)]
    self._scorer = tf.keras.layers.Dense(1)

  def _build_layers(self, node_width: int, config_width: int) -> None:
    width, scales = self._width, max(1, len(self._scales))
    embed_width = self._op_embedding.embedding_layer.output_dim
    self._node_encoder.build([None, embed_width + scales * node_width])
    for layer in self._node_rounds:
      layer.build([None, width])
    if self._early:
      self._config_encoder.build([None, scales * config_width])
      for layer in (self._join, self._join_gate, self._join_config):
        layer.build([None, width])
      width = self._state_width
    for layer in self._joint_rounds:
      layer.build([None, width])
    head_width = (len(self._pooling) * width
                  + self._late * scales * config_width)
    for layer in self._head:
      layer.build([None, head_width])
      head_width = self._width
    self._scorer.build([None, head_width])

  def _encode(self, graph, embedded, node_feats, training):
    """The node's part of the join, h W, and its gate, 1 + h U.

    Shapes: float32 [nodes, 1, joint_dim] twice. Where configurations join at
    the head alone, the pooled nodes: [kernels, 1, poolings * width].
    """
    x = self._node_encoder(tf.concat(
        [embedded, _log_scales(node_feats, self._scales)], -1))
    for layer in self._node_rounds:
      x = layer.update(graph, x)
    if self._early:
      return ((x @ self._join.dense.kernel)[:, tf.newaxis],
              1 + self._join_gate(x)[:, tf.newaxis])
    return self._pooled(graph, x)[:, tf.newaxis]

  def _score(self, graph, encoded, config_feats, training):
    config_feats = _log_scales(config_feats, self._scales)
    if self._early:
      config = self._join_config(self._config_encoder(config_feats))
      node, gate = encoded
      x = self._join.finish(  # [nodes, configs, joint_dim]
          node + gate * graph.on_nodes(config))
      for layer in self._joint_rounds:
        x = layer.update(graph, x)
      z = self._pooled(graph, x)
    else:
      z = encoded + tf.zeros_like(config_feats[..., :1])  # Once a config.
    if self._late:
      z = tf.concat([z, config_feats], -1)
    for layer in self._head:
      z = _drop(layer(z), self._dropout, training)
    return tf.squeeze(_matmul(z, self._scorer.kernel) + self._scorer.bias, -1)

  def _pooled(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    """Shapes: [nodes, ..., width] -> [kernels, ..., poolings * width]."""
    return tf.concat(
        [graph.pool(reduction, x) for reduction in self._pooling], -1)


class MyEarlyJoinSAGE(_TileRanker):
  """The model to train: `_TileRanker` as its defaults stand."""


# --------------------------------------------- other models, for comparison


class EarlyJoinGCN(_TileRanker):
  """`_TileRanker` with graph convolutions; configurations join at the nodes.

      x <- x + N(D^-1/2 A D^-1/2 x W)
  Source: [GCN]; differences in `_GCNRound`.
  """

  def __init__(self, num_configs: int, num_ops: int, **kwargs):
    super().__init__(num_configs, num_ops, join='early', convolution='gcn',
                     **kwargs)


class LateJoinGCN(_TileRanker):
  """`EarlyJoinGCN` without configurations on the nodes: they join at the head.

  All rounds, `node_rounds`, run once a kernel.
  """

  def __init__(self, num_configs: int, num_ops: int, *, node_rounds: int = 3,
               **kwargs):
    super().__init__(num_configs, num_ops, join='late', convolution='gcn',
                     node_rounds=node_rounds, joint_rounds=0, **kwargs)


class EarlyJoinGAT(_TileRanker):
  """`_TileRanker` with attention; configurations join at the nodes.

      x_v <- x_v + N([p_v, c_v, x_v] W),  p_v = sum of a_vu V x_u
  with a_vu the attention of node v to its producer u, c_v over its consumers.
  Source: [GATv2]; formula and differences in `_GATRound`.
  """

  def __init__(self, num_configs: int, num_ops: int, **kwargs):
    super().__init__(num_configs, num_ops, join='early', convolution='gat',
                     **kwargs)


class LateJoinGAT(_TileRanker):
  """`EarlyJoinGAT` without configurations on the nodes: they join at the head.

  All rounds, `node_rounds`, run once a kernel.
  """

  def __init__(self, num_configs: int, num_ops: int, *, node_rounds: int = 3,
               **kwargs):
    super().__init__(num_configs, num_ops, join='late', convolution='gat',
                     node_rounds=node_rounds, joint_rounds=0, **kwargs)


class EarlyLateJoinSAGE(_TileRanker):
  """`_TileRanker` whose every round carries configurations, and its head too.

      x_v = N(h_v W + (1 + h_v U) * (g W') + b)
      x_v <- x_v + N([p_v, c_v, x_v] W)          3 times
      z = [pooled x, log scales of config features]
  The depth and width of the baseline's `EarlyJoinSAGE`, with the layers of
  `_TileRanker`; no round comes before the join.
  """

  def __init__(self, num_configs: int, num_ops: int, *, hidden_dim: int = 64,
               node_rounds: int = 0, joint_rounds: int = 3, **kwargs):
    super().__init__(
        num_configs, num_ops, join='both', hidden_dim=hidden_dim,
        node_rounds=node_rounds, joint_rounds=joint_rounds, **kwargs)


class WideSAGE(_SAGE):
  """A wide GraphSAGE with mean aggregation, and configurations on the nodes.

      y_v = x_v W_self + (mean of x_u over neighbours u of v) W_neighbor + b
      x_v <- dropout(act(y_v) / |act(y_v)|)
  and a head with dropout on [mean of x, max of x] over the nodes of a kernel.
  Consumers and producers are neighbours alike; the mean over none is 0.

  Source: [GraphSAGE], and the widest of the baseline's public variants as far
  as its results tell; the normalisation is the baseline's.
  """
  _early = True
  _pooling = ('mean', 'max')

  def __init__(self, num_configs: int, num_ops: int, num_gnns: int = 3,
               final_mlp_layers: int = 2, hidden_activation: str = 'leaky_relu',
               hidden_dim: int = 1024, op_embed_dim: int = 64,
               dropout: float = 0.1, objective: str = 'flags'):
    _check_positive('num_gnns', num_gnns)
    _check_positive('final_mlp_layers', final_mlp_layers, 0)
    super().__init__(
        num_configs, num_ops, op_embed_dim, hidden_activation,
        [hidden_dim] * num_gnns, [hidden_dim] * final_mlp_layers, dropout,
        objective)

  def _aggregated(self, graph, x):
    return graph.mean_of('both', x)


class _ConcatPoolSAGE(_SAGE):
  """GraphSAGE on producers, mean and max over the nodes side by side, an MLP.

      y_v = x_v W_self + (mean of x_u over producers u of v) W_neighbor + b
      x_v <- dropout(relu(y_v)),  after the last layer x_v <- y_v
      z = [mean of x, max of x over the nodes],  z <- dropout(relu(z W + b))
      score = z w + b
  with layers of width 128, 128 and 64, and a head of 64, 32 and 16.

  Source: a public PyTorch notebook on the tile task. It standardises the scores
  of a kernel; here the objective does, see `StandardizedMSE`. It feeds kernels
  one by one, with raw features and Kaiming initial weights; here features are
  scaled, kernels batched, and initial weights Keras's.

  Args:
    num_configs: configurations of each kernel in training.
    num_ops: number of opcodes.
    widths: of the graph layers.
    head_widths: of the layers between pooling and the score.
    op_embed_dim: width of an embedded opcode.
    hidden_activation: a function of `tf.nn`.
    dropout: part of the outputs of hidden layers that is dropped in training.
    objective: one of `_OBJECTIVES`.
  """
  _pooling = ('mean', 'max')

  def __init__(self, num_configs: int, num_ops: int, *,
               widths: Sequence[int] = (128, 128, 64),
               head_widths: Sequence[int] = (64, 32, 16),
               op_embed_dim: int = 128, hidden_activation: str = 'relu',
               dropout: float = 0.1, objective: str = 'standardized_mse'):
    if not widths:
      raise ValueError(f'widths must name at least one layer; got {widths!r}.')
    for argument, values in (('widths', widths), ('head_widths', head_widths)):
      for value in values:
        _check_positive(argument, value)
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_activation,
                     widths, head_widths, dropout, objective)

  def _aggregated(self, graph, x):
    return graph.mean_of('producers', x)

  def _finished(self, y, layer, training):
    if layer == len(self._widths) - 1:
      return y
    return _drop(self._activation_fn(y), self._dropout, training)


class LateJoinConcatPoolSAGE(_ConcatPoolSAGE):
  """`_ConcatPoolSAGE` on nodes; config features join at the head."""


class EarlyJoinConcatPoolSAGE(_ConcatPoolSAGE):
  """`_ConcatPoolSAGE` with what the notebook lists as its next steps.

  Config features on the nodes from the start, a list loss, and batches of
  kernels.
  """
  _early = True

  def __init__(self, num_configs: int, num_ops: int, *,
               objective: str = 'listmle_fastest_first', **kwargs):
    super().__init__(num_configs, num_ops, objective=objective, **kwargs)


class EnsembleRanker(_TrainedModel):
  """Several models that are trained together and score together.

      score = mean of the members' scores
      loss = mean over members of the objective on the member's own scores
  Averages need one scale. It does not come from a kernel's list, whose
  configurations would then change each other's scores, but from the objective:
  under a list loss (or a pairwise logistic one) scores are log odds, whoever
  gives them, so a member that is sure of a pair counts for more than one that
  is not. The average is their logarithmic opinion pool. As each member has a
  loss of its own, members do not lean on each other and err apart.

  Source: Heskes 1998, logarithmic opinion pools.

  Args:
    num_configs: configurations of each kernel in training.
    num_ops: number of opcodes.
    members: keyword arguments of each member, by the model's name; None means
      {'MyEarlyJoinSAGE': {}, 'EarlyJoinGAT': {}, 'EarlyJoinGCN': {}}. Losses
      and averaging of weights are the ensemble's own, so members have neither
      'objective' nor 'averaging'.
    objective: one of `_OBJECTIVES` but 'standardized_mse', which leaves the
      scale of scores open.
    averaging: momentum of `_EpochAverage`; 0 leaves the weights as they are.
  """

  def __init__(self, num_configs: int, num_ops: int, *,
               members: Optional[Mapping[str, Mapping[str, Any]]] = None,
               objective: str = 'listmle_fastest_first',
               averaging: float = 0.99):
    super().__init__(objective, averaging)
    _check_choice('objective', objective, [
        name for name in _OBJECTIVES if name != 'standardized_mse'])
    if members is None:
      members = {'MyEarlyJoinSAGE': {}, 'EarlyJoinGAT': {}, 'EarlyJoinGCN': {}}
    if not isinstance(members, Mapping) or not members:
      raise ValueError('members must map at least one model to its keyword '
                       f'arguments; got {members!r}.')
    self._members = [_member(name, num_configs, num_ops, kwargs)
                     for name, kwargs in members.items()]

  def call(self, graph: tfgnn.GraphTensor, training: bool = False,
           apart: bool = False) -> tf.Tensor:
    """Scores float32 [kernels, configs].

    `apart` gives those of each member, [members * kernels, configs].
    """
    scores = [member(graph, training=training) for member in self._members]
    return tf.concat(scores, 0) if apart else self._mean(scores)

  def forward(self, graph: tfgnn.GraphTensor, num_configs: int) -> tf.Tensor:
    """Like a member's: float32 [kernels, num_configs]; lower is faster."""
    return self._mean(
        [member.forward(graph, num_configs) for member in self._members])

  def _mean(self, scores: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n(scores) / len(scores)

  def _loss_step(self, data):
    graph, labels = data
    number = len(self._members)
    with tf.GradientTape() as tape:
      scores = self(graph, training=True, apart=True)
      loss = self.compute_loss(graph, tf.tile(labels, [number, 1]), scores)
    self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
    return self.compute_metrics(
        graph, labels, self._mean(tf.split(scores, number)), None)


def _member(name: str, num_configs: int, num_ops: int,
            kwargs: Mapping[str, Any]) -> _Ranker:
  """A member of an ensemble; a ValueError says what is wrong with it."""
  rankers = {key: value for key, value in globals().items()
             if isinstance(value, type) and issubclass(value, _Ranker)
             and not key.startswith('_')}
  _check_choice('members', name, list(rankers))
  if not isinstance(kwargs, Mapping):
    raise ValueError(f'members: {name} must have keyword arguments, such as '
                     f'{{"hidden_dim": 64}}; got {kwargs!r}.')
  for argument in ('objective', 'averaging'):
    if argument in kwargs:
      raise ValueError(f'members: {name} must not have {argument!r}; '
                       'give it to the ensemble.')
  try:
    return rankers[name](num_configs, num_ops, **kwargs)
  except (TypeError, ValueError) as error:
    raise ValueError(f'members: {name}: {error}') from error
