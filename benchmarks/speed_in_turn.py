"""The part `ranking`: the baseline's model and ours, in two processes in turn.

Each process runs as its users run it: models.py changes a setting of TensorFlow
that would make the baseline faster too, if it were in the same process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

import speed_kernels
from speed_ranking import OURS, built, graphs_of, rank_all, row, the_baselines
from tpu_graphs_ext.errors import UserError

KERNELS = 12
REPEATS = 3
REFERENCE = 'EarlyJoinSAGE'  # The best of the baseline's.


def ranking(worker: list[str], root: str) -> list[dict[str, Any]]:
  """Eager loop over kernels like the collection's, ours and the baseline's.

  Times are of the processor, because the clock depends on what else runs.

  Args:
    worker: command of a process of `speed.py`.
    root: checkout of the baseline; empty: `replicated_join` stands in for it.
  """
  rows = []
  for onednn in ('0', '1'):
    env = {**os.environ, 'TF_ENABLE_ONEDNN_OPTS': onednn}
    for name in (REFERENCE, OURS):
      with tempfile.TemporaryDirectory() as folder:
        with _Process(worker, 'ours', name, '', folder, env) as ours:
          first_call = ours.answer()
          with _Process(worker, 'theirs', REFERENCE, root, folder,
                        env) as theirs:
            theirs.answer()
            rows += [{**made, 'case': f'oneDNN {onednn}, {made["case"]}'}
                     for made in (
                         row('ranking', name, 'first call', 'time',
                             first_call, 's'),
                         *_compared(name, theirs, ours, folder))]
  return rows


def _compared(name, theirs, ours, folder) -> list[dict[str, Any]]:
  """Rows of two processes that are ready."""
  seconds = np.array([
      [process.ask('rank') for process in (theirs, ours)]
      for _ in range(1 + REPEATS)])[1:]  # The first does not count.
  their_time, our_time = map(statistics.median, seconds.T)
  rows = []
  if name == REFERENCE:
    theirs.ask('scores')
    ours.ask('scores')
    rows.append(row('ranking', name, 'all kernels', 'largest difference',
                    _difference(folder), 'of scores'))
  return rows + [
      row('ranking', name, 'all kernels', f'baseline {REFERENCE}', their_time,
          's'),
      row('ranking', name, 'all kernels', 'ours', our_time, 's'),
      row('ranking', name, 'all kernels', 'ratio', their_time / our_time,
          'times as fast')]


def _difference(folder: str) -> float:
  """Largest difference of a score, over the largest score of its kernel."""
  theirs, ours = (np.load(os.path.join(folder, f'scores_{side}.npz'))
                  for side in ('theirs', 'ours'))
  return max(float(np.abs(theirs[key] - ours[key]).max()
                   / np.abs(theirs[key]).max()) for key in theirs)


class _Process:
  """A process of `rank_on_demand`; answers are JSON, a line each."""

  def __init__(self, worker, side, name, root, folder, env):
    self._what = f'{name} ({side})'
    self._process = subprocess.Popen(
        [*worker, 'rank_on_demand', side, name, root, folder], env=env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding='utf-8')

  def __enter__(self) -> _Process:
    return self

  def __exit__(self, *unused_error) -> None:
    self._process.kill()
    self._process.communicate()

  def ask(self, request: str) -> Any:
    """Raises a UserError where the process has ended."""
    try:
      self._process.stdin.write(request + '\n')
      self._process.stdin.flush()
    except BrokenPipeError:
      pass  # There is no answer either.
    return self.answer()

  def answer(self) -> Any:
    line = self._process.stdout.readline()
    if not line:
      raise UserError(f'ranking with {self._what} ended before it was done; '
                      'its own messages are above')
    return json.loads(line)


def rank_on_demand(side: str, name: str, root: str, folder: str) -> None:
  """One of the two processes.

  Says how long the first call took. From then on it ranks all kernels for each
  line 'rank' of the standard input and says how long that took, or writes their
  scores to the folder for a line 'scores'. Ours also leaves its weights there,
  for the baseline's model of the same name.
  """
  kernels = speed_kernels.like_the_collection(KERNELS)
  graphs = graphs_of(kernels)
  weights = os.path.join(folder, 'weights.npz')
  if side == 'ours':
    model, first_call = built(name, kernels)
    np.savez(weights, *(v.numpy() for v in model.trainable_variables))
    _say(first_call)
  else:
    model = the_baselines(name, root, graphs, kernels)
    _take_weights(model, np.load(weights))
    _say('ready')
  for line in sys.stdin:
    if line.strip() == 'scores':
      np.savez(os.path.join(folder, f'scores_{side}.npz'),
               *rank_all(model, graphs, kernels))
      _say('written')
    else:
      start = time.process_time()
      rank_all(model, graphs, kernels)
      _say(time.process_time() - start)


def _take_weights(model, stored) -> None:
  """Copies them by position where all shapes agree: it is the same model."""
  targets, values = model.trainable_variables, list(stored.values())
  if [v.shape for v in targets] == [value.shape for value in values]:
    for target, value in zip(targets, values):
      target.assign(value)


def _say(answer: Any) -> None:
  print(json.dumps(answer), flush=True)
