"""Operations without a network around them: moving numbers, and reducing.

In networks few kernels only move numbers, and those of a new one do so in
shapes of its own, so each of these functions has many.
"""

import jax
import jax.numpy as jnp
from jax import lax


def movements(unused_w, *arrays):
  """Each array transposed, in blocks, cut, padded, turned and repeated."""
  outputs = []
  for x in arrays:
    outputs += _transposed(x) + _cut(x) + _repeated(x)
    if x.ndim == 4:
      outputs += _in_blocks(x)
  return outputs


def _transposed(x):
  """The last dimension in the place of each other one, and back."""
  moved = [jnp.moveaxis(x, -1, place) for place in range(x.ndim - 1)]
  moved += [jnp.moveaxis(x, place, -1) for place in range(x.ndim - 2)]
  return moved + [jnp.swapaxes(x, place, place + 1)
                  for place in range(x.ndim - 2)]


def _in_blocks(x):
  """Images [n, h, w, c] in blocks of pixels, and channels as blocks."""
  n, h, width, c = x.shape
  outputs = []
  for size in (2, 4):
    if h % size == 0 and width % size == 0:
      blocks = x.reshape(n, h // size, size, width // size, size, c)
      outputs += [blocks.transpose(0, 1, 3, 2, 4, 5),
                  blocks.transpose(0, 2, 4, 1, 3, 5),
                  blocks.transpose(0, 1, 3, 5, 2, 4).reshape(
                      n, h // size, width // size, -1)]
    if c % size ** 2 == 0:
      channels = x.reshape(n, h, width, size, size, c // size ** 2)
      outputs.append(channels.transpose(0, 1, 3, 2, 4, 5).reshape(
          n, h * size, width * size, -1))
  return outputs


def _cut(x):
  outputs = [x[::-1]]
  for axis in range(x.ndim):
    size = x.shape[axis]
    outputs += [lax.slice_in_dim(x, size // 3, size, axis=axis),
                lax.slice_in_dim(x, 0, size - 1, stride=2, axis=axis)]
  return outputs


def _repeated(x):
  outputs = [jnp.concatenate([x, x[..., :x.shape[-1] // 2]], -1),
             jnp.concatenate([x[:, 2:], x[:, :2]], 1),
             jnp.broadcast_to(x[0], x.shape),
             jnp.stack([x, x], 1)]
  for axis in range(1, x.ndim):
    widths = [(0, 0)] * x.ndim
    widths[axis] = (1, 3)
    outputs.append(jnp.pad(x, widths))
  return outputs


def reductions(unused_w, *arrays):
  """Each array reduced along dimensions and windows, in several ways."""
  outputs = []
  for x in arrays:
    for axis in range(x.ndim):
      others = tuple(other for other in range(x.ndim) if other != axis)
      outputs += [x.sum(axis), jnp.square(x).mean(others), x.max(axis),
                  jnp.argmax(x, axis)]
    outputs += [jax.nn.softmax(x), jax.nn.logsumexp(x, 1),
                x - x.mean(0, keepdims=True),
                jnp.abs(x - 1).sum((0, x.ndim - 1))]
    if x.ndim == 4:
      outputs += _pooled(x)
  return outputs


def _pooled(x):
  """Images [n, h, w, c], in windows."""
  outputs = []
  for size, stride in ((2, 2), (3, 2), (5, 1)):
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    outputs += [
        lax.reduce_window(x, jnp.array(-jnp.inf, x.dtype), lax.max, window,
                          strides, 'SAME'),
        lax.reduce_window(x, jnp.array(0, x.dtype), lax.add, window, strides,
                          'VALID')]
  return outputs
