"""Models that rank the tile-size configurations of TPU kernels.

This one file replaces `tpu_graphs/baselines/tiles/models.py` of the tpu_graphs
baseline, so it imports only TensorFlow, TF-GNN, NumPy and the standard library.

What the training and prediction scripts rely on:
  * `Model(num_configs, num_ops, **kwargs)`: configurations per kernel in
    training, and the number of opcodes.
  * `model(graph, training)` and `model.forward(graph, num_configs)` take a
    scalar `GraphTensor` of several kernels and return float32
    `[kernels, configs]`; the lowest score is the fastest configuration.
  * The trainable variables are the whole state, in an order that does not
    depend on the data: the scripts copy them by position.

Chapters, each of which uses only names of earlier ones:
  host: what touches the environment, the script's flags and its files.
  shared with layout_models.py: checks, products, layers of the baseline.
  tensors: a batch of kernels as tensors, neighbour sums, dense layers.
  objectives: losses that rank.
  layers: LayerNorm, rounds of message passing.
  ranker: averaged weights, scoring in chunks, duplicates last.
  baseline: `EarlyJoinSAGE`, `LateJoinSAGE`, `EarlyJoinResGCN`,
    `LateJoinResGCN`, `MLP`, without copying config features onto nodes.
  tile ranker: `_TileRanker`, the base of the new models.
  statistics: undoes the scaling of features.
  geometry: loop nests, and what each configuration does in them.
  columns: what a network reads of tiles.
  analytic: `AnalyticTileModel`, time from counts; `MyEarlyJoinSAGE`, the model
    to train, which corrects that time.
  comparison: `EarlyJoinGCN`, `LateJoinGCN`, `EarlyJoinGAT`, `LateJoinGAT`,
    `LateJoinConcatPoolSAGE`, `EarlyJoinConcatPoolSAGE`; `EnsembleRanker`.

Remarks on shapes: `kernels` in the batch, `configs` of each kernel, `nodes` and
`edges` of the whole batch, `F` and `G` columns of node and config features.

Sources:
  [GCN] Kipf and Welling, ICLR 2017.  [GraphSAGE] Hamilton et al., NeurIPS 2017.
  [ListMLE] Xia et al., ICML 2008.  [FiLM] Perez et al., AAAI 2018.
  [Breslow] Breslow, discussion of Cox's regression models, 1972.
  [GAT] Velickovic et al., ICLR 2018.  [GATv2] Brody et al., ICLR 2022.
"""

import functools
import logging
import math
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn
from tensorflow_gnn.models import gat_v2

_log = logging.getLogger(__name__)


# ---------------------------------------------------------------- chapter: host


# On few cores the baseline's scripts give each operation one thread: sharing
# thousands of small operations among cores takes a fifth of a training step.
# TensorFlow reads the variable when it runs its first operation.
_CORES_WITHOUT_SHARING = {'tiles_train.py': 4, 'tiles_evaluate.py': 2,
                          'tiles_gen_predictions_csv.py': 2}
_SCRIPT = os.path.basename((getattr(sys, 'argv', None) or [''])[0])
if (os.cpu_count() or 1) <= _CORES_WITHOUT_SHARING.get(_SCRIPT, 0):
  os.environ.setdefault('TF_NUM_INTRAOP_THREADS', '1')

_TABLE_WIDTHS = {'node': 140, 'config': 24}  # Columns of the files.
_TILES = ('layout tiles', 'elements')  # What tile bounds can count.


def _flag_of_running_script(name: str) -> Any:
  """The value of one of its flags; None without such a script or flag."""
  absl_flags = sys.modules.get('absl.flags')  # There, if a script has flags.
  flags = absl_flags.FLAGS if absl_flags else None
  is_there = flags and flags.is_parsed() and name in flags
  return flags[name].value if is_there else None


def _of_running_script(num_configs: int) -> Optional[Mapping[str, Any]]:
  """Statistics, for `_Statistics`, of the files that the running script's flags
  name; None without such flags, or without files with the usual columns."""
  data_root = _flag_of_running_script('data_root')
  if data_root is None:
    return None
  folder = os.path.join(os.path.expanduser(data_root), 'train')
  try:
    return _of_files(folder, num_configs, _flag_of_running_script('toy_data'))
  except Exception as error:  # Damaged files raise many kinds.
    _log.warning('No feature_stats: the kernels under %s cannot be read (%s).',
                 folder, error)
    return None


@functools.cache
def _of_files(folder: str, num_configs: int,
              toy_data: bool) -> Optional[Mapping[str, Any]]:
  files = tf.io.gfile.glob(os.path.join(folder, '*.npz'))
  files = files[:100] if toy_data else files  # As the baseline's reader does.
  _log.info('Reading feature_stats from %d kernels under %s.', len(files),
            folder)
  # Not in threads: before Python 3.11.8 NumPy may fail to read headers there.
  kernels = [_of_file(path) for path in files]
  # The trainer scales by these.
  enough = [kernel for kernel in kernels if kernel['configs'] >= num_configs]
  if not enough or any(kernel[table][0].shape != (width,) for kernel in kernels
                       for table, width in _TABLE_WIDTHS.items()):
    return None
  stored, of_all = _over_kernels(enough), _over_kernels(kernels)
  if all(stored[table]['used'] == of_all[table]['used']
         for table in _TABLE_WIDTHS):
    stored['all_kernels'] = of_all
  tiles, why = what_tiles_count(kernel['vote'] for kernel in kernels)
  # Scripts show no messages of `logging`.
  print(f'Tile bounds count {tiles}: {why}.', file=sys.stderr)
  return {**stored, 'tiles': tiles}


def _over_kernels(kernels: Sequence[Mapping[str, Any]]) -> dict:
  stored = {}
  for table in _TABLE_WIDTHS:
    lows, highs = zip(*(kernel[table] for kernel in kernels))
    low, high = np.min(lows, 0), np.max(highs, 0)
    stored[table] = {'minimum': low.tolist(), 'maximum': high.tolist(),
                     'used': (low != high).tolist()}
  return stored


def _of_file(path: str) -> Mapping[str, Any]:
  """Number of configurations, minima and maxima of a kernel's columns."""
  with tf.io.gfile.GFile(path, 'rb') as file, np.load(file) as arrays:
    tables = {name: arrays[f'{name}_feat'].astype(np.float32, copy=False)
              for name in _TABLE_WIDTHS}
  bounds = {name: (table.min(0, initial=np.inf), table.max(0, initial=-np.inf))
            for name, table in tables.items()}
  return {'configs': len(tables['config']), **bounds,
          'vote': vote_of_tiles(tables['node'], bounds['config'][1])}


def vote_of_tiles(node_feat: np.ndarray, largest: np.ndarray) -> int:
  """What the tile bounds of a kernel count: 1 elements, -1 layout tiles.

  The reading under which fewer bounds exceed their tensor, the best of those of
  the bounds' rank; else under which more bounds are whole extents; else 0.

  Args:
    node_feat: float32 [nodes, 140], in their own units.
    largest: float32 [24], of each config column the largest value.
  """
  bounds = largest[8:14]
  rank = int(np.sum(bounds > 0)) * (node_feat.shape[1] == 140)
  of_rank = np.sum(node_feat[:, 21:27] > 0, 1) == rank
  if not rank or not of_rank.any():
    return 0
  bounds, sizes = bounds[:rank], node_feat[of_rank, 21:21 + rank]
  order = node_feat[of_rank, 134:134 + rank].astype(int)[:, ::-1]
  is_order = np.all(np.sort(order) == np.arange(rank), 1, keepdims=True)
  # Physical dimensions, most major first.
  physical = np.take_along_axis(
      sizes, np.where(is_order, order, np.arange(rank)), 1)
  unit = np.ones_like(physical)
  unit[:, -1] = 128 if rank > 1 else 1024
  if rank > 1:
    unit[:, -2] = 2 ** np.ceil(np.log2(np.clip(physical[:, -2], 1, 8)))
  in_tiles, in_elements = (
      min(zip(np.sum(bounds > extents, 1),
              -np.sum((bounds == extents) & (extents > 1), 1)))
      for extents in (np.ceil(physical / unit), sizes))
  return int(in_tiles > in_elements) - int(in_tiles < in_elements)


def what_tiles_count(votes: Iterable[int]) -> tuple:
  """'elements' or 'layout tiles', and why, from the kernels' votes."""
  votes = list(votes)
  elements, tiles = votes.count(1), votes.count(-1)
  return _TILES[elements > tiles], (
      f'of {len(votes)} kernels, {elements} have bounds that suit their '
      f'tensors better in elements, {tiles} in layout tiles')


# ------------------------------------ chapter: shared with layout_models.py
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
  """What a model may look at: a batch of kernels without labels."""
  opcode: tf.Tensor        # int32 [nodes]
  node_feats: tf.Tensor    # float32 [nodes, F]
  node_counts: tf.Tensor   # int32 [kernels], nodes of each kernel
  consumer: tf.Tensor      # int32 [edges], node that reads
  producer: tf.Tensor      # int32 [edges], node that is read
  config_feats: tf.Tensor  # float32 [kernels, configs, G]


def _inputs_of(graph: tfgnn.GraphTensor) -> _Inputs:
  ops, configs = graph.node_sets['op'], graph.node_sets['config']
  feed = graph.edge_sets['feed'].adjacency
  config_feats = configs['feats']  # [kernels * configs, G]
  return _Inputs(
      opcode=tf.cast(ops['op'], tf.int32), node_feats=ops['feats'],
      node_counts=tf.cast(ops.sizes, tf.int32),
      consumer=tf.cast(feed.source, tf.int32),
      producer=tf.cast(feed.target, tf.int32),
      config_feats=tf.reshape(config_feats, [
          tf.size(configs.sizes), -1, config_feats.shape[-1]]))


def _traced(function: Callable[..., Any], *specs: Any) -> Callable[..., Any]:
  """The function as one trace, which is made when it is called first."""
  # A partial, so that TensorFlow counts the traces of each model separately.
  trace = functools.cache(tf.function(
      functools.partial(function), autograph=False, input_signature=specs
  ).get_concrete_function)  # While saving, TensorFlow would make another.
  # A function, so that Keras does not save the trace.
  return lambda *arguments: trace()(*arguments)


class _Graph:
  """Neighbour sums and pooling over a batch of kernels; `training` is what
  `is_training()` says, whose default is for graphs that a test makes."""

  def __init__(self, inputs: _Inputs,
               is_training: Callable[[], bool] = lambda: False):
    self._is_training = is_training
    self.nodes = tf.size(inputs.opcode)
    self.opcode, self.node_counts = inputs.opcode, inputs.node_counts
    self.kernels = tf.size(self.node_counts)
    # `tf.repeat` makes 28 operations. int32 [nodes]
    self.kernel_of = tf.raw_ops.UpperBound(
        sorted_inputs=tf.cumsum(self.node_counts)[tf.newaxis],
        values=tf.range(self.nodes)[tf.newaxis])[0]
    self.edges = {  # Sum over: (sending nodes, receiving nodes), int32 [edges]
        'consumers': (inputs.consumer, inputs.producer),
        'producers': (inputs.producer, inputs.consumer),
        'both': (tf.concat([inputs.consumer, inputs.producer], 0),
                 tf.concat([inputs.producer, inputs.consumer], 0))}
    shape = tf.cast(tf.stack([self.nodes, self.nodes]), tf.int64)
    # [nodes, nodes]: the number of edges from a column's to a row's node, the
    # same in rows that add up to 1 (to 0 without any edge), and the rows' sums,
    # float32 [nodes].
    self._adjacency, self._mean_adjacency, self.degree = {}, {}, {}
    for of, (senders, receivers) in self.edges.items():
      places = tf.cast(tf.stack([receivers, senders], -1), tf.int64)
      ones = tf.ones_like(receivers, tf.float32)
      self._adjacency[of] = tf.SparseTensor(places, ones, shape)
      self.degree[of] = tf.math.unsorted_segment_sum(
          ones, receivers, self.nodes)
      self._mean_adjacency[of] = tf.SparseTensor(
          places, 1 / tf.gather(self.degree[of], receivers), shape)

  @property
  def training(self) -> bool:
    """Whether this is a training step, as `tf.keras.layers.Dropout` asks."""
    return self._is_training()

  def _product(self, matrix: tf.SparseTensor, x: tf.Tensor) -> tf.Tensor:
    rows = tf.reshape(x, tf.stack([self.nodes, -1]))
    y = tf.reshape(tf.sparse.sparse_dense_matmul(matrix, rows), tf.shape(x))
    y.set_shape(x.shape)
    return y

  def sum_of(self, of: str, x: tf.Tensor) -> tf.Tensor:
    """Sums `x` over the 'consumers', the 'producers' or 'both' of each node, 0
    without any: float32 [nodes, ...] -> same."""
    if x.shape.rank == 1:  # Half the operations.
      senders, receivers = self.edges[of]
      return tf.math.unsorted_segment_sum(
          tf.gather(x, senders), receivers, self.nodes)
    return self._product(self._adjacency[of], x)

  def mean_of(self, of: str, x: tf.Tensor) -> tf.Tensor:
    """Like `sum_of`, divided by the number of edges, if any."""
    return self._product(self._mean_adjacency[of], x)

  def first_and_last(self, of: str) -> tuple:
    """int32 [nodes] twice: each node's first and last neighbour, or itself."""
    senders, receivers = self.edges[of]
    itself = tf.range(self.nodes)
    first = tf.math.unsorted_segment_min(senders, receivers, self.nodes)
    last = tf.math.unsorted_segment_max(senders, receivers, self.nodes)
    return (tf.where(first < self.nodes, first, itself),
            tf.where(last < 0, itself, last))

  def with_states(self, x: tf.Tensor) -> tfgnn.GraphTensor:
    """The nodes with states `x` [nodes, ..., width] and the edges from producer
    to consumer. TF-GNN takes states of rank 2, so node v of configuration c
    becomes node v * configs + c."""
    states = tf.reshape(x, [-1, x.shape[-1]])
    copies = tf.shape(states)[0] // self.nodes
    consumer, producer = (
        tf.reshape(nodes[:, tf.newaxis] * copies + tf.range(copies), [-1])
        for nodes in self.edges['consumers'])
    return tfgnn.homogeneous(producer, consumer, node_features=states)

  def on_nodes(self, x: tf.Tensor) -> tf.Tensor:
    """Broadcasts per-kernel values to nodes."""
    return tf.gather(x, self.kernel_of)

  def pool(self, reduction: str, x: tf.Tensor) -> tf.Tensor:
    """Pools the nodes of each kernel: [nodes, ...] -> [kernels, ...]."""
    if reduction == 'mean':  # Shares its sum with the pooling 'sum'.
      counts = tf.cast(_per_row(self.node_counts, x), tf.float32)
      return tf.math.divide_no_nan(self.pool('sum', x), counts)
    if reduction == 'sum' and x.shape.rank == 2:  # Adds in the nodes' order,
      return tf.math.unsorted_segment_sum(        # and so rounds, like TF-GNN.
          x, self.kernel_of, self.kernels)
    return _REDUCTIONS[reduction](x, self.kernel_of)

  def pools(self, reductions: Sequence[str], x: tf.Tensor) -> tf.Tensor:
    """Poolings side by side: [nodes, ..., w] -> [kernels, ..., n * w]."""
    return tf.concat([self.pool(reduction, x) for reduction in reductions], -1)


_REDUCTIONS = {  # 'mean' is made of the sum; see `_Graph.pool`.
    'sum': tf.math.segment_sum, 'mean': None,
    'max': tf.math.segment_max, 'min': tf.math.segment_min}


def _per_row(values: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """[rows] -> [rows, 1, ...], to go with an `x` [rows, ...]."""
  return tf.reshape(values, [-1] + [1] * (x.shape.rank - 1))


def _dense(layer: tf.keras.layers.Dense, x: tf.Tensor,
           apart: bool = False) -> tf.Tensor:
  """`layer(x)` for any rank, as one matrix product. With `apart` it rounds like
  the baseline's, op by op: without oneDNN, TensorFlow joins a product and its
  bias, unless a control dependency is between them."""
  if not apart:
    return _matmul(x, layer.kernel, layer.bias)
  y = _matmul(x, layer.kernel)
  with tf.control_dependencies([y]):
    return tf.nn.bias_add(y, layer.bias)


def _as_float(condition: tf.Tensor) -> tf.Tensor:
  """1 where it holds, else 0."""
  return tf.cast(condition, tf.float32)


# ---------------------------------------------------------- chapter: objectives
#
# Labels are relative runtimes, float32 [kernels, configs]; scores have the same
# shape, the lowest meaning the fastest. Each loss is the mean over kernels.


# Lets a saved model find the class of its loss again.
_registered = tf.keras.saving.register_keras_serializable('tpu_graphs_ext')


@_registered
class ListMLEFastestFirst(_Objective):
  """Negative log likelihood of drawing a list in order, the fastest first.

      sum over i of  log(sum over j of exp -s_j) + s_i,
      j over all that are at least as slow as i
  Items of one runtime share one denominator [Breslow], so their order in memory
  does not matter. Source: [ListMLE], Plackett-Luce, with scores and labels
  negated: TensorFlow Ranking's draws the slowest first.
  """

  def call(self, y_true, y_pred):
    remains = y_true[:, tf.newaxis] >= y_true[:, :, tf.newaxis]  # [k, i, j]
    utilities = tf.where(remains, -y_pred[:, tf.newaxis], y_pred.dtype.min)
    return tf.reduce_sum(tf.reduce_logsumexp(utilities, -1) + y_pred, -1)


@_registered
class ListMLEAndSlowdown(ListMLEFastestFirst):
  """`ListMLEFastestFirst`, plus ten times the expected slowdown of one draw.

      10 (sum over i of softmax(-s)_i min(t_i / min over j of t_j - 1, 2))
  """

  def call(self, y_true, y_pred):
    fastest = tf.maximum(tf.reduce_min(y_true, -1, keepdims=True), 1e-9)
    slowdown = tf.minimum(y_true / fastest - 1, 2.0)
    expected = tf.reduce_sum(tf.nn.softmax(-y_pred) * slowdown, -1)
    return super().call(y_true, y_pred) + 10 * expected


@_registered
class StandardizedMSE(_Objective):
  """Mean squared error, each list standardised.

  Labels are scaled to [0, 1] over a kernel's list, scores to mean 0 and
  deviation 1: here, since a score must not depend on other configurations.
  """

  def call(self, y_true, y_pred):
    low = tf.reduce_min(y_true, -1, keepdims=True)
    high = tf.reduce_max(y_true, -1, keepdims=True)
    target = tf.math.divide_no_nan(y_true - low, high - low)
    y_pred -= tf.reduce_mean(y_pred, -1, keepdims=True)
    variance = tf.reduce_mean(y_pred ** 2, -1, keepdims=True)
    return tf.reduce_mean(
        (y_pred * tf.math.rsqrt(variance + 1e-6) - target) ** 2, -1)


@_registered
class LogMSE(_Objective):
  """Mean squared error of scores as log runtimes, up to a constant."""

  def call(self, y_true, y_pred):
    error = y_pred - tf.math.log(tf.maximum(y_true, 1e-9))
    return tf.math.reduce_variance(error, -1)


# None keeps the loss that the training script compiles the model with.
_OBJECTIVES = {
    'flags': None, 'listmle_fastest_first': ListMLEFastestFirst,
    'listmle_and_slowdown': ListMLEAndSlowdown,
    'standardized_mse': StandardizedMSE, 'log_mse': LogMSE}


# -------------------------------------------------------------- chapter: layers


class _LayerNorm(tf.keras.layers.Layer):
  """Zero mean and unit deviation over the last axis, then scale and shift.

  On CPU a third of the time of `tf.keras.layers.LayerNormalization`.
  Source: Ba et al. 2016. Shapes: float32 [..., width] -> same.
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
  """N(x W + b), with N the activation of LayerNorm."""

  def __init__(self, width: int, activation: str):
    super().__init__()
    self.dense = tf.keras.layers.Dense(width)
    self.norm = _LayerNorm()
    self.activate = _activation(activation)

  def build(self, input_shape):
    self.dense.build(input_shape)
    self.norm.build([None, self.dense.units])
    super().build(input_shape)

  def call(self, x):
    return self.finish(_matmul(x, self.dense.kernel, self.dense.bias))

  def finish(self, linear: tf.Tensor) -> tf.Tensor:
    """From `x W + b` to the layer's output."""
    return self.activate(self.norm(linear))


class _SAGERound(_DenseNorm):
  """One round of mean message passing along both edge directions.

      x_v + N([p_v, c_v, x_v] W)
  with p_v and c_v the means over the producers and the consumers of node v,
  zeros without any. Source: [GraphSAGE]; ours are the second direction and the
  residual link.
  """

  def build(self, input_shape):
    super().build([None, 3 * input_shape[-1]])

  def update(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    """Shapes: x float32 [nodes, ..., width] -> same."""
    return x + self(tf.concat([*self.messages(graph, x), x], -1))

  def messages(self, graph: _Graph, x: tf.Tensor) -> Sequence[tf.Tensor]:
    """p and c, of the shape of x."""
    return graph.mean_of('producers', x), graph.mean_of('consumers', x)


class _GCNRound(_DenseNorm):
  """One graph convolution.

      x + N(D^-1/2 A D^-1/2 x W)
  A counts the edges between two nodes in either direction, plus 1 on the
  diagonal; D holds the row sums of A. Source: [GCN]; ours are LayerNorm, the
  bias in N and the residual link.
  """

  def update(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    scale = _per_row(tf.math.rsqrt(graph.degree['both'] + 1), x)  # D^-1/2
    y = scale * _matmul(x, self.dense.kernel)
    return x + self.finish(
        scale * (graph.sum_of('both', y) + y) + self.dense.bias)


class _GATRound(_SAGERound):
  """`_SAGERound` with attention in place of the means.

      p_v = sum of a_vu V x_u over the producers u of v
      a_vu = softmax over u of  k . leaky_relu(Q x_v + V x_u)
  for each head, heads side by side; c_v likewise over the consumers, with
  weights of its own.
  Source: [GATv2], TF-GNN's layer; [GAT] attends in one direction and to itself.
  """
  _HEADS = 4

  def __init__(self, width: int, activation: str):
    super().__init__(width, activation)
    if width % self._HEADS:
      raise ValueError('hidden_dim and joint_dim must be multiples of '
                       f'{self._HEADS}, the attention heads; got {width}.')
    self.attend_producers, self.attend_consumers = (
        gat_v2.GATv2Conv(
            num_heads=self._HEADS, per_head_channels=width // self._HEADS,
            receiver_tag=receiver, activation='linear')
        for receiver in (tfgnn.TARGET, tfgnn.SOURCE))

  def build(self, input_shape):
    super().build(input_shape)
    loop = tfgnn.homogeneous(  # Any graph: layers of TF-GNN build when called.
        tf.constant([0]), tf.constant([0]),
        node_features=tf.zeros([1, input_shape[-1]]))
    for attend in (self.attend_producers, self.attend_consumers):
      attend(loop, edge_set_name='edges')

  def messages(self, graph, x):
    states = graph.with_states(x)
    return [tf.reshape(attend(states, edge_set_name='edges'), tf.shape(x))
            for attend in (self.attend_producers, self.attend_consumers)]


_LOG_SCALES = (1e2, 1e4, 1e6)


def _log_scales(x: tf.Tensor) -> tf.Tensor:
  """Columns on logarithmic scales.

      sign(x) log(1 + s |x|) / log(1 + s)   for each s of `_LOG_SCALES`
  Sizes span many orders of magnitude: a large s resolves small values, a small
  s large ones. Shapes: float32 [..., F] -> [..., 3 F].
  """
  return tf.concat([tf.sign(x) * tf.math.log1p(scale * tf.abs(x))
                    / math.log1p(scale) for scale in _LOG_SCALES], -1)


# -------------------------------------------------------------- chapter: ranker


class _RunningAverage(tf.keras.callbacks.Callback):
  """Gives the model the running average of its weights between epochs.

      a <- d a + (1 - d) w   after each step,  d = min(decay, n / (9 + n))
  with n steps done before. The model has a from validation on, and w again in
  the next epoch; weights changed meanwhile start a new average. It does what a
  falling learning rate would (Polyak and Juditsky 1992).
  """

  def __init__(self, decay: float, weights: Sequence[tf.Variable]):
    super().__init__()
    self._decay, self._weights = decay, list(weights)
    # n; while the model has a, a checksum of a, else -1; a of each weight, or w
    # while the model has a.
    self.state = [tf.Variable(value, trainable=False) for value in (
        0.0, tf.constant(-1, tf.int64), *weights)]

  def update(self) -> None:
    """Adds the weights after a step; part of the compiled training step."""
    steps, _, *averages = self.state
    decay = tf.minimum(self._decay, steps / (9 + steps))
    for average, weight in zip(averages, self._weights):
      average.assign_sub((1 - decay) * (average - weight))
    steps.assign_add(1.0)

  def on_epoch_begin(self, epoch, logs=None):
    steps, checksum = self.state[:2]
    if checksum.numpy() == self._checksum():
      self._exchange()
    else:
      steps.assign(0)
    checksum.assign(-1)

  def on_epoch_end(self, epoch, logs=None):
    steps, checksum = self.state[:2]
    if steps > 0 and checksum < 0:
      self._exchange()
      checksum.assign(self._checksum())

  def on_test_begin(self, logs=None):  # Validation comes before the end.
    self.on_epoch_end(0)

  def _exchange(self) -> None:
    for other, weight in zip(self.state[2:], self._weights):
      value = tf.identity(weight)
      weight.assign(other)
      other.assign(value)

  def _checksum(self) -> int:
    return zlib.crc32(b''.join(
        weight.numpy().tobytes() for weight in self._weights))


def _use_one_operation(optimizer: tf.keras.optimizers.Optimizer) -> None:
  """Uses TensorFlow's fused Adam operation instead of Keras's 30 per variable.

  On the sample data on two cores that saves 7 % of a step of `MyEarlyJoinSAGE`,
  of `EarlyJoinSAGE` 1 %. Sparse gradients stay with Keras.
  """
  if type(optimizer) is not tf.keras.optimizers.Adam or optimizer.amsgrad:
    return
  by_keras = optimizer.update_step

  def update_step(gradient, variable):
    if isinstance(gradient, tf.IndexedSlices):
      return by_keras(gradient, variable)
    step = tf.cast(optimizer.iterations + 1, tf.float32)
    place = optimizer._index_dict[optimizer._var_key(variable)]
    return tf.raw_ops.ResourceApplyAdam(
        var=variable.handle, m=optimizer._momentums[place].handle,
        v=optimizer._velocities[place].handle, grad=gradient,
        beta1_power=tf.pow(float(optimizer.beta_1), step),
        beta2_power=tf.pow(float(optimizer.beta_2), step),
        lr=tf.cast(optimizer.learning_rate, tf.float32),
        beta1=optimizer.beta_1, beta2=optimizer.beta_2,
        epsilon=optimizer.epsilon)

  optimizer.update_step = update_step


class _TrainedModel(tf.keras.Model):
  """A Keras model that may bring its own loss and average its weights.

  Subclasses have `_members`, the rankers that are trained together.

  Args:
    objective: one of `_OBJECTIVES`; 'flags' keeps the training script's loss.
    averaging: decay of `_RunningAverage`; 0 leaves the weights as they are.
  """

  def __init__(self, objective: str = 'flags', averaging: float = 0.0):
    super().__init__()
    _check_choice('objective', objective, list(_OBJECTIVES))
    if not isinstance(averaging, (int, float)) or not 0 <= averaging < 1:
      raise ValueError('averaging must be a number of at least 0 and below 1; '
                       f'got {averaging!r}.')
    self._objective, self._averaging = objective, averaging
    self._average = None  # Needs the weights.

  def compile(self, optimizer='rmsprop', loss=None, **kwargs):
    """Like Keras's; `objective`, if set, overrides `loss`."""
    own_loss = _OBJECTIVES[self._objective]
    super().compile(
        optimizer=optimizer, loss=own_loss() if own_loss else loss, **kwargs)
    _use_one_operation(self.optimizer)

  def fit(self, x, *args, callbacks=None, **kwargs):
    """Like Keras's, on a dataset of (graph, labels)."""
    # A step that makes variables is traced a second time.
    node_sets = x.element_spec[0].node_sets_spec
    self._create_for(*(node_sets[name].features_spec['feats'].shape[-1]
                       for name in ('op', 'config')))
    self.optimizer.build(self.trainable_variables)
    self.training_state()
    if statistics := getattr(self._members[0], '_statistics', None):
      statistics.require_fit(kwargs.get('validation_data') or x)
    average = [self._average] if self._average else []
    return super().fit(
        x, *args, callbacks=average + [*(callbacks or [])], **kwargs)

  def training_state(self) -> list:
    """Variables that resuming needs beside the weights, which must exist."""
    if not self._averaging:
      return []
    self._average = self._average or _RunningAverage(
        self._averaging, self.trainable_variables)
    return self._average.state

  @tf.autograph.experimental.do_not_convert
  def train_step(self, data):
    """One step on a batch (graph, labels), by the mean of the members' losses;
    returns metrics."""
    graph, labels = data
    number = len(self._members)
    with tf.GradientTape() as tape:
      scores, own_losses = zip(*(member.scores_and_own_loss(graph, labels)
                                 for member in self._members))
      loss = self.compiled_loss(
          tf.tile(labels, [number, 1]), tf.concat(scores, 0),
          regularization_losses=[part / number for part in self.losses])
      loss += tf.add_n(own_losses) / number
    self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
    if self._average:
      self._average.update()
    mean_scores = tf.add_n(scores) / number
    return self.compute_metrics(graph, labels, mean_scores, None)


def _with_repeats_last(scores: tf.Tensor,
                       config_feats: tf.Tensor) -> tf.Tensor:
  """Ranks duplicate configurations after all others.

  Trying a tile twice teaches nothing. The k-th duplicate, in the order of the
  first copies' scores, gets
      score = worst + k size / 1024
  from the worst score and the largest magnitude, at least 1, of a first copy.
  If all configurations are equal, nothing changes.
  Shapes: scores float32 [kernels, configs], config_feats [kernels, configs, G].
  """
  number = tf.range(tf.size(scores))  # Configurations through the batch.
  rows = tf.concat([
      tf.cast(number // tf.shape(scores)[1], tf.float32)[:, tf.newaxis],
      tf.reshape(config_feats, [-1, config_feats.shape[-1]])], 1)
  with tf.device('CPU:0'):  # TensorFlow has it for rows nowhere else.
    tile = tf.raw_ops.UniqueV2(x=rows, axis=[0]).idx
  first = tf.gather(tf.math.unsorted_segment_min(
      number, tile, tf.size(number)), tile)
  copies = tf.reshape(number != first, tf.shape(scores))
  copies &= tf.math.count_nonzero(~copies, -1, keepdims=True) > 1
  of_first = tf.reshape(
      tf.gather(tf.reshape(scores, [-1]), first), tf.shape(scores))
  worst = tf.reduce_max(of_first, -1, keepdims=True)
  size = tf.maximum(tf.reduce_max(tf.abs(of_first), -1, keepdims=True), 1.0)
  order = tf.argsort(tf.where(copies, of_first, np.inf))  # Which is stable.
  k = tf.cast(tf.argsort(order) + 1, tf.float32)
  last = tf.minimum(worst + k * (size / 1024), tf.float32.max)
  return tf.where(copies, last, scores)


class _Ranker(_TrainedModel):
  """Scores the configurations of kernels, in two stages.

  Subclasses define
    _build_layers(node_width, config_width): builds all layers, in the order of
      their attributes;
    _encode(graph, embedded, node_feats): any structure of tensors, from float32
      [nodes, op_embed_dim] and [nodes, F];
    _score(graph, encoded, config_feats): float32 [kernels, configs], from that
      structure and config_feats [kernels, configs, G].
  Both may ask `graph.training`, as dropout has to.
  `forward` runs `_score` on chunks of configurations, so that its memory does
  not grow with their number; a score depends on its configuration alone.
  """
  _CHUNK_FLOATS = 3 * 2 ** 17  # Of [nodes, chunk, width]; fits in a cache.
  # One fills the gaps that the other leaves: on two cores 3 % of the time of
  # `MyEarlyJoinSAGE` and `EarlyJoinSAGE`, the least of passes over 6 kernels.
  _CHUNKS_AT_ONCE = 2
  _early = False  # Whether configurations join the nodes, or later on.
  _repeats_last = True  # Whether `forward` puts them there.
  _members = property(lambda self: [self])

  def __init__(self, num_configs: int, num_ops: int,
               op_embed_dim: Optional[int], width: int,
               objective: str = 'flags', averaging: float = 0.0):
    super().__init__(objective, averaging)
    embeds = op_embed_dim is not None  # Else `_encode` gets none.
    _check_integers(
        1, num_configs=num_configs, num_ops=num_ops, hidden_dim=width,
        op_embed_dim=op_embed_dim if embeds else 1)
    self._width = width
    self._embed_width = op_embed_dim or 0
    self._state_width = width  # Of the tensors [nodes, configs, width].
    self._op_embedding = _OpEmbedding(num_ops, op_embed_dim) if embeds else None
    self._input_widths = None  # (F, G), known from the first graph on.
    self._asks_training = False  # Whether `graph.training` was ever read.

  @tf.autograph.experimental.do_not_convert
  def call(self, graph: tfgnn.GraphTensor, training: bool = False) -> tf.Tensor:
    """Scores all configurations at once: float32 [kernels, configs]."""
    inputs, embedded = self._inputs_for(graph), self._embedded(graph)
    if tf.inside_function():
      # Keras traces a call three times to save a model, 4 s without this trace.
      scores = self._at_once(inputs, embedded)
      if not (self._asks_training and training):
        return scores
    return self._score_at_once(inputs, embedded, training)

  def _score_at_once(self, inputs: _Inputs, embedded: tf.Tensor,
                     training: bool = False) -> tf.Tensor:
    return self._score(*self._encoded(inputs, embedded, training))

  def _embedded(self, graph: tfgnn.GraphTensor) -> tf.Tensor:
    """From Keras's layer, which adds its loss: [nodes, op_embed_dim]."""
    if self._op_embedding:
      return self._op_embedding(graph).node_sets['op']['op_e']
    return graph.node_sets['op']['feats'][:, :0]

  def _encoded(self, inputs: _Inputs, embedded: tf.Tensor,
               training: bool = False) -> tuple:
    """The arguments of `_score`."""
    def is_training():
      self._asks_training = True
      return bool(training)

    graph = _Graph(inputs, is_training)
    encoded = self._encode(graph, embedded, inputs.node_feats)
    return graph, encoded, inputs.config_feats

  def _inputs_for(self, graph: tfgnn.GraphTensor) -> _Inputs:
    """The graph's tensors; creates the variables on the first call."""
    inputs = _inputs_of(graph)
    self._create_for(inputs.node_feats.shape[-1], inputs.config_feats.shape[-1])
    return inputs

  def scores_and_own_loss(self, graph: tfgnn.GraphTensor,
                          labels: tf.Tensor) -> tuple:
    """Scores in training, and a loss to add to the objective's."""
    scores = self._score_at_once(
        self._inputs_for(graph), self._embedded(graph), training=True)
    return scores, tf.constant(0.0)

  def forward(self, graph: tfgnn.GraphTensor, num_configs: int) -> tf.Tensor:
    """Scores in bounded memory, float32 [kernels, num_configs]; low is fast."""
    inputs = self._inputs_for(graph)  # Creates `_rank`.
    return self._rank(*inputs)

  def _create_for(self, node_width, config_width):
    widths = (node_width, config_width)
    if self._input_widths is None:
      with tf.init_scope():
        if self._op_embedding:
          self._op_embedding.embedding_layer.build([None])
        self._build_layers(*widths)
      self._input_widths = widths
      ints = tf.TensorSpec([None], tf.int32)  # One trace serves every batch.
      specs = _Inputs(ints, tf.TensorSpec([None, node_width]), ints, ints, ints,
                      tf.TensorSpec([None, None, config_width]))
      self._rank = _traced(self._rank_in_chunks, *specs)
      self._at_once = _traced(
          lambda inputs, embedded: self._score_at_once(inputs, embedded),
          specs, tf.TensorSpec([None, self._embed_width]))
    elif widths != self._input_widths:
      raise ValueError(
          'the graph has {} node and {} config columns, the model was built '
          'for {} and {}; was it normalised with other data?'.format(
              *widths, *self._input_widths))

  def _rank_in_chunks(self, *tensors: tf.Tensor) -> tf.Tensor:
    """`_encode` once, `_score` on chunks: float32 [kernels, configs]."""
    inputs = _Inputs(*tensors)
    embedded = self._op_embedding and tf.gather(
        self._op_embedding.embedding_layer.embeddings, inputs.opcode)
    graph, encoded, config_feats = self._encoded(inputs, embedded)
    chunks, chunk = self._chunks(graph, config_feats)

    def score_chunk(i, scores):
      part = config_feats[:, i * chunk:(i + 1) * chunk]
      part_scores = self._score(graph, encoded, part)
      return i + 1, scores.write(i, tf.transpose(part_scores))

    _, scores = tf.while_loop(
        lambda i, unused_scores: i < chunks, score_chunk,
        (0, tf.TensorArray(tf.float32, chunks, infer_shape=False,
                           element_shape=[None, None])),
        parallel_iterations=self._CHUNKS_AT_ONCE)
    scores = tf.transpose(scores.concat())
    return (_with_repeats_last(scores, config_feats)
            if self._repeats_last else scores)

  def _chunks(self, graph: _Graph, config_feats: tf.Tensor) -> tuple:
    """int32 []: the number of chunks, and configurations in each."""
    configs = tf.shape(config_feats)[1]
    states = graph.nodes if self._early else 1  # Of a configuration.
    chunk = tf.clip_by_value(
        self._CHUNK_FLOATS // (states * self._state_width), 16, 4096)
    chunks = (configs + chunk - 1) // chunk
    # Of equal size, and a multiple of the number that run at once.
    chunks += tf.cast(chunks > 1, tf.int32) * (chunks % self._CHUNKS_AT_ONCE)
    chunk = tf.maximum((configs + chunks - 1) // chunks, 1)
    return (configs + chunk - 1) // chunk, chunk


# ------------------------------------------------------------ chapter: baseline


class _BaselineRanker(_Ranker):
  """Base of the baseline's models.

  An early join gives every node the columns [embedded opcode, config features,
  node features] before the first layer; a late join appends the config features
  to the pooled node states. Subclasses define `_postnet`, the head; `_first`,
  the first linear layer on the node columns; `_with_configs`, which adds the
  config columns to it; and `_pooled`, all up to the head.
  """
  _repeats_last = False

  def _joined_width(self, node_width: int, config_width: int) -> int:
    """Columns that the first layer on nodes reads."""
    width = self._embed_width + node_width
    return width + config_width if self._early else width

  def _build_head(self, pooled_width: int, config_width: int) -> None:
    width = pooled_width if self._early else pooled_width + config_width
    self._postnet.build([None, None, width])

  def _rows(self, weights: tf.Tensor):
    """Splits a first layer's weights into (node rows, config rows)."""
    embed, config, feats = tf.split(
        weights, [self._embed_width, self._input_widths[1], -1], axis=0)
    return tf.concat([embed, feats], 0), config

  def _encode(self, graph, embedded, node_feats):
    """The first layer, [nodes, width], or of a late join the pooled states."""
    y = self._first(graph, tf.concat([embedded, node_feats], -1))
    return y if self._early else self._pooled(graph, y)

  def _score(self, graph, encoded, config_feats):
    if self._early:
      pooled = self._pooled(
          graph, self._with_configs(graph, encoded, config_feats))
    else:  # Joined first, as the baseline's sums are rounded.
      once_a_config = tf.zeros_like(config_feats[..., :1])
      pooled = tf.concat(
          [encoded[:, tf.newaxis] + once_a_config, config_feats], -1)
    for layer in self._postnet.layers:
      is_dense = isinstance(layer, tf.keras.layers.Dense)
      pooled = (_dense(layer, pooled, apart=not self._early) if is_dense
                else layer(pooled))
    return tf.squeeze(pooled, -1)


class _SAGE(_BaselineRanker):
  """GraphSAGE layers, and a head on the pooled nodes of a kernel.

      y_v = x_v W_self + a_v W_neighbor + b,   x_v <- finish(y_v)
  with a_v, a subclass's `_aggregated`, linear in the neighbours of node v. An
  early join multiplies before it aggregates, which takes fewer operations. A
  late join keeps the baseline's order, so that sums that cancel round alike.
  Source: [GraphSAGE].
  """
  _pooling = ('sum',)

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int,
               hidden_activation: str, widths: Sequence[int],
               head_widths: Sequence[int], objective: str = 'flags'):
    super().__init__(num_configs, num_ops, op_embed_dim, max(widths), objective)
    self._activation_fn = _activation(hidden_activation)
    self._gnn_layers = [_mlp([width], hidden_activation) for width in widths]
    self._postnet = _mlp([*head_widths, 1], hidden_activation)

  def _build_layers(self, node_width: int, config_width: int) -> None:
    width = self._joined_width(node_width, config_width)
    for layer in self._gnn_layers:
      layer.build([None, 2 * width])  # Neighbours first, then the node.
      width = layer.layers[0].units
    self._build_head(len(self._pooling) * width, config_width)

  def _finished(self, y: tf.Tensor, layer: int) -> tf.Tensor:
    """From the linear part of a layer, counted from 0, to its output."""
    return tf.nn.l2_normalize(self._activation_fn(y), axis=-1)

  def _first(self, graph, x):
    layer = self._gnn_layers[0].layers[0]
    if not self._early:
      return self._linear(graph, layer, x)
    neighbor, node = tf.split(layer.kernel, 2, axis=0)
    return (self._aggregated(graph, x @ self._rows(neighbor)[0])
            + x @ self._rows(node)[0] + layer.bias)

  def _with_configs(self, graph, encoded, config_feats):
    neighbor, node = tf.split(self._gnn_layers[0].layers[0].kernel, 2, axis=0)
    # All nodes of a kernel share its config columns, so a sum over neighbours
    # is those columns times the aggregate of ones, such as the degree.
    ones = tf.ones_like(encoded[:, :1, tf.newaxis])  # [nodes, 1, 1]
    return (encoded[:, tf.newaxis]  # [nodes, configs, width]
            + graph.on_nodes(_matmul(config_feats, self._rows(node)[1]))
            + self._aggregated(graph, ones) * graph.on_nodes(
                _matmul(config_feats, self._rows(neighbor)[1])))

  def _pooled(self, graph: _Graph, y: tf.Tensor) -> tf.Tensor:
    x = self._finished(y, 0)
    for i, gnn_layer in enumerate(self._gnn_layers[1:], 1):
      x = self._finished(self._linear(graph, gnn_layer.layers[0], x), i)
    return graph.pools(self._pooling, x)

  def _linear(self, graph: _Graph, layer: tf.keras.layers.Dense,
              x: tf.Tensor) -> tf.Tensor:
    """The linear part of a layer: [nodes, ..., any] -> [nodes, ..., width]."""
    if not self._early:
      joined = tf.concat([self._aggregated(graph, x), x], -1)
      return _dense(layer, joined, apart=True)
    neighbor, node = tf.split(layer.kernel, 2, axis=0)
    return (self._aggregated(graph, _matmul(x, neighbor))
            + _matmul(x, node, layer.bias))


class _SumSAGE(_SAGE):
  """GraphSAGE with summed neighbours, consumers and producers alike.

      a_v = sum of x_u over neighbours u of v,   x_v <- act(y_v) / |act(y_v)|
  and a head on the sum of x over the nodes of a kernel.
  Source: [GraphSAGE]; the baseline's variant of it, weight for weight.
  """

  def __init__(self, num_configs: int, num_ops: int, num_gnns: int = 3,
               final_mlp_layers: int = 2, hidden_activation: str = 'leaky_relu',
               hidden_dim: int = 64, op_embed_dim: int = 64):
    _check_integers(1, num_gnns=num_gnns)
    _check_integers(0, final_mlp_layers=final_mlp_layers)
    super().__init__(
        num_configs, num_ops, op_embed_dim, hidden_activation,
        [hidden_dim] * num_gnns, [hidden_dim] * final_mlp_layers)

  def _aggregated(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    if self._early:
      return graph.sum_of('both', x)
    return graph.sum_of('consumers', x) + graph.sum_of('producers', x)


class _ResGCN(_BaselineRanker):
  """Graph convolutions with residual links, and a layer before and after them.

      y_v = MLP(P act(x) + P' act(x) + act(x))_v,   x_v <- x_v + y_v
  P averages a node and its consumers, P' is its transpose. `directed` gives the
  three terms an MLP each. Source: [GCN]; the baseline's variant of it, weight
  for weight.
  """

  def __init__(self, num_configs: int, num_ops: int, num_gnns: int = 3,
               mlp_layers: int = 2, hidden_activation: str = 'leaky_relu',
               hidden_dim: int = 64, op_embed_dim: int = 32,
               directed: bool = False, reduction: str = 'sum'):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim)
    _check_integers(0, num_gnns=num_gnns)
    _check_integers(1, mlp_layers=mlp_layers)
    _check_choice('reduction', reduction, list(_REDUCTIONS))
    activation = self._activation_fn = _activation(hidden_activation)
    self._directed = directed
    self._reduction = reduction
    # Before the others: variables follow this order.
    self._gc_layers = [tuple(_mlp([hidden_dim] * mlp_layers, activation)
                             for _ in range(3 if directed else 1))
                       for _ in range(num_gnns)]
    self._prenet = _mlp([hidden_dim, hidden_dim], activation)
    self._postnet = _mlp([hidden_dim, 1], activation)

  def _build_layers(self, node_width: int, config_width: int) -> None:
    leading = [None, None] if self._early else [None]
    self._prenet.build(leading + [self._joined_width(node_width, config_width)])
    for layers in self._gc_layers:
      for layer in layers:
        layer.build(leading + [self._width])
    self._build_head(self._width, config_width)

  def _first(self, graph, x):
    layer = self._prenet.layers[0]
    kernel = self._rows(layer.kernel)[0] if self._early else layer.kernel
    return x @ kernel + layer.bias

  def _with_configs(self, graph, encoded, config_feats):
    config_rows = self._rows(self._prenet.layers[0].kernel)[1]
    return (encoded[:, tf.newaxis]  # [nodes, configs, width]
            + graph.on_nodes(_matmul(config_feats, config_rows)))

  def _pooled(self, graph: _Graph, x: tf.Tensor) -> tf.Tensor:
    for layer in self._prenet.layers[1:]:
      x = layer(x)
    # [nodes, 1, ...]; P = scale (A + I)
    scale = _per_row(1 / (graph.degree['consumers'] + 1), x)
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
  Source: the baseline's model, weight for weight."""

  def __init__(self, num_configs: int, num_ops: int, op_embed_dim: int = 32,
               mlp_layers: int = 2, hidden_activation: str = 'leaky_relu',
               hidden_dim: int = 64, reduction: str = 'sum'):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim)
    _check_integers(0, mlp_layers=mlp_layers)
    _check_choice('reduction', reduction, list(_REDUCTIONS))
    self._reduction = reduction
    self._postnet = _mlp([hidden_dim] * mlp_layers + [1], hidden_activation)

  def _build_layers(self, node_width: int, config_width: int) -> None:
    self._build_head(self._embed_width + node_width, config_width)

  def _encode(self, graph, embedded, node_feats):
    """Pooled features [kernels, F + E]."""
    return graph.pool(self._reduction, tf.concat([node_feats, embedded], -1))


# --------------------------------------------------------- chapter: tile ranker


class _GatedJoin(tf.keras.layers.Layer):
  """Joins a configuration, b, to a state that does not depend on it, a.

      N(a A + (1 + a G) * (b B))
  with biases in A and G, and N as in `_DenseNorm`.
  """

  def __init__(self, width: int, activation: str):
    super().__init__()
    self.added = tf.keras.layers.Dense(width)
    self.gate = tf.keras.layers.Dense(width)
    self.joined = tf.keras.layers.Dense(width, use_bias=False)
    self.norm = _LayerNorm()
    self.activate = _activation(activation)

  def build(self, input_shape):
    for layer in (self.added, self.gate, self.joined):
      layer.build(input_shape)
    self.norm.build([None, self.joined.units])
    super().build(input_shape)

  def fixed(self, a: tf.Tensor) -> tuple:
    """a A and 1 + a G."""
    return _dense(self.added, a), 1 + _dense(self.gate, a)

  def finish(self, fixed: tuple, product: tf.Tensor) -> tf.Tensor:
    """From `fixed(a)` and b B, with the rows of both."""
    added, gate = fixed
    return self.activate(self.norm(added + gate * product))


class _TileRanker(_Ranker):
  """The base of the new models: encode nodes, pool, join configurations, score.

  Every dense layer is followed by LayerNorm and the activation, N(.):
      h_v = N([embedded opcode, log scales of node features] W)
      h_v <- h_v + N([p_v, c_v, h_v] W)       node_rounds times
      k = N(pooled h W)                       the kernel, all of it
      z = N(log scales of config features W)  a configuration
      z <- z + N(k A + (1 + k G) * (z B))     the join, head_layers times
      score = z w + b
  That is a late join: no state belongs to a node and a configuration. A
  subclass with `_early` pools, instead of h,
      x_v = N(h_v A + (1 + h_v G) * (z B))
      x_v <- x_v + N([p_v, c_v, x_v] W)
  and its head starts from z = k; one with another `_round` than `_SAGERound`
  has other messages. Source of the gated join: [FiLM].

  Args:
    hidden_dim: width of all layers but those on x, of joint_dim.
    op_embed_dim: width of an embedded opcode.
    hidden_activation: a function of `tf.nn`.
    node_rounds, head_layers: see above; averaging, objective: `_TrainedModel`.
  """
  _round = _SAGERound
  _pooling = ('mean', 'max', 'sum')

  def __init__(self, num_configs: int, num_ops: int, *, hidden_dim: int = 128,
               joint_dim: int = 64, op_embed_dim: int = 32,
               node_rounds: int = 2, head_layers: int = 2,
               hidden_activation: str = 'leaky_relu', averaging: float = 0.998,
               objective: str = 'listmle_fastest_first'):
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_dim, objective,
                     averaging)
    _check_integers(1, joint_dim=joint_dim, head_layers=head_layers)
    _check_integers(0, node_rounds=node_rounds)
    self._state_width = joint_dim if self._early else hidden_dim
    self._node_encoder = _DenseNorm(hidden_dim, hidden_activation)
    self._node_rounds = [self._round(hidden_dim, hidden_activation)
                         for _ in range(node_rounds)]
    self._config_encoder = _DenseNorm(hidden_dim, hidden_activation)
    if self._early:
      self._join = _GatedJoin(joint_dim, hidden_activation)
      self._joint_round = self._round(joint_dim, hidden_activation)
    self._kernel_encoder = _DenseNorm(hidden_dim, hidden_activation)
    self._head = [_GatedJoin(hidden_dim, hidden_activation)
                  for _ in range(head_layers)]
    self._scorer = tf.keras.layers.Dense(1)

  def _build_layers(self, node_width: int, config_width: int) -> None:
    scales = len(_LOG_SCALES)
    self._build_for(scales * node_width, scales * config_width)

  def _build_for(self, node_columns: int, config_columns: int) -> None:
    self._node_encoder.build([None, self._embed_width + node_columns])
    self._config_encoder.build([None, config_columns])
    self._kernel_encoder.build([None, len(self._pooling) * self._state_width])
    for layer in (*self._node_rounds, *self._head, self._scorer):
      layer.build([None, self._width])
    if self._early:
      self._join.build([None, self._width])
      self._joint_round.build([None, self._state_width])

  def _encode(self, graph, embedded, node_feats):
    return self._encode_nodes(graph, self._node_encoder(
        tf.concat([embedded, _log_scales(node_feats)], -1)))

  def _encode_nodes(self, graph: _Graph, h: tf.Tensor) -> tuple:
    """From the first h: the nodes' part of an early join, or `_of_kernels`."""
    for layer in self._node_rounds:
      h = layer.update(graph, h)
    h = h[:, tf.newaxis]  # For all configurations.
    return self._join.fixed(h) if self._early else self._of_kernels(graph, h)

  def _of_kernels(self, graph: _Graph, x: tf.Tensor) -> tuple:
    """k, and its part of every join of the head, from x [nodes, configs or 1,
    any]: float32 [kernels, the same, hidden_dim]."""
    k = self._kernel_encoder(graph.pools(self._pooling, x))
    return k, [layer.fixed(k) for layer in self._head]

  def _score(self, graph, encoded, config_feats):
    z = self._config_encoder(_log_scales(config_feats))
    return self._score_configs(graph, encoded, z)

  def _score_configs(self, graph: _Graph, encoded: tuple,
                     z: tf.Tensor) -> tf.Tensor:
    """Scores, from the first z, float32 [kernels, configs, hidden_dim]."""
    if self._early:
      x = self._join.finish(  # [nodes, configs, joint_dim]
          encoded, graph.on_nodes(_dense(self._join.joined, z)))
      encoded = self._of_kernels(graph, self._joint_round.update(graph, x))
    k, fixed = encoded
    if self._early:
      z = k
    for layer, of_kernels in zip(self._head, fixed):
      z += layer.finish(of_kernels, _dense(layer.joined, z))
    return tf.squeeze(_dense(self._scorer, z), -1)


# ---------------------------------------------------------- chapter: statistics

_MOST = 1e12  # No count is larger, so that sums and products stay finite.


def _is_to_find(stored: Any) -> bool:
  """Whether `feature_stats` name no scale: see `_Statistics`."""
  return stored == 'script' or (
      isinstance(stored, Mapping) and stored.keys() == {'tiles'})


class _Statistics(tf.keras.layers.Layer):
  """Takes scaled features back to their own units.

  The baseline's trainer scales by the train kernels with enough configurations,
  its prediction script by all of them. Features are whole numbers, so only the
  right statistics restore whole numbers.

  Args:
    stored: {'node': {'minimum': [...], 'maximum': [...]}, 'config': ...} over
      all columns of the files; columns with equal bounds are dropped. Optional:
      'all_kernels', the same over all train kernels; 'tiles', what tile bounds
      count, one of `_TILES`. None: unknown. 'script':
      `_of_running_script(num_configs)`; 'tiles' alone: the same but for these.
    keeps: store them as a trainable variable with gradient 0, because the
      scripts copy only trainable variables into a new model.
  """

  def __init__(self, stored: Any, num_configs: int = 0, keeps: bool = True):
    super().__init__()
    self._keeps = keeps
    self._is_found = _is_to_find(stored)
    if self._is_found:
      units = {} if stored == 'script' else stored
      stored = _of_running_script(num_configs)
      stored = stored and {**stored, **units}
    self._numbers_of_used = {}  # By table; empty where they are unknown.
    # [2 statistics, minimum and maximum, node and config columns and 1]
    self._initial = np.zeros([2, 2, sum(_TABLE_WIDTHS.values()) + 1], 'float32')
    self._misfit = ''  # Why statistics that were found are not used.
    self._is_to_check = self._is_found and stored is not None
    if stored is None:
      return
    first = 0
    for table, width in _TABLE_WIDTHS.items():
      training = self._bounds_of(stored, table)
      every = self._bounds_of(stored.get('all_kernels', stored), table)
      self._numbers_of_used[table] = int(np.sum(training[0] != training[1]))
      for place, bounds in enumerate((training, every)):
        known = bounds[:, :width]  # Columns that the data lacks are 0.
        self._initial[place, :, first:first + known.shape[1]] = known
      first += width
    tiles = stored.get('tiles', _TILES[0])
    _check_choice('feature_stats: tiles', tiles, _TILES)
    self._initial[..., -1] = tiles == _TILES[1]

  def _bounds_of(self, stored, table):
    try:  # float32 [minimum and maximum, columns]
      return np.array([list(stored[table][key]) for key in (
          'minimum', 'maximum')], np.float32)
    except (KeyError, TypeError, ValueError):
      raise ValueError(
          'feature_stats must hold, under node and under config, lists of '
          f'numbers minimum and maximum of the same length; {table} does not. '
          '`tpu-graphs-ext stats` prints them.') from None

  def check(self, node_width: int, config_width: int) -> None:
    """Raises a ValueError unless exactly that many columns vary. Statistics of
    the running script become unknown instead: its features may come from a
    cache that is older than the files. Call it before `build`."""
    widths = {'node': node_width, 'config': config_width}
    for table, used in self._numbers_of_used.items():
      if used != widths[table]:
        message = (
            f'feature_stats has {used} {table} columns that vary, but the '
            f'features have {widths[table]}; they are of other data.')
        if not self._is_found:
          raise ValueError(message + " Print this data's with "
                           '`tpu-graphs-ext stats --data_root`.')
        _log.warning('%s', message)
        self._misfit = message
        self._initial = np.zeros_like(self._initial)

  def require_fit(self, batches: tf.data.Dataset) -> None:
    """Raises a ValueError if a script's cache, which it trains on, is older
    than its files. Looks once at a few `batches`, of (graph, ...)."""
    if not self._is_to_check:
      return
    self._is_to_check, wrong, rows = False, 0, 0
    is_whole = np.array_equal(self._initial, np.round(self._initial))
    for graph, *_ in batches.take(50 if is_whole and not self._misfit else 0):
      inputs = _inputs_of(graph)
      for table, x in (('node', inputs.node_feats),
                       ('config', inputs.config_feats)):
        broken = tf.reduce_min(self._candidates(table, x)[1], -2)
        wrong += int(tf.math.count_nonzero(broken))
        rows += int(tf.size(broken))
    if self._misfit or wrong > rows / 1000:
      reason = self._misfit or (
          f'{wrong} of {rows} rows of features do not come back as the whole '
          'numbers that files hold; they were scaled with other data.')
      raise ValueError(
          f'{reason} The cache is older than the files of --data_root: remove '
          f'{_flag_of_running_script("cache_dir")}, or give --cache_dir= to do '
          'without one.')

  def build(self, input_shape):
    self._table = self._initial
    if self._keeps:
      self._table = self.add_weight(
          'feature_stats', self._initial.shape,
          initializer=lambda shape, dtype: tf.constant(self._initial))
    super().build(input_shape)

  def zero(self) -> tf.Tensor:
    """Gives the variable a gradient when added to a score."""
    return 0 * tf.reduce_sum(self._table)

  def in_elements(self) -> tf.Tensor:
    """Whether tile bounds count elements: bool []."""
    return tf.stop_gradient(self._table)[0, 0, -1] > 0

  def known(self) -> tf.Tensor:
    """bool []."""
    low, high = tf.unstack(tf.stop_gradient(self._table), axis=1)
    return tf.reduce_any(low != high)

  def raw(self, table: str, x: tf.Tensor,
          graph: Optional[_Graph] = None) -> tf.Tensor:
    """[..., used columns] -> whole numbers [..., all columns]. Each row chooses
    between the two statistics; with a graph, of its nodes, each kernel does."""
    candidates, broken = self._candidates(table, x)
    if graph is not None:
      broken = graph.on_nodes(tf.math.segment_sum(broken, graph.kernel_of))
    first, second = tf.unstack(broken, axis=-2)
    training, every = tf.unstack(candidates, axis=-2)
    return tf.round(tf.where(second < first, every, training))

  def _candidates(self, table: str, x: tf.Tensor) -> tuple:
    """What `raw` chooses from, float32 [..., 2 statistics, all columns], and
    how many of them are not whole numbers, [..., 2 statistics, 1]."""
    node, config, _ = tf.split(
        tf.stop_gradient(self._table), [*_TABLE_WIDTHS.values(), 1], -1)
    low, high = tf.unstack(node if table == 'node' else config, axis=1)
    used = low != high  # [2, all columns]
    zeros = x.shape[-1]  # The column of zeros that is appended.
    place = tf.cumsum(tf.cast(used, tf.int32), -1) - 1
    place = tf.where(used, tf.minimum(place, zeros), zeros)
    x = tf.pad(x, [[0, 0]] * (x.shape.rank - 1) + [[0, 1]])
    candidates = tf.clip_by_value(  # [..., 2, all columns]
        tf.gather(x, place, axis=-1) * (high - low) + low, -_MOST, _MOST)
    return candidates, tf.reduce_sum(_as_float(
        tf.abs(candidates - tf.round(candidates))
        > 1e-6 * (1 + tf.abs(candidates))), -1, keepdims=True)


# ------------------------------------------------------------ chapter: geometry
#
# Counts that follow from shapes, layouts and tile bounds alone, in their own
# units. The loop nest has 12 axes: the physical dimensions of the tiled tensor,
# most major first, then those of a convolution's filter. Missing dimensions
# have size 1. Tensors are compared by `tf.equal`; `==` loses the static shape.

_DIMS, _AXES, _SPATIAL = 6, 12, 4
_KEYS = 1024  # Largest number of parameters of a kernel.
_KINDS = ('image', 'filter', 'input', 'output')  # Of streams.
# First column and number of columns of the node features in use.
_NODE_COLUMNS = {
    'is_root': (0, 1), 'on_chip': (1, 1), 'element_type': (2, 19),
    'shape': (21, 6), 'parameter_number': (30, 1), 'dimensions': (31, 6),
    'window': (37, 6), 'stride': (45, 6), 'window_dilation': (69, 6),
    'base_dilation': (77, 6), 'convolution': (93, 14),
    'feature_groups': (107, 1), 'minor_to_major': (134, 6)}
_WINDOW = ('window', 'stride', 'window_dilation', 'base_dilation')
_BOUNDS = (8.0, 0.0)  # First config columns: of the output's, the filter's.
_INPUT_BOUNDS = slice(16, 24)  # Config columns that are always empty.
_ELEMENT_BYTES = (4, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 4, 4, 4)
_CONVOLUTION, _COPY, _DOT = 26, 27, 34
_DYNAMIC_SLICE, _DYNAMIC_UPDATE_SLICE = 35, 36
_FUSION, _PARAMETER = 41, 63
_REDUCE, _REDUCE_WINDOW, _SLICE, _TRANSPOSE, _TUPLE = 70, 72, 92, 98, 100
_ROLES = (_CONVOLUTION, _COPY, _DOT, _DYNAMIC_UPDATE_SLICE, _FUSION, _PARAMETER,
          _REDUCE, _REDUCE_WINDOW, _TRANSPOSE, _TUPLE)  # Of `opcode_is`.
# Opcodes without vector instructions; the others count one.
_FREE_OPCODES = (11, 13, 24, 26, 34, 41, 45, 48, 63, 75, 100)
_transposed = tf.linalg.matrix_transpose
# Layout tiles of a tile up to which a TPU's compiler expects transfers at full
# speed, by its log: of a fusion or a copy; of a copy within on-chip memory, of
# any other operation outside a fusion, and of a fusion with more inputs.
_ROOMY, _NARROW, _MOST_INPUTS = 1024.0, 128.0, 12
_PLACES = [float(i) for i in range(_DIMS)]
_EYE = [[float(i == j) for j in range(_DIMS)] for i in range(_DIMS)]


class _Hardware(NamedTuple):
  """A machine. Times are in ns; constants with a time can be trained."""
  in_elements: float = 0.0  # 1: bounds count them, of logical dimensions.
  lanes: int = 128          # Elements of a layout tile, most minor dimension.
  sublanes: int = 8         # The same, second most minor.
  matrix_side: int = 128    # Of a block of weights in the matrix unit.
  cores: int = 1            # Tiles that run at once.
  launch_ns: float = 220.0  # A kernel that does nothing.
  wait_ns: float = 260.0    # Until a transfer starts.
  step_ns: float = 10.0     # Overhead of a step; of each stream, in elements.
  bytes_per_ns: float = 540.0  # Main memory to on-chip memory.
  piece_ns: float = 3.0     # For each contiguous piece of a transfer.
  matrix_row_ns: float = 0.6   # One row through one block of weights.
  vector_ns: float = 0.9    # One instruction on lanes * sublanes elements.
  unhidden: float = 0.05    # Part of the shorter of memory and arithmetic.
  # A layout tile of tiles twice as large as can move at full speed.
  crowd_ns: float = 12.0
  lone_ns: float = 12.0     # The same, see `_Loops.is_alone`.
  partial_ns: float = 21.0  # See `_Counts.partials`.


_TRAINED_CONSTANTS = _Hardware._fields[5:]
# Where tile bounds count layout tiles, and where they count elements: of a GPU.
_MACHINES = (
    _Hardware(),
    _Hardware(in_elements=1.0, lanes=1, sublanes=1, matrix_side=1, cores=132,
              wait_ns=0.0, step_ns=45.0, matrix_row_ns=0.6 / 128 ** 2,
              vector_ns=0.9 / 1024, partial_ns=0.0))


def _product(x: tf.Tensor) -> tf.Tensor:
  """Product of positive counts over the second axis, at most `_MOST`."""
  return tf.minimum(tf.reduce_prod(x, 1), _MOST)


def _log2(x: tf.Tensor) -> tf.Tensor:
  return tf.math.log(x) / math.log(2)


def _hot(index: tf.Tensor) -> tf.Tensor:
  """One-hot rows of whole numbers; none for an index that is out of range."""
  return _as_float(tf.equal(tf.expand_dims(index, -1), _PLACES))


def _outer(index_hot: tf.Tensor, axis_hot: tf.Tensor) -> tf.Tensor:
  """[..., dims] and [..., axes] -> [..., dims, axes]."""
  return tf.expand_dims(index_hot, -1) * tf.expand_dims(axis_hot, -2)


def _matvec(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """[rows, a, b] times [rows, b] -> [rows, a]."""
  return tf.reduce_sum(x * tf.expand_dims(y, 1), 2)


def _leading(number: tf.Tensor) -> tf.Tensor:
  """1 for so many first dimensions: [..., 1] -> [..., 6]."""
  return _as_float(tf.constant(_PLACES) < number)


def _in_turn(chosen: tf.Tensor) -> tf.Tensor:
  """[rows, 6] of 0 and 1 -> [rows, 6, 6], a row for each 1 in turn."""
  return _transposed(_hot(tf.cumsum(chosen, -1) - 1) * chosen[..., tf.newaxis])


def _minor_first(ranks: tf.Tensor) -> tf.Tensor:
  """Ranks [rows, n] -> places of the dimensions of all n tensors, each tensor's
  in reverse: int32 [rows, n * 6]."""
  place, rank = tf.constant(_PLACES), tf.expand_dims(ranks, -1)
  reverse = tf.where(place < rank, rank - 1 - place, place)  # [rows, n, 6]
  reverse += [[float(_DIMS * i)] for i in range(ranks.shape[1])]
  return tf.reshape(tf.cast(reverse, tf.int32), [-1, _DIMS * ranks.shape[1]])


class _NodeRows(NamedTuple):
  """Some nodes of a batch of kernels, float32."""
  rank: tf.Tensor        # [rows, 1]
  elements: tf.Tensor    # [rows, 1]
  shape: tf.Tensor       # [rows, 6], 1 beyond the rank
  size: tf.Tensor        # [rows, 6], of physical dimensions, most major first
  unit: tf.Tensor        # [rows, 6], the same, of a layout tile
  order: tf.Tensor       # [rows, 6, 6], 1 for a physical and its logical one
  padded: tf.Tensor      # [rows, 1], elements of whole layout tiles
  padded_bytes: tf.Tensor  # [rows, 1]
  WIDTHS = 1, 1, _DIMS, _DIMS, _DIMS, _DIMS * _DIMS, 1, 1


class _Nodes:
  """The nodes of a batch of kernels in raw units, all float32.

  Attributes, [nodes] where nothing else is said, and those of `_NodeRows`:
    inputs, outputs: 1 for tensors that the kernel reads and writes.
    convolution, tiled, pool: int32 [kernels], nodes; `tiled_rows` its rows;
      `has_convolution`, [kernels], and `has_pool`, [kernels, 1], are 0 in
      kernels without one.
    before_transposition, permutation: see `_find_transposition`.
  """

  def __init__(self, graph: _Graph, raw: tf.Tensor, hardware: _Hardware):
    self._graph, self.kernel_of = graph, graph.kernel_of
    self._number = tf.range(graph.nodes)  # int32 [nodes]
    self._is = dict(zip(_ROLES, tf.unstack(_as_float(  # [nodes] each
        tf.equal(graph.opcode[:, tf.newaxis], _ROLES)), axis=1)))
    self.column = {name: raw[:, first:first + number]  # [nodes, columns]
                   for name, (first, number) in _NODE_COLUMNS.items()}
    number = tf.cast(tf.clip_by_value(  # int32 [nodes]
        tf.squeeze(self.column['parameter_number'], 1), 0, _KEYS - 1), tf.int32)
    self.parameter_key = self.kernel_of * _KEYS + number  # int32 [nodes]
    sizes = self._read_sizes()
    self.rank = tf.reduce_sum(_as_float(sizes > 0), -1, keepdims=True)
    self.shape = tf.maximum(sizes, 1)
    self.elements = _product(self.shape)[:, tf.newaxis]
    self._tie_break = tf.reduce_sum(tf.math.log(self.shape), -1) / 1000  # < 0.2
    types = _as_float(self.column['element_type'] > 0)  # [nodes, 19]
    element_bytes = tf.reduce_max(types * _ELEMENT_BYTES, -1, keepdims=True)
    self.element_bytes = tf.where(element_bytes > 0, element_bytes, 4.0)
    self._lay_out(hardware)
    self.padded = _product(
        tf.math.ceil(self.size / self.unit) * self.unit)[:, tf.newaxis]
    self.padded_bytes = self.element_bytes * self.padded
    every = _NodeRows(*(getattr(self, name) for name in _NodeRows._fields))
    self._rows = tf.concat(every._replace(  # [nodes, 58], gathered at once
        order=tf.reshape(self.order, [-1, _DIMS * _DIMS])), 1)
    self._find_roles(hardware)

  def _read_sizes(self) -> tf.Tensor:
    """Sizes [nodes, 6]; a tensor that only a slice reads has the slice's."""
    graph, sizes = self._graph, self.column['shape']
    first, last = graph.first_and_last('consumers')  # int32 [nodes]
    reader = tf.gather(graph.opcode, last)  # int32 [nodes]
    taken = tf.gather(sizes, last)  # [nodes, 6]
    is_parameter = graph.opcode == _PARAMETER  # bool [nodes]
    is_sliced = (is_parameter & tf.equal(first, last)  # bool [nodes]
                 & ((reader == _SLICE) | (reader == _DYNAMIC_SLICE))
                 & tf.reduce_all(taken <= sizes, -1))
    # The parameter of a body and the fusion's, which shares its number.
    same = tf.gather(tf.math.unsorted_segment_max(  # int32 [nodes]
        tf.where(is_sliced, self._number, -1), self.parameter_key,
        graph.kernels * _KEYS), self.parameter_key)
    inner = tf.maximum(same, 0)  # int32 [nodes]
    is_read = is_parameter & (same >= 0) & tf.reduce_all(  # bool [nodes]
        tf.equal(sizes, tf.gather(sizes, inner)), -1)
    return tf.where(is_read[:, tf.newaxis], tf.gather(taken, inner), sizes)

  def rows(self, index: tf.Tensor) -> _NodeRows:
    """Of nodes, int32 [rows]."""
    rows = _NodeRows(*tf.split(
        tf.gather(self._rows, index), _NodeRows.WIDTHS, 1))
    return rows._replace(order=tf.reshape(rows.order, [-1, _DIMS, _DIMS]))

  def opcode_is(self, opcode: int) -> tf.Tensor:
    """1 on nodes with that opcode: [nodes]."""
    return self._is[opcode]

  def _lay_out(self, hardware: _Hardware) -> None:
    """Sets `order`, `size` and `unit` by the layout, else row-major."""
    exists = _leading(self.rank)  # [nodes, 6]
    stored = tf.gather(self.column['minor_to_major'],  # [nodes, 6]
                       _minor_first(self.rank), batch_dims=1)
    on_rows = tf.expand_dims(exists, -1)  # [nodes, 6, 1]
    order = _hot(stored) * on_rows  # [nodes, 6, 6]
    is_permutation = tf.reduce_all(  # bool [nodes, 1]
        tf.equal(tf.reduce_sum(order, 1), exists), -1, keepdims=True)
    self.order = tf.where(
        is_permutation[..., tf.newaxis], order, tf.constant(_EYE) * on_rows)
    self.size = _matvec(self.order, self.shape) + 1 - exists
    minor, second = (_hot(self.rank[:, 0] - i) for i in (1, 2))  # [nodes, 6]
    alone = _as_float(self.rank == 1)  # [nodes, 1]
    # A half or a quarter of the sublanes where that holds all rows.
    half = hardware.sublanes / 2
    rows = tf.maximum(1.0, half / 2 * (  # [nodes, 6]
        1 + _as_float(self.size > half / 2) + 2 * _as_float(self.size > half)))
    self.unit = (1 + minor * (hardware.lanes - 1) + second * (rows - 1)
                 + minor * alone * hardware.lanes * (hardware.sublanes - 1))

  def read_by(self, mask: tf.Tensor) -> tf.Tensor:
    """Marks the producers of the marked nodes: [nodes] -> same."""
    return tf.sign(self._graph.sum_of('consumers', mask))

  def operands_of(self, mask: tf.Tensor) -> tf.Tensor:
    """Like `read_by`, without the roots of called computations."""
    return self.read_by(mask) * self.is_no_root

  def pick(self, score: tf.Tensor) -> tuple:
    """The node of each kernel with the highest score, a whole number, of equal
    ones the larger tensor: int32 [kernels]; and 1 where it is not 0, [kernels].
    """
    score += self._tie_break  # [nodes]
    best = tf.math.segment_max(score, self.kernel_of)  # [kernels]
    is_best = tf.equal(score, self._graph.on_nodes(best))  # bool [nodes]
    return tf.math.segment_min(
        tf.where(is_best, self._number, tf.int32.max),
        self.kernel_of), _as_float(best > 0.5)

  def marked(self, picked: tf.Tensor) -> tf.Tensor:
    """Marks the picked node of each kernel: int32 [kernels] -> [nodes]."""
    return _as_float(tf.equal(self._number, self._graph.on_nodes(picked)))

  def _if_any(self, mask: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """The mask in kernels where it marks a node, else the other: [nodes]."""
    marks = tf.math.segment_max(mask, self.kernel_of)  # [kernels]
    return tf.where(self._graph.on_nodes(marks) > 0, mask, other)

  def _is_like(self, index: tf.Tensor) -> tf.Tensor:
    """Marks nodes with the shape of the one at `index`, int32 [kernels]."""
    shape = tf.concat([self.rank, self.shape], 1)  # [nodes, 7]
    return _as_float(tf.reduce_all(tf.equal(
        shape, tf.gather(shape, self._graph.on_nodes(index))), -1))

  def _find_roles(self, hardware: _Hardware) -> None:
    """Sets `inputs`, `outputs` and the rest; masks are [nodes]."""
    self.is_no_root = 1 - _as_float(tf.squeeze(self.column['is_root'], 1) > 0)
    unread = _as_float(self._graph.degree['consumers'] == 0)
    root = self.marked(self.pick(unread - self.is_no_root)[0])
    # A fusion's body does the work; its parameters are the fusion's.
    fused = self.read_by(root * self.opcode_is(_FUSION))
    body = fused * (1 - self.is_no_root)
    main = self.marked(self.pick(2 * body + root)[0])
    self.inputs = self.opcode_is(_PARAMETER) * self._if_any(
        fused, tf.squeeze(_as_float(self.rank > 0), 1))
    self.outputs = self._if_any(
        self.operands_of(main * self.opcode_is(_TUPLE)), main)
    products = (self.opcode_is(_CONVOLUTION) + self.opcode_is(_DOT)) * tf.sign(
        self._graph.sum_of('producers', self.is_no_root))
    # The last one; earlier ones make its operands.
    self.convolution, self.has_convolution = self.pick(
        products * (1 + tf.cast(self._number, tf.float32)))
    self.products = tf.math.segment_sum(products, self.kernel_of)
    # Where tiles count elements, also an output computed from a reduction.
    alike = hardware.in_elements * self._is_like(self.pick(self.outputs)[0])
    reduced = self.opcode_is(_REDUCE) * self._if_any(
        self.outputs * self.opcode_is(_REDUCE), alike)
    tiled = self._if_any(self.operands_of(reduced), self.outputs)
    self.tiled = tf.where(  # int32 [kernels]
        self.has_convolution > 0, self.convolution, self.pick(tiled)[0])
    self.tiled_rows = self.rows(self.tiled)
    self._as_tiled = self._is_like(self.tiled)
    counts = tf.constant([float(i not in _FREE_OPCODES) for i in range(256)])
    self.vector_ops = tf.math.segment_sum(  # [kernels]
        self._as_tiled * tf.gather(counts, self._graph.opcode), self.kernel_of)
    self.pool, has_pool = self.pick(
        self._as_tiled * self.opcode_is(_REDUCE_WINDOW)
        * self._graph.on_nodes(1 - self.has_convolution))
    self.has_pool = has_pool[:, tf.newaxis]
    self._find_moves(self.has_convolution + has_pool + hardware.in_elements)
    # A result of four bytes can hold the sums; others cannot.
    has_room = self.outputs * _as_float(tf.equal(self.element_bytes[:, 0], 4))
    self.sum_bytes = 4 * self.has_convolution * (  # [kernels]
        1 - tf.math.segment_max(has_room, self.kernel_of))
    self._find_update()
    self._find_summed()
    self._find_transposition(hardware)

  def _find_moves(self, has_room: tf.Tensor) -> None:
    """Sets `moves`, [nodes], see `_Streams`; `waits`, `is_alone` and
    `most_tiles`, [kernels], see `_Loops`."""
    def any_of(mask):  # [nodes] -> [kernels]
      return tf.math.segment_max(mask, self.kernel_of)

    is_off_chip = _as_float(  # A 4 there is of int4, not of the chip.
        tf.not_equal(tf.squeeze(self.column['on_chip'], 1), 1))
    is_copy = any_of(self.opcode_is(_COPY))
    is_single = 1 - any_of(self.opcode_is(_FUSION))
    # A copy, or a constant's, that neither reads nor writes main memory.
    is_inside = is_single * tf.maximum(is_copy, 1 - any_of(self.inputs)) * (
        1 - any_of(tf.maximum(self.inputs, self.outputs) * is_off_chip))
    self.moves = tf.maximum(is_off_chip, self._graph.on_nodes(is_inside))
    # Such a copy of elements of four bytes starts at once.
    is_packed = _as_float(
        tf.gather(self.element_bytes[:, 0], self.tiled) < 4)
    self.waits = (1 - self.has_convolution) * (1 - is_inside * (1 - is_packed))
    has_many = _as_float(_MOST_INPUTS < tf.math.segment_sum(
        self.inputs, self.kernel_of))
    self.is_alone = tf.maximum(is_single * (1 - is_copy), has_many)
    is_narrow = self.is_alone + is_copy * is_inside
    self.most_tiles = tf.where(
        has_room > 0, _MOST, tf.where(is_narrow > 0, _NARROW, _ROOMY))

  def _find_update(self) -> None:
    """Sets `written` [kernels, 6], sizes of what an update in place writes, of
    the tiled tensor's physical dimensions; without one the tensor's."""
    tiled = self.tiled_rows
    updates = self.operands_of(  # [nodes]
        self.marked(self.tiled) * self.opcode_is(_DYNAMIC_UPDATE_SLICE))
    updates *= tf.squeeze(_as_float(tf.equal(
        self.rank, self._graph.on_nodes(tiled.rank))), 1)
    # Of the tensor and what is written into it the smaller one.
    update, has_update = self.pick(updates * (2 - 2 * self._tie_break))
    written = tf.maximum(  # [kernels, 6]
        _matvec(tiled.order, tf.gather(self.shape, update)), 1)
    self.written = tf.where(has_update[:, tf.newaxis] > 0, written, tiled.size)

  def _find_summed(self) -> None:
    """Sets `summed` [kernels, 6], 1 for physical dimensions of the tiled tensor
    over which a kernel without a product reduces: one program loops there; and
    `reduces_several` [kernels, 1], 1 where it reduces several tensors at once,
    which leaves the node no shape: then over one dimension."""
    picked, reduces = self.pick(self.opcode_is(_REDUCE) * tf.sign(
        self._graph.sum_of('producers', self._as_tiled)))
    tiled, has_sum = self.tiled_rows, reduces * (1 - self.has_convolution)
    several = tf.gather(  # Two tensors, two first values, a computation.
        _as_float(self._graph.degree['producers'] > 4)[:, tf.newaxis]
        * _as_float(self.rank < 1), picked)
    kept = tf.where(several > 0, _leading(tiled.rank) - tf.squeeze(  # As below.
        self._listed(picked, tf.ones_like(several))[:, :1], 1),
                    self.kept_by(picked, tiled))
    self.summed = has_sum[:, tf.newaxis] * (  # [kernels, 6]
        _leading(tiled.rank) - _matvec(tiled.order, kept))
    self.reduces_several = has_sum[:, tf.newaxis] * several

  def _listed(self, index: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """One-hot rows [rows, 6, 6] of the first dimensions, [rows, 1] of them,
    that nodes, int32 [rows], list."""
    return (_hot(tf.gather(self.column['dimensions'], index))
            * tf.expand_dims(_leading(number), -1))

  def kept_by(self, index: tf.Tensor, whole: _NodeRows) -> tf.Tensor:
    """1 for dimensions of `whole` that nodes, int32 [rows], keep if they reduce
    it: [rows, 6]."""
    rank = tf.gather(self.rank, index)  # [rows, 1]
    removed = tf.reduce_max(self._listed(index, whole.rank - rank), 1)
    kept = _leading(whole.rank) * (1 - removed)  # [rows, 6]
    is_reduce = tf.gather(self.opcode_is(_REDUCE), index)[:, tf.newaxis]
    return kept * is_reduce * _as_float((rank < whole.rank) & tf.equal(
        tf.reduce_sum(kept, -1, keepdims=True), rank))

  def _find_transposition(self, hardware: _Hardware) -> None:
    """Sets `before_transposition` [nodes], 1 for what it depends on, and its
    `permutation` of dimensions [kernels, 6, 6]. TPUs transpose by layouts."""
    transposes = (hardware.in_elements * self.opcode_is(_TRANSPOSE)
                  * self._as_tiled)  # [nodes]
    picked, _ = self.pick(transposes)
    before = self.read_by(transposes * self.marked(picked))  # [nodes]
    for _ in range(8):  # Nodes between it and an input, at most.
      before = tf.maximum(before, self.read_by(before))
    self.before_transposition = before
    self.permutation = _transposed(
        self._listed(picked, tf.gather(self.rank, picked)))


def _product_as_convolution(product: _NodeRows, left: _NodeRows,
                            right: _NodeRows) -> Mapping[str, tf.Tensor]:
  """Matrix products as convolutions: columns like those of their features.

  A result has batch dimensions first, then the left operand's, then the right
  one's. Features do not have the contracted dimensions: as XLA writes products,
  the left operand's last and the right one's first after the batch. The first
  row dimension becomes the batch of the convolution, the last column dimension
  its features; the others are spatial. -1 stands for a missing dimension. Rows
  are kernels, meaningless without a product.
  """
  batch = left.rank + right.rank - product.rank - 2  # [kernels, 1]
  row = tf.where(left.rank - 1 > batch, batch, -1.0)  # [kernels, 1], as both
  column, right_column = (tf.where(right.rank - 1 > batch, x.rank - 1, -1.0)
                          for x in (product, right))
  spatial = tf.constant(_PLACES[:_SPATIAL]) + tf.zeros_like(batch)
  in_batch = spatial < batch  # bool [kernels, 4], as `spatial`
  place = spatial + _as_float(~in_batch & (row >= 0))  # [kernels, 4]
  is_row = in_batch | (place < tf.minimum(product.rank, left.rank - 1))
  numbers = tf.concat([  # [kernels, 14]
      row, left.rank - 1, tf.where(is_row, place, -1.0), batch, right_column,
      tf.where(in_batch, spatial, -1.0), row, column], 1)
  window = tf.where(in_batch, product.shape[:, :_SPATIAL], 1.0)  # [kernels, 4]
  return {'convolution': numbers, 'window': window, 'base_dilation': window}


class _Streams(NamedTuple):
  """Tensors that kernels read and write block by block.

  Along a physical dimension a block covers ceil(per_element @ elements -
  surplus) layout tiles, but 1 at least and `whole` at most.
  """
  kernel: tf.Tensor   # int32 [streams]
  kind: tf.Tensor     # int32 [streams], place in `_KINDS`
  size: tf.Tensor     # [streams, 6], elements of physical dimensions
  unit: tf.Tensor     # [streams, 6], elements of a layout tile
  whole: tf.Tensor    # [streams, 6], layout tiles of physical dimensions
  per_element: tf.Tensor  # [streams, 6, 12], layout tiles for one of the axis
  surplus: tf.Tensor  # [streams, 6]
  follows: tf.Tensor  # [streams, 12], 1 for axes that it follows
  tile_bytes: tf.Tensor  # [streams, 1], of a layout tile
  copies: tf.Tensor   # [streams, 1], blocks in float32 that a product needs
  moves: tf.Tensor    # [streams, 1], 0 for a tensor that stays on chip
  waits: tf.Tensor    # [streams, 1], 1 for a product's that move


class _Loops(NamedTuple):
  """The loop nests of a batch of kernels."""
  size: tf.Tensor      # [kernels, 12], elements
  unit: tf.Tensor      # [kernels, 12], elements of a layout tile
  units: tf.Tensor     # [kernels, 12], layout tiles that cover the size
  is_loop: tf.Tensor   # [kernels, 12], 1 for loops; others repeat an output's
  rows: tf.Tensor      # [kernels, 12], 1 for rows that meet the same weights
  features: tf.Tensor  # [kernels, 12], 1 for features in and out
  taps: tf.Tensor      # [kernels, 12], 1 where each element has own weights
  bound: tf.Tensor     # int32 [kernels, 12], config columns of bounds; 24: none
  kernel_axis: tf.Tensor  # int32 [kernels, 6], axis of filter dimensions, or -1
  written: tf.Tensor   # [kernels, 6], elements of the size that are written
  products: tf.Tensor  # [kernels], how many; all but the last are left out
  has_pool: tf.Tensor         # [kernels], whether it reduces windows
  vector_ops: tf.Tensor       # [kernels]
  sum_bytes: tf.Tensor        # [kernels], of a product's sums, an element
  most_tiles: tf.Tensor       # [kernels], see `_Counts.crowding`
  is_alone: tf.Tensor         # [kernels], 1 for an operation outside a fusion,
                              # and a fusion of more than `_MOST_INPUTS`
  waits: tf.Tensor            # [kernels], of a step without a product
  streams: _Streams
  picked: tf.Tensor    # int32 [kernels, 3], streams: the largest input; then a
                       # product's operands, else the largest input and output
  minor_first: tf.Tensor  # int32 [kernels, 30], of axes and `picked`,
                       # each tensor's most minor one first
  summed: tf.Tensor    # [kernels, 6], see `_Nodes`, as the next one
  reduces_several: tf.Tensor  # [kernels, 1]
  hardware: _Hardware


class _Counts(NamedTuple):
  """Work of each configuration of a kernel; float32 [kernels, configs]."""
  output_tiles: tf.Tensor
  kernel_tiles: tf.Tensor  # Of a convolution's filter.
  steps: tf.Tensor         # Output tiles times kernel tiles.
  streams: tf.Tensor       # Their number.
  moved_bytes: tf.Tensor   # Padding and re-reads included.
  block_bytes: tf.Tensor   # One block of every stream: the first transfer.
  pieces: tf.Tensor        # Contiguous runs of memory of all transfers.
  matrix_rows: tf.Tensor   # Through blocks of weights.
  vector_registers: tf.Tensor  # Vector instructions, on a layout tile each.
  tile_elements: tf.Tensor     # Of the output, padding included.
  footprint_bytes: tf.Tensor   # Of the blocks held on chip.
  padding: tf.Tensor   # Elements of whole layout tiles over true elements.
  rounding: tf.Tensor  # Layout tiles of all tiles over those of the tensor.
  waits: tf.Tensor     # Transfers that a step waits for.
  crowding: tf.Tensor  # Layout tiles of a tile over the most at full speed; 0
                       # of a single tile of a core.
  all_tiles: tf.Tensor  # Layout tiles of all tiles.
  idle: tf.Tensor      # Steps of all cores over those with a tile.
  partials: tf.Tensor  # Layout tiles of partial results that steps compare.
  is_alone: tf.Tensor  # `_Loops.is_alone`.
  COLUMNS = 13         # The first ones, which a network reads.


class _Geometry:
  """Loop nests, tiles and counts, on one of `_MACHINES`."""

  @staticmethod
  def hardware(statistics: _Statistics, cores: int = 1) -> _Hardware:
    """The data's machine, in float32 []; a TPU with `cores`."""
    in_tiles, in_elements = (tf.constant(x, tf.float32) for x in (
        _MACHINES[0]._replace(cores=cores), _MACHINES[1]))
    return _Hardware(*tf.unstack(tf.where(
        statistics.in_elements(), in_elements, in_tiles)))

  @staticmethod
  def loops(graph: _Graph, raw: tf.Tensor, hardware: _Hardware) -> _Loops:
    """Loop nests from node features in their own units, [nodes, 140]; by one
    trace of `loops_of` for all models, as making it takes a second."""
    return _loops(graph.opcode, graph.node_counts, *graph.edges['consumers'],
                  raw, hardware)

  @staticmethod
  def loops_of(opcode: tf.Tensor, node_counts: tf.Tensor, consumer: tf.Tensor,
               producer: tf.Tensor, raw: tf.Tensor, hardware: _Hardware
               ) -> _Loops:
    graph = _Graph(_Inputs(opcode, raw, node_counts, consumer, producer, None))
    nodes = _Nodes(graph, raw, hardware)
    tiled = nodes.tiled_rows
    output_axes = tf.pad(  # [kernels, 6, 12], 1 for a dimension and its axis
        _transposed(tiled.order), [[0, 0], [0, 0], [0, _AXES - _DIMS]])
    conv, pool = _Convolution(graph, nodes, output_axes), _Pool(nodes, tiled)
    streams, picked, ranks = _streams(graph, nodes, conv, pool, output_axes)
    has_pool = nodes.has_pool > 0  # bool [kernels, 1]
    filters = nodes.rows(tf.where(
        has_pool[:, 0], nodes.tiled, conv.dims.filter))
    is_filter = conv.dims.exists > 0  # bool [kernels, 1]
    size = tf.concat([  # [kernels, 12], as `unit`
        tiled.size, tf.where(is_filter, filters.size, pool.size)], 1)
    unit = tf.concat([tiled.unit, tf.where(is_filter, filters.unit, 1.0)], 1)
    # Bounds in elements are of logical dimensions, others of physical ones.
    dims = tf.where(hardware.in_elements > 0, tf.concat(  # [kernels, 12, 6]
        [tiled.order, filters.order], 1), [_EYE + _EYE])
    bound = tf.reduce_sum(dims * _PLACES, 2) + [
        first for first in _BOUNDS for _ in _PLACES]
    bound = tf.where(tf.reduce_sum(dims, 2) > 0, bound, float(
        _TABLE_WIDTHS['config']))
    return _Loops(
        size=size, unit=unit, units=tf.math.ceil(size / unit),
        is_loop=tf.concat([_leading(tiled.rank),
                           conv.filter_loops + pool.is_cut], 1),
        rows=conv.rows, features=conv.features,
        taps=conv.taps + tf.pad(pool.is_cut, [[0, 0], [_DIMS, 0]]),
        bound=tf.cast(bound, tf.int32),
        kernel_axis=tf.where(has_pool, pool.kernel_axis, conv.kernel_axis),
        written=nodes.written, products=nodes.products,
        has_pool=tf.squeeze(nodes.has_pool, 1), vector_ops=nodes.vector_ops,
        sum_bytes=nodes.sum_bytes, most_tiles=nodes.most_tiles,
        is_alone=nodes.is_alone, waits=nodes.waits,
        streams=streams, picked=picked, minor_first=_minor_first(
            tf.concat([tiled.rank, filters.rank, ranks], 1)),
        summed=nodes.summed, reduces_several=nodes.reduces_several,
        hardware=hardware)

  @staticmethod
  def tiles(loops: _Loops, raw: tf.Tensor) -> tf.Tensor:
    """Layout tiles along each axis of a tile, float32 [kernels, 12, configs];
    from config features in their own units, [kernels, configs, 24]."""
    columns = tf.pad(raw, [[0, 0], [0, 0], [0, 1]])  # [kernels, configs, 25]
    bounds = tf.gather(  # [kernels, 12, configs]
        tf.transpose(columns, [0, 2, 1]), loops.bound, batch_dims=1)
    units = tf.expand_dims(loops.units, -1)  # [kernels, 12, 1]
    # A dimension without a bound is whole.
    return tf.where((units > 1) & (bounds > 0), bounds, units)

  @classmethod
  def counts(cls, loops: _Loops, tile: tf.Tensor) -> tuple:
    """`_Counts`, and layout tiles of streams' blocks, [streams, 6, configs]."""
    hardware = loops.hardware
    def of(axes, x):  # [kernels, 12, configs or 1], 1 on other axes.
      return tf.where(tf.expand_dims(axes, -1) > 0, x, 1.0)

    size, unit, units = (of(loops.is_loop, tf.expand_dims(x, -1)) for x in (
        loops.size, loops.unit, loops.units))  # [kernels, 12, 1]
    tile = of(loops.is_loop, tile)  # [kernels, 12, configs], as both below
    trips = tf.math.ceil(units / tile)
    elements = tile * unit
    is_product, vector_ops, sum_bytes = (tf.expand_dims(x, -1) for x in (
        tf.sign(loops.products), loops.vector_ops, loops.sum_bytes))
    # These are [kernels, 1]; from here on [kernels, configs].
    output_tiles, kernel_tiles = (_product(x) for x in tf.split(trips, 2, 1))
    steps = tf.minimum(output_tiles * kernel_tiles, _MOST)
    tile_elements = _product(elements[:, :_DIMS])
    registers = tile_elements / (hardware.lanes * hardware.sublanes)
    (streams, block, moved, pieces, waits, held), covered = cls._traffic(
        loops, trips, elements)
    blocks = _product(
        of(loops.features, tf.math.ceil(elements / hardware.matrix_side))
        * of(loops.taps, elements))
    rows = _product(of(loops.rows, elements))
    # Partial sums are added up.
    vector = registers * (vector_ops * output_tiles
                          + is_product * (steps - output_tiles))
    of_tile = _product(tile[:, :_DIMS])  # Layout tiles.
    crowding = tf.where(
        steps > hardware.cores,
        of_tile / tf.expand_dims(loops.most_tiles, -1), 0.0)
    waves = steps / hardware.cores
    idle = tf.where(hardware.in_elements > 0, 1.0, tf.math.ceil(waves) / waves)
    waits += tf.expand_dims(loops.waits, -1) * steps
    padding = _product((units * unit / size)[:, :_DIMS])  # [kernels, 1]
    rounding = _product((trips * tile / units)[:, :_DIMS])
    return _Counts(
        output_tiles=output_tiles, kernel_tiles=kernel_tiles, steps=steps,
        streams=streams, moved_bytes=moved, block_bytes=block, pieces=pieces,
        matrix_rows=is_product * steps * blocks * rows, vector_registers=vector,
        tile_elements=tile_elements, rounding=rounding, crowding=crowding,
        footprint_bytes=held + sum_bytes * tile_elements,
        padding=padding + tf.zeros_like(steps), waits=waits,
        all_tiles=steps * of_tile, idle=idle,
        partials=steps * cls._partials(loops, trips, elements),
        is_alone=tf.expand_dims(loops.is_alone, -1) + tf.zeros_like(steps)
    ), covered

  @staticmethod
  def _partials(loops: _Loops, trips: tf.Tensor,
                elements: tf.Tensor) -> tf.Tensor:
    """Layout tiles of the partial results that a step compares, those of all
    cuts along what is reduced, if it is several tensors as in an argmax; by the
    compiler's log: [kernels, configs]."""
    summed = loops.summed[..., tf.newaxis] > 0  # [kernels, 6, 1]
    cuts, kept = (_product(x) for x in (  # [kernels, configs]
        tf.where(summed, trips[:, :_DIMS], 1.0),
        tf.where(summed, 1.0, elements[:, :_DIMS])))
    tiles = tf.math.ceil(
        kept / (loops.hardware.lanes * loops.hardware.sublanes))
    return loops.reduces_several * cuts * tiles

  @staticmethod
  def waves(loops: _Loops, tile: tf.Tensor) -> tuple:
    """The number of tiles that can run at once, in waves on all cores, and the
    waves in whole numbers: float32 [kernels, configs]."""
    beside = tf.where((loops.is_loop[:, :_DIMS] > 0) & ~(loops.summed > 0),
                      loops.units[:, :_DIMS], 1.0)[..., tf.newaxis]
    number = _product(tf.math.ceil(beside / tile[:, :_DIMS]))
    waves = number / loops.hardware.cores
    return number, waves, tf.math.ceil(waves)

  @staticmethod
  def _traffic(loops: _Loops, trips: tf.Tensor, elements: tf.Tensor) -> tuple:
    """(streams, block bytes, moved bytes, pieces, waits of products, bytes held
    on chip), all [kernels, configs]; and every stream's blocks, see `counts`.

    A block stays on chip while the next step needs it too. It changes with the
    loops that its tensor follows, and is fetched again whenever a loop outside
    of those advances. Dimensions that are covered whole merge with the next
    more major one into one contiguous piece.
    """
    s = loops.streams
    done = []  # [kernels, configs]; takes a tenth of `tf.math.cumprod`'s time
    for trip in tf.unstack(trips, axis=1):
      done.append(trip * done[-1] if done else trip)
    # Fetches where a loop is the innermost one that changes the block.
    rounds = tf.where(trips > 1, tf.stack(done, 1), 1.0)
    elements, rounds = (  # [streams, 12, configs]
        tf.gather(x, s.kernel) for x in (elements, rounds))
    surplus, whole, follows = (  # [streams, 6, 1], of axes [streams, 12, 1]
        tf.expand_dims(x, -1) for x in (s.surplus, s.whole, s.follows))
    covered = tf.clip_by_value(  # [streams, 6, configs]
        tf.math.ceil(s.per_element @ elements - surplus), 1.0, whole)
    place = tf.constant([[x] for x in _PLACES])  # [6, 1]
    inner = tf.reduce_max(  # [streams, 1, configs], the last partial one
        _as_float(covered < whole) * place, 1, keepdims=True)
    # From here on [streams, configs].
    block = _product(covered) * s.tile_bytes
    pieces = _product(tf.where(place < inner, covered, 1.0))
    fetches = tf.minimum(_MOST, tf.reduce_max(
        tf.where(follows > 0, rounds, 1.0), 1))
    # Double buffering, if there is a next block.
    held = block * (s.copies + tf.minimum(fetches, 2.0))
    return tuple(
        tf.math.unsorted_segment_sum(x, s.kernel, tf.shape(trips)[0])
        for x in (tf.ones_like(block), block * s.moves,
                  block * fetches * s.moves, pieces * fetches * s.moves,
                  fetches * s.waits, held)), covered


_loops = _traced(
    _Geometry.loops_of, *4 * [tf.TensorSpec([None], tf.int32)],
    tf.TensorSpec([None, _TABLE_WIDTHS['node']]),
    _Hardware(*[tf.TensorSpec([])] * len(_Hardware._fields)))


def _streams(graph: _Graph, nodes: _Nodes, conv: '_Convolution',
             pool: '_Pool', output_axes: tf.Tensor) -> tuple:
  """The tensors that each kernel reads and writes.

  Parameters from which the image or the filter is computed follow its loops;
  other inputs and outputs follow the tiled tensor's. Returns `_Streams`;
  `_Loops.picked`; and the ranks of these, [kernels, 3].
  """
  of_kinds = tf.stack([
      nodes.inputs * conv.in_image, nodes.inputs * conv.in_filter,
      nodes.inputs * (1 - tf.maximum(conv.in_image, conv.in_filter)),
      nodes.outputs])  # [kinds, nodes], 1 for a stream.
  kind, index = tf.unstack(  # int32 [streams], as all indices
      tf.cast(tf.where(of_kinds > 0), tf.int32), 2, axis=1)
  kernel = tf.gather(nodes.kernel_of, index)
  row = kind * graph.kernels + kernel

  def by_kind(*of_kinds):  # A row for each stream.
    return tf.gather(tf.concat(of_kinds, 0), row)

  none, not_pooled = tf.zeros_like(output_axes), tf.zeros_like(pool.stride)
  other_index = by_kind(
      conv.dims.image, conv.dims.filter, nodes.tiled, nodes.tiled)
  # [streams, 6, 12], [streams, 6, 12], [streams, 6] and bool [streams, 1].
  axes = by_kind(conv.image_follow, conv.filter_axes, output_axes, output_axes)
  window = by_kind(conv.image_window, none, pool.window, none)
  stride = by_kind(not_pooled, not_pooled, pool.stride, not_pooled)
  is_part = tf.expand_dims(kind < _KINDS.index('input'), -1)
  node, other = nodes.rows(index), nodes.rows(other_index)
  matched, follow, has_other_layout = _paired(
      node, other, nodes.kept_by(index, other), is_part,
      tf.gather(nodes.before_transposition, index) > 0,
      tf.gather(nodes.permutation, kernel), stride)
  # The first parameter of about the operand's size stands for the operand.
  ratio = node.elements / other.elements  # [streams, 1]
  is_like = tf.squeeze(is_part & (ratio > 1 / 5) & (ratio < 5), 1)
  number = tf.range(tf.size(row))  # int32 [streams]
  first = tf.math.unsorted_segment_min(
      tf.where(is_like, number, tf.int32.max), row, len(_KINDS) * graph.kernels)
  is_operand = is_like & tf.equal(number, tf.gather(first, row))
  is_output = tf.equal(kind, _KINDS.index('output'))
  moves = tf.gather(nodes.moves, index)  # [streams]
  waits = _as_float(is_operand | is_output) * moves * (
      tf.gather(nodes.has_convolution, kernel))
  # As they are laid out; logical dimensions in rows.
  rows = nodes.rows(tf.where(has_other_layout[:, 0], other_index, index))
  streams = _laid_out(rows, follow @ axes, matched @ window, dict(
      kernel=kernel, kind=kind, moves=moves[:, tf.newaxis],
      waits=waits[:, tf.newaxis]), node.padded_bytes / rows.padded, is_operand)
  size = _product(rows.size)

  def largest(score):  # int32 [kernels]
    most = tf.math.unsorted_segment_max(score, kernel, graph.kernels)
    return tf.math.unsorted_segment_max(
        tf.where(tf.equal(score, tf.gather(most, kernel)), number, 0), kernel,
        graph.kernels)

  score = tf.where(tf.equal(kind % 2, 0), 1.0, 1 / _MOST) * size  # Of inputs.
  of_output = tf.where(is_output, size, 0.0)
  picked = tf.stack([largest(score), *(
      largest(tf.where(is_operand & tf.equal(kind, i), 2 * _MOST, other))
      for i, other in enumerate((score, of_output)))], 1)
  return streams, picked, tf.gather(rows.rank[:, 0], picked)


def _laid_out(rows: _NodeRows, follow: tf.Tensor, window: tf.Tensor,
              known: Mapping[str, tf.Tensor], element_bytes: tf.Tensor,
              is_operand: tf.Tensor) -> _Streams:
  """`_Streams` with `known` fields, in the layout of `rows`. `follow` and
  `window` are elements of a logical dimension per element and per tap of an
  axis, [streams, 6, 12]; `element_bytes` [streams, 1]; `is_operand` bool
  [streams]."""
  follow, window = rows.order @ follow, rows.order @ window  # Of physical ones.
  between, spread = (tf.reduce_sum(x, 2) for x in (follow, window))
  # From the first element's first tap to the last one's last: [streams, 6].
  surplus = spread + _as_float(spread > 0) * tf.maximum(between - 1, 0.0)
  # Dimensions that no loop divides are read whole.
  surplus = tf.where(between > 0, surplus, -rows.size)
  per_element = (follow + window) / tf.expand_dims(rows.unit, -1)
  return _Streams(
      **known, size=rows.size, unit=rows.unit,
      whole=tf.math.ceil(rows.size / rows.unit), per_element=per_element,
      surplus=surplus / rows.unit + 1e-4,
      follows=_as_float(tf.reduce_sum(per_element, 1) > 0),
      tile_bytes=element_bytes * tf.expand_dims(_product(rows.unit), 1),
      copies=4 * _as_float(is_operand)[:, tf.newaxis] / element_bytes)


def _paired(node: _NodeRows, other: _NodeRows, kept: tf.Tensor,
            is_part: tf.Tensor, is_before: tf.Tensor, permutation: tf.Tensor,
            stride: tf.Tensor) -> tuple:
  """Pairs the dimensions of streams' nodes with those of other nodes.

  By order if the ranks are equal; else with those that it keeps, [streams, 6];
  else by sizes, from the right; across a transposition by its permutation.
  `stride`, [streams, 6], is the ratio of sizes where windows are reduced, or 0.

  Returns [streams, 6, 6], 1 for a pair; the same with the ratio of its sizes,
  permuted; whether the node has the other's layout, bool [streams, 1].
  """
  def choose(condition, yes, no):  # [streams, 6, 6] twice
    return tf.where(tf.expand_dims(condition, -1), yes, no)

  eye = tf.constant(_EYE)
  exists, other_exists = map(_leading, (node.rank, other.rank))  # [streams, 6]
  is_permuted = is_before[:, tf.newaxis] & ~is_part  # bool [streams, 1]
  has_all = tf.equal(node.elements, other.elements)  # As `is_permuted`.
  is_reshaped = has_all & tf.reduce_any(
      tf.not_equal(node.shape, other.shape), -1, keepdims=True)
  is_same = tf.equal(node.rank, other.rank) & (is_permuted | ~is_reshaped)
  is_kept = tf.reduce_any(kept > 0, -1, keepdims=True)
  as_other = has_all & ~(is_same | is_kept)
  is_permuted &= ~(is_kept | as_other)
  permutation = choose(is_permuted, permutation, eye)  # [streams, 6, 6]
  shape = tf.maximum(_matvec(permutation, other.shape), 1)  # [streams, 6]
  alike = _outer(exists, other_exists) * _as_float(tf.equal(  # [streams, 6, 6]
      tf.expand_dims(node.shape, -1), tf.expand_dims(shape, -2)))
  # A broadcast operand within one layout tile never changes.
  changes = ~is_part | (  # bool [streams, 6]
      node.shape > _matvec(_transposed(node.order), node.unit))
  matched = choose(is_kept, _in_turn(kept), _matched_from_right(alike)
                   * tf.expand_dims(_as_float(changes), -1))
  matched = choose(  # [streams, 6, 6]
      is_same | as_other, eye * tf.expand_dims(other_exists, 1), matched)
  size = tf.where(as_other, shape, tf.where(  # [streams, 6]
      is_same & (stride > 0), stride * shape, node.shape))
  scale = size[..., tf.newaxis] / shape[:, tf.newaxis]  # [streams, 6, 6]
  return matched, (matched * scale) @ permutation, as_other


def _matched_from_right(alike: tf.Tensor) -> tf.Tensor:
  """Pairs each dimension, from the last on, with the last one of its size
  before the previous pair: 0 or 1, [streams, 6, 6] -> same."""
  places = 1 + tf.constant(_PLACES)  # [6], from 1; 0 means none.
  none, first, rows = tf.constant(0.0), 1.0 + _DIMS, []
  for row in reversed(tf.unstack(alike * places, axis=1)):  # [streams, 6]
    place = tf.reduce_max(tf.where(row < first, row, none), -1, keepdims=True)
    rows.append(place)
    first = tf.where(place > none, place, first)
  return _as_float(tf.equal(places, tf.stack(rows[::-1], 1)))


class _Pool:
  """The windows that a kernel reduces, as axes in place of a filter's.

    is_cut: [kernels, 6], 1 for physical dimensions along which tiles cut the
      windows: not those of a layout tile.
    size: [kernels, 6], of a window along these.
    kernel_axis: see `_Loops`; the last dimension follows the rows.
    stride: [kernels, 6], of the logical dimensions; 0 where it reduces none.
    window: [kernels, 6, 12], elements of the input from tap to tap.
  """

  def __init__(self, nodes: _Nodes, tiled: _NodeRows):
    size, stride, spread, zeros = (tf.maximum(tf.gather(  # [kernels, 6]
        nodes.column[name], nodes.pool), 1) for name in _WINDOW)
    self.is_cut = (nodes.has_pool * _leading(tiled.rank)
                   * _as_float(tf.equal(tiled.unit, 1)))
    self.size = tf.maximum(self.is_cut * _matvec(tiled.order, size), 1)
    place, rank = tf.constant(_PLACES), tiled.rank
    self.kernel_axis = tf.cast(tf.where(  # int32 [kernels, 6]
        tf.equal(place, rank - 1) & (tiled.unit > 1), rank - 2,
        tf.where(place < rank, place + _DIMS, -1.0)), tf.int32)
    self.stride = nodes.has_pool * stride / zeros
    spread = nodes.has_pool * spread / zeros  # [kernels, 6]
    self.window = tf.pad(_transposed(tiled.order) * spread[..., tf.newaxis],
                         [[0, 0], [0, 0], [_DIMS, 0]])


class _ConvolutionDims:
  """Operands of each kernel's convolution, and what their dimensions mean.

  All is 0 in kernels without one. Features do not order the operands: the
  filter is the one that is computed last.

    image, filter: int32 [kernels], nodes; the `_NodeRows` of these and of the
      result are `image_rows`, `filter_rows`, `output_rows`.
    spatial: [kernels, 4], 1 for spatial dimensions that exist.
    image_batch and so on: one-hot [kernels, 6], spatial ones [kernels, 4, 6].
    output: one-hot [kernels, 2, 6], batch and features.
  """

  def __init__(self, graph: _Graph, nodes: _Nodes):
    self.exists = tf.expand_dims(nodes.has_convolution, -1)  # [kernels, 1]
    self.image, self.filter = (tf.gather(x, nodes.convolution)
                               for x in graph.first_and_last('producers'))
    self.output_rows, self.image_rows, self.filter_rows = map(
        nodes.rows, (nodes.convolution, self.image, self.filter))
    def column(name):  # [kernels, columns]
      return tf.gather(nodes.column[name], nodes.convolution)

    self.is_grouped = column('feature_groups') > 1  # bool [kernels, 1] twice
    is_dot = tf.gather(graph.opcode == _DOT, nodes.convolution)[:, tf.newaxis]
    of_dot = _product_as_convolution(
        self.output_rows, self.image_rows, self.filter_rows)
    # [kernels, 4], 1 at least.
    self.window, self.stride, self.window_dilation, self.base_dilation = (
        tf.maximum(tf.where(is_dot, of_dot.get(name, 1.0), column(name)[
            :, :_SPATIAL]), 1) for name in _WINDOW)
    exists = _leading(self.output_rows.rank)  # [kernels, 6]
    self.spatial = self.exists * exists[:, 2:]
    on_spatial = tf.expand_dims(self.spatial, -1)  # [kernels, 4, 1]
    numbers = _hot(tf.where(  # [kernels, 14, 6]
        is_dot, of_dot['convolution'], column('convolution')))
    *dims, self.output = tf.split(
        numbers * self.exists[..., tf.newaxis], [1, 1, 4, 1, 1, 4, 2], 1)
    (self.image_batch, self.image_in, self.image_spatial, self.filter_in,
     self.filter_out, self.filter_spatial) = (
         tf.squeeze(x, 1) if x.shape[1] == 1 else x * on_spatial for x in dims)
    left = exists * (1 - tf.reduce_max(self.output, 1))  # [kernels, 6]
    self.output_spatial = _in_turn(left)[:, :_SPATIAL] * on_spatial

  def has_tap_each(self) -> tf.Tensor:
    """1 where each element of the output has its own tap: [kernels, 4].

    Such a window encodes a batch or features. With n taps there are three:
    n - 1 zeros between elements of the image; n - 2 at a stride of n, and an
    image as long as the window; an image of one element.
    """
    size, zeros = self.window, self.base_dilation  # [kernels, 4], as all
    image = _matvec(self.image_spatial, self.image_rows.shape)
    output = _matvec(self.output_spatial, self.output_rows.shape)
    alone = tf.equal(image, 1) | (
        tf.equal(image, size) & tf.equal(self.stride, size)
        & tf.equal(zeros, size - 1))
    return self.spatial * _as_float((size > 1) & (
        tf.equal(zeros, size) | (alone & tf.equal(output, size))))


class _Convolution:
  """The axes of each kernel's convolution; all is 0 in kernels without one.

    dims: `_ConvolutionDims`.
    in_image, in_filter: [nodes], 1 for parameters that they are computed from.
    filter_axes, image_follow, image_window: [kernels, 6, 12], the elements of
      a dimension for one of an axis, and for one tap.
    filter_loops: [kernels, 6], 1 for dimensions with a loop of their own.
    rows, features, taps, kernel_axis: see `_Loops`.
  """

  def __init__(self, graph: _Graph, nodes: _Nodes, output_axes: tf.Tensor):
    dims = self.dims = _ConvolutionDims(graph, nodes)
    self.in_image, self.in_filter = (self._parameters_of(graph, nodes, operand)
                                     for operand in (dims.image, dims.filter))
    spatial_axes = dims.output_spatial @ output_axes  # [kernels, 4, 12]
    batch_axis, feature_axes = tf.unstack(  # [kernels, 12]
        dims.output @ output_axes, axis=1)
    is_batch = dims.has_tap_each()  # [kernels, 4]
    is_tap = dims.spatial - is_batch  # [kernels, 4]
    batch = dims.filter_spatial * is_batch[..., tf.newaxis]  # [kernels, 4, 6]
    following = dims.filter_out + tf.reduce_sum(batch, 1)  # [kernels, 6]
    alone = tf.pad(  # [kernels, 6, 12]
        _transposed(dims.filter_rows.order), [[0, 0], [0, 0], [_DIMS, 0]])
    alone *= tf.expand_dims(dims.exists * (1 - following), -1)
    self.filter_loops = tf.reduce_sum(alone, 1)[:, _DIMS:]
    self.filter_axes = (alone + _outer(dims.filter_out, feature_axes)
                        + _transposed(batch) @ spatial_axes)
    physical = dims.filter_rows.order @ self.filter_axes  # [kernels, 6, 12]
    self.kernel_axis = tf.where(
        tf.reduce_max(physical, -1) > 0, tf.argmax(physical, -1, tf.int32), -1)
    contracted = _matvec(  # [kernels, 12]
        _transposed(self.filter_axes), dims.filter_in)
    tap_axes = (dims.filter_spatial @ self.filter_axes  # [kernels, 4, 12]
                * tf.expand_dims(is_tap, -1))
    # Groups of the image's features go with those of the result.
    image_in, features = (  # [kernels, 1], sizes
        tf.reduce_sum(dim * rows.shape, -1, keepdims=True) for dim, rows in (
            (dims.image_in, dims.image_rows),
            (dims.output[:, 1], dims.output_rows)))
    group = feature_axes * tf.math.divide_no_nan(image_in, features)
    spread, stride = (  # [kernels, 4]
        tf.where(is_tap > 0, x / dims.base_dilation, 1.0)
        for x in (dims.window_dilation, dims.stride))
    self.image_follow = (
        _outer(dims.image_batch, batch_axis)
        + _outer(dims.image_in, tf.where(dims.is_grouped, group, contracted))
        + _transposed(dims.image_spatial * tf.expand_dims(stride, -1))
        @ spatial_axes)
    self.image_window = _transposed(
        dims.image_spatial * tf.expand_dims(spread, -1)) @ tap_axes
    batch_axes = _matvec(_transposed(spatial_axes), is_batch)  # [kernels, 12]
    self.rows = (tf.reduce_sum(output_axes, 1) * dims.exists
                 - feature_axes - batch_axes)
    self.features = feature_axes + contracted
    self.taps = tf.reduce_sum(tap_axes, 1) + batch_axes

  @staticmethod
  def _parameters_of(graph, nodes, operand) -> tf.Tensor:
    """Marks the parameters that an operand is or is computed from: [nodes]."""
    parameter = nodes.opcode_is(_PARAMETER)  # [nodes], as all
    marked = nodes.marked(operand) * graph.on_nodes(nodes.has_convolution)
    fused = tf.maximum(marked, nodes.operands_of(marked)) * parameter
    of_key = tf.math.unsorted_segment_sum(  # [kernels * _KEYS]
        fused, nodes.parameter_key, graph.kernels * _KEYS)
    return parameter * tf.sign(tf.gather(of_key, nodes.parameter_key))


# ------------------------------------------------------------- chapter: columns


class _Columns:
  """What a network reads of tiles, float32 [kernels, configs, columns], about 1
  at most: of `_Loops`, and what `_Geometry.tiles` and `counts` return."""
  # Of staircases, and bytes of the first; how often 2 may divide.
  _STEPS, _LEAST, _EVEN = 12, 64, 7
  NUMBER = 4 * (_AXES + _DIMS + _STEPS)

  @classmethod
  def of_tiles(cls, loops: _Loops, tile: tf.Tensor, counts: _Counts,
               covered: tf.Tensor) -> tf.Tensor:
    """`NUMBER` columns, for each axis, most minor first, and in all.

    For an axis, and for a dimension of the largest input: log2 of a block's
    elements, of the number of blocks and of the padding by rounding, and how
    often 2 divides the elements. For a tile: its elements, the steps, and the
    bytes of all streams' blocks and of on-chip memory, as staircases: the j-th
    column rises from 0 to 1 between 4^j and 4^(j + 1).
    """
    unit, units, block = (  # [kernels, 18] twice, [kernels, 18, configs]
        tf.concat([of_axes, tf.gather(of_streams, loops.picked[:, 0])], 1)
        for of_axes, of_streams in (
            (loops.unit, loops.streams.unit),
            (loops.units, loops.streams.whole), (tile, covered)))
    unit, units = unit[..., tf.newaxis], units[..., tf.newaxis]
    blocks = tf.math.ceil(units / block)  # [kernels, 18, configs]
    elements = block * unit  # [kernels, 18, configs]
    whole = tf.cast(tf.minimum(elements, 2.0 ** 30), tf.int32)
    even = tf.cast(tf.minimum(  # The largest power of 2 that divides it.
        tf.bitwise.bitwise_and(whole, -whole), 2 ** cls._EVEN), tf.float32)
    axes = tf.gather(_log2(tf.stack([  # [kernels, 18, 4, configs]
        elements, blocks, blocks * block / units, even], 2)),
                     loops.minor_first[:, :_AXES + _DIMS], axis=1, batch_dims=1)
    axes *= [[1 / 5], [1 / 5], [1.0], [1 / cls._EVEN]]
    sizes = tf.stack([  # [kernels, 4, configs]
        counts.tile_elements, counts.steps, counts.block_bytes / cls._LEAST,
        counts.footprint_bytes / cls._LEAST], 1)
    steps = tf.clip_by_value(  # [kernels, 4, 12, configs]
        tf.expand_dims(_log2(tf.maximum(1.0, sizes)) / 2, 2)
        - [[float(j)] for j in range(cls._STEPS)], 0.0, 1.0)
    columns = tf.concat([cls._flat(axes), cls._flat(steps)], 1)
    return tf.transpose(columns, [0, 2, 1])

  @staticmethod
  def _flat(x: tf.Tensor) -> tf.Tensor:
    """[kernels, a, b, configs] -> [kernels, a * b, configs]."""
    kernels, configs = tf.shape(x)[0], tf.shape(x)[-1]
    return tf.reshape(x, [kernels, x.shape[1] * x.shape[2], configs])

  @classmethod
  def of_blocks(cls, loops: _Loops, tile: tf.Tensor, counts: _Counts,
                covered: tf.Tensor) -> tf.Tensor:
    """38 further columns where tiles are blocks of a GPU's program.

    Of the blocks that run side by side log2 of their number, of the rounding up
    to whole waves and of the waves, and the part of a wave; `_of_operands`; for
    each of `_sides` a peak at each power of 2 from 8 to 256, because what a
    block costs jumps there, as registers and instructions of other shapes do;
    log2 of the rounding up of both minor sides to powers of 2; and such peaks
    of the tile's elements, from 2^6 to 2^13.
    """
    number, waves, whole = _Geometry.waves(loops, tile)
    sides = _log2(cls._sides(loops, tile, covered))  # [kernels, 3, configs]
    up = tf.math.ceil(sides[:, :2] - 1e-5) - sides[:, :2]

    def peaks(x, first, last):  # Of log2s [kernels, n, configs].
      powers = [[float(power)] for power in range(first, last + 1)]
      x = tf.expand_dims(tf.clip_by_value(x, *powers[0], *powers[-1]), 2)
      return cls._flat(tf.maximum(0.0, 1 - tf.abs(x - powers)))

    columns = tf.concat([  # [kernels, 38, configs]
        tf.stack([_log2(number) / 5, _log2(whole / waves) / 2,
                  _log2(whole) / 5, tf.minimum(waves, 1.0)], 1),
        cls._of_operands(loops, covered), peaks(sides, 3, 8),
        tf.reduce_sum(up, 1, keepdims=True),
        peaks(_log2(counts.tile_elements)[:, tf.newaxis], 6, 13)], 1)
    return tf.transpose(columns, [0, 2, 1])

  @staticmethod
  def _of_operands(loops: _Loops, covered: tf.Tensor) -> tf.Tensor:
    """Of what a tile reads of the last two of `loops.picked` along their two
    most minor dimensions log2 of bytes and elements; whether a product sums
    over the most minor one, as matrix units want it; and of an element log2 of
    its bytes. Shapes: float32 [kernels, 7, configs]."""
    s, both = loops.streams, tf.reshape(loops.picked[:, 1:], [-1])
    of_both = loops.minor_first[:, -2 * _DIMS:] - _AXES - _DIMS

    def minor(x, places):  # Of x [2 kernels, 6, any] -> [kernels, places, any].
      return tf.gather(tf.reshape(x, [-1, 2 * _DIMS, tf.shape(x)[2]]),
                       tf.gather(of_both, places, axis=1), batch_dims=1)

    lengths = minor(  # [kernels, 4, configs]
        tf.gather(covered, both), [0, 1, _DIMS, _DIMS + 1])
    per_summand = tf.reduce_max(  # [2 kernels, 6, 1]
        tf.gather(s.per_element, both)[..., _DIMS:]
        * tf.reshape(tf.stack(2 * [loops.features[:, _DIMS:]], 1),
                     [-1, 1, _DIMS]), 2, keepdims=True)
    is_summed = minor(_as_float(per_summand > 0), [0, _DIMS])
    size = tf.reshape(tf.gather(s.tile_bytes, both), [-1, 2, 1])  # In bytes.
    sizes = tf.reshape(tf.concat([size, tf.ones_like(size)], 2), [-1, 4, 1])
    fixed = tf.concat([is_summed, _log2(size[:, :1]) / 2], 1)
    return tf.concat([_log2(lengths * sizes) / 5,
                      fixed + tf.zeros_like(lengths[:, :1])], 1)

  @staticmethod
  def _sides(loops: _Loops, tile: tf.Tensor, covered: tf.Tensor) -> tf.Tensor:
    """A tile's two most minor sides, and what it sums over in a product, else
    the most minor side of the input: float32 [kernels, 3, configs]."""
    sides = tf.gather(
        tf.concat([tile, tf.gather(covered, loops.picked[:, 0])], 1),
        tf.gather(loops.minor_first, [0, 1, _AXES], axis=1), batch_dims=1)
    contracted = loops.features[:, _DIMS:, tf.newaxis] > 0  # [kernels, 6, 1]
    of_sum = _product(  # [kernels, configs]
        tf.where(contracted, tile[:, _DIMS:], 1.0))[:, tf.newaxis]
    return tf.concat([sides[:, :2], tf.where(
        tf.reduce_any(contracted, 1, keepdims=True), of_sum, sides[:, 2:])], 1)


# ------------------------------------------------------------ chapter: analytic


class _Machine(tf.keras.layers.Layer):
  """Time of a kernel from its counts, by physical constants.

      time = launch + idle * (step * steps + max(m, a) + unhidden * min(m, a))
             + block_bytes / bandwidth
      m = wait * waits + moved_bytes / bandwidth + piece * pieces
          + (lone where is_alone, else crowd) * all_tiles * max(0, crowding - 1)
      a = matrix_row * matrix_rows + vector * vector_registers
          + partial * partials
  The last term is the first transfer, which nothing hides. Constants are
  c = c_0 exp(10 w): an optimizer step of 1e-3 changes a constant by 1 %.
  """
  NUM_SHARES = 5

  def __init__(self, sharpness: Optional[float] = None):
    super().__init__()
    self._sharpness = sharpness  # None: without; else the last of `changes`.

  def build(self, input_shape):
    self.changes = self.add_weight(
        'changes', [len(_TRAINED_CONSTANTS) + (self._sharpness is not None)],
        initializer='zeros')
    super().build(input_shape)

  def _factors(self) -> Sequence[tf.Tensor]:
    return tf.unstack(tf.exp(tf.clip_by_value(10 * self.changes, -10.0, 10.0)))

  def constants(self, hardware: _Hardware) -> dict:
    """Scalar tensors by name; the name ends in the unit."""
    return {name: getattr(hardware, name) * factor
            for name, factor in zip(_TRAINED_CONSTANTS, self._factors())}

  def sharpness(self) -> tf.Tensor:
    return self._sharpness * self._factors()[-1]

  def call(self, counts: _Counts, hardware: _Hardware) -> tuple:
    """Log of the time in ns, float32 [kernels, configs], and each term's share,
    [kernels, configs, NUM_SHARES]."""
    c = self.constants(hardware)
    launch = c['launch_ns'] * tf.ones_like(counts.steps)
    of_step = tf.where(hardware.in_elements > 0, counts.streams, 1.0)
    steps = counts.idle * (c['step_ns'] * of_step * counts.steps)
    crowd_ns = tf.where(counts.is_alone > 0, c['lone_ns'], c['crowd_ns'])
    memory = counts.idle * (counts.moved_bytes / c['bytes_per_ns']
                            + c['wait_ns'] * counts.waits
                            + c['piece_ns'] * counts.pieces
                            + crowd_ns * counts.all_tiles
                            * tf.maximum(0.0, counts.crowding - 1))
    arithmetic = counts.idle * (c['matrix_row_ns'] * counts.matrix_rows
                                + c['vector_ns'] * counts.vector_registers
                                + c['partial_ns'] * counts.partials)
    first = counts.block_bytes / c['bytes_per_ns']
    log_time = tf.math.log(
        launch + steps + first + tf.maximum(memory, arithmetic)
        + c['unhidden'] * tf.minimum(memory, arithmetic))
    terms = tf.stack([launch, steps, memory, arithmetic, first], -1)
    return log_time, terms / tf.reduce_sum(terms, -1, keepdims=True)


def _log_raw(x: tf.Tensor) -> tf.Tensor:
  """Numbers in their own units: about 1 for a thousand."""
  return tf.sign(x) * _log2(1 + tf.abs(x)) / 10


class AnalyticTileModel(_Ranker):
  """The logarithm of an analytic runtime: `_Machine` on `_Counts`.

  Its constants are a TPU's. Where tiles count elements, they are a GPU's, whose
  cores take tiles side by side: then all but the bytes moved counts by whole
  waves of them. Only the physical constants are trained; it ranks without any
  training. It needs `feature_stats`, which become a variable only if it finds
  them.
  """

  def __init__(self, num_configs: int, num_ops: int, *,
               feature_stats: Any = 'script', objective: str = 'log_mse',
               averaging: float = 0.0):
    super().__init__(num_configs, num_ops, None, 64, objective, averaging)
    if feature_stats is None:
      raise ValueError(
          'AnalyticTileModel needs feature_stats; leave the argument out, or '
          'pass what `tpu-graphs-ext stats --data_root DIR` prints.')
    self._statistics = _Statistics(
        feature_stats, num_configs, keeps=_is_to_find(feature_stats))
    self._machine = _Machine()

  _cores = 1

  def _hardware(self) -> _Hardware:
    return _Geometry.hardware(self._statistics, self._cores)

  def constants(self) -> dict:
    """Physical constants by names that end in their unit."""
    hardware = self._hardware()
    return {name: float(value)
            for name, value in self._machine.constants(hardware).items()}

  def _build_layers(self, node_width, config_width):
    self._statistics.check(node_width, config_width)
    self._statistics.build(None)
    self._machine.build(None)

  def _encode(self, graph, embedded, node_feats):
    raw = self._statistics.raw('node', node_feats, graph)
    return _Geometry.loops(graph, raw, self._hardware())

  def _score(self, graph, loops, config_feats):
    raw = self._statistics.raw('config', config_feats)
    tile = _Geometry.tiles(loops, raw)
    counts, _ = _Geometry.counts(loops, tile)
    _, waves, whole = _Geometry.waves(loops, tile)
    idle = whole / waves  # 1 on a single core.
    counts = counts._replace(**{name: idle * getattr(counts, name) for name in (
        'steps', 'pieces', 'matrix_rows', 'vector_registers')})
    return self._machine(counts, loops.hardware)[0] + self._statistics.zero()


class MyEarlyJoinSAGE(_TileRanker):
  """The model to train: `_TileRanker` corrects an analytic runtime.

      score = sharpness * log(analytic time) + learned score
  The network's inputs are logarithms of features in their own units and of
  `_Counts`, `_Columns`, and each term's share of the analytic time.
  The learned score starts at 0. A list loss reads scores as log odds, so the
  sharpness is the trust in the analytic time. The loss adds `LogMSE`, which
  fits the physical constants to the runtimes, and the mean square of the
  learned score times the square of sharpness / 10, at most 1, against learning
  too much from few kernels; where tiles count elements, whose machine the
  analytic time does not know, it leaves that out. Without statistics only the
  learned score is left.

  Args:
    feature_stats: the features' scale, see `_Statistics`.
    sharpness: initial value; at 10, 10 % of the time is one unit of the score.
      From 2, training soon drops a time that is wrong, as for another kind of
      machine; from 10, a few kernels do not overrule one that is right.
    cores: of a TPU, those that share a kernel's tiles: 2 on a v4 and a v5p.
    node_rounds, **kwargs: arguments of `_TileRanker`.
  """

  def __init__(self, num_configs: int, num_ops: int, *,
               feature_stats: Any = 'script', sharpness: float = 2.0,
               cores: int = 1, node_rounds: int = 1, **kwargs):
    super().__init__(num_configs, num_ops, node_rounds=node_rounds, **kwargs)
    if not isinstance(sharpness, (int, float)) or not sharpness > 0:
      raise ValueError(
          f'sharpness must be a positive number; got {sharpness!r}.')
    _check_integers(1, cores=cores)
    self._cores = cores
    self._statistics = _Statistics(feature_stats, num_configs)
    self._machine = _Machine(sharpness)

  constants = AnalyticTileModel.constants
  _hardware = AnalyticTileModel._hardware

  def _build_layers(self, node_width, config_width):
    self._statistics.check(node_width, config_width)
    scales = len(_LOG_SCALES)
    self._build_for(
        scales * node_width + _TABLE_WIDTHS['node'],
        scales * config_width + _TABLE_WIDTHS['config']
        + _Columns.NUMBER + _Counts.COLUMNS
        + _Machine.NUM_SHARES)
    self._machine.build(None)
    self._statistics.build(None)
    if self._statistics.known():
      self._scorer.kernel.assign(tf.zeros_like(self._scorer.kernel))

  def _encode(self, graph, embedded, node_feats):
    """(what `_TileRanker` has, the loops)."""
    raw = self._statistics.raw('node', node_feats, graph)
    h = self._first(self._node_encoder, node_feats, [_log_raw(raw)], [embedded])
    return (self._encode_nodes(graph, h),
            _Geometry.loops(graph, raw, self._hardware()))

  def _first(self, layer: _DenseNorm, feats: tf.Tensor,
             known: Sequence[tf.Tensor], embedded: Sequence[tf.Tensor] = (),
             further: Optional[Callable[[], tf.Tensor]] = None) -> tf.Tensor:
    """A first layer on the `known` columns, or on scaled ones without
    statistics. Its weights have rows for both; `further` columns, of tiles in
    elements, take the scaled ones' rows and those of input bounds, which no
    file has, as many as there are."""
    kernel, bias = layer.dense.kernel, layer.dense.bias
    scaled = len(_LOG_SCALES) * feats.shape[-1]

    def on_known():
      return _matmul(tf.concat([*embedded, *known], -1), kernel[scaled:], bias)

    def on_more():
      free = tf.concat([kernel[:scaled], kernel[scaled:][_INPUT_BOUNDS]], 0)
      columns = further()[..., :free.shape[0]]
      return on_known() + _matmul(columns, free[:columns.shape[-1]])

    def on_scaled():
      columns = tf.concat([_log_scales(feats), *embedded], -1)
      return _matmul(columns, kernel[:columns.shape[-1]], bias)

    def on_raw():
      return tf.cond(self._statistics.in_elements(), on_more, on_known)

    return layer.finish(tf.cond(self._statistics.known(),
                                on_raw if further else on_known, on_scaled))

  def _score(self, graph, encoded, config_feats):
    return self._sum(*self._learned_and_log_times(graph, encoded, config_feats))

  def _sum(self, learned, log_times):
    return (self._machine.sharpness() * tf.stop_gradient(log_times) + learned
            + self._statistics.zero())

  def _learned_and_log_times(self, graph, encoded, config_feats) -> tuple:
    """The learned score, and the logarithm of the analytic time in ns, 0 where
    that is not known, float32 [kernels, configs]."""
    encoded, loops = encoded
    raw = self._statistics.raw('config', config_feats)
    tile = _Geometry.tiles(loops, raw)
    counts, covered = _Geometry.counts(loops, tile)
    log_times, shares = self._machine(counts, loops.hardware)
    of_tile = (loops, tile, counts, covered)
    z = self._first(self._config_encoder, config_feats, [
        _log_raw(raw), _Columns.of_tiles(*of_tile),
        _log_raw(tf.stack(counts[:counts.COLUMNS], -1)),
        tf.stop_gradient(shares)],
                    further=lambda: _Columns.of_blocks(*of_tile))
    return (self._score_configs(graph, encoded, z),
            _as_float(self._statistics.known()) * log_times)

  def scores_and_own_loss(self, graph, labels):
    """The own loss: of physical constants and of the learned score."""
    learned, log_times = self._learned_and_log_times(*self._encoded(
        self._inputs_for(graph), self._embedded(graph), training=True))
    time_loss = tf.reduce_mean(
        LogMSE().call(tf.cast(labels, log_times.dtype), log_times))
    sure = tf.minimum(tf.stop_gradient(self._machine.sharpness()) / 10, 1.0)
    sure *= 1 - _as_float(self._statistics.in_elements())
    own_loss = time_loss + sure ** 2 * tf.reduce_mean(learned ** 2)
    return (self._sum(learned, log_times),
            _as_float(self._statistics.known()) * own_loss)


# ---------------------------------------------------------- chapter: comparison


class EarlyJoinGCN(_TileRanker):
  """`_TileRanker` with `_GCNRound`s; configurations join at the nodes."""
  _early, _round = True, _GCNRound


class LateJoinGCN(_TileRanker):
  """`EarlyJoinGCN` whose configurations join the kernel, after all rounds."""
  _round = _GCNRound

  __init__ = functools.partialmethod(_TileRanker.__init__, node_rounds=3)


class EarlyJoinGAT(EarlyJoinGCN):
  """`EarlyJoinGCN` with `_GATRound`s."""
  _round = _GATRound


class LateJoinGAT(LateJoinGCN):
  """`LateJoinGCN` with `_GATRound`s."""
  _round = _GATRound


class LateJoinConcatPoolSAGE(_SAGE):
  """GraphSAGE on producers, mean and max over the nodes side by side, an MLP.

      a_v = mean of x_u over producers u of v
      x_v <- relu(y_v),  after the last layer x_v <- y_v
  Config features join at the head. Source: a public PyTorch notebook on the
  tile task; its model standardises the scores, here `StandardizedMSE` does.
  `widths` are of the graph layers, `head_widths` of those after pooling.
  """
  _pooling = ('mean', 'max')
  _repeats_last = True

  def __init__(self, num_configs: int, num_ops: int, *,
               widths: Sequence[int] = (128, 128, 64),
               head_widths: Sequence[int] = (64, 32, 16),
               op_embed_dim: int = 128, hidden_activation: str = 'relu',
               objective: str = 'standardized_mse'):
    for width in widths or [0]:
      _check_integers(1, widths=width)
    for width in head_widths:
      _check_integers(1, head_widths=width)
    super().__init__(num_configs, num_ops, op_embed_dim, hidden_activation,
                     widths, head_widths, objective)

  def _aggregated(self, graph, x):
    return graph.mean_of('producers', x)

  def _finished(self, y, layer):
    is_last = layer == len(self._gnn_layers) - 1
    return y if is_last else self._activation_fn(y)


class EarlyJoinConcatPoolSAGE(LateJoinConcatPoolSAGE):
  """The notebook's suggested next steps: config features on the nodes from the
  start, a list loss, and batches of kernels."""
  _early = True

  __init__ = functools.partialmethod(
      LateJoinConcatPoolSAGE.__init__, objective='listmle_fastest_first')


class EnsembleRanker(_TrainedModel):
  """Copies of a model that are trained together and score together.

      score = mean of the members' scores
      loss = mean over members of the objective on the member's own scores
  A list loss makes scores log odds, whose mean is the logarithmic opinion pool
  (Heskes 1998): a member that is sure of a pair counts for more.

  Args:
    members: {the model's name: its keyword arguments}; 'objective' and
      'averaging' are the ensemble's.
    copies: number of members, which differ in their first weights.
    feature_stats: for members that take them and have none.
    objective, averaging: see `_TrainedModel`.
  """

  def __init__(self, num_configs: int, num_ops: int, *,
               members: Optional[Mapping[str, Mapping[str, Any]]] = None,
               objective: str = 'listmle_fastest_first',
               averaging: float = 0.998, copies: int = 3,
               feature_stats: Any = 'script'):
    super().__init__(objective, averaging)
    _check_integers(1, copies=copies)
    members = {'MyEarlyJoinSAGE': {}} if members is None else members
    if not isinstance(members, Mapping) or len(members) != 1 or not all(
        isinstance(kwargs, Mapping) and not kwargs.keys() & {
            'objective', 'averaging'} for kwargs in members.values()):
      raise ValueError(
          'members must map one model to its keyword arguments without '
          'objective and averaging, which are the ensemble\'s, such as '
          f'{{"MyEarlyJoinSAGE": {{}}}}; got {members!r}.')
    (name, kwargs), = members.items()
    rankers = {key: value for key, value in globals().items()
               if isinstance(value, type) and issubclass(value, _Ranker)
               and not key.startswith('_')}
    _check_choice('members', name, list(rankers))
    if issubclass(rankers[name], (MyEarlyJoinSAGE, AnalyticTileModel)):
      kwargs = {'feature_stats': feature_stats, **kwargs}
    self._members = [rankers[name](num_configs, num_ops, **kwargs)
                     for _ in range(copies)]
    for member in self._members:
      member._repeats_last = False  # Their mean puts them there.

  @tf.autograph.experimental.do_not_convert
  def call(self, graph: tfgnn.GraphTensor, training: bool = False) -> tf.Tensor:
    return self._mean(lambda member: member(graph, training=training))

  def forward(self, graph: tfgnn.GraphTensor, num_configs: int) -> tf.Tensor:
    scores = self._mean(lambda member: member.forward(graph, num_configs))
    return _with_repeats_last(scores, _inputs_of(graph).config_feats)

  def _mean(self, scores_of: Callable[[_Ranker], tf.Tensor]) -> tf.Tensor:
    return tf.add_n([*map(scores_of, self._members)]) / len(self._members)

  def _create_for(self, node_width, config_width):
    for member in self._members:
      member._create_for(node_width, config_width)
