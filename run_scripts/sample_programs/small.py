"""Networks of a few layers, whose layouts the compiler judges in milliseconds.

Each function is network(weights, inputs..., sizes) -> output.
"""

import jax
import jax.numpy as jnp

from sample_programs import layers as nn

relu = jax.nn.relu


def convolutions(w, x, widths=(32, 64)):
  """Works in two and three dimensions."""
  for width in widths:
    x = relu(nn.conv(w, x, width))
  return nn.spatial_mean(x)


def residual(w, x, width=32):
  y = relu(nn.conv(w, x, width, 1))
  y = relu(nn.conv(w, y, width))
  return relu(x + nn.conv(w, y, x.shape[-1], 1))


def inverted_residual(w, x, width=96, outputs=40):
  y = jax.nn.relu6(nn.conv(w, x, width, 1))
  y = jax.nn.relu6(nn.depthwise(w, y, 3, 2))
  return nn.conv(w, y, outputs, 1)


def hourglass(w, x, width=32):
  """A U-Net with one level."""
  first = relu(nn.conv(w, x, width))
  y = relu(nn.conv(w, nn.pool(first), 2 * width))
  y = nn.deconv(w, y, width, 2)
  return nn.conv(w, jnp.concatenate([first, y], -1), x.shape[-1])


def bottleneck_coder(w, x, width=32, latent=48):
  """An autoencoder."""
  y = relu(nn.conv(w, x, width, 4, 2))
  shape = y.shape
  y = nn.dense(w, y.reshape(shape[0], -1), latent)
  y = relu(nn.dense(w, y, shape[1] * shape[2] * width)).reshape(shape)
  return nn.deconv(w, y, x.shape[-1])


def branches(w, x, width=32):
  """Convolutions of several sizes side by side."""
  return jnp.concatenate([
      relu(nn.conv(w, x, width, 1)),
      relu(nn.conv(w, relu(nn.conv(w, x, width // 2, 1)), width, 3)),
      relu(nn.conv(w, nn.pool(x, 3, 1, padding='SAME'), width, 1))], -1)


def dilated(w, x, width=48, classes=21):
  """Segmentation."""
  x = relu(nn.conv(w, x, width, 3, 2))
  x = relu(nn.conv(w, x, width, 3, dilation=2))
  x = relu(nn.conv(w, x, width, 3, dilation=4))
  return nn.conv(w, x, classes, 1)


def factored(w, x, width=32):
  """Video: convolutions over space, then over time."""
  y = relu(nn.conv(w, x, width, (1, 3, 3)))
  y = relu(nn.conv(w, y, width, (3, 1, 1)))
  return relu(y + nn.conv(w, x, width, 1))


def shuffled(w, x, width=96, groups=4):
  """Convolutions in groups, whose channels are shuffled between them."""
  y = relu(nn.conv(w, x, width, 1, groups=groups))
  y = y.reshape(*y.shape[:-1], groups, -1).swapaxes(-1, -2).reshape(y.shape)
  return nn.conv(w, nn.depthwise(w, y), x.shape[-1], 1)


def attention(w, x, heads=4):
  return x + nn.attention(w, x, heads, x.shape[-1] // heads)


def cross_attention(w, x, memory, heads=2):
  x = x + nn.attention(w, x, heads, x.shape[-1] // heads, memory)
  return x + nn.mlp(w, x, 2 * x.shape[-1])


def mixer(w, x, tokens=48, channels=192):
  x = x + nn.mlp(w, x.swapaxes(1, 2), tokens).swapaxes(1, 2)
  return x + nn.mlp(w, x, channels)


def patches(w, x, patch=8, width=96):
  x = nn.conv(w, x, width, patch, patch, padding='VALID')
  x = x.reshape(x.shape[0], -1, width)
  return nn.dense(w, nn.mlp(w, x, 2 * width).mean(1), 100)


def speech(w, x, width=128):
  """A dense layer, a depthwise convolution over time, a dense layer."""
  y = nn.dense(w, x, 2 * width)
  y = y[..., :width] * jax.nn.sigmoid(y[..., width:])
  y = jax.nn.silu(nn.depthwise(w, y, 7))
  return x + nn.dense(w, y, x.shape[-1])


def messages(w, nodes, senders, receivers, width=64):
  """A graph network over a list of edges."""
  sent = relu(nn.dense(w, nodes, width))[senders]
  sums = jax.ops.segment_sum(nn.dense(w, sent, width), receivers,
                             nodes.shape[0])
  return nn.dense(w, jnp.concatenate([nodes, relu(sums)], -1), 16)


def recommender(w, numbers, embedded, width=32):
  """Inner products of embeddings, and a dense layer of them."""
  x = relu(nn.dense(w, numbers, width))
  stacked = jnp.concatenate([x[:, None], embedded], 1)
  products = jnp.einsum('bie,bje->bij', stacked, stacked)
  products = products.reshape(products.shape[0], -1)
  return nn.dense(w, relu(nn.dense(w, products, 64)), 1)


def recurrent(w, x, width=64):
  """Steps of a recurrent cell, one after another."""
  gate, new, h = w(2 * width, width), w(2 * width, width), 0 * x[:, 0, :width]
  for step in range(x.shape[1]):
    y = jnp.concatenate([x[:, step], h], -1)
    z = jax.nn.sigmoid(y @ gate)
    h = z * h + (1 - z) * jnp.tanh(y @ new)
  return nn.dense(w, h, 32)


def residual_stack(w, x, widths=(32, 64, 128), blocks=2):
  """Blocks of two convolutions, fewer and wider pixels from stage to stage."""
  x = relu(nn.conv(w, x, widths[0]))
  for width in widths:
    for block in range(blocks):
      stride = 2 if block == 0 and width != widths[0] else 1
      y = relu(nn.scale_shift(w, nn.conv(w, x, width, 3, stride)))
      y = nn.scale_shift(w, nn.conv(w, y, width))
      if y.shape != x.shape:
        x = nn.conv(w, x, width, 1, stride)
      x = relu(x + y)
  return nn.dense(w, nn.spatial_mean(x), 10)


def transformer(w, x, blocks=3, heads=4, kv_heads=None, inner=4, gated=False,
                causal=False):
  """Layer norms before attention and a dense part, as often as `blocks`."""
  width = x.shape[-1]
  for _ in range(blocks):
    x = x + nn.attention(w, nn.layer_norm(w, x), heads, width // heads,
                         kv_heads=kv_heads, causal=causal)
    mlp = nn.gated_mlp if gated else nn.mlp
    x = x + mlp(w, nn.layer_norm(w, x), inner * width)
  return nn.dense(w, x, 64)


def mlp_stack(w, x, widths=(256, 192, 320, 128)):
  """Dense layers, each joined with the first input."""
  first = x
  for width in widths:
    x = relu(nn.dense(w, jnp.concatenate([x, first], -1), width))
  return nn.dense(w, x, 40)
