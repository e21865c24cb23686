"""Scores that are kept: whose, how many, and what is never kept."""

import numpy as np
import pytest

from tpu_graphs_ext.engine.duplicate_configs import Scores
from tpu_graphs_ext.serving.score_cache import Recent


class Model:
  """Gives each configuration its column's sum, and counts how often."""

  def __init__(self):
    self.calls = 0

  def __call__(self, kernel):
    self.calls += 1
    return Scores(kernel.sum(1), np.arange(len(kernel)))


def ask(recent, model, *arrays):
  return recent.scores(arrays, lambda: model(arrays[-1])).given.tolist()


KERNEL = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def test_the_same_arrays_are_scored_once():
  recent, model = Recent(), Model()
  for _ in range(3):
    assert ask(recent, model, KERNEL.copy()) == [3, 7, 11]
  assert model.calls == 1


@pytest.mark.parametrize('other', [
    KERNEL + 1, KERNEL.astype(np.float64), KERNEL.reshape(2, 3), KERNEL[:2],
    np.asfortranarray(KERNEL[::-1])])
def test_other_arrays_are_scored(other):
  recent, model = Recent(), Model()
  ask(recent, model, KERNEL)
  assert ask(recent, model, other) == other.sum(1).tolist()
  assert model.calls == 2
  # Of (ab, c) and (a, bc) the bytes are the same.
  ask(recent, model, KERNEL[:2], KERNEL[2:])
  ask(recent, model, KERNEL[:1], KERNEL[1:])
  assert model.calls == 4


def test_the_one_longest_unused_goes_first():
  recent, model = Recent(most_tiles=7), Model()  # Two kernels of three.
  first, second, third = KERNEL, KERNEL + 1, KERNEL + 2
  for kernel in (first, second, first, third, first):
    ask(recent, model, kernel)
  assert model.calls == 3
  ask(recent, model, second)
  assert model.calls == 4


def test_a_kernel_with_more_tiles_than_all_is_not_kept():
  recent, model = Recent(most_tiles=3), Model()
  ask(recent, model, KERNEL)
  many = np.ones([4, 2], np.float32)
  for _ in range(2):
    ask(recent, model, many)
  ask(recent, model, KERNEL)  # Is still there.
  assert model.calls == 3


def test_kept_scores_cannot_be_changed():
  scores = Recent().scores([KERNEL], lambda: Model()(KERNEL))
  with pytest.raises(ValueError, match='read-only'):
    scores.given[0] = 9


def test_what_cannot_be_scored_is_asked_again():
  recent, model = Recent(), Model()

  def fails():
    raise RuntimeError('no luck')

  with pytest.raises(RuntimeError):
    recent.scores([KERNEL], fails)
  assert ask(recent, model, KERNEL) == [3, 7, 11]
