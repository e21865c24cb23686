"""Convolutional networks, one or two blocks of each shape.

Each function is network(weights, inputs..., sizes) -> output.
"""

import jax
import jax.numpy as jnp

from sample_programs import layers as nn

relu, silu, norm = jax.nn.relu, jax.nn.silu, nn.batch_norm


def resnet(w, x, widths=(64, 128), bottleneck=True, groups=1,
           classes=1000, squeeze=False):
  x = relu(norm(w, nn.conv(w, x, widths[0], 7, 2)))
  x = nn.pool(x, 3, 2, padding='SAME')
  for number, width in enumerate(widths):
    stride = 1 if number == 0 else 2
    y, out = x, width * (4 if bottleneck else 1)
    if bottleneck:
      y = relu(norm(w, nn.conv(w, y, width, 1)))
      y = relu(norm(w, nn.conv(w, y, width, 3, stride, groups)))
      y = norm(w, nn.conv(w, y, out, 1))
    else:
      y = relu(norm(w, nn.conv(w, y, width, 3, stride)))
      y = norm(w, nn.conv(w, y, out, 3))
    if squeeze:
      y = nn.squeeze_excite(w, y, 16)
    x = relu(y + norm(w, nn.conv(w, x, out, 1, stride)))
  return nn.dense(w, nn.spatial_mean(x), classes)


def vgg(w, x, widths=(64, 128, 256), dense=1024, classes=1000):
  for width in widths:
    x = relu(nn.conv(w, x, width) + w(width))
    x = relu(nn.conv(w, x, width) + w(width))
    x = nn.pool(x)
  x = x.reshape(x.shape[0], -1)
  x = relu(nn.dense(w, x, dense))
  return nn.dense(w, x, classes)


def alexnet(w, x, classes=1000):
  x = relu(nn.conv(w, x, 96, 11, 4, padding='VALID') + w(96))
  x = nn.pool(x, 3, 2)
  x = relu(nn.conv(w, x, 256, 5) + w(256))
  x = nn.pool(x, 3, 2)
  x = relu(nn.conv(w, x, 384, 3) + w(384))
  x = relu(nn.conv(w, x, 256, 3) + w(256))
  x = nn.pool(x, 3, 2).reshape(x.shape[0], -1)
  x = relu(nn.dense(w, x, 2048))
  return nn.dense(w, x, classes)


def inception(w, x, width=64, classes=1000):

  def unit(x, channels, size=3, stride=1):
    return relu(norm(w, nn.conv(w, x, channels, size, stride)))

  x = unit(x, 32, 3, 2)
  x = nn.pool(unit(x, 64), 3, 2)
  x = nn.pool(unit(x, 3 * width), 3, 2)
  x = jnp.concatenate([
      unit(x, width, 1), unit(unit(x, width // 4 * 3, 1), width, 5),
      unit(unit(unit(x, width, 1), width * 3 // 2), width * 3 // 2),
      unit(nn.pool(x, 3, 1, 'mean', 'SAME'), width // 2, 1)], -1)
  y = unit(x, width * 2, 1)
  y = unit(unit(y, width * 2, (1, 7)), width * 3, (7, 1))
  x = jnp.concatenate([x, y], -1)
  return nn.dense(w, nn.spatial_mean(x), classes)


def densenet(w, x, growth=32, steps=4, classes=1000):
  x = nn.pool(nn.conv(w, x, 2 * growth, 7, 2), 3, 2, padding='SAME')
  for block in range(2):
    for _ in range(steps):
      y = nn.conv(w, relu(norm(w, x)), 4 * growth, 1)
      y = nn.conv(w, relu(norm(w, y)), growth)
      x = jnp.concatenate([x, y], -1)
    if block == 0:
      x = nn.conv(w, relu(norm(w, x)), x.shape[-1] // 2, 1)
      x = nn.pool(x, 2, 2, 'mean')
  return nn.dense(w, nn.spatial_mean(relu(x)), classes)


def mobilenet(w, x, widths=(24, 40, 80), expand=6, size=3, squeeze=False,
              classes=1000):
  """Inverted residuals of depthwise convolutions; EfficientNet squeezes."""
  act = silu if squeeze else jax.nn.relu6
  x = act(norm(w, nn.conv(w, x, 32, 3, 2)))
  for number, width in enumerate(widths):
    y = act(norm(w, nn.conv(w, x, expand * x.shape[-1], 1)))
    y = act(norm(w, nn.depthwise(w, y, size, 2 if number else 1)))
    if squeeze:
      y = nn.squeeze_excite(w, y)
    x = norm(w, nn.conv(w, y, width, 1))
  x = act(norm(w, nn.conv(w, x, 4 * widths[-1], 1)))
  return nn.dense(w, nn.spatial_mean(x), classes)


def shufflenet(w, x, width=240, groups=3, classes=1000):
  x = relu(norm(w, nn.conv(w, x, 24, 3, 2)))
  x = nn.pool(x, 3, 2, padding='SAME')
  x = relu(norm(w, nn.conv(w, x, width, 1)))
  for _ in range(2):
    y = relu(norm(w, nn.conv(w, x, width, 1, groups=groups)))
    y = y.reshape(*y.shape[:-1], groups, -1).swapaxes(-1, -2).reshape(y.shape)
    y = norm(w, nn.depthwise(w, y))
    y = norm(w, nn.conv(w, y, width, 1, groups=groups))
    x = relu(x + y)
  return nn.dense(w, nn.spatial_mean(x), classes)


def convnext(w, x, widths=(96, 192), classes=1000):
  x = nn.layer_norm(w, nn.conv(w, x, widths[0], 4, 4))
  for number, width in enumerate(widths):
    if number:
      x = nn.conv(w, nn.layer_norm(w, x), width, 2, 2)
    y = nn.layer_norm(w, nn.depthwise(w, x, 7))
    x = x + nn.mlp(w, y, 4 * width) * w(width)
  return nn.dense(w, nn.spatial_mean(x), classes)


def unet(w, x, widths=(32, 64, 128), outputs=2, norm='batch'):
  """Works in two and three dimensions."""
  def unit(x, width):
    y = nn.conv(w, x, width)
    if norm == 'group':
      return silu(nn.group_norm(w, y, 8))
    return relu(nn.batch_norm(w, y))

  kept = []
  for width in widths[:-1]:
    x = unit(unit(x, width), width)
    kept.append(x)
    x = nn.pool(x)
  x = unit(unit(x, widths[-1]), widths[-1])
  for width, skip in zip(widths[-2::-1], kept[::-1]):
    x = nn.deconv(w, x, width, 2)
    x = unit(unit(jnp.concatenate([x, skip], -1), width), width)
  return nn.conv(w, x, outputs, 1)


def deeplab(w, x, width=128, classes=21):
  """Segmentation: dilated convolutions side by side, resized logits."""
  x = relu(norm(w, nn.conv(w, x, 64, 3, 2)))
  x = relu(norm(w, nn.conv(w, x, width, 3, 2)))
  x = relu(norm(w, nn.conv(w, x, width, 3, 2)))
  parts = [relu(norm(w, nn.conv(w, x, width, 1)))]
  parts += [relu(norm(w, nn.conv(w, x, width, 3, dilation=rate)))
            for rate in (2, 4, 8)]
  mean = relu(nn.dense(w, nn.spatial_mean(x), width))[:, None, None]
  parts.append(jnp.broadcast_to(mean, x.shape[:3] + (width,)))
  x = relu(norm(w, nn.conv(w, jnp.concatenate(parts, -1), width, 1)))
  x = nn.conv(w, x, classes, 1)
  return jax.image.resize(
      x, (x.shape[0], 8 * x.shape[1], 8 * x.shape[2], classes), 'bilinear')


def retinanet(w, x, width=256, classes=90, anchors=9):
  """A feature pyramid of three levels with heads for boxes and classes."""
  levels = []
  for channels in (64, 128, 256, 512):
    x = relu(norm(w, nn.conv(w, x, channels, 3, 2)))
    levels.append(x)
  top, outputs = None, []
  for level in levels[:0:-1]:
    side = nn.conv(w, level, width, 1)
    top = side if top is None else side + nn.upsample(top)
    outputs.append(nn.conv(w, top, width))
  tower, logits, boxes = w(3, 3, width, width), [], []
  heads = w(3, 3, width, classes * anchors), w(3, 3, width, 4 * anchors)

  def apply(x, kernel):
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), 'SAME',
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'))

  for x in outputs:
    x = relu(apply(x, tower))
    logits.append(apply(x, heads[0]).reshape(x.shape[0], -1, classes))
    boxes.append(apply(x, heads[1]).reshape(x.shape[0], -1, 4))
  return (jax.nn.sigmoid(jnp.concatenate(logits, 1)),
          jnp.concatenate(boxes, 1))


def super_resolution(w, x, width=64, factor=2):
  x = first = relu(nn.conv(w, x, width, 5))
  for _ in range(2):
    x = x + nn.conv(w, relu(nn.conv(w, x, width)), width)
  x = nn.conv(w, x + first, 3 * factor ** 2)
  n, h, v, _ = x.shape
  x = x.reshape(n, h, v, factor, factor, 3).transpose(0, 1, 3, 2, 4, 5)
  return jnp.tanh(x.reshape(n, h * factor, v * factor, 3))


def autoencoder(w, x, widths=(64, 128, 256), latent=128):
  shape = x.shape
  for width in widths:
    x = jax.nn.leaky_relu(norm(w, nn.conv(w, x, width, 4, 2)))
  inner = x.shape
  x = nn.dense(w, x.reshape(x.shape[0], -1), latent)
  x = relu(nn.dense(w, x, inner[1] * inner[2] * inner[3])).reshape(inner)
  for width in (*widths[-2::-1], shape[-1]):
    x = nn.deconv(w, relu(norm(w, x)), width)
  return jax.nn.sigmoid(x)


def generator(w, z, widths=(512, 256, 128, 64)):
  x = nn.dense(w, z, 16 * widths[0]).reshape(-1, 4, 4, widths[0])
  for width in (*widths[1:], 3):
    x = nn.deconv(w, relu(norm(w, x)), width)
  return jnp.tanh(x)


def gan_step(w, z, x, widths=(256, 128, 64)):
  """Generator and discriminator, with the loss of both."""
  made = generator(w, z, widths)
  y = jnp.concatenate([made, x], 0)
  for width in widths[::-1]:
    y = jax.nn.leaky_relu(nn.conv(w, y, width, 4, 2), 0.2)
  logits = nn.dense(w, y.reshape(y.shape[0], -1), 1)[:, 0]
  return jax.nn.softplus(logits)


def resnet3d(w, x, widths=(32, 64), classes=400):
  x = relu(norm(w, nn.conv(w, x, widths[0], (3, 7, 7), 2)))
  for number, width in enumerate(widths):
    stride = 2 if number else 1
    y = relu(norm(w, nn.conv(w, x, width, 3, stride)))
    y = norm(w, nn.conv(w, y, width, (3, 1, 1)))
    x = relu(y + norm(w, nn.conv(w, x, width, 1, stride)))
  return nn.dense(w, nn.spatial_mean(x), classes)


def wavenet(w, x, width=64, steps=4, classes=256):
  """Dilated convolutions over time."""
  x = nn.conv(w, x, width, 1)
  skip = 0
  for step in range(steps):
    y = nn.conv(w, x, 2 * width, 2, dilation=2 ** step)
    y = jnp.tanh(y[..., :width]) * jax.nn.sigmoid(y[..., width:])
    skip = skip + nn.conv(w, y, 2 * width, 1)
    x = x + nn.conv(w, y, width, 1)
  return nn.conv(w, relu(skip), classes, 1)
