"""Transformers, mixers and recurrent networks, one or two layers each.

Each function is network(weights, inputs..., sizes) -> output.
"""

import jax
import jax.numpy as jnp
from jax import lax

from sample_programs import layers as nn


def encoder(w, tokens, vocabulary=30522, width=768, heads=12, inner=None,
            after=True):
  """BERT: layer norms after the residual; `after=False`: before it."""
  x = w(vocabulary, width)[tokens] + w(tokens.shape[1], width)
  x = nn.layer_norm(w, x)
  inner = inner or 4 * width
  if after:
    x = nn.layer_norm(w, x + nn.attention(w, x, heads, width // heads))
    x = nn.layer_norm(w, x + nn.mlp(w, x, inner))
  else:
    x = x + nn.attention(w, nn.layer_norm(w, x), heads, width // heads)
    x = x + nn.mlp(w, nn.layer_norm(w, x), inner)
  return nn.dense(w, nn.layer_norm(w, jax.nn.gelu(nn.dense(w, x, width))),
                  vocabulary // 8)


def decoder(w, tokens, vocabulary=32000, width=1024, heads=16, kv_heads=None,
            inner=None, gated=True, rotary=True, window=None):
  """A language model: RMS norms, rotary positions, a gated MLP."""
  x = w(vocabulary, width)[tokens]
  y = nn.rms_norm(w, x)
  x = x + nn.attention(w, y, heads, width // heads, kv_heads=kv_heads,
                       causal=True, rotary=rotary, window=window)
  y = nn.rms_norm(w, x)
  mlp = nn.gated_mlp if gated else nn.mlp
  x = x + mlp(w, y, inner or 4 * width)
  return nn.rms_norm(w, x) @ w(width, vocabulary // 4)


def seq2seq(w, tokens, targets, vocabulary=32000, width=512, heads=8):
  """An encoder, and a decoder that attends to it."""
  table = w(vocabulary, width)
  x, y = table[tokens], table[targets]
  x = x + nn.attention(w, nn.layer_norm(w, x), heads, width // heads)
  x = nn.layer_norm(w, x + nn.mlp(w, nn.layer_norm(w, x), 4 * width,
                                  jax.nn.relu))
  y = y + nn.attention(w, nn.layer_norm(w, y), heads, width // heads,
                       causal=True)
  y = y + nn.attention(w, nn.layer_norm(w, y), heads, width // heads, x)
  y = y + nn.mlp(w, nn.layer_norm(w, y), 4 * width, jax.nn.relu)
  return nn.layer_norm(w, y) @ table.T[:, :vocabulary // 4]


def decode_step(w, x, keys, values, position, heads=16, kv_heads=4,
                inner=4096, classes=8000):
  """One token with a cache of keys and values [batch, time, heads, width]."""
  width = keys.shape[-1]
  y = nn.rms_norm(w, x)
  q = jnp.einsum('bd,dhe->bhe', y, w(x.shape[-1], heads, width))
  k = jnp.einsum('bd,dhe->bhe', y, w(x.shape[-1], kv_heads, width))
  v = jnp.einsum('bd,dhe->bhe', y, w(x.shape[-1], kv_heads, width))
  keys = lax.dynamic_update_slice(keys, k[:, None], (0, position, 0, 0))
  values = lax.dynamic_update_slice(values, v[:, None], (0, position, 0, 0))
  q = q.reshape(q.shape[0], kv_heads, -1, width)
  weights = jnp.einsum('bkge,bske->bkgs', q, keys).astype(jnp.float32)
  seen = jnp.arange(keys.shape[1]) <= position
  weights = jnp.where(seen, weights * width ** -0.5, -1e9)
  weights = jax.nn.softmax(weights).astype(x.dtype)
  y = jnp.einsum('bkgs,bske->bkge', weights, values)
  y = y.reshape(x.shape[0], -1)
  x = x + y @ w(heads * width, x.shape[-1])
  x = x + nn.gated_mlp(w, nn.rms_norm(w, x), inner)
  logits = (nn.rms_norm(w, x) @ w(x.shape[-1], classes)).astype(jnp.float32)
  return jax.nn.softmax(logits), jnp.argmax(logits, -1), keys, values


def mixture(w, x, experts=8, inner=2048, heads=8):
  """Attention, then experts of which each token takes two, by capacity."""
  batch, time, width = x.shape
  x = x + nn.attention(w, nn.rms_norm(w, x), heads, width // heads,
                       causal=True)
  y = nn.rms_norm(w, x).reshape(batch * time, width)
  gates = jax.nn.softmax((y @ w(width, experts)).astype(jnp.float32))
  best, chosen = lax.top_k(gates, 2)
  capacity = 2 * batch * time // experts
  taken = jax.nn.one_hot(chosen, experts).sum(1)
  place = jnp.cumsum(taken, 0) * taken - 1
  slots = jax.nn.one_hot(place.astype(jnp.int32), capacity, dtype=x.dtype)
  sent = jnp.einsum('nec,nd->ecd', slots, y)
  sent = jax.nn.silu(jnp.einsum('ecd,edf->ecf', sent,
                                w(experts, width, inner)))
  sent = jnp.einsum('ecf,efd->ecd', sent, w(experts, inner, width))
  weight = gates * taken / best.sum(-1, keepdims=True)
  y = jnp.einsum('nec,ne,ecd->nd', slots, weight.astype(x.dtype), sent)
  return x + y.reshape(x.shape)


def vit(w, x, patch=16, width=384, heads=6, classes=1000):
  x = nn.conv(w, x, width, patch, patch, padding='VALID')
  x = x.reshape(x.shape[0], -1, width)
  first = jnp.broadcast_to(w(1, 1, width), (x.shape[0], 1, width))
  x = jnp.concatenate([first, x], 1)
  x = x + w(1, x.shape[1], width)
  x = x + nn.attention(w, nn.layer_norm(w, x), heads, width // heads)
  x = x + nn.mlp(w, nn.layer_norm(w, x), 4 * width)
  return nn.dense(w, nn.layer_norm(w, x)[:, 0], classes)


def swin(w, x, window=7, width=96, heads=3):
  """Attention within windows, the second time shifted; patches merged."""
  x = nn.layer_norm(w, nn.conv(w, x, width, 4, 4))
  for shift in (0, window // 2):
    n, h, v, c = x.shape
    y = nn.layer_norm(w, x)
    y = jnp.roll(y, (-shift, -shift), (1, 2)) if shift else y
    y = y.reshape(n, h // window, window, v // window, window, c)
    y = y.transpose(0, 1, 3, 2, 4, 5).reshape(-1, window * window, c)
    y = nn.attention(w, y, heads, c // heads)
    y = y.reshape(n, h // window, v // window, window, window, c)
    y = y.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
    y = jnp.roll(y, (shift, shift), (1, 2)) if shift else y
    x = x + y
    x = x + nn.mlp(w, nn.layer_norm(w, x), 4 * c)
  n, h, v, c = x.shape
  x = x.reshape(n, h // 2, 2, v // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
  return nn.layer_norm(w, x.reshape(n, h // 2, v // 2, 4 * c)) @ w(4 * c,
                                                                   2 * c)


def mixer(w, x, patch=16, width=512, tokens=256, channels=2048, classes=1000):
  x = nn.conv(w, x, width, patch, patch, padding='VALID')
  x = x.reshape(x.shape[0], -1, width)
  y = nn.layer_norm(w, x).swapaxes(1, 2)
  x = x + nn.mlp(w, y, tokens).swapaxes(1, 2)
  x = x + nn.mlp(w, nn.layer_norm(w, x), channels)
  return nn.dense(w, nn.layer_norm(w, x).mean(1), classes)


def conformer(w, x, width=256, heads=4):
  """Speech: half-step MLPs around attention and a depthwise convolution."""
  x = jax.nn.relu(nn.conv(w, x[..., None], 64, 3, 2))
  x = nn.dense(w, x.reshape(*x.shape[:2], -1), width)
  x = x + 0.5 * nn.mlp(w, nn.layer_norm(w, x), 4 * width, jax.nn.silu)
  x = x + nn.attention(w, nn.layer_norm(w, x), heads, width // heads)
  y = nn.dense(w, nn.layer_norm(w, x), 2 * width)
  y = y[..., :width] * jax.nn.sigmoid(y[..., width:])
  y = jax.nn.silu(nn.batch_norm(w, nn.depthwise(w, y, 31)))
  x = x + nn.dense(w, y, width)
  return nn.dense(w, nn.layer_norm(w, x), 1024)


def lstm(w, tokens, vocabulary=10000, width=512, layers=1):
  x = w(vocabulary, width)[tokens].swapaxes(0, 1)
  for _ in range(layers):
    x = nn.dense(w, x, 4 * width)
    recurrent = w(width, 4 * width)

    def step(state, projected, recurrent=recurrent):
      h, c = state
      i, f, g, o = jnp.split(projected + h @ recurrent, 4, -1)
      c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
      h = jax.nn.sigmoid(o) * jnp.tanh(c)
      return (h, c), h

    start = jnp.zeros((x.shape[1], width), x.dtype)
    _, x = lax.scan(step, (start, start), x)
  return nn.dense(w, x.swapaxes(0, 1), vocabulary // 4)


def gru(w, x, width=256, classes=64):
  """Both directions over [batch, time, features]."""
  outputs = []
  for reverse in (False, True):
    projected = nn.dense(w, x, 3 * width).swapaxes(0, 1)
    gates, new = w(width, 2 * width), w(width, width)

    def step(h, projected, gates=gates, new=new):
      r, z = jnp.split(jax.nn.sigmoid(
          projected[:, :2 * width] + h @ gates), 2, -1)
      n = jnp.tanh(projected[:, 2 * width:] + (r * h) @ new)
      h = z * h + (1 - z) * n
      return h, h

    start = jnp.zeros((x.shape[0], width), x.dtype)
    outputs.append(lax.scan(step, start, projected, reverse=reverse)[1])
  return nn.dense(w, jnp.concatenate(outputs, -1).swapaxes(0, 1), classes)


def state_space(w, x, inner=1024):
  """A gated linear recurrence over time, by an associative scan."""
  y = nn.rms_norm(w, x)
  gate = jax.nn.silu(nn.dense(w, y, inner))
  y = nn.depthwise(w, nn.dense(w, y, inner), 4)
  decay = jax.nn.sigmoid(nn.dense(w, y, inner)).astype(jnp.float32)
  entering = (1 - decay) * y.astype(jnp.float32)

  def join(a, b):
    return a[0] * b[0], b[0] * a[1] + b[1]

  _, y = lax.associative_scan(join, (decay, entering), axis=1)
  return x + nn.dense(w, y.astype(x.dtype) * gate, x.shape[-1])
