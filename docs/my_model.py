"""A model of your own: append it to models.py, see extending.md."""
# ruff: noqa: F821


class _GatedRound(_DenseNorm):
  """x_v + N(x_v W + b) * sigmoid(mean of x over the producers of node v)."""

  def update(self, graph, x):
    return x + self(x) * tf.sigmoid(graph.mean_of('producers', x))


class MyModel(MyEarlyJoinSAGE):
  """`MyEarlyJoinSAGE` whose nodes pass messages in the rounds above."""
  _round = _GatedRound
