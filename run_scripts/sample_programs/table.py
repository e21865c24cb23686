"""The programs: networks, sizes, dtypes, steps, and the split of each.

No network of one split is in another, in any variant, so that what a model
does on valid and test it does on networks that it has not seen.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from sample_programs import images, layers, operations, others, sequences, small

STEPS = ('infer', 'sgd', 'momentum', 'adam')
_INTEGERS = jnp.int32


@dataclasses.dataclass(frozen=True)
class Program:
  """A JAX program to be compiled.

  Attributes:
    name: of the program, without spaces.
    split: train, valid or test.
    network: takes weights and inputs, returns one array or several.
    inputs: shapes; a trailing 'i' marks whole numbers, 'f' float32.
    dtype: of the computation; weights are stored as float32.
    step: 'infer', or the optimizer of a training step.
    options: sizes, as keywords of the network.
  """
  name: str
  split: str
  network: Callable
  inputs: Sequence[tuple]
  dtype: str
  step: str
  options: Mapping

  def function_and_shapes(self):
    """(function, its arguments as trees of `jax.ShapeDtypeStruct`)."""
    dtype = jnp.dtype(self.dtype)
    inputs = [_shape(spec, dtype) for spec in self.inputs]
    training = self.step != 'infer'
    made = layers.Weights(dtype, training)

    def apply(weights, *arrays):
      return self.network(
          layers.Weights(dtype, training, weights), *arrays, **self.options)

    outputs = jax.eval_shape(
        lambda *arrays: self.network(made, *arrays, **self.options), *inputs)
    if self.step == 'infer':
      return apply, (made.made, *inputs)
    targets, loss = _loss(outputs)
    return _training_step(
        apply, loss, self.step), (_state(made.made, self.step), targets,
                                  *inputs)


def _shape(spec, dtype):
  kind = {'i': _INTEGERS, 'f': jnp.float32}.get(spec[-1])
  return jax.ShapeDtypeStruct(spec[:-1] if kind else spec, kind or dtype)


def _loss(outputs):
  """Cross-entropy where there are classes, else squares; with its targets."""
  leaves = jax.tree.leaves(outputs)
  shape = leaves[0].shape
  if len(leaves) == 1 and 10 <= shape[-1] and len(shape) < 4:
    def entropy(logits, labels):
      logits = jax.nn.log_softmax(logits.astype(jnp.float32))
      return -jnp.take_along_axis(logits, labels[..., None], -1).mean()
    return jax.ShapeDtypeStruct(shape[:-1], _INTEGERS), entropy

  def squares(outputs, targets):
    return sum(jnp.square(a.astype(jnp.float32) - b).mean()
               for a, b in zip(jax.tree.leaves(outputs), targets))
  return leaves, squares


def _state(weights, step):
  """Weights, and what the optimizer keeps of each."""
  return [weights] * {'sgd': 1, 'momentum': 2, 'adam': 3}[step]


def _training_step(apply, loss, step):
  def sgd(weight, slope):
    return weight - 0.1 * slope,

  def momentum(weight, slope, speed):
    speed = 0.9 * speed + slope + 1e-4 * weight
    return weight - 0.1 * speed, speed

  def adam(weight, slope, mean, square):
    mean = 0.9 * mean + 0.1 * slope
    square = 0.999 * square + 0.001 * slope * slope
    return weight - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), mean, square

  update = {'sgd': sgd, 'momentum': momentum, 'adam': adam}[step]

  def run(state, targets, *inputs):
    value, slopes = jax.value_and_grad(
        lambda weights: loss(apply(weights, *inputs), targets))(state[0])
    updated = [update(weight, slope, *rest) for weight, slope, *rest
               in zip(state[0], slopes, *state[1:])]
    return value, [list(part) for part in zip(*updated)]
  return run


# --- The table ---------------------------------------------------------------

i, s, o, p, m = images, sequences, others, operations, small
train, valid, test = 'train', 'valid', 'test'
f32, bf16 = 'float32', 'bfloat16'
# (label, split, network, inputs, dtype, step, options)
_ROWS = [
  # Convolutional networks.
  ('resnet50', train, i.resnet, [(32, 224, 224, 3)], bf16, 'momentum', {}),
  ('resnet50', train, i.resnet, [(16, 160, 160, 3)], f32, 'sgd', {}),
  ('resnet50', train, i.resnet, [(128, 224, 224, 3)], bf16, 'infer',
   dict(widths=(64, 128, 256, 512))),
  ('resnet18', train, i.resnet, [(64, 224, 224, 3)], f32, 'sgd',
   dict(bottleneck=False, widths=(64, 128, 256))),
  ('resnet_late', train, i.resnet, [(64, 64, 64, 3)], bf16, 'sgd',
   dict(widths=(256, 512))),
  ('wide_resnet', train, i.resnet, [(100, 32, 32, 3)], bf16, 'adam',
   dict(bottleneck=False, widths=(160, 320), classes=100)),
  ('resnext', train, i.resnet, [(32, 224, 224, 3)], bf16, 'sgd',
   dict(widths=(128, 256), groups=32)),
  ('se_resnet', train, i.resnet, [(24, 192, 192, 3)], f32, 'sgd',
   dict(squeeze=True)),
  ('vgg', train, i.vgg, [(32, 224, 224, 3)], bf16, 'sgd', {}),
  ('vgg', train, i.vgg, [(8, 112, 112, 3)], f32, 'momentum',
   dict(widths=(64, 128, 256, 512))),
  ('densenet', train, i.densenet, [(32, 224, 224, 3)], bf16, 'sgd',
   dict(steps=2)),
  ('densenet', train, i.densenet, [(20, 96, 96, 3)], f32, 'infer',
   dict(growth=24)),
  ('mobilenet', train, i.mobilenet, [(32, 224, 224, 3)], f32, 'sgd',
   dict(widths=(24, 32))),
  ('mobilenet', train, i.mobilenet, [(128, 192, 192, 3)], bf16, 'infer',
   dict(widths=(24, 32, 64, 96, 160))),
  ('efficientnet', train, i.mobilenet, [(16, 240, 240, 3)], bf16, 'sgd',
   dict(widths=(24, 40), size=5, squeeze=True)),
  ('efficientnet', train, i.mobilenet, [(1, 224, 224, 3)], f32, 'infer',
   dict(widths=(16, 24, 40, 80, 112), squeeze=True)),
  ('unet', train, i.unet, [(8, 256, 256, 3)], bf16, 'sgd', {}),
  ('unet', train, i.unet, [(2, 160, 160, 1)], f32, 'adam',
   dict(widths=(48, 96), norm='group')),
  ('unet_3d', train, i.unet, [(2, 64, 64, 64, 1)], bf16, 'sgd',
   dict(widths=(32, 64))),
  ('retinanet', train, i.retinanet, [(8, 256, 256, 3)], f32, 'infer',
   dict(width=128)),
  ('autoencoder', train, i.autoencoder, [(64, 64, 64, 3)], f32, 'adam',
   {}),
  ('autoencoder', train, i.autoencoder, [(50, 96, 96, 1)], bf16, 'sgd',
   dict(widths=(32, 64, 128, 256), latent=200)),
  ('dcgan', train, i.gan_step, [(64, 100), (64, 32, 32, 3)], f32, 'sgd',
   {}),
  ('dcgan', train, i.generator, [(25, 128)], bf16, 'infer',
   dict(widths=(1024, 512, 256, 128))),
  ('inception', valid, i.inception, [(32, 224, 224, 3)], bf16, 'sgd', {}),
  ('convnext', valid, i.convnext, [(16, 224, 224, 3)], bf16, 'sgd', {}),
  ('super_resolution', valid, i.super_resolution, [(8, 96, 96, 3)], f32,
   'sgd', {}),
  ('wavenet', valid, i.wavenet, [(8, 4000, 1)], f32, 'sgd', {}),
  ('alexnet', test, i.alexnet, [(64, 227, 227, 3)], bf16, 'sgd', {}),
  ('shufflenet', test, i.shufflenet, [(32, 224, 224, 3)], f32, 'sgd', {}),
  ('deeplab', test, i.deeplab, [(4, 256, 256, 3)], bf16, 'sgd', {}),
  ('resnet_3d', test, i.resnet3d, [(4, 16, 112, 112, 3)], bf16, 'sgd',
   {}),
  # Transformers and recurrent networks.
  ('bert', train, s.encoder, [(16, 128, 'i')], bf16, 'adam', {}),
  ('bert_large', train, s.encoder, [(4, 512, 'i')], f32, 'sgd',
   dict(width=1024, heads=16)),
  ('encoder_long', train, s.encoder, [(1, 4096, 'i')], bf16, 'infer',
   dict(width=512, heads=8)),
  ('encoder_many_heads', train, s.encoder, [(10, 200, 'i')], f32, 'sgd',
   dict(width=640, heads=40, after=False)),
  ('llama', train, s.decoder, [(2, 1024, 'i')], bf16, 'sgd', {}),
  ('llama', train, s.decoder, [(1, 2048, 'i')], bf16, 'infer',
   dict(width=2048, kv_heads=4)),
  ('gpt2', train, s.decoder, [(8, 384, 'i')], f32, 'sgd',
   dict(width=768, heads=12, gated=False, rotary=False)),
  ('multi_query', train, s.decoder, [(3, 600, 'i')], bf16, 'adam',
   dict(width=512, heads=8, kv_heads=1, window=128)),
  ('decode', train, s.decode_step,
   [(8, 2048), (8, 2048, 4, 128), (8, 2048, 4, 128), ('i',)], bf16,
   'infer', {}),
  ('decode', train, s.decode_step,
   [(33, 1024), (33, 500, 16, 64), (33, 500, 16, 64), ('i',)], f32,
   'infer', dict(kv_heads=16, inner=2816)),
  ('decode', train, s.decode_step,
   [(1, 1536), (1, 4096, 1, 128), (1, 4096, 1, 128), ('i',)], bf16,
   'infer', dict(heads=12, kv_heads=1)),
  ('mixture', train, s.mixture, [(4, 256, 512)], bf16, 'sgd', {}),
  ('mixture', train, s.mixture, [(2, 512, 768)], f32, 'infer',
   dict(experts=4, inner=1024, heads=12)),
  ('vit', train, s.vit, [(32, 224, 224, 3)], bf16, 'sgd', {}),
  ('vit', train, s.vit, [(6, 256, 256, 3)], f32, 'adam',
   dict(patch=32, width=768, heads=12)),
  ('mixer', train, s.mixer, [(32, 224, 224, 3)], bf16, 'sgd', {}),
  ('mixer', train, s.mixer, [(12, 192, 192, 3)], f32, 'infer',
   dict(patch=12, width=384, tokens=192, channels=1536)),
  ('lstm', train, s.lstm, [(32, 35, 'i')], f32, 'sgd', {}),
  ('lstm', train, s.lstm, [(128, 50, 'i')], bf16, 'sgd',
   dict(width=1024, layers=2)),
  ('conformer', valid, s.conformer, [(8, 400, 80)], bf16, 'sgd', {}),
  ('state_space', valid, s.state_space, [(4, 512, 512)], bf16, 'sgd', {}),
  ('seq2seq', test, s.seq2seq, [(16, 96, 'i'), (16, 96, 'i')], bf16,
   'sgd', {}),
  ('swin', test, s.swin, [(16, 224, 224, 3)], bf16, 'sgd', {}),
  ('gru', test, s.gru, [(40, 60, 96)], f32, 'sgd', {}),
  # Others.
  ('dlrm', train, o.dlrm, [(2048, 13), (2048, 8, 'i')], f32, 'sgd', {}),
  ('dlrm', train, o.dlrm, [(500, 13), (500, 20, 'i')], bf16, 'infer',
   dict(width=128)),
  ('graph_net', train, o.message_passing,
   [(2000, 64), (8000, 16), (8000, 'i'), (8000, 'i')], f32, 'sgd', {}),
  ('diffusion', train, o.diffusion,
   [(4, 32, 32, 4), (4, 'f'), (4, 77, 512)], bf16, 'sgd', {}),
  ('diffusion', train, o.diffusion,
   [(2, 64, 64, 4), (2, 'f'), (2, 77, 768)], f32, 'infer',
   dict(widths=(160, 320), heads=8)),
  # Operations alone, which few networks of train have.
  ('move_images', train, p.movements,
   [(24, 28, 36, 80), (6, 48, 40, 96)], f32, 'infer', {}),
  ('move_images', train, p.movements,
   [(10, 36, 20, 160), (40, 12, 14, 320)], bf16, 'infer', {}),
  ('move_volumes', train, p.movements,
   [(4, 10, 24, 18, 48), (12, 6, 9, 11, 128)], bf16, 'infer', {}),
  ('move_sequences', train, p.movements,
   [(50, 77, 384), (12, 300, 130), (6, 90, 8, 64), (900, 200)], f32,
   'infer', {}),
  ('move_sequences', train, p.movements,
   [(100, 48, 256), (7, 512, 640), (3, 200, 16, 96), (4000, 72)], bf16,
   'infer', {}),
  ('reduce_images', train, p.reductions,
   [(24, 28, 36, 80), (10, 48, 40, 200)], f32, 'infer', {}),
  ('reduce_images', train, p.reductions,
   [(30, 17, 23, 128), (48, 60, 52, 64)], bf16, 'infer', {}),
  ('reduce_sequences', train, p.reductions,
   [(50, 77, 384), (300, 1500), (9, 12, 130, 130)], f32, 'infer', {}),
  ('reduce_sequences', train, p.reductions,
   [(12, 700, 320), (2000, 96), (20, 40, 8, 64)], bf16, 'infer', {}),
  ('radiance', valid, o.radiance, [(1024, 64, 3), (1024, 3)], f32, 'sgd',
   {}),
  ('dqn', valid, o.q_learning, [(32, 84, 84, 4)], f32, 'adam', {}),
  ('pair_stack', valid, o.pair_stack, [(1, 96, 96, 64)], bf16, 'sgd', {}),
  ('two_towers', valid, o.two_towers, [(1000, 300), (1000, 200)], f32,
   'sgd', {}),
  ('wide_and_deep', test, o.wide_and_deep, [(1024, 16), (1024, 26, 'i')],
   f32, 'adam', {}),
  ('dense_graph', test, o.dense_graph, [(16, 200, 100), (16, 200, 200)],
   f32, 'sgd', {}),
  ('flow', test, o.flow, [(32, 32, 32, 24)], bf16, 'sgd', {}),
]


# Programs of which the compiler judges hundreds of layouts each.
_LAYOUT_ROWS = [
  ('conv_net', train, m.convolutions, [(16, 24, 24, 16)], bf16, 'sgd', {}),
  ('conv_3d', train, m.convolutions, [(4, 6, 10, 10, 24)], bf16, 'sgd',
   dict(widths=(48, 64))),
  ('residual', train, m.residual, [(32, 14, 14, 64)], bf16, 'infer', {}),
  ('inverted_residual', train, m.inverted_residual, [(16, 28, 28, 24)], bf16,
   'infer', {}),
  ('hourglass', train, m.hourglass, [(8, 24, 24, 16)], bf16, 'infer', {}),
  ('bottleneck_coder', train, m.bottleneck_coder, [(64, 16, 16, 8)], bf16,
   'infer', {}),
  ('attention', train, m.attention, [(4, 48, 128)], bf16, 'infer', {}),
  ('mixer', train, m.mixer, [(16, 64, 96)], bf16, 'infer', {}),
  ('messages', train, m.messages, [(300, 48), (1000, 'i'), (1000, 'i')], f32,
   'infer', {}),
  ('recommender', train, m.recommender, [(256, 24), (256, 9, 32)], f32,
   'infer', {}),
  ('branches', valid, m.branches, [(16, 14, 14, 96)], bf16, 'infer', {}),
  ('patches', valid, m.patches, [(8, 32, 32, 12)], bf16, 'infer', {}),
  ('speech', valid, m.speech, [(6, 96, 64)], bf16, 'infer', {}),
  ('dilated', test, m.dilated, [(4, 33, 33, 16)], bf16, 'infer', {}),
  ('factored', test, m.factored, [(6, 8, 12, 12, 20)], bf16, 'infer', {}),
  ('shuffled', test, m.shuffled, [(24, 14, 14, 48)], bf16, 'infer', {}),
  ('cross_attention', test, m.cross_attention, [(4, 24, 96), (4, 40, 80)],
   bf16, 'infer', {}),
  ('recurrent', test, m.recurrent, [(40, 3, 64)], bf16, 'infer', {}),
  ('vgg', train, i.vgg, [(32, 32, 32, 16)], bf16, 'sgd',
   dict(widths=(32, 64), dense=128, classes=100)),
  ('resnet', train, i.resnet, [(16, 64, 64, 3)], bf16, 'infer',
   dict(widths=(64, 128))),
  ('resnet_basic', train, i.resnet, [(64, 32, 32, 8)], f32, 'sgd',
   dict(widths=(32,), bottleneck=False, classes=10)),
  ('densenet', train, i.densenet, [(32, 64, 64, 3)], f32, 'infer',
   dict(growth=16, steps=2)),
  ('mobilenet', train, i.mobilenet, [(48, 96, 96, 3)], bf16, 'infer',
   dict(widths=(24, 40))),
  ('efficientnet', train, i.mobilenet, [(8, 64, 64, 3)], f32, 'infer',
   dict(widths=(16, 24), squeeze=True)),
  ('residual_stack', train, m.residual_stack, [(16, 32, 32, 8)], bf16, 'infer',
   {}),
  ('resnet_deep', train, i.resnet, [(8, 64, 64, 3)], f32, 'infer',
   dict(widths=(32, 64, 96, 160))),
  ('mobilenet_deep', train, i.mobilenet, [(16, 64, 64, 3)], bf16, 'infer',
   dict(widths=(16, 24, 40, 64, 96))),
  ('unet', train, i.unet, [(4, 32, 32, 8)], bf16, 'infer',
   dict(widths=(16, 32, 64))),
  ('unet_3d', train, i.unet, [(2, 16, 16, 16, 4)], bf16, 'infer',
   dict(widths=(16, 32))),
  ('transformer', train, m.transformer, [(4, 40, 128)], bf16, 'infer', {}),
  ('decoder', train, m.transformer, [(2, 64, 192)], bf16, 'infer',
   dict(heads=6, kv_heads=2, blocks=2, gated=True, causal=True, inner=2)),
  ('mlp_stack', train, m.mlp_stack, [(300, 72)], bf16, 'sgd', {}),
  ('inception', valid, i.inception, [(8, 64, 64, 3)], bf16, 'infer',
   dict(width=32)),
  ('wavenet', valid, i.wavenet, [(4, 256, 8)], bf16, 'infer',
   dict(width=32, classes=64)),
  ('super_resolution', valid, i.super_resolution, [(4, 24, 24, 3)], bf16,
   'infer', dict(width=40)),
  ('pair_stack', valid, o.pair_stack, [(1, 24, 24, 64)], bf16, 'infer',
   dict(width=48)),
  ('deeplab', test, i.deeplab, [(2, 64, 64, 3)], bf16, 'infer',
   dict(width=48)),
  ('resnet_3d', test, i.resnet3d, [(2, 8, 32, 32, 3)], bf16, 'infer',
   dict(widths=(24, 48), classes=50)),
  ('flow', test, o.flow, [(8, 16, 16, 24)], bf16, 'infer', dict(hidden=64)),
  ('alexnet', test, i.alexnet, [(8, 67, 67, 3)], bf16, 'infer',
   dict(classes=100)),
  ('shufflenet', test, i.shufflenet, [(8, 64, 64, 3)], f32, 'infer',
   dict(width=96, classes=50)),
  ('swin', test, s.swin, [(4, 56, 56, 3)], bf16, 'infer', dict(width=48)),
  ('seq2seq', test, s.seq2seq, [(4, 32, 'i'), (4, 24, 'i')], bf16, 'infer',
   dict(vocabulary=800, width=128, heads=4)),
  ('gru', test, s.gru, [(24, 20, 48)], f32, 'sgd', dict(width=96)),
  ('wide_and_deep', test, o.wide_and_deep, [(256, 16), (256, 12, 'i')], f32,
   'sgd', dict(rows=2000)),
  ('dense_graph', test, o.dense_graph, [(8, 60, 40), (8, 60, 60)], bf16,
   'sgd', dict(width=96)),
]


def _programs(rows) -> dict[str, Program]:
  """Name -> program.

  Raises:
    ValueError: two have the same name.
  """
  programs = {}
  for label, split, network, inputs, dtype, step, options in rows:
    kind = {f32: 'f32', bf16: 'bf16'}[dtype]
    name = f'{label}_batch_{inputs[0][0]}_{step}_{kind}'
    programs[name] = Program(name, split, network, inputs, dtype, step,
                             options)
  if len(programs) != len(rows):
    raise ValueError('two programs have the same name')
  return programs


PROGRAMS = _programs(_ROWS)
LAYOUT_PROGRAMS = _programs(_LAYOUT_ROWS)
