"""Recommendation, graphs, diffusion, and scientific kernels.

Each function is network(weights, inputs..., sizes) -> output.
"""

import jax
import jax.numpy as jnp

from sample_programs import layers as nn


def dlrm(w, numbers, ids, rows=100000, width=64, bottom=(512, 256),
         top=(1024, 512, 256)):
  """Embeddings of categories, their inner products, an MLP of both."""
  x = numbers
  for size in (*bottom, width):
    x = jax.nn.relu(nn.dense(w, x, size))
  embedded = [w(rows, width)[ids[:, i]] for i in range(ids.shape[1])]
  stacked = jnp.stack([x, *embedded], 1)
  products = jnp.einsum('bie,bje->bij', stacked, stacked)
  row, column = jnp.tril_indices(stacked.shape[1], -1)
  x = jnp.concatenate([x, products[:, row, column]], -1)
  for size in top:
    x = jax.nn.relu(nn.dense(w, x, size))
  return nn.dense(w, x, 1)


def wide_and_deep(w, numbers, ids, rows=50000, width=32):
  deep = w(rows, width)[ids].reshape(ids.shape[0], -1)
  x = jnp.concatenate([numbers, deep], -1)
  cross = x
  for _ in range(2):  # A cross network.
    cross = x * nn.dense(w, cross, x.shape[-1]) + cross
  for size in (1024, 512):
    x = jax.nn.relu(nn.dense(w, x, size))
  wide = w(rows, 1)[ids].sum(1)
  return nn.dense(w, jnp.concatenate([cross, x], -1), 1) + wide


def two_towers(w, users, items, widths=(512, 256, 128)):
  """Retrieval: all users of a batch against all items."""
  ends = []
  for x in (users, items):
    for width in widths:
      x = jax.nn.gelu(nn.dense(w, x, width))
    x = nn.dense(w, x, widths[-1])
    ends.append(x * jax.lax.rsqrt(
        jnp.square(x).sum(-1, keepdims=True) + 1e-6))
  return ends[0] @ ends[1].T * 20


def message_passing(w, nodes, edges, senders, receivers, width=128):
  """An interaction network with two rounds over a list of edges."""
  nodes, edges = nn.dense(w, nodes, width), nn.dense(w, edges, width)
  for _ in range(2):
    messages = jnp.concatenate(
        [edges, nodes[senders], nodes[receivers]], -1)
    edges = edges + nn.layer_norm(w, nn.dense(w, jax.nn.relu(
        nn.dense(w, messages, width)), width))
    sums = jax.ops.segment_sum(edges, receivers, nodes.shape[0])
    nodes = nodes + nn.layer_norm(w, nn.dense(w, jax.nn.relu(
        nn.dense(w, jnp.concatenate([nodes, sums], -1), width)), width))
  return nn.dense(w, nodes, 16)


def dense_graph(w, x, adjacency, width=256, classes=40):
  """Graph convolutions and attention on batches of dense adjacencies."""
  degree = adjacency.sum(-1, keepdims=True) + 1
  x = jax.nn.relu((adjacency @ nn.dense(w, x, width)) / degree)
  y = nn.dense(w, x, width)
  score = jax.nn.leaky_relu(
      y @ w(width, 1) + (y @ w(width, 1)).swapaxes(1, 2), 0.2)
  score = jnp.where(adjacency > 0, score.astype(jnp.float32), -1e9)
  x = jax.nn.elu(jax.nn.softmax(score).astype(x.dtype) @ y)
  return nn.dense(w, x.max(1), classes)


def diffusion(w, x, time, context, widths=(64, 128), heads=4):
  """A U-Net with group norms, times and attention to a text."""
  angle = time[:, None] * jnp.exp(-9.2 * jnp.arange(64) / 64)
  t = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(x.dtype)
  t = jax.nn.silu(nn.dense(w, t, 4 * widths[0]))

  def block(x, width):
    y = nn.conv(w, jax.nn.silu(nn.group_norm(w, x, 8)), width)
    y = y + nn.dense(w, t, width)[:, None, None]
    y = nn.conv(w, jax.nn.silu(nn.group_norm(w, y, 8)), width)
    return y + (x if x.shape[-1] == width else nn.conv(w, x, width, 1))

  x = nn.conv(w, x, widths[0])
  first = x = block(x, widths[0])
  x = block(nn.conv(w, x, widths[1], 3, 2), widths[1])
  n, h, v, c = x.shape
  y = x.reshape(n, h * v, c)
  y = y + nn.attention(w, nn.layer_norm(w, y), heads, c // heads)
  y = y + nn.attention(w, nn.layer_norm(w, y), heads, c // heads, context)
  x = (y + nn.gated_mlp(w, nn.layer_norm(w, y), 2 * c, jax.nn.gelu)
       ).reshape(x.shape)
  x = nn.conv(w, nn.upsample(x), widths[0])
  x = block(jnp.concatenate([x, first], -1), widths[0])
  return nn.conv(w, x, 4)


def radiance(w, points, directions, width=256):
  """A radiance field: positions encoded, an MLP, colours summed on rays."""

  def encoded(x, steps):
    angle = x[..., None] * 2. ** jnp.arange(steps)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).reshape(
        *x.shape[:-1], -1).astype(x.dtype)

  x = y = encoded(points, 10)
  for layer in range(4):
    y = jnp.concatenate([y, x], -1) if layer == 2 else y
    y = jax.nn.relu(nn.dense(w, y, width))
  density = jax.nn.relu(nn.dense(w, y, 1))[..., 0]
  sides = jnp.broadcast_to(
      encoded(directions, 4)[:, None], (*points.shape[:2], 24))
  colour = jnp.concatenate([nn.dense(w, y, width), sides], -1)
  colour = jax.nn.sigmoid(nn.dense(w, jax.nn.relu(
      nn.dense(w, colour, width // 2)), 3))
  alpha = 1 - jnp.exp(-density.astype(jnp.float32))
  left = jnp.cumprod(1 - alpha + 1e-6, -1)
  return (colour * (alpha * left)[..., None].astype(colour.dtype)).sum(1)


def q_learning(w, frames, actions=18):
  """A dueling network on frames."""
  x = jax.nn.relu(nn.conv(w, frames, 32, 8, 4, padding='VALID'))
  x = jax.nn.relu(nn.conv(w, x, 64, 4, 2, padding='VALID'))
  x = jax.nn.relu(nn.conv(w, x, 64, 3, 1, padding='VALID'))
  x = x.reshape(x.shape[0], -1)
  value = nn.dense(w, jax.nn.relu(nn.dense(w, x, 512)), 1)
  gain = nn.dense(w, jax.nn.relu(nn.dense(w, x, 512)), actions)
  return value + gain - gain.mean(-1, keepdims=True)


def pair_stack(w, pair, width=128, heads=4):
  """Protein folding: triangles multiplied, attention along the rows."""
  x = nn.layer_norm(w, pair)
  a = nn.dense(w, x, width) * jax.nn.sigmoid(nn.dense(w, x, width))
  b = nn.dense(w, x, width) * jax.nn.sigmoid(nn.dense(w, x, width))
  y = nn.layer_norm(w, jnp.einsum('nikc,njkc->nijc', a, b))
  pair = pair + nn.dense(w, y, pair.shape[-1]) * jax.nn.sigmoid(
      nn.dense(w, x, pair.shape[-1]))
  n, rows, columns, channels = pair.shape
  y = nn.layer_norm(w, pair).reshape(n * rows, columns, channels)
  y = nn.attention(w, y, heads, channels // heads).reshape(pair.shape)
  pair = pair + y
  return pair + nn.mlp(w, nn.layer_norm(w, pair), 4 * channels, jax.nn.relu)


def flow(w, x, hidden=256):
  """A coupling layer with an invertible 1x1 convolution."""
  x = nn.scale_shift(w, x)
  channels = x.shape[-1]
  x = jnp.einsum('bhwc,cd->bhwd', x, w(channels, channels))
  a, b = x[..., :channels // 2], x[..., channels // 2:]
  y = jax.nn.relu(nn.conv(w, a, hidden))
  y = jax.nn.relu(nn.conv(w, y, hidden, 1))
  y = nn.conv(w, y, channels)
  shift, scale = y[..., ::2], jax.nn.sigmoid(y[..., 1::2] + 2)
  return jnp.concatenate([a, (b + shift) * scale], -1)
