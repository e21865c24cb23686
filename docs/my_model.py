"""A model of your own: append it to models.py, see extending.md."""
# ruff: noqa: F821


class _GatedRound(_DenseNorm):
  """x_v + N(x_v W + b) * sigmoid(mean of x over the producers of node v)."""

  def update(self, graph, x):
    return x + self(x) * tf.sigmoid(graph.mean_of('producers', x))


_ROUNDS['gated'] = _GatedRound


class MyModel(MyEarlyJoinSAGE):
  """`MyEarlyJoinSAGE` whose nodes pass messages in the rounds above."""

  def __init__(self, num_configs, num_ops, **kwargs):
    super().__init__(num_configs, num_ops, convolution='gated', **kwargs)
