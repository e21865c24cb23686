"""A model of your own: append it to models.py, see extending.md."""
# ruff: noqa: F821


class _GatedRound(_DenseNorm):
  """x_v + D(N(x_v W + b)) * sigmoid(mean of x over the producers of node v).

  D is dropout, in training alone.
  """

  def update(self, graph, x):
    y = self(x)
    if graph.training:
      y = tf.nn.dropout(y, 0.1)
    return x + y * tf.sigmoid(graph.mean_of('producers', x))


@_registered
class PairHinge(_Objective):
  """Mean of max(0, 1 + s_i - s_j) over pairs in which i is faster than j."""

  def call(self, y_true, y_pred):
    faster = _as_float(y_true[:, :, tf.newaxis] < y_true[:, tf.newaxis])
    margin = 1 + y_pred[:, :, tf.newaxis] - y_pred[:, tf.newaxis]
    return tf.math.divide_no_nan(  # [kernels]
        tf.reduce_sum(faster * tf.nn.relu(margin), [1, 2]),
        tf.reduce_sum(faster, [1, 2]))


_OBJECTIVES['pair_hinge'] = PairHinge


class MyModel(MyEarlyJoinSAGE):
  """`MyEarlyJoinSAGE` with the rounds and the loss above."""
  _round = _GatedRound
  __init__ = functools.partialmethod(
      MyEarlyJoinSAGE.__init__, objective='pair_hinge')
