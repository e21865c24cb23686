"""A trained model, ready to score problems."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.kernel import Problem, Problems
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import artifacts, origin, threads
from tpu_graphs_ext.engine.settings import Loading
from tpu_graphs_ext.engine.task import Task
from tpu_graphs_ext.errors import UserError

_log = logging.getLogger(__name__)


def first_copies(features: np.ndarray) -> np.ndarray:
  """The first row that equals each: [configs, G] -> int64 [configs]."""
  # Equal numbers have equal bytes once -0 is 0. A table of them takes a
  # fraction of the time of sorting rows.
  rows = np.asarray(features, np.float32) + np.float32(0)
  content, width = rows.tobytes(), rows.itemsize * rows.shape[1]
  seen: dict[bytes, int] = {}
  return np.array([
      seen.setdefault(content[row * width:(row + 1) * width], row)
      for row in range(len(rows))], np.int64)


@dataclasses.dataclass(frozen=True)
class Scores:
  """A model's scores of the configurations of one problem; lower = faster.

  Files list one tile several times, mostly the default; duplicates come last.
  """
  # float32 [configs], from the model's `forward`. It may have put duplicates
  # last itself, as the new models of models.py do.
  given: np.ndarray
  first: np.ndarray  # int64 [configs], `first_copies` of the model's features.
  keep_repeats: bool = False  # Sort by `given` alone.
  known_places: Optional[int] = None  # Of `order`; None: all.

  @property
  def repeats(self) -> np.ndarray:
    """bool [configs]: duplicates of an earlier one; none if all are alike."""
    repeats = self.first != np.arange(self.first.size)
    return repeats & (np.count_nonzero(~repeats) > 1)

  @property
  def of_tiles(self) -> np.ndarray:
    """float32 [configs]: each configuration with the score of its tile."""
    return self.given[self.first]

  @property
  def order(self) -> np.ndarray:
    """int64 [configs]: indices, in the order to try them.

    Duplicates come last, by their tiles' scores; ties keep the file's order.
    """
    if self.keep_repeats:
      return np.argsort(self.given, kind='stable')
    return np.lexsort((self.of_tiles, self.repeats))


@dataclasses.dataclass(frozen=True)
class Ranker:
  """Scores configurations, one problem at a time."""
  model: Any  # Built, with `forward(graph, num_configs)`.
  stats: FeatureStats  # Scale of the features.
  num_ops: int  # Opcodes that the model has an embedding for.
  task: Task
  name: str = 'the model'  # For error messages.
  keep_repeats: bool = False  # See `Scores`.
  in_elements: bool = False  # Tile bounds count elements, not layout tiles.
  opcodes: Optional[frozenset[int]] = None  # In training; None: unknown.
  args: dict[str, Any] = dataclasses.field(default_factory=dict)  # Of its run.
  data: Mapping[str, str] = dataclasses.field(default_factory=dict)  # `origin`.
  tpu: str = ''  # Of the package's models: the generation that it is for.
  _in_turn: Any = dataclasses.field(
      default_factory=threading.Lock, init=False, repr=False, compare=False)
  # What to do about scores that are no numbers.
  remedy = 'train again, with a lower learning rate'

  @property
  def class_name(self) -> str:
    return type(self.model).__name__

  @functools.cached_property
  def constants(self) -> dict[str, float]:
    """The model's physical constants; empty if it has no analytic time."""
    constants = getattr(self.model, 'constants', None)
    return dict(constants()) if callable(constants) else {}

  def read(self, loading: Loading, split: str,
           data: str = '') -> tuple[str, Problems]:
    """The problems in `data`, else a split; and where they were read from."""
    if not (data or all(getattr(loading, name, '') or name in self.args
                        for name in self.task.collection_args)):
      raise UserError(f'{self.name}: --data must name its {self.task.problem}s')
    source = os.fspath(data) or os.path.join(
        loading.data_root, *self.task.collection(self.args, loading), split)
    return source, self.task.read(source, loading)

  def score_all(self, problems: Problems, what: str) -> Iterator[
      tuple[Problem, Scores]]:
    """Yields every problem with its scores, some scored side by side.

    Raises UserError unless the problems have the columns of the training data,
    and all scores are finite. `what` stands beside the progress bar.
    """
    problems = self._with_known_opcodes(problems)
    workers = min(threads.cores(), self.task.scored_at_once)
    bar = tqdm(desc=what, total=len(problems), unit=self.task.problem,
               disable=None, leave=False)
    with bar, ThreadPoolExecutor(workers) as pool:
      scored = ((problem, pool.submit(self._scored, problem))
                for problem in problems)
      # More at once would take memory.
      waiting = collections.deque(itertools.islice(scored, 2 * workers))
      while waiting:
        problem, scores = waiting.popleft()
        waiting.extend(itertools.islice(scored, 1))
        bar.update()
        yield problem, scores.result()

  def prepared(self, problem: Problem) -> Problem:
    """One problem with opcodes that the model knows."""
    return self._with_known_opcodes(Problems([problem]))[0]

  def scored(self, problem: Problem) -> Scores:
    """Scores and duplicates of one problem; errors as of `score_all`."""
    return self._scored(self.prepared(problem))

  def _scored(self, problem: Problem) -> Scores:
    parts, done = [], 0
    for graph in self.task.graphs(problem, self.stats):
      features = load_models.config_feats(graph).numpy()
      configs = features.shape[-2]
      with load_models.errors_of_model(
          self.model, f'score {problem.name}', 'forward(graph, num_configs)'):
        with self._alone():
          scores = np.asarray(self.model.forward(graph, configs))
      part = self.checked(problem, scores, features)
      parts.append((part.given, done + part.first))
      done += configs
    given, first = map(np.concatenate, zip(*parts))
    return Scores(given, first, self.keep_repeats)

  def _alone(self) -> contextlib.AbstractContextManager:
    """Lets one thread at a time call `forward`, or all if the model traces it,
    as those of models.py do. The baseline's call Keras's Sequential, which
    rebuilds itself for another shape under the threads that use it."""
    return (contextlib.nullcontext() if hasattr(self.model, '_members')
            else self._in_turn)

  def checked(self, problem: Problem, scores: np.ndarray,
              features: np.ndarray) -> Scores:
    """A model's output, float [1, configs], or a UserError.

    `features` float32 [..., configs, G] are what the model saw.
    """
    configs = features.shape[-2]
    if scores.shape != (1, configs):
      raise UserError(
          f'{self.name}: scores of {problem.name} have the shape '
          f'{scores.shape}; it must be (1, {configs}), its configurations')
    if not (finite := np.isfinite(scores[0])).all():
      raise UserError(f'{self.name}: scores of {problem.name} are NaN or '
                      f'infinite, the first at place {np.argmin(finite)}; '
                      + self.remedy)
    return Scores(
        scores[0], first_copies(features) if self.task.has_duplicates
        else np.arange(configs), self.keep_repeats)

  def _with_known_opcodes(self, problems: Problems) -> Problems:
    """Opcodes beyond the embedding become 0, the unknown opcode."""
    if problems.max_opcode < self.num_ops:
      return problems
    _log.warning('%s was trained on opcodes below %d; nodes with others, up to '
                 '%d, count as opcode 0', self.name, self.num_ops,
                 problems.max_opcode)
    return problems.with_opcodes_below(self.num_ops)


def load_ranker(model_dir: str, loading: Loading) -> Ranker:
  """Loads a model_<hash> of this package or the baseline's trainer.

  Raises UserError if a file is missing or damaged, or of another model, or of
  another task than `loading`.
  """
  task = loading.task
  run = artifacts.load_run(model_dir, task)
  stats, num_ops = normalisation(run, loading)
  model = artifacts.load_model(
      run, num_ops, task.sample_graph(stats),
      origin.models_file_of(run.model_dir, run.info, loading))
  opcodes = run.info.get('opcodes')
  return Ranker(
      model, stats, num_ops, task, os.fspath(model_dir), loading.keep_repeats,
      _counts_elements(run.model_kwargs.get('feature_stats'), model),
      opcodes and frozenset(opcodes), run.info['args'],
      run.info.get('data', {}), run.info.get('tpu', ''))


def _counts_elements(argument: Any, model: Any) -> bool:
  """By the statistics that the model, or an ensemble's member, has."""
  if isinstance(argument, dict) and 'tiles' in argument:
    return argument['tiles'] == 'elements'
  every = [getattr(member, '_statistics', None)
           for member in getattr(model, '_members', [model])]
  return any(hasattr(statistics, 'in_elements')
             and bool(statistics.in_elements()) for statistics in every)


def normalisation(run: artifacts.Run,
                  loading: Loading) -> tuple[FeatureStats, int]:
  """The scale of a model's features, and its number of opcodes."""
  if loading.stats == 'run' and 'feature_stats' in run.info:
    return (FeatureStats.from_json(run.info['feature_stats']),
            run.info['num_ops'])
  try:
    stats, num_ops = loading.task.statistics(run.info['args'], loading)
  except UserError as error:
    raise UserError(f'{error}; --data_root must name the data that '
                    f'{run.model_dir} was trained on') from error
  return stats, run.info.get('num_ops', num_ops)
