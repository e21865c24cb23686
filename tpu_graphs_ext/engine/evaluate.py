"""Measures how well models order the configurations of problems.

Models of other frameworks are measured like our own. Their scores are in a .npz
file, an array [configs] for each problem under its name; the lowest is the
fastest. A CSV, as `predictions_csv` describes it, has the first places alone:
measures that need more of the order are NaN.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from tpu_graphs_ext.data import npz
from tpu_graphs_ext.data.kernel import Problem, Problems
from tpu_graphs_ext.engine import predictions_csv, results
from tpu_graphs_ext.engine.scoring import Ranker, Scores
from tpu_graphs_ext.engine.settings import Loading
from tpu_graphs_ext.engine.task import Task
from tpu_graphs_ext.errors import UserError, shortened

if TYPE_CHECKING:
  import pandas

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ForeignRanker:
  """Stands where a `scoring.Ranker` does, with scores that are there.

  `of` is problem -> scores [configs], or its first configurations in order if
  they are `ranked`.
  """
  name: str  # The file, for messages.
  task: Task
  of: Mapping[str, Any]
  ranked: bool = False
  keep_repeats: bool = False  # See `Scores`.
  args: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # No run.

  read, checked = Ranker.read, Ranker.checked
  remedy = 'give each configuration a finite number'  # See `Ranker`.

  @property
  def class_name(self) -> str:
    """What to call the model in tables: a file without its ending."""
    stem, ending = os.path.splitext(os.path.basename(self.name))
    return stem if ending in ('.npz', '.csv') else self.name

  def score_all(self, problems: Problems,
                unused_what: str) -> Iterator[tuple[Problem, Scores]]:
    """Yields every problem with its scores, or raises a UserError."""
    if len(set(problems.names)) < len(problems):
      raise UserError(f'{self.name}: two of the '
                      f'{self.task.problem}s have the same name')
    if missing := sorted(set(problems.names) - self.of.keys()):
      raise UserError(
          f'{self.name}: lacks {len(missing)} of {len(problems)} '
          f'{self.task.problem}s of the data: {shortened(missing)}; it has '
          f'{shortened(sorted(map(str, self.of))) or "none"}')
    return ((problem, self.scored(problem)) for problem in problems)

  def scored(self, problem: Problem) -> Scores:
    """The scores of one problem; UserError if they are not of its size."""
    configs = problem.num_configs
    if self.ranked:
      return _of_order(self.of[problem.name], configs,
                       f'{self.name}: {problem.name}')
    try:
      scores = self.of[problem.name]
      if isinstance(scores, np.ma.MaskedArray):
        raise TypeError('they are a masked array; fill it')
      scores = np.asarray(scores)
      if scores.dtype.kind not in 'biufO':
        raise TypeError(f'they are {scores.dtype.name}')
      scores = _as_floats(scores)
    except (TypeError, ValueError, OverflowError) as error:
      raise UserError(f'{self.name}: {problem.name}: {error}; scores must be '
                      'real numbers') from error
    # Duplicates are looked for in kernels alone, whose table is at hand.
    return self.checked(problem, np.atleast_2d(scores), getattr(
        problem, self.task.config_table, np.zeros((configs, 0))))


def _as_floats(scores: np.ndarray) -> np.ndarray:
  """The scores in float64; whole numbers that do not fit, by their ranks."""
  floats = scores.astype(np.float64)
  if np.all(abs(floats) < 2**53) or not all(
      isinstance(score, (int, np.integer)) for score in scores.flat):
    return floats
  ranks = np.unique(scores, return_inverse=True)[1]  # Only the order counts.
  return ranks.reshape(scores.shape).astype(np.float64)


def _of_order(places: Sequence[int], configs: int, where: str) -> Scores:
  """Scores in the order of places, which may be padded with 0."""
  order = places[:configs]
  if not predictions_csv.is_order(places, configs):
    raise UserError(
        f'{where}: must have distinct configurations below {configs}, then '
        f'only 0; it has {shortened(list(map(str, places)), 10)}')
  scores = np.full(configs, len(order), np.float64)
  scores[order] = np.arange(len(order))
  return Scores(scores, np.arange(configs), True, len(order))


AnyRanker = Union[Ranker, ForeignRanker]


def read_scores(path: str, loading: Loading) -> ForeignRanker:
  """A .npz file of scores, or a UserError."""
  try:
    names = npz.array_names(os.path.expanduser(path))
    arrays, faults = npz.read_arrays(os.path.expanduser(path), names)
  except npz.DamagedError as error:
    raise UserError(f'{path}: cannot be read as a .npz file of scores '
                    f'({error})') from error
  for name, fault in faults.items():
    raise UserError(f'{path}: {name} {fault}')
  return ForeignRanker(
      path, loading.task, arrays, keep_repeats=loading.keep_repeats)


def read_predictions(path: str, loading: Loading) -> ForeignRanker:
  """A predictions CSV, or a UserError; rows of other tasks are left out.

  With several collections, those of `loading` alone.
  """
  task, rows = loading.task, predictions_csv.read(path)
  parts = [getattr(loading, name) for name in task.collection_args]
  prefix = task.csv_id + ''.join(f'{part}:' for part in parts if all(parts))
  of = {}
  for row_id, places in rows.items():
    if not row_id.startswith(prefix):
      continue
    # Names of kernels may have colons.
    name = row_id.split(':', task.csv_id.count(':') + len(parts))[-1]
    if name in of:
      raise UserError(
          f'{path}: has {name} of several collections; choose one with '
          f'{" and ".join("--" + arg for arg in task.collection_args)}')
    of[name] = places
  return ForeignRanker(path, task, of, ranked=True)


def evaluation(ranker: AnyRanker, problems: Problems, source: str,
               ks: Optional[Sequence[int]] = None) -> results.Results:
  """Measures one model on labelled problems, which are of `source`."""
  return ranker.task.evaluation(
      ranker.name, source, measure(ranker, problems, 'evaluate', ks),
      ranker.keep_repeats, ranker.class_name)


def labelled(problems: Problems, source: str, task: Task) -> Problems:
  """The problems with runtimes; warns of the others, or raises if all lack."""
  has_labels = np.array([problem.is_labelled for problem in problems])
  if not has_labels.any():
    require_labels(problems, source, task)
  if not has_labels.all():
    left_out = problems.select(~has_labels).names
    _log.warning('%s: left out %d of %d %ss without labels (all runtimes are '
                 '0): %s', source, len(left_out), len(problems), task.problem,
                 shortened(sorted(left_out)))
  return problems.select(has_labels)


def require_labels(problems: Problems, source: str, task: Task) -> None:
  """Raises UserError if a problem has no runtimes; names `source`."""
  without = [problem.name for problem in problems if not problem.is_labelled]
  if without:
    raise UserError(
        f'{source}: {len(without)} of {len(problems)} {task.problem}s have no '
        f'labels (all runtimes are 0), first {without[0]}; training and '
        'evaluation need them, `tpu-graphs-ext predict` does not')


def measure(ranker: AnyRanker, problems: Problems, what: str,
            ks: Optional[Sequence[int]] = None) -> pandas.DataFrame:
  """Scores and measures labelled problems: a row each, see `Results.row_of`.

  A measure that needs more places than are known of one problem is NaN for all,
  whose mean would else be one over the smallest.
  """
  ks = ks or ranker.task.top_ks
  rows, known, alike = [], math.inf, 0
  for problem, scores in ranker.score_all(problems, what):
    alike += problem.is_rankable and np.ptp(scores.given) == 0
    rows.append(ranker.task.evaluation.row_of(problem, scores, ks))
    if (scores.known_places or problem.num_configs) < problem.num_configs:
      known = min(known, scores.known_places)
  if alike:
    _log.warning('%s: all scores of %d of %d %ss are equal, so it chooses in '
                 'the order of the file, whose first is often the best',
                 ranker.name, alike, len(rows), ranker.task.problem)
  table = results.table(rows)
  unknown = [column for column in table if (column in results.SCORES
             and known < math.inf) or (column.startswith('slowdown')
             and int(column.rpartition('_')[2]) > known)]
  table[unknown] = math.nan
  return table
