"""Measures other ways to compute what ranking computes, beside the one in use.

A part of `speed.py`; see `speed_ranking` for the rows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import speed_kernels
from speed_ranking import (
  built,
  graphs_of,
  median_seconds,
  row,
  run_worker,
  stats_of,
)
from tpu_graphs_ext.host import batches

WIDTH = 64
NODES, CONFIGS = 40, 400
REPEATS = 15


def trials(worker: list[str]) -> list[dict[str, Any]]:
  """A layer, its neighbour sums, kernels ranked together, and cores."""
  rows = _layers() + _neighbour_sums() + _merged()
  for cores in sorted({1, len(os.sched_getaffinity(0))}):
    rows += run_worker(worker, 'with_cores', str(cores))
  return rows


def with_cores(number: int) -> list[dict[str, Any]]:
  """Ranking of one kernel in a process that keeps to so many cores."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:number])
  kernel = speed_kernels.random_kernel(40, 1842)
  graph = graphs_of([kernel])[0]
  model, _ = built('EarlyJoinSAGE', [kernel])
  seconds = median_seconds(
      lambda: model.forward(graph, kernel.num_configs).numpy(), REPEATS)
  return [row('trials', 'EarlyJoinSAGE, 40 nodes x 1842 configs',
              f'cores: {number}', 'time', 1e3 * seconds, 'ms')]


# --- A layer ------------------------------------------------------------------


def _layers() -> list[dict[str, Any]]:
  """A GraphSAGE layer on [nodes, configs, 64], two products being in use."""
  rng = np.random.default_rng(0)
  adjacency = tf.constant(_adjacency(NODES, rng))
  x, neighbour, own = (
      tf.constant(rng.normal(size=size).astype(np.float32)) for size in (
          (NODES, CONFIGS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH)))

  def product(x, w):
    y = tf.reshape(x, [-1, x.shape[-1]]) @ w
    return tf.reshape(y, [NODES, -1, w.shape[-1]])

  def summed(x):
    return tf.reshape(adjacency @ tf.reshape(x, [NODES, -1]), tf.shape(x))

  def finished(y):
    return tf.nn.l2_normalize(tf.nn.leaky_relu(y), -1)

  def two_products(x):
    return finished(summed(product(x, neighbour)) + product(x, own))

  def half_precision(x):
    low = tf.bfloat16
    y, z = (tf.cast(product(tf.cast(x, low), tf.cast(w, low)), tf.float32)
            for w in (neighbour, own))
    return finished(summed(y) + z)

  def split_after(x):
    y = product(x, tf.concat([neighbour, own], 1))
    return finished(summed(y[..., :WIDTH]) + y[..., WIDTH:])

  def joined_before(x):
    return finished(product(tf.concat([summed(x), x], -1),
                            tf.concat([neighbour, own], 0)))

  spec = [tf.TensorSpec([NODES, None, WIDTH])]
  compiled = {
      'two products (in use)': tf.function(two_products, spec),
      'one product, split after it': tf.function(split_after, spec),
      'one product of joined columns': tf.function(joined_before, spec),
      'bfloat16 products': tf.function(half_precision, spec),
      'jit_compile, which compiles for each shape': tf.function(
          two_products, jit_compile=True)}
  return _compared(f'layer, {NODES} nodes x {CONFIGS} configs', {
      name: lambda f=f: f(x).numpy() for name, f in compiled.items()})


def _neighbour_sums() -> list[dict[str, Any]]:
  """Dense and sparse sums over neighbours by kernel size."""
  rng, rows = np.random.default_rng(0), []
  for nodes in (10, 40, 150, 256, 500):
    configs = 2 ** 20 // (nodes * WIDTH)
    dense = _adjacency(nodes, rng)
    receiver, sender = (tf.constant(part) for part in np.nonzero(dense))
    adjacency = tf.constant(dense)
    x = tf.constant(rng.random((nodes, configs, WIDTH), np.float32))

    rows += _compared(f'neighbour sums, {nodes} nodes', {
        'sparse matrix (in use)': functools.partial(
            _sparse_matrix, tf.sparse.from_dense(dense), x),
        'dense matrix': functools.partial(_dense_matrix, adjacency, x),
        'edge by edge': functools.partial(_by_edges, sender, receiver, x)})
  return rows


@tf.function(reduce_retracing=True)
def _sparse_matrix(adjacency, x):
  return tf.sparse.sparse_dense_matmul(
      adjacency, tf.reshape(x, [tf.shape(x)[0], -1]))


@tf.function(reduce_retracing=True)
def _dense_matrix(adjacency, x):
  return adjacency @ tf.reshape(x, [tf.shape(x)[0], -1])


@tf.function(reduce_retracing=True)
def _by_edges(sender, receiver, x):
  return tf.math.unsorted_segment_sum(
      tf.gather(x, sender), receiver, tf.shape(x)[0])


def _adjacency(nodes: int, rng: np.random.Generator) -> np.ndarray:
  """float32 [nodes, nodes] of about 1.05 edges a node, both ways."""
  edges = speed_kernels.random_kernel(
      nodes, 1, int(rng.integers(1000))).edge_index
  adjacency = np.zeros([nodes, nodes], np.float32)
  adjacency[edges[:, 0], edges[:, 1]] = adjacency[edges[:, 1], edges[:, 0]] = 1
  return adjacency


# --- Kernels together ---------------------------------------------------------


def _merged() -> list[dict[str, Any]]:
  """Eight kernels of 20 nodes, one by one and as one batch."""
  rows = []
  for configs in (10, 100, 1000):
    kernels = [speed_kernels.random_kernel(20, configs, seed)
               for seed in range(8)]
    model, _ = built('EarlyJoinSAGE', kernels)
    graphs = graphs_of(kernels)
    batch = batches.batch_graph(
        kernels, np.tile(np.arange(configs), (8, 1)), stats_of(kernels))

    def one_by_one(graphs=graphs, model=model, configs=configs):
      for graph in graphs:
        model.forward(graph, configs).numpy()

    rows += _compared(f'8 kernels of 20 nodes x {configs} configs', {
        'one by one (in use)': one_by_one,
        'as one batch': lambda batch=batch, model=model, configs=configs:
            model.forward(batch, configs).numpy()})
  return rows


def _compared(subject: str,
              ways: dict[str, Callable[[], Any]]) -> list[dict[str, Any]]:
  """Median milliseconds of each way, the first one's as 1."""
  seconds = {name: median_seconds(way, REPEATS) for name, way in ways.items()}
  first = next(iter(seconds.values()))
  return [each for name, taken in seconds.items() for each in (
      row('trials', subject, name, 'time', 1e3 * taken, 'ms'),
      row('trials', subject, name, 'over the first', taken / first, 'times'))]
