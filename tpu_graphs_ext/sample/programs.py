"""Programs of the sample data: vision, language and recommendation models.

A program is a small network of common layers at realistic sizes, forward only
or with gradients and an optimiser step. Families draw their sizes from lists,
so that there are as many programs as a data set needs; a program's name says
all of its sizes. Some families belong to one split only; the others have
programs in every split, but each program in exactly one.
"""

from __future__ import annotations

import dataclasses
import random
import zlib
from typing import Callable

import tensorflow as tf

from tpu_graphs_ext.sample import layers


@dataclasses.dataclass(frozen=True)
class Program:
  """One program: what it computes, at which sizes.

  Attributes:
    family: key of `FAMILIES`.
    sizes: pairs (name, value) of what the family draws, in its order.
    dtype: of activations, 'f32' or 'bf16'.
    optimizer: name of a function of `layers`, or '' for forward only.
  """
  family: str
  sizes: tuple
  dtype: str = 'f32'
  optimizer: str = 'sgd'

  @property
  def name(self) -> str:
    """Unique, and safe in a file name."""
    sizes = '_'.join(f'{name}_{value}' for name, value in self.sizes)
    mode = f'{self.optimizer}_train' if self.optimizer else 'infer'
    return f'{self.family}_{sizes}_{mode}.{self.dtype}'


@dataclasses.dataclass(frozen=True)
class Family:
  """Programs of one architecture.

  Attributes:
    network: (tensors, training, **sizes) -> a scalar loss when training,
      else the outputs.
    sizes: name -> values to draw from.
    split: the only split that may have it, or '' for all.
  """
  network: Callable
  sizes: dict
  split: str = ''


def traced_function(program: Program):
  """The program as TensorFlow runs it.

  Returns:
    (function, specs): a `tf.function`, to be compiled by XLA, and the
    `tf.TensorSpec` of each of its arguments.
  """
  declared = layers.Tensors(_dtype(program))
  with tf.Graph().as_default():
    _run(program, declared)

  def step(*values):
    return _run(program, layers.Tensors(_dtype(program), values))

  return tf.function(step, jit_compile=True), declared.specs


def _dtype(program):
  return {'f32': tf.float32, 'bf16': tf.bfloat16}[program.dtype]


def _run(program, net):
  """Outputs of the program: the network's, or the updated weights."""
  network = FAMILIES[program.family].network
  training = bool(program.optimizer)
  recorded = _Recorded(net)
  if not training:
    return network(recorded, False, **dict(program.sizes))
  with tf.GradientTape() as tape:
    recorded.tape = tape
    loss = network(recorded, True, **dict(program.sizes))
  gradients = tape.gradient(loss, recorded.weights)
  update = getattr(layers, program.optimizer)
  outputs = [loss]
  for weight, gradient in zip(recorded.weights, gradients):
    if gradient is not None:
      outputs += update(net, weight, gradient)
  return outputs


class _Recorded:
  """`Tensors` that also watches every weight on a gradient tape."""

  def __init__(self, net):
    self._net = net
    self.weights, self.tape = [], None
    self.dtype, self.input, self.cast = net.dtype, net.input, net.cast

  def weight(self, *shape):
    weight = self._net.weight(*shape)
    if self.tape is not None:
      self.tape.watch(weight)
    self.weights.append(weight)
    return weight


# --- Drawing programs --------------------------------------------------------


def programs(split: str, seed: int = 0):
  """Yields the distinct programs of a split, family after family, for long.

  Args:
    split: 'train', 'valid' or 'test'.
    seed: another seed draws other sizes.

  The first programs are all of different families, so that a small data set
  has every kind. Ends when no new program has been found for long.
  """
  families = [name for name, family in FAMILIES.items()
              if family.split in ('', split)]
  # Families of the split itself come first: they are what it is about.
  families.sort(key=lambda name: FAMILIES[name].split != split)
  chooser = random.Random(zlib.crc32(f'{split} {seed}'.encode()))
  seen, misses = set(), 0
  while misses < 1000:
    for family in families:
      program = _draw(family, split, chooser)
      if program is None or program.name in seen:
        misses += 1
        continue
      seen.add(program.name)
      misses = 0
      yield program


def _draw(family, split, chooser):
  """A program of the family that belongs to the split, or None."""
  for _ in range(20):
    sizes = tuple((name, chooser.choice(values))
                  for name, values in FAMILIES[family].sizes.items())
    optimizer = chooser.choice(
        ['', 'sgd', 'momentum', 'momentum', 'adam', 'adam', 'lamb'])
    dtype = chooser.choice(['f32', 'f32', 'f32', 'bf16', 'bf16'])
    program = Program(family, sizes, dtype, optimizer)
    if FAMILIES[family].split or split_of(program) == split:
      return program
  return None


def split_of(program: Program) -> str:
  """The one split that a program of a shared family belongs to.

  It depends on the sizes alone: the trained and the forward version of a
  network, in any dtype, share their split.
  """
  sizes = repr((program.family, program.sizes)).encode()
  return ('train', 'train', 'train', 'train', 'valid', 'test')[
      zlib.crc32(sizes) % 6]


# --- Vision ------------------------------------------------------------------


def _image_loss(net, x, batch, classes, training):
  """Mean pooling, a dense layer and the classification loss."""
  x = tf.reduce_mean(x, [1, 2])
  logits = layers.dense(net, x, classes)
  if not training:
    return layers.softmax(logits)
  return layers.softmax_loss(logits, net.input(batch, dtype=tf.int32))


def _alexnet(net, training, batch, side, width):
  x = net.input(batch, side, side, width)
  x = tf.nn.relu(layers.conv(net, x, 2 * width, 5, bias=True))
  x = tf.nn.max_pool2d(x, 3, 2, 'SAME')
  x = tf.nn.relu(layers.conv(net, x, 4 * width, 3, bias=True))
  x = tf.nn.relu(layers.conv(net, x, 3 * width, 3, bias=True))
  x = tf.nn.max_pool2d(x, 3, 2, 'SAME')
  x = tf.reshape(x, [batch, -1])
  x = tf.nn.relu(layers.dense(net, x, 1024))
  x = layers.dropout(x, 0.5) if training else x
  logits = layers.dense(net, x, 1000)
  if not training:
    return layers.softmax(logits)
  return layers.softmax_loss(logits, net.input(batch, dtype=tf.int32))


def _resnet(net, training, batch, side, width, classes):
  x = net.input(batch, side, side, width)
  x = layers.bottleneck(net, x, width, training=training)
  x = layers.bottleneck(net, x, width, training=training)
  x = layers.bottleneck(net, x, 2 * width, 2, training=training)
  return _image_loss(net, x, batch, classes, training)


def _vgg(net, training, batch, side, width, classes):
  x = net.input(batch, side, side, 3)
  for channels in (width, 2 * width, 4 * width):
    x = tf.nn.relu(layers.conv(net, x, channels, 3, bias=True))
    x = tf.nn.relu(layers.conv(net, x, channels, 3, bias=True))
    x = tf.nn.max_pool2d(x, 2, 2, 'SAME')
  return _image_loss(net, x, batch, classes, training)


def _mobilenet(net, training, batch, side, width, classes):
  x = net.input(batch, side, side, width)
  x = layers.inverted_residual(net, x, width, training=training)
  x = layers.inverted_residual(net, x, 2 * width, 2, 6, training=training)
  x = layers.inverted_residual(net, x, 2 * width, 1, 6, training=training)
  return _image_loss(net, x, batch, classes, training)


def _efficientnet(net, training, batch, side, width, classes):
  x = net.input(batch, side, side, width)
  for channels, stride in ((width, 1), (2 * width, 2)):
    x = layers.inverted_residual(
        net, x, channels, stride, 6, layers.swish, True, training)
  return _image_loss(net, x, batch, classes, training)


def _inception(net, training, batch, side, width, classes):
  def unit(x, channels, size, stride=1):
    return tf.nn.relu(layers.batch_norm(
        net, layers.conv(net, x, channels, size, stride), training))

  x = net.input(batch, side, side, 4 * width)
  for _ in range(2):
    x = tf.concat([
        unit(x, width, 1),
        unit(unit(x, width, 1), 2 * width, 3),
        unit(unit(unit(x, width, 1), width, 3), width, 3),
        unit(tf.nn.avg_pool2d(x, 3, 1, 'SAME'), width, 1)], -1)
  return _image_loss(net, x, batch, classes, training)


def _densenet(net, training, batch, side, width, classes):
  x = net.input(batch, side, side, 2 * width)
  for _ in range(3):
    y = tf.nn.relu(layers.batch_norm(net, x, training))
    y = layers.conv(net, y, 4 * width, 1)
    y = tf.nn.relu(layers.batch_norm(net, y, training))
    x = tf.concat([x, layers.conv(net, y, width, 3)], -1)
  x = tf.nn.avg_pool2d(layers.conv(net, x, 2 * width, 1), 2, 2, 'SAME')
  return _image_loss(net, x, batch, classes, training)


def _unet(net, training, batch, side, width):
  def unit(x, channels):
    x = tf.nn.leaky_relu(layers.conv(net, x, channels, 3, bias=True))
    mean = tf.reduce_mean(x, [1, 2], keepdims=True)
    spread = tf.reduce_mean(tf.square(x - mean), [1, 2], keepdims=True)
    return (x - mean) * tf.math.rsqrt(spread + 1e-5)

  x = net.input(batch, side, side, width)
  high = unit(x, 2 * width)
  low = unit(tf.nn.max_pool2d(high, 2, 2, 'SAME'), 4 * width)
  up = layers.conv_transpose(net, low, 2 * width)
  logits = layers.conv(
      net, unit(tf.concat([high, up], -1), 2 * width), 8, 1, bias=True)
  if not training:
    return tf.argmax(logits, -1, output_type=tf.int32)
  return layers.softmax_loss(
      logits, net.input(batch, side, side, dtype=tf.int32))


def _volume(net, training, batch, side, width):
  """Segments a volume: convolutions over three spatial dimensions."""
  x = net.input(batch, side, side, side, width)
  high = tf.nn.relu(layers.batch_norm(
      net, layers.conv3d(net, x, 2 * width), training))
  low = tf.nn.relu(layers.conv3d(net, high, 4 * width, 3, 2))
  low = tf.nn.relu(layers.batch_norm(
      net, layers.conv3d(net, low, 4 * width), training))
  for axis in (1, 2, 3):
    low = tf.repeat(low, 2, axis)
  logits = layers.conv3d(net, tf.concat([high, low], -1), 4, 1)
  if not training:
    return layers.softmax(logits)
  return layers.softmax_loss(
      logits, net.input(batch, side, side, side, dtype=tf.int32))


def _detector(net, training, batch, side, width, anchors):
  """A feature pyramid with shared box and class heads."""
  fine = net.input(batch, side, side, 2 * width)
  coarse = net.input(batch, side // 2, side // 2, 4 * width)
  coarse = layers.conv(net, coarse, width, 1, bias=True)
  up = tf.repeat(tf.repeat(coarse, 2, 1), 2, 2)
  fine = layers.conv(net, fine, width, 1, bias=True) + up[:, :side, :side]
  outputs = []
  for level in (fine, coarse):
    hidden = tf.nn.relu(layers.batch_norm(
        net, layers.conv(net, level, width, 3), training))
    outputs.append((layers.conv(net, hidden, anchors * 16, 3, bias=True),
                    layers.conv(net, hidden, anchors * 4, 3, bias=True)))
  if not training:
    return [(tf.sigmoid(scores), tf.exp(boxes)) for scores, boxes in outputs]
  loss = 0.0
  for scores, boxes in outputs:
    loss += layers.focal_loss(
        scores, net.input(*scores.shape, dtype=tf.float32))
    loss += layers.box_loss(boxes, net.input(*boxes.shape, dtype=tf.float32))
  return loss


# --- Language ----------------------------------------------------------------


def _encoder_block(net, x, heads, mask, rate):
  y = layers.attention(net, x, x, heads, mask, rate)
  x = layers.layer_norm(net, x + (layers.dropout(y, rate) if rate else y))
  y = layers.dense(net, x, 4 * x.shape[-1], layers.gelu)
  y = layers.dense(net, y, x.shape[-1])
  return layers.layer_norm(net, x + y)


def _bert(net, training, batch, length, width, heads):
  ids = net.input(batch, length, dtype=tf.int32)
  mask = net.input(batch, 1, 1, length, dtype=tf.float32)
  x = layers.one_hot_embedding(net, ids, 2048, width)
  # The positions begin somewhere in their table: a dynamic slice.
  begin = net.input(dtype=tf.int32)
  positions = tf.slice(net.weight(512, width), [begin, 0], [length, width])
  x = layers.layer_norm(net, x + net.cast(positions))
  x = _encoder_block(net, x, heads, mask, 0.1 if training else 0.0)
  logits = layers.dense(net, x, 2048)
  if not training:
    return layers.softmax(logits)
  return layers.softmax_loss(
      logits, net.input(batch, length, dtype=tf.int32))


def _decoder(net, training, batch, length, width, heads):
  x = net.input(batch, length, width)
  memory = net.input(batch, 2 * length, width)
  y = layers.attention(net, layers.layer_norm(net, x), x, heads,
                       layers.causal_mask(length))
  x = x + y
  x = x + layers.attention(net, layers.layer_norm(net, x), memory, heads)
  y = layers.dense(net, layers.layer_norm(net, x), 4 * width, tf.nn.relu)
  x = x + layers.dense(net, y, width)
  logits = layers.dense(net, x, 4096)
  if not training:
    return layers.softmax(logits)
  return layers.softmax_loss(
      logits, net.input(batch, length, dtype=tf.int32))


def _gated_transformer(net, training, batch, length, width, heads):
  """Root-mean-square norms and a gated hidden layer."""
  x = net.input(batch, length, width)

  def norm(y):
    y = tf.cast(y, tf.float32)
    y = y * tf.math.rsqrt(tf.reduce_mean(y * y, -1, keepdims=True) + 1e-6)
    return net.cast(y * net.weight(width))

  y = norm(x)
  x = x + layers.attention(net, y, y, heads, layers.causal_mask(length))
  y = norm(x)
  gate = layers.swish(layers.dense(net, y, 3 * width))
  x = x + layers.dense(net, gate * layers.dense(net, y, 3 * width), width)
  logits = layers.dense(net, norm(x), 2048)
  if not training:
    return logits
  return layers.softmax_loss(
      logits, net.input(batch, length, dtype=tf.int32))


def _vision_transformer(net, training, batch, side, width, heads):
  x = net.input(batch, side, side, 3)
  x = layers.conv(net, x, width, 16, 16, bias=True)
  x = tf.reshape(x, [batch, -1, width])
  x = x + net.cast(net.weight(x.shape[1], width))
  y = layers.layer_norm(net, x)
  x = x + layers.attention(net, y, y, heads)
  y = layers.dense(net, layers.layer_norm(net, x), 4 * width, layers.gelu)
  x = x + layers.dense(net, y, width)
  x = tf.reduce_mean(layers.layer_norm(net, x), 1)
  logits = layers.dense(net, x, 1000)
  if not training:
    return layers.softmax(logits)
  return layers.softmax_loss(logits, net.input(batch, dtype=tf.int32))


def _lstm(net, training, batch, width, vocabulary):
  state = (net.input(batch, width), net.input(batch, width))
  loss, outputs = 0.0, []
  for _ in range(2):
    ids = net.input(batch, dtype=tf.int32)
    x = layers.one_hot_embedding(net, ids, vocabulary, width)
    state = layers.lstm_cell(net, x, state)
    state = layers.lstm_cell(net, state[0], state)
    logits = layers.dense(net, state[0], vocabulary)
    outputs.append(layers.softmax(logits))
    if training:
      loss += layers.softmax_loss(logits, net.input(batch, dtype=tf.int32))
  return loss if training else outputs


def _gru_translator(net, training, batch, width, length):
  """A recurrent decoder that looks at encoder outputs by additive attention."""
  memory = net.input(batch, length, width)
  hidden = net.input(batch, width)
  loss, outputs = 0.0, []
  for _ in range(2):
    query = layers.dense(net, hidden, width)
    energy = tf.tanh(layers.dense(net, memory, width) + query[:, None])
    weights = layers.softmax(tf.reduce_sum(
        energy * net.cast(net.weight(width)), -1))
    context = tf.reduce_sum(weights[..., None] * memory, 1)
    hidden = layers.gru_cell(net, context, hidden)
    logits = layers.dense(net, hidden, 4096)
    outputs.append(layers.softmax(logits))
    if training:
      loss += layers.softmax_loss(logits, net.input(batch, dtype=tf.int32))
  return loss if training else outputs


# --- Recommendation ----------------------------------------------------------


def _click_loss(net, logits, training):
  if not training:
    return tf.sigmoid(logits)
  return layers.sigmoid_loss(
      logits, net.input(*logits.shape, dtype=tf.float32))


def _dlrm(net, training, batch, width, tables):
  x = net.input(batch, 128)
  for units in (4 * width, 2 * width, width):
    x = layers.dense(net, x, units, tf.nn.relu)
  vectors = net.input(batch, tables, width)
  scale = net.cast(net.weight(width))
  vectors = tf.concat([x[:, None], vectors * scale], 1)
  products = tf.matmul(vectors, vectors, transpose_b=True)
  x = tf.concat([x, tf.reshape(products, [batch, -1])], 1)
  for units in (1024, 512, 256):
    x = layers.dense(net, x, units, tf.nn.relu)
  return _click_loss(net, layers.dense(net, x, 128), training)


def _ncf(net, training, batch, width, rows):
  user = layers.one_hot_embedding(
      net, net.input(batch, dtype=tf.int32), rows, width)
  item = layers.one_hot_embedding(
      net, net.input(batch, dtype=tf.int32), rows // 2, width)
  x = tf.concat([user, item], 1)
  for units in (2 * width, width, 128):
    x = layers.dense(net, x, units, tf.nn.relu)
  x = tf.concat([x, user * item], 1)
  return _click_loss(net, layers.dense(net, x, 128), training)


def _deep_cross(net, training, batch, width, depth):
  first = x = net.input(batch, width)
  for _ in range(depth):
    x = first * layers.dense(net, x, width) + x
  y = tf.nn.relu(layers.dense(net, first, 2 * width))
  y = layers.batch_norm(net, layers.dense(net, y, width), training)
  return _click_loss(
      net, layers.dense(net, tf.concat([x, y], 1), 128), training)


def _two_tower(net, training, batch, width, hidden):
  towers = []
  for _ in range(2):
    x = layers.dense(net, net.input(batch, width), hidden, layers.swish)
    x = layers.dense(net, layers.layer_norm(net, x), 256)
    length = tf.math.rsqrt(tf.reduce_sum(x * x, -1, keepdims=True) + 1e-6)
    towers.append(x * length)
  logits = tf.matmul(towers[0], towers[1], transpose_b=True) * 20
  if not training:
    return tf.reduce_max(logits, -1)
  return layers.softmax_loss(logits, net.input(batch, dtype=tf.int32))


def _autoencoder(net, training, batch, width, hidden):
  x = given = net.input(batch, width)
  for units in (hidden, hidden // 2, hidden, width):
    x = layers.dense(net, x, units, tf.nn.elu)
    x = layers.dropout(x, 0.2) if training else x
  if not training:
    return x
  return tf.reduce_mean(tf.square(tf.cast(x - given, tf.float32)))


_BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
_VISION = {'batch': _BATCHES[1:8],
           'side': [7, 8, 13, 14, 16, 19, 28, 32, 38, 56, 75, 112],
           'width': [32, 48, 64, 96, 128, 192, 256, 384],
           'classes': [10, 100, 365, 1000]}
_TEXT = {'batch': _BATCHES[1:6], 'length': [48, 64, 128, 200, 256, 384],
         'width': [256, 384, 512, 768, 1024], 'heads': [4, 8, 16]}
_WIDE_BATCHES = [64, 128, 256, 512, 1000, 1024, 2048, 4096]

FAMILIES = {
    'resnet': Family(_resnet, _VISION),
    'bert': Family(_bert, _TEXT),
    'alexnet': Family(_alexnet, {
        'batch': _BATCHES[2:8], 'side': [24, 26, 27, 32],
        'width': [48, 64, 96]}, 'train'),
    'dlrm': Family(_dlrm, {
        'batch': [32, 48, 64, 96, 128, 200, 256], 'width': [64, 128, 256],
        'tables': [7, 15, 26, 40]}),
    'mobilenet': Family(_mobilenet, _VISION, 'train'),
    'lstm': Family(_lstm, {
        'batch': [16, 32, 64, 128, 256], 'width': [256, 512, 650, 1024],
        'vocabulary': [1000, 4096, 8192]}, 'train'),
    'detector': Family(_detector, {
        'batch': _BATCHES[:5], 'side': [20, 32, 38, 40, 64],
        'width': [64, 96, 128, 256], 'anchors': [4, 6, 9]}, 'train'),
    'decoder': Family(_decoder, _TEXT, 'train'),
    'vgg': Family(_vgg, {**_VISION, 'width': [32, 64, 96],
                         'side': [28, 32, 56, 64]}, 'train'),
    'volume': Family(_volume, {
        'batch': [1, 2, 4], 'side': [16, 24, 32, 48], 'width': [16, 32, 48]}),
    'ncf': Family(_ncf, {
        'batch': _WIDE_BATCHES, 'width': [64, 128, 256],
        'rows': [1024, 4096, 6040]}, 'train'),
    'efficientnet': Family(_efficientnet, _VISION, 'train'),
    'autoencoder': Family(_autoencoder, {
        'batch': _WIDE_BATCHES, 'width': [784, 1024, 3000],
        'hidden': [256, 512, 1024]}, 'train'),
    'inception': Family(_inception, _VISION, 'valid'),
    'gru_translator': Family(_gru_translator, {
        'batch': _BATCHES[3:8], 'width': [256, 512, 640, 1024],
        'length': [24, 40, 50, 100]}, 'valid'),
    'two_tower': Family(_two_tower, {
        'batch': _WIDE_BATCHES[:6], 'width': [256, 300, 768, 1024],
        'hidden': [512, 1024, 2048]}, 'valid'),
    'unet': Family(_unet, {
        'batch': _BATCHES[:6], 'side': [32, 48, 64, 128],
        'width': [32, 48, 64]}, 'test'),
    'densenet': Family(_densenet, _VISION, 'test'),
    'gated_transformer': Family(_gated_transformer, _TEXT, 'test'),
    'vision_transformer': Family(_vision_transformer, {
        'batch': _BATCHES[1:7], 'side': [160, 224, 256, 384],
        'width': [192, 384, 768], 'heads': [3, 6, 12]}, 'test'),
    'deep_cross': Family(_deep_cross, {
        'batch': _WIDE_BATCHES, 'width': [256, 429, 512, 1024],
        'depth': [2, 3, 4]}, 'test'),
}
