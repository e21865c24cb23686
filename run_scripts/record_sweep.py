"""Records single operators of many sizes on your GPU, to calibrate `trace`.

  python record_sweep.py sweep.json.gz
  tpu-graphs-ext trace sweep.json.gz --calibrate hardware.json

Needs PyTorch and nothing of this project: copy it to the machine with the GPU.
Each operator runs twice on inputs from a large pool: the first time they are
rarely in the GPU's cache, the second time mostly. It stops after
--seconds, and then takes some time to write the file.
"""

import argparse
import json
import math
import os
import random
import sys
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

FLOAT, TF32, BF16, FP16 = 'float', 'tf32', 'bf16', 'fp16'
TYPES = {FLOAT: torch.float32, TF32: torch.float32, BF16: torch.bfloat16,
         FP16: torch.float16}
# How often each method of `Sweep` is drawn.
SHARES = {
    'product': 1200, 'batched': 160, 'attention': 140, 'embedding': 200,
    'ordering': 120, 'reduction': 200, 'loss': 180, 'normalisation': 160,
    'pointwise': 700, 'moving': 260, 'optimizer': 120, 'convolution': 420,
    'copy': 60, 'recurrent': 80}


class Sweep:
  """Inputs, and operators of random sizes that use them."""

  def __init__(self, device, seed):
    self.device = torch.device(device)
    self.cuda = self.device.type == 'cuda'
    self.random = random.Random(seed)
    # Values of a tensor; the pool has twice as many of a type.
    self.most = 2**27 if self.cuda else 2**18
    self.pool, self.place = {}, 0

  def log(self, low, high):
    """A whole number, uniform in its logarithm."""
    return round(math.exp(self.random.uniform(math.log(low), math.log(high))))

  def side(self, low=16, high=8192):
    """A size of a layer: mostly a multiple of 64 or 8."""
    size, unit = self.log(low, high), self.one_of(64, 64, 64, 8, 1)
    return max(low, size // unit * unit if size > 2 * unit else size)

  def shape(self, make, sizes=lambda *shape: (0, math.prod(shape)),
            most_work=3e10):
    """The first shape that `make` draws that is not too large.

    sizes: of a shape, multiply-adds and values of the largest tensors.
    """
    while True:
      work, *values = sizes(*(shape := make()))
      if max(values) <= self.most and work <= (
          most_work if self.cuda else 2e7):
        return shape

  def new(self, *shape, kind=FLOAT, grad=False):
    """A tensor of the pool, further on than the one before."""
    dtype, count = TYPES[kind], math.prod(shape)
    if dtype not in self.pool:
      self.pool[dtype] = torch.randn(
          2 * self.most, device=self.device).to(dtype)
    if self.place + count > 2 * self.most:
      self.place = 0
    values = self.pool[dtype][self.place:self.place + count]
    self.place += -(-count // 512) * 512
    return values.view(shape).detach().requires_grad_(grad)

  def whole(self, high, *shape):
    return torch.randint(high, shape, device=self.device)

  def one_of(self, *options):
    return self.random.choice(options)

  def kind(self):
    return self.one_of(FLOAT, FLOAT, BF16, FP16)

  # Each of the following returns a function that runs an operator.

  def product(self):
    kind, form = self.one_of(*TYPES, BF16), self.one_of(
        'nn', 'tn', 'nt', 'linear', 'train', 'train', 'train')
    usual, most = self.one_of(True, True, False), self.one_of(64, 8192)

    def width():
      return 64 * self.one_of(1, 2, 3) * 2**self.random.randrange(1, 7)

    def draw():
      vocabulary = self.random.random() < 0.1
      n = self.side(8192, 65536) if vocabulary else width()
      if usual and self.cuda:  # Rows, and what layers of programs have.
        return 2**self.random.randrange(8, 15), n, width()
      return self.side(1, most), n if vocabulary else self.side(), self.side()
    m, n, k = self.shape(
        draw, lambda m, n, k: (m * n * k, m * n, n * k, m * k), 1.5e11)
    left, right = self.new(m, k, kind=kind), self.new(n, k, kind=kind)
    bias = self.new(n, kind=kind)
    other, across = left.view(k, m), right.view(k, n)

    def run():
      if form == 'train':
        x, w = left.detach().requires_grad_(), right.detach().requires_grad_()
        out = F.linear(x, w, bias)
        out.backward(out.detach())
      elif form == 'linear':
        F.linear(left, right, bias)
      else:
        torch.mm(other.t() if form[0] == 't' else left,
                 right.t() if form[1] == 't' else across)
    return self.with_tf32(run, kind == TF32)

  def with_tf32(self, run, allowed):
    def call():
      torch.backends.cuda.matmul.allow_tf32 = allowed
      run()
      torch.backends.cuda.matmul.allow_tf32 = False
    return call

  def batched(self):
    kind = self.one_of(*TYPES)
    b, m, n, k = self.shape(
        lambda: (self.log(2, 4096), self.log(8, 1024), self.log(8, 1024),
                 self.random.choice((16, 27, 32, 64, 64, 128, 200))),
        lambda b, m, n, k: (b * m * n * k, b * m * n, b * m * k, b * n * k))
    left, right = self.new(b, m, k, kind=kind), self.new(b, n, k, kind=kind)
    return self.with_tf32(
        lambda: torch.bmm(torch.bmm(left, right.transpose(1, 2)), right),
        kind == TF32)

  def attention(self):
    kind = self.one_of(BF16, BF16, FP16, FLOAT)
    causal = self.one_of(True, False)
    b, h, s, d = self.shape(
        lambda: (self.log(1, 32), self.log(4, 32),
                 64 * self.log(1, 64), self.random.choice((32, 64, 64, 128))),
        lambda b, h, s, d: (b * h * s * s * d, b * h * s * d))
    three = [self.new(b, s, h, d, kind=kind, grad=True) for _ in range(3)]

    def run():
      out = F.scaled_dot_product_attention(
          *(each.transpose(1, 2) for each in three), is_causal=causal)
      out.backward(out.detach())
    return run

  def embedding(self):
    rows, width = self.log(500, 2_000_000), 8 * self.log(1, 128)
    rows = max(10, min(rows, self.most // width))
    bag = self.one_of(1, self.log(1, 100))
    count = min(self.log(64, 65536), self.most // (16 * max(bag, width)))
    count, form = max(2, count), self.one_of('bag', 'bag', 'rows', 'sparse')
    table, at = self.new(rows, width), self.whole(rows, count * bag)
    starts = torch.arange(0, count * bag, bag, device=self.device)

    def run():
      weight = table.detach().requires_grad_()
      out = F.embedding(at, weight) if form == 'rows' else F.embedding_bag(
          at, weight, starts, mode='sum', sparse=form == 'sparse')
      out.backward(out.detach())
    return run

  def ordering(self):
    count = self.log(16, 4_000_000) if self.cuda else self.log(16, 4000)
    keys, values = self.whole(self.log(2, 10**7), count), self.new(count)
    width = min(count, self.log(8, 4096))
    table = self.new(max(1, min(count // width, 4096)), width)
    return self.one_of(
        lambda: keys.sort(), lambda: values.argsort(), lambda: keys.unique(),
        lambda: values.cumsum(0), lambda: table.sort(1),
        lambda: keys.bincount(),
        lambda: table.topk(min(8, width), 1), lambda: table.cumsum(1),
        lambda: torch.randperm(count, device=self.device))

  def table(self, least=8):
    return self.shape(lambda: (self.side(8, 65536), self.side(least, 65536)))

  def reduction(self):
    x = self.new(*self.table(), kind=self.kind())
    return self.one_of(
        lambda: x.sum(0), lambda: x.sum(1), lambda: x.sum(), lambda: x.mean(1),
        lambda: x.mean(), lambda: x.max(), lambda: x.norm(),
        lambda: x.argmax(1), lambda: x.amax(0), lambda: (x > 0).any(1))

  def loss(self):
    rows, width = self.one_of(self.table(), self.shape(  # Or of a vocabulary.
        lambda: (self.side(64, 16384), self.side(1000, 131072))))
    x, at = self.new(rows, width, kind=self.kind()), self.whole(width, rows)
    mark = self.new(rows, width, kind=FLOAT)
    form = self.random.randrange(4)

    def run():
      leaf = x.detach().requires_grad_()
      if form == 0:
        out = F.cross_entropy(leaf, at)
      elif form == 1:
        out = F.binary_cross_entropy_with_logits(leaf.float(), mark.sigmoid())
      elif form == 2:
        out = F.softmax(leaf, 1)
      else:
        out = F.log_softmax(leaf, 1)
      out.backward(torch.ones_like(out))
    return run

  def normalisation(self):
    (rows, width), kind = self.shape(
        lambda: (self.side(8, 65536), self.side(16, 16384))), self.kind()
    x = self.new(rows, width, kind=kind, grad=True)
    weight, bias = (self.new(width, kind=kind, grad=True) for _ in range(2))
    rms = getattr(F, 'rms_norm', None) if self.one_of(0, 0, 1) else None

    def run():
      out = (rms(x, (width,), weight) if rms
             else F.layer_norm(x, (width,), weight, bias))
      out.backward(out.detach())
    return run

  def pointwise(self):
    kind = self.kind()
    size = self.side(1, self.most // 2)
    a, b, c = (self.new(size, kind=kind) for _ in range(3))
    width = self.side(8, 8192)
    wide = a[:size // width * width].view(-1, width) if size > width else a
    row = self.new(*wide.shape[1:] or wide.shape, kind=kind)
    scalar = self.new(1)
    return self.one_of(*self.operators(a, b, c, wide, row, scalar))

  @staticmethod
  def operators(a, b, c, wide, row, scalar):
    def trained(op):
      def run():
        out = op(a.detach().requires_grad_())
        out.backward(b)
      return run
    cast = torch.float32 if a.dtype != torch.float32 else torch.bfloat16
    return (
        lambda: a.relu(), lambda: a.sigmoid(), lambda: a.exp(), lambda: a.neg(),
        lambda: a.abs().sqrt(), lambda: a * 2, lambda: a + 1, lambda: a / b,
        lambda: a + b, lambda: a * b, lambda: a - b, lambda: a.clone(),
        lambda: torch.maximum(a, b), lambda: a.to(cast), lambda: a.to(cast),
        lambda: b.to(cast).to(a.dtype), lambda: b.to(cast) + a,
        lambda: a > 0, lambda: torch.where(a > b, a, b), lambda: a.clamp(-1, 1),
        lambda: torch.zeros_like(a), lambda: torch.ones_like(a),
        lambda: a.clone().mul_(0.5), lambda: a.clone().add_(b, alpha=0.1),
        lambda: a.clone().addcmul_(b, c), lambda: a.clone().lerp_(b, 0.1),
        lambda: torch.empty_like(a).normal_(), lambda: torch.rand_like(a),
        lambda: wide + row, lambda: wide * row, lambda: wide.t().contiguous(),
        lambda: wide[..., ::2].contiguous(), lambda: a * scalar,
        lambda: wide[..., ::2].neg(), lambda: wide[..., ::2] * row[::2],
        lambda: wide[..., ::2] - wide[..., 1::2][..., :1],
        lambda: b + a * c, lambda: torch.arange(a.numel(), device=a.device),
        trained(torch.relu), trained(torch.sigmoid), trained(torch.tanh),
        trained(F.gelu), trained(F.silu), trained(lambda x: F.dropout(x, 0.1)),
        trained(lambda x: x * x), trained(lambda x: F.leaky_relu(x)))

  def moving(self):
    rows, width = self.table(4)
    kind = self.kind()
    x, count = self.new(rows, width, kind=kind), self.log(8, 100_000)
    count = min(count, self.most // width)
    at, more = self.whole(rows, count), self.new(count, width, kind=kind)
    column = self.whole(rows, count, 1).expand(count, width)
    pieces = self.log(2, 32)
    b, t, h, d = self.shape(lambda: (
        self.log(1, 64), self.log(8, 2048), self.log(1, 32),
        self.one_of(16, 32, 32, 64, 128)))
    heads = self.new(b, t, h, d, kind=kind).transpose(1, 2)
    three = self.new(b, t, h * d, kind=kind)
    few = self.log(4, 64)
    pairs = self.new(*self.shape(lambda: (self.log(8, 4096), few, few)),
                     kind=kind, grad=True)
    below = torch.tril_indices(few, few, -1, device=self.device)

    def pick():  # As a DLRM does, of the products of its features.
      out = pairs[:, below[0], below[1]]
      out.backward(out.detach())
    return self.one_of(
        pick, pick, lambda: torch.cat([heads, heads], 3),
        lambda: torch.cat([three, three], 2),
        lambda: torch.cat([heads[..., ::2], heads[..., 1::2]], 3),
        lambda: torch.cat([x, x], 1), lambda: torch.cat([x, x, more]),
        lambda: torch.stack([more] * pieces if count * width * pieces
                            <= self.most else [more, more], 1),
        lambda: x[at], lambda: x.index_select(0, at),
        lambda: x.gather(0, column),
        lambda: x.clone().index_add_(0, at, more),
        lambda: x.clone().scatter_add_(0, column, more),
        lambda: x.clone().index_put_((at,), more, accumulate=True),
        lambda: x.tril(),
        lambda: x.split(max(1, width // 3), 1)[0].contiguous())

  def optimizer(self):
    make, options = self.one_of(*(
        (make, {**options, way: True})
        for way in ('foreach', 'foreach', 'fused') for make, options in (
            (torch.optim.SGD, {'lr': 0.1}),
            (torch.optim.SGD, {'lr': 0.1, 'momentum': 0.9,
                               'weight_decay': 1e-4}),
            (torch.optim.Adam, {}), (torch.optim.AdamW, {}),
            (torch.optim.Adagrad, {}), (torch.optim.RMSprop, {}))
        if way == 'foreach' or make not in (torch.optim.Adagrad,
                                            torch.optim.RMSprop)))
    left, tensors = self.log(64, self.most), []
    for _ in range(self.log(1, 200)):  # Layers, and most are small.
      size = min(self.log(64, max(65, self.most // 4)), left)
      tensors, left = [*tensors, size], left - size
      if left < 64:
        break

    def run():
      # Not from the pool: an optimizer changes them.
      weights = [torch.ones(size, device=self.device, requires_grad=True)
                 for size in tensors]
      for each in weights:
        each.grad = torch.ones_like(each)
      nn.utils.clip_grad_norm_(weights, 1.0)
      make(weights, **options).step()
    return run

  def convolution(self):
    kind = self.one_of(FLOAT, TF32, TF32, TF32, BF16, FP16, FP16)
    half = kind in (BF16, FP16)
    last = self.one_of(False, half, True, half)
    tap, step = self.one_of((1, 1), (1, 1), (1, 2), (3, 1), (3, 1), (3, 2),
                            (7, 2), (5, 1))
    usual = self.cuda and self.one_of(True, False)  # As in a ResNet.

    def draw():
      b = self.one_of(4, 8, 16, 32, 32, 64, 64)
      if not usual:
        return (b, self.one_of(3, 64, 64, 128, 256, 512, 1024, 2048),
                self.one_of(7, 14, 28, 56, 112, 224),
                self.one_of(64, 128, 256, 512, 1024, 2048))
      if tap == 7:
        return b, 3, 224, 64
      side = self.one_of(7, 14, 28, 56)
      width = 64 * 56 // side
      wider = 4 * width if tap == 1 else width
      ci, co = self.one_of((width, wider), (wider, width))
      if step == 2:  # From the stage before.
        ci, side = ci // 2, side * 2
      return b, ci, side, co
    b, ci, side, co = self.shape(
        draw, lambda b, ci, side, co: (
            b * ci * co * (side * tap / step)**2, b * ci * side * side,
            b * co * (side / step)**2, ci * co * tap * tap), 5e10)
    x = self.new(b, ci, side, side, kind=kind)
    w = self.new(co, ci, tap, tap, kind=kind)
    weight, bias = self.new(co), self.new(co)
    form = torch.channels_last if last else torch.contiguous_format

    def run():
      torch.backends.cudnn.allow_tf32 = kind == TF32
      image = x.to(memory_format=form).detach().requires_grad_()
      taps = w.detach().requires_grad_()
      out = F.conv2d(image, taps, stride=step, padding=tap // 2)
      out = F.batch_norm(out, weight.clone(), bias.abs(),
                         weight.detach().requires_grad_(),
                         bias.detach().requires_grad_(), True)
      out = F.relu(out, inplace=True)
      if side > 56:
        out = F.max_pool2d(out, 3, 2, 1)
      elif side == 7:
        out = F.adaptive_avg_pool2d(out, 1)
      out.backward(out.detach())
      torch.backends.cudnn.allow_tf32 = True
    return run

  def copy(self):
    size = self.log(8, self.most)
    there = torch.empty(size, dtype=torch.uint8)
    pinned = there.pin_memory() if self.cuda else there.clone()

    def run():
      here = pinned.to(self.device, non_blocking=True)
      here.add_(there[:1].to(self.device))
      pinned.copy_(here, non_blocking=True)
      if size < 2**23:
        there.to(self.device)
      torch.empty_like(here).copy_(here)
    return run

  def recurrent(self):
    make = self.one_of(nn.LSTM, nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell)
    kind, steps = self.one_of(FLOAT, FLOAT, BF16, FP16), self.log(2, 24)
    batch, width = self.log(1, 1024), self.side(32, 2048)
    hidden, layers = self.side(32, 2048), self.one_of(1, 1, 2)
    batch = min(batch, 1 + int(1e10 / (width + hidden) / hidden / steps))
    if not self.cuda:
      width = hidden = 32
    if make is nn.LSTMCell:
      cell = make(width, hidden, device=self.device, dtype=TYPES[kind])
      x = self.new(batch, width, kind=kind)
      return lambda: sum(each.sum() for each in cell(x)).backward()
    cells = make(width, hidden, layers, batch_first=True, device=self.device,
                 dtype=TYPES[kind])
    x = self.new(batch, steps, width, kind=kind)
    return lambda: cells(x)[0].sum().backward()


def profiler_adds(device):
  """Microseconds that the profiler adds to an operator and a runtime call."""
  x, count = torch.zeros(4, device=device), 1000

  def seconds():
    times = []
    for run in (x.detach, lambda: x.add_(1)):
      start = time.perf_counter()
      for _ in range(count):
        run()
      times.append(time.perf_counter() - start)
      if device == 'cuda':
        torch.cuda.synchronize()
    return times

  def fastest():
    return map(min, zip(*(seconds() for _ in range(4))))

  without = [*fastest()]
  with profile(record_shapes=True):
    traced = [*fastest()]
  view, add = (1e6 * (a - b) / count for a, b in zip(traced, without))
  return {'operator': max(view, 0.0),
          'runtime': max(add - view, 0.0) if device == 'cuda' else 0.0}


def main():
  flags = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  flags.add_argument('out', help='file to write: .json or .json.gz')
  flags.add_argument('--seconds', type=float, default=60,
                     help='stop running operators then; default 60')
  flags.add_argument('--device', choices=('cuda', 'cpu'), default='cuda',
                     help='cpu only tries this program: there is no GPU work')
  flags.add_argument('--share', type=float, default=1.0,
                     help='of the operators; default all of them')
  flags = flags.parse_args()
  if flags.device == 'cuda' and not torch.cuda.is_available():
    sys.exit('error: PyTorch finds no GPU here; --device cpu tries the program')
  if not flags.out.endswith(('.json', '.json.gz')):
    sys.exit(f'error: {flags.out} must end in .json or .json.gz')
  flags.part = os.path.join(os.path.dirname(flags.out),
                            f'.part-{os.path.basename(flags.out)}')
  try:  # Rather now than after the work.
    open(flags.part, 'wb').close()
  except OSError as error:
    sys.exit(f'error: {flags.out}: cannot be written ({error})')
  warnings.simplefilter('ignore')  # Of PyTorch, on recurrent cells in half.
  begin, sweep = time.perf_counter(), Sweep(flags.device, 1)
  added = profiler_adds(flags.device)
  names = [name for name, count in SHARES.items()
           for _ in range(math.ceil(count * flags.share))]
  sweep.random.shuffle(names)
  try:
    record(flags, sweep, names, added, begin)
    os.replace(flags.part, flags.out)
  finally:
    if os.path.exists(flags.part):
      os.remove(flags.part)
  print(f'{flags.out}: recorded in {time.perf_counter() - begin:.0f} s')


def record(flags, sweep, names, added, begin):
  """Runs the operators under the profiler and writes the trace."""
  failed, shown, done = {}, 0.0, 0
  activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * sweep.cuda
  with profile(activities=activities, record_shapes=True) as prof:
    for name in names:
      passed = time.perf_counter() - begin
      if passed > flags.seconds:
        break
      if passed - shown >= 2:
        shown = passed
        print(f'{done:,} of {len(names):,} operators, {passed:.0f} s',
              flush=True)
      try:
        run = getattr(sweep, name)()
        for _ in range(2):
          run()
      except (RuntimeError, TypeError, ValueError) as error:
        failed.setdefault(name, []).append(str(error).split('\n')[0][:120])
      done += 1
      if sweep.cuda and done % 50 == 0:
        torch.cuda.synchronize()
    if sweep.cuda:
      torch.cuda.synchronize()
    prof.add_metadata_json('tpu_graphs_ext_sweep', json.dumps(added))
  for name, errors in failed.items():
    print(f'{name}: {len(errors)} did not run here, e.g. {errors[0]}')
  print(f'{done:,} of {len(names):,} operators; writing {flags.out}',
        flush=True)
  prof.export_chrome_trace(flags.part)


if __name__ == '__main__':
  main()
