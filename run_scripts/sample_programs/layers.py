"""Pieces of networks in JAX, in as few lines as show what a kernel needs."""

import jax
import jax.numpy as jnp
from jax import lax


class Weights:
  """Makes the weights of a network, or hands out those that it is given.

  A network asks for its weights in the same order in both cases, so it is
  one function, without an initialisation of its own. `training`: of the step.
  """

  def __init__(self, dtype, training, weights=None):
    self.dtype, self.training, self.made = dtype, training, []
    self._given = None if weights is None else iter(weights)

  def __call__(self, *shape):
    """A weight in the program's dtype, stored as float32."""
    if self._given is not None:
      return next(self._given).astype(self.dtype)
    self.made.append(jax.ShapeDtypeStruct(shape, jnp.float32))
    return jnp.zeros(shape, self.dtype)


def conv(w, x, channels, size=3, stride=1, groups=1, dilation=1,
         padding='SAME'):
  """A convolution over all spatial dimensions, channels last."""
  rank = x.ndim - 2
  size = (size,) * rank if isinstance(size, int) else size
  letters = 'DHW'[3 - rank:]
  return lax.conv_general_dilated(
      x, w(*size, x.shape[-1] // groups, channels), (stride,) * rank, padding,
      rhs_dilation=(dilation,) * rank, feature_group_count=groups,
      dimension_numbers=(f'N{letters}C', f'{letters}IO', f'N{letters}C'))


def deconv(w, x, channels, size=4, stride=2):
  """A transposed convolution, channels last."""
  rank = x.ndim - 2
  letters = 'DHW'[3 - rank:]
  return lax.conv_transpose(
      x, w(*(size,) * rank, x.shape[-1], channels), (stride,) * rank, 'SAME',
      dimension_numbers=(f'N{letters}C', f'{letters}IO', f'N{letters}C'))


def depthwise(w, x, size=3, stride=1):
  return conv(w, x, x.shape[-1], size, stride, groups=x.shape[-1])


def batch_norm(w, x):
  """Folded at inference."""
  if not w.training:
    return scale_shift(w, x)
  y = x.astype(jnp.float32)
  axes = tuple(range(x.ndim - 1))
  y = (y - y.mean(axes)) * lax.rsqrt(y.var(axes) + 1e-5)
  return (y * w(x.shape[-1]) + w(x.shape[-1])).astype(x.dtype)


def scale_shift(w, x):
  return x * w(x.shape[-1]) + w(x.shape[-1])


def layer_norm(w, x):
  y = x.astype(jnp.float32)
  y = y - y.mean(-1, keepdims=True)
  y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6)
  return (y * w(x.shape[-1]) + w(x.shape[-1])).astype(x.dtype)


def rms_norm(w, x):
  y = x.astype(jnp.float32)
  y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6)
  return (y * w(x.shape[-1])).astype(x.dtype)


def group_norm(w, x, groups):
  y = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
  axes = (*range(1, x.ndim - 1), x.ndim)
  y = (y - y.mean(axes, keepdims=True)) * lax.rsqrt(
      y.var(axes, keepdims=True) + 1e-5)
  y = y.reshape(x.shape)
  return (y * w(x.shape[-1]) + w(x.shape[-1])).astype(x.dtype)


def dense(w, x, width):
  return x @ w(x.shape[-1], width) + w(width)


def pool(x, size=2, stride=2, kind='max', padding='VALID'):
  rank = x.ndim - 2
  window = (1, *(size,) * rank, 1), (1, *(stride,) * rank, 1), padding
  if kind == 'max':
    return lax.reduce_window(x, -jnp.inf, lax.max, *window)
  return lax.reduce_window(x, 0., lax.add, *window) / size ** rank


def upsample(x, factor=2):
  for axis in range(1, x.ndim - 1):
    x = jnp.repeat(x, factor, axis)
  return x


def spatial_mean(x):
  return x.mean(tuple(range(1, x.ndim - 1)))


def squeeze_excite(w, x, ratio=4):
  y = spatial_mean(x)
  y = jax.nn.silu(dense(w, y, max(8, x.shape[-1] // ratio)))
  y = jax.nn.sigmoid(dense(w, y, x.shape[-1]))
  return x * y.reshape(y.shape[0], *(1,) * (x.ndim - 2), -1)


def attention(w, x, heads, width, memory=None, kv_heads=None, causal=False,
              window=None, rotary=False):
  """Self- or cross-attention; fewer `kv_heads`: multi-query attention."""
  memory = x if memory is None else memory
  kv_heads = kv_heads or heads
  q = jnp.einsum('btd,dhe->bthe', x, w(x.shape[-1], heads, width))
  k = jnp.einsum('bsd,dhe->bshe', memory, w(memory.shape[-1], kv_heads, width))
  v = jnp.einsum('bsd,dhe->bshe', memory, w(memory.shape[-1], kv_heads, width))
  if rotary:
    q, k = rotate(q), rotate(k)
  q = q.reshape(*q.shape[:2], kv_heads, heads // kv_heads, width)
  weights = jnp.einsum('btkge,bske->bkgts', q, k).astype(jnp.float32)
  weights = weights * width ** -0.5
  if causal or window:
    row = jnp.arange(x.shape[1])[:, None]
    column = jnp.arange(memory.shape[1])[None]
    seen = row >= column
    if window:
      seen &= row < column + window
    weights = jnp.where(seen, weights, -1e9)
  weights = jax.nn.softmax(weights).astype(x.dtype)
  y = jnp.einsum('bkgts,bske->btkge', weights, v)
  y = y.reshape(*x.shape[:2], heads, width)
  return jnp.einsum('bthe,hed->btd', y, w(heads, width, x.shape[-1]))


def rotate(x):
  """Rotary positions of [batch, time, heads, width]."""
  half = x.shape[-1] // 2
  angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * jnp.exp(
      -9.2 * jnp.arange(half, dtype=jnp.float32) / half)
  sin, cos = jnp.sin(angle)[:, None], jnp.cos(angle)[:, None]
  a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
  return jnp.concatenate(
      [a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def mlp(w, x, width, act=jax.nn.gelu):
  return dense(w, act(dense(w, x, width)), x.shape[-1])


def gated_mlp(w, x, width, act=jax.nn.silu):
  y = act(x @ w(x.shape[-1], width)) * (x @ w(x.shape[-1], width))
  return y @ w(width, x.shape[-1])
