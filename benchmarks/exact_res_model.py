"""ResModel of the layout task in float64, to hold float32 scores against.

The plain way: every configuration has a state for every node, and what is
summed is summed in float64. The formula is in the docstring of `ResModel` in
`layout_models.py`; this is that of its default arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def scores(weights: Sequence[np.ndarray], opcode: np.ndarray,
           node_feats: np.ndarray, edges: np.ndarray, config_node: np.ndarray,
           config_feats: np.ndarray) -> np.ndarray:
  """float64 [configs], of one program.

  Args:
    weights: the model's trainable variables in their order.
    opcode: int [nodes].
    node_feats: [nodes, F].
    edges: int [edges, 2], (consumer, producer).
    config_node: int [configurable], each node once.
    config_feats: [configurable, configs, G].
  """
  embedding, *rest = (np.asarray(weight, np.float64) for weight in weights)
  prenet, rest = rest[:4], rest[4:]
  rounds, postnet = [rest[i:i + 4] for i in range(0, len(rest) - 2, 4)], rest[
      -2:]
  fixed = np.concatenate([np.float64(node_feats), embedding[opcode]], -1)
  average = _symmetric(len(opcode), edges)
  found = []
  for feats in np.float64(config_feats).transpose(1, 0, 2):
    f = np.zeros((len(opcode), feats.shape[-1]))
    f[config_node] = 100 * feats
    x = _act(_mlp(np.concatenate([f, fixed], -1), *prenet))
    for layers in rounds:
      x = x + _act(_mlp(average(np.concatenate([f, x], -1)), *layers))
    z = np.concatenate([
        x.mean(0), _unit(x.sum(0)), _unit(x[config_node].sum(0))])
    found.append((_act(z @ postnet[0]) @ postnet[1])[0])
  return np.array(found)


def _symmetric(nodes: int, edges: np.ndarray):
  """x -> D^-1/2 (A + A' + I) D^-1/2 x."""
  receiver = np.concatenate([edges[:, 0], edges[:, 1]])
  sender = np.concatenate([edges[:, 1], edges[:, 0]])
  scale = 1 / np.sqrt(1 + np.bincount(receiver, minlength=nodes))

  def average(x):
    scaled = scale[:, np.newaxis] * x
    total = scaled.copy()
    np.add.at(total, receiver, scaled[sender])
    return scale[:, np.newaxis] * total

  return average


def _mlp(x, kernel, bias, second_kernel, second_bias):
  return _act(x @ kernel + bias) @ second_kernel + second_bias


def _act(x):
  """tf.nn.leaky_relu."""
  return np.where(x > 0, x, 0.2 * x)


def _unit(x):
  """tf.nn.l2_normalize."""
  return x / np.sqrt(max(np.sum(x * x), 1e-12))
