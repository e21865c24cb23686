"""Traces written by hand, with times that add up in one's head."""

from __future__ import annotations

import gzip
import json
import os

from tpu_graphs_ext.traces import kineto


def event(name, category, start, duration, thread=1, **args):
  """Of Chrome's format; names of arguments have _ for a blank."""
  return {'ph': 'X', 'cat': category, 'name': name, 'pid': 7, 'tid': thread,
          'ts': start, 'dur': duration,
          'args': {key.replace('_', ' '): value
                   for key, value in args.items()}}


def op(name, start, duration, dims=None, types=None, **args):
  """An operator; without `types` all that has sizes is of floats."""
  if dims is not None:
    args['Input_Dims'] = dims
    args['Input_type'] = types or ['float' if size else 'Scalar'
                                   for size in dims]
  return event(name, 'cpu_op', start, duration, **args)


def launch(correlation, start, duration=2, thread=1):
  return event('cudaLaunchKernel', 'cuda_runtime', start, duration, thread,
               correlation=correlation)


def kernel(correlation, start, duration, name='k', category='kernel', **args):
  return event(name, category, start, duration, thread=0,
               correlation=correlation, device=0, stream=args.pop('stream', 7),
               **args)


def step(number, start, duration):
  return event(f'ProfilerStep#{number}', 'user_annotation', start, duration)


def one_step():
  """Step 3 from 100 to 200: 8 + 20 us of kernels.

  linear, 110 to 150, with t (112-116) and addmm (120-140), which launches
  kernel 1 (124-126; runs 130-138). Then add, 160 to 170, which launches
  kernel 2 (162-164; runs 165-185) on floats of 2 x 4 and 4.
  """
  return [
      step(3, 100, 100),
      op('aten::linear', 110, 40, [[2, 8], [4, 8]], External_id=1),
      op('aten::t', 112, 4, [[4, 8]], External_id=2),
      op('aten::addmm', 120, 20, [[4], [2, 8], [8, 4], [], []], External_id=3),
      launch(11, 124), kernel(11, 130, 8),
      op('aten::add', 160, 10, [[2, 4], [4], []], External_id=4),
      launch(12, 162), kernel(12, 165, 20)]


def traced(*events):
  """The trace that a file of these events holds."""
  return kineto.trace_of('t.json', {'traceEvents': [*events]})


def write(path, events, packed=False):
  """The file of a trace."""
  text = json.dumps({'traceEvents': events}).encode()
  with (gzip.open if packed else open)(path, 'wb') as file:
    file.write(text)
  return os.fspath(path)
