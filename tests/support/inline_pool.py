"""Stands in for processes: one item after the other, in this one."""

from tpu_graphs_ext.sweep import pool


class InlinePool:
  """Takes the place of `pool.run`.

  Attributes:
    done: items, in order.
    stop_after: raises KeyboardInterrupt after this many items.
    kills: whether an item kills its worker each time.
  """

  def __init__(self):
    self.done, self.stop_after, self.kills = [], None, lambda item: False

  def __call__(self, function, items, *, workers, scheduler):
    for key, item in items:
      if self.stop_after is not None and len(self.done) >= self.stop_after:
        raise KeyboardInterrupt
      self.done.append(item)
      yield pool.Outcome(key, *(
          (None, pool.died(3)) if self.kills(item)
          else pool.called(function, item)))
