"""Common neural-network layers, as plain TensorFlow functions.

They are written out in elementary operations, batch normalisation and softmax
included, so that the compiled graph shows what a TPU would run. Each layer
takes the `Tensors` of its program first: the place where weights and inputs
are declared by shape while the program is read for the first time, and handed
out in the same order when it is traced.
"""

from __future__ import annotations

import tensorflow as tf


class Tensors:
  """The arguments of a program: declared in a first pass, used in a second.

  Attributes:
    specs: `tf.TensorSpec` of each argument, in the order of declaration.
    trainable: for each argument, whether an optimiser updates it.
    dtype: of activations; weights are float32 and cast where they are used.
  """

  def __init__(self, dtype=tf.float32, values=None):
    self.specs, self.trainable = [], []
    self.dtype = dtype
    self._values = values

  def weight(self, *shape):
    """A trainable float32 tensor."""
    return self._next(shape, tf.float32, trainable=True)

  def input(self, *shape, dtype=None):
    """A tensor that is given, not learned; of the program's dtype at first."""
    return self._next(shape, dtype or self.dtype, trainable=False)

  def _next(self, shape, dtype, trainable):
    number = len(self.specs)
    self.specs.append(tf.TensorSpec(shape, dtype))
    self.trainable.append(trainable)
    if self._values is None:
      return tf.compat.v1.placeholder(dtype, shape)
    return self._values[number]

  def cast(self, x):
    """x in the dtype of activations."""
    return tf.cast(x, self.dtype)


# --- Vision ------------------------------------------------------------------


def conv(net, x, channels, size=3, stride=1, bias=False):
  """Convolution: [batch, h, w, c] -> [batch, h/stride, w/stride, channels]."""
  filters = net.weight(size, size, x.shape[-1], channels)
  padding = 'SAME'
  if stride > 1 and 1 < size < 8:  # The same padding for every image size.
    before = (size - 1) // 2
    edges = [before, size - 1 - before]
    x, padding = tf.pad(x, [[0, 0], edges, edges, [0, 0]]), 'VALID'
  y = tf.nn.conv2d(x, net.cast(filters), stride, padding)
  return y + net.cast(net.weight(channels)) if bias else y


def conv3d(net, x, channels, size=3, stride=1):
  """[batch, d, h, w, c] -> [batch, d/s, h/s, w/s, channels], with bias."""
  filters = net.weight(size, size, size, x.shape[-1], channels)
  y = tf.nn.conv3d(x, net.cast(filters), [1, stride, stride, stride, 1],
                   'SAME')
  return y + net.cast(net.weight(channels))


def depthwise(net, x, size=3, stride=1):
  """One filter a channel: [batch, h, w, c] -> [batch, h/s, w/s, c]."""
  filters = net.weight(size, size, x.shape[-1], 1)
  return tf.nn.depthwise_conv2d(
      x, net.cast(filters), [1, stride, stride, 1], 'SAME')


def conv_transpose(net, x, channels, size=2):
  """Doubles height and width: [batch, h, w, c] -> [batch, 2h, 2w, channels]."""
  filters = net.weight(size, size, channels, x.shape[-1])
  shape = [x.shape[0], 2 * x.shape[1], 2 * x.shape[2], channels]
  return tf.nn.conv2d_transpose(x, net.cast(filters), shape, 2, 'SAME')


def batch_norm(net, x, training=True):
  """Scales each channel to zero mean and unit variance over the batch."""
  channels = x.shape[-1]
  scale, offset = net.weight(channels), net.weight(channels)
  y = tf.cast(x, tf.float32)
  if training:
    axes = list(range(len(x.shape) - 1))
    mean = tf.reduce_mean(y, axes)
    variance = tf.reduce_mean(tf.square(y), axes) - tf.square(mean)
  else:
    mean = net.input(channels, dtype=tf.float32)
    variance = net.input(channels, dtype=tf.float32)
  factor = tf.math.rsqrt(variance + 1e-3) * scale
  return net.cast(y * factor + (offset - mean * factor))


def swish(x):
  """x times its logistic function."""
  return x / (1 + tf.exp(-x))


def hard_swish(x):
  """Piecewise quadratic stand-in for swish."""
  return x * tf.minimum(tf.maximum(x + 3, 0), 6) / 6


def squeeze_excite(net, x, ratio=4):
  """Reweighs the channels by what their means say."""
  channels = x.shape[-1]
  squeezed = tf.reduce_mean(x, [1, 2])
  gate = tf.nn.relu(dense(net, squeezed, max(8, channels // ratio)))
  gate = tf.sigmoid(dense(net, gate, channels))
  return x * gate[:, None, None, :]


def bottleneck(net, x, channels, stride=1, activation=tf.nn.relu,
               training=True):
  """1x1, 3x3, 1x1 convolutions beside a shortcut."""
  y = activation(batch_norm(net, conv(net, x, channels, 1), training))
  y = activation(batch_norm(net, conv(net, y, channels, 3, stride), training))
  y = batch_norm(net, conv(net, y, 4 * channels, 1), training)
  if stride != 1 or x.shape[-1] != 4 * channels:
    x = batch_norm(net, conv(net, x, 4 * channels, 1, stride), training)
  return activation(x + y)


def inverted_residual(net, x, channels, stride=1, expand=4,
                      activation=tf.nn.relu6, excite=False, training=True):
  """Expands, filters each channel, and projects back."""
  y = conv(net, x, expand * x.shape[-1], 1)
  y = activation(batch_norm(net, y, training))
  y = activation(batch_norm(net, depthwise(net, y, 3, stride), training))
  if excite:
    y = squeeze_excite(net, y)
  y = batch_norm(net, conv(net, y, channels, 1), training)
  return x + y if y.shape == x.shape else y


# --- Language ----------------------------------------------------------------


def dense(net, x, units, activation=None):
  """Matrix product and bias over the last axis of x, of any rank."""
  width = x.shape[-1]
  flat = tf.reshape(x, [-1, width])
  y = tf.matmul(flat, net.cast(net.weight(width, units)))
  y = tf.reshape(y, [*x.shape[:-1], units]) + net.cast(net.weight(units))
  return activation(y) if activation else y


def layer_norm(net, x):
  """Scales each vector of the last axis to zero mean and unit variance."""
  width = x.shape[-1]
  y = tf.cast(x, tf.float32)
  mean = tf.reduce_mean(y, -1, keepdims=True)
  variance = tf.reduce_mean(tf.square(y - mean), -1, keepdims=True)
  y = (y - mean) * tf.math.rsqrt(variance + 1e-6)
  return net.cast(y * net.weight(width) + net.weight(width))


def gelu(x):
  """Gaussian error unit, by the usual hyperbolic tangent."""
  return 0.5 * x * (1 + tf.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def softmax(x):
  """Over the last axis, in float32."""
  y = tf.cast(x, tf.float32)
  y = tf.exp(y - tf.reduce_max(y, -1, keepdims=True))
  return tf.cast(y / tf.reduce_sum(y, -1, keepdims=True), x.dtype)


def dropout(x, rate=0.1):
  """Zeroes a random share of x and scales up the rest."""
  kept = tf.random.uniform(x.shape) >= rate
  return tf.where(kept, x * (1 / (1 - rate)), tf.zeros_like(x))


def attention(net, x, memory, heads, mask=None, rate=0.0):
  """Multi-head attention of x [batch, s, d] over memory [batch, t, d]."""
  width = x.shape[-1]

  def split(y):
    y = tf.reshape(y, [y.shape[0], y.shape[1], heads, width // heads])
    return tf.transpose(y, [0, 2, 1, 3])

  query = split(dense(net, x, width))
  key = split(dense(net, memory, width))
  value = split(dense(net, memory, width))
  scores = tf.matmul(query, key, transpose_b=True)
  scores = scores * (width // heads) ** -0.5
  if mask is not None:
    scores = scores + net.cast((1 - mask) * -1e9)
  weights = softmax(scores)
  weights = dropout(weights, rate) if rate else weights
  y = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
  return dense(net, tf.reshape(y, x.shape), width)


def causal_mask(length):
  """float32 [1, 1, length, length]: 1 where a position may look."""
  steps = tf.range(length)
  return tf.cast(steps[:, None] >= steps[None, :], tf.float32)[None, None]


def one_hot_embedding(net, ids, rows, width):
  """Looks rows up by a matrix product, the way small tables run on TPUs."""
  return tf.matmul(tf.one_hot(ids, rows, dtype=net.dtype),
                   net.cast(net.weight(rows, width)))


def lstm_cell(net, x, state):
  """One step of an LSTM: x [batch, d], state (hidden, cell) [batch, h]."""
  hidden, cell = state
  gates = dense(net, tf.concat([x, hidden], 1), 4 * hidden.shape[-1])
  update, keep, out, new = tf.split(gates, 4, 1)
  cell = tf.sigmoid(keep) * cell + tf.sigmoid(update) * tf.tanh(new)
  return tf.sigmoid(out) * tf.tanh(cell), cell


def gru_cell(net, x, hidden):
  """One step of a gated recurrent unit: x [batch, d], hidden [batch, h]."""
  units = hidden.shape[-1]
  gates = tf.sigmoid(dense(net, tf.concat([x, hidden], 1), 2 * units))
  reset, update = tf.split(gates, 2, 1)
  new = tf.tanh(dense(net, tf.concat([x, reset * hidden], 1), units))
  return update * hidden + (1 - update) * new


# --- Losses: [..] -> a scalar ------------------------------------------------


def softmax_loss(logits, labels):
  """Mean cross entropy of logits [.., classes] against ids int32 [..]."""
  logits = tf.cast(logits, tf.float32)
  shifted = logits - tf.reduce_max(logits, -1, keepdims=True)
  log_sum = tf.math.log(tf.reduce_sum(tf.exp(shifted), -1))
  chosen = tf.reduce_sum(
      shifted * tf.one_hot(labels, logits.shape[-1]), -1)
  return tf.reduce_mean(log_sum - chosen)


def sigmoid_loss(logits, labels):
  """Mean cross entropy of independent yes-no logits."""
  logits = tf.cast(logits, tf.float32)
  return tf.reduce_mean(
      tf.maximum(logits, 0) - logits * labels
      + tf.math.log1p(tf.exp(-tf.abs(logits))))


def focal_loss(logits, labels):
  """Cross entropy that counts well classified examples less."""
  logits = tf.cast(logits, tf.float32)
  right = tf.sigmoid(logits * (2 * labels - 1))
  return tf.reduce_mean(-tf.square(1 - right) * tf.math.log(right + 1e-6))


def box_loss(boxes, targets):
  """Quadratic near zero, linear beyond: the loss of box regression."""
  error = tf.abs(tf.cast(boxes, tf.float32) - targets)
  return tf.reduce_mean(
      tf.where(error < 1, 0.5 * error * error, error - 0.5))


# --- Optimisers: one step on one weight --------------------------------------


def sgd(net, weight, gradient):
  """Plain gradient descent."""
  del net
  return [weight - 0.1 * gradient]


def momentum(net, weight, gradient):
  """Gradient descent with momentum and weight decay."""
  velocity = net.input(*weight.shape, dtype=tf.float32)
  velocity = 0.9 * velocity + gradient + 1e-4 * weight
  return [weight - 0.1 * velocity, velocity]


def adam(net, weight, gradient):
  """Adam; the bias correction is an argument of the program."""
  mean = net.input(*weight.shape, dtype=tf.float32)
  square = net.input(*weight.shape, dtype=tf.float32)
  mean = 0.9 * mean + 0.1 * gradient
  square = 0.999 * square + 0.001 * tf.square(gradient)
  return [weight - 1e-3 * mean / (tf.sqrt(square) + 1e-8), mean, square]


def lamb(net, weight, gradient):
  """Adam whose step has the length of the weight."""
  mean = net.input(*weight.shape, dtype=tf.float32)
  square = net.input(*weight.shape, dtype=tf.float32)
  mean = 0.9 * mean + 0.1 * gradient
  square = 0.999 * square + 0.001 * tf.square(gradient)
  step = mean / (tf.sqrt(square) + 1e-6) + 0.01 * weight
  ratio = tf.sqrt(tf.reduce_sum(tf.square(weight))
                  / (tf.reduce_sum(tf.square(step)) + 1e-9))
  return [weight - 1e-3 * ratio * step, mean, square]
