"""A trained model, ready to score problems."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
import tensorflow_gnn as tfgnn
from tqdm import tqdm

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.engine import task as tasks
from tpu_graphs_ext.engine.settings import Loading, LoadSettings
from tpu_graphs_ext.errors import UserError

_log = logging.getLogger(__name__)


def first_copies(features: np.ndarray) -> np.ndarray:
  """The first row that equals each: [configs, G] -> int64 [configs]."""
  # Equal numbers have equal bytes once -0 is 0. A table of them finds copies in
  # a fraction of the time that sorting rows takes.
  rows = np.asarray(features, np.float32) + np.float32(0)
  content, width = rows.tobytes(), rows.itemsize * rows.shape[1]
  seen: dict[bytes, int] = {}
  return np.array([
      seen.setdefault(content[row * width:(row + 1) * width], row)
      for row in range(len(rows))], np.int64)


@dataclasses.dataclass(frozen=True)
class Scores:
  """A model's scores of the configurations of one problem; lower = faster.

  Files list one tile several times, mostly the compiler's default. Trying it
  once tells as much as trying it five times, so duplicates come last.

  Attributes:
    given: float32 [configs], from the model's `forward`. It may have put
      duplicates last itself, as the new models of models.py do.
    first: int64 [configs], `first_copies` of the features that the model sees.
    keep_repeats: sort by `given` alone.
  """
  given: np.ndarray
  first: np.ndarray
  keep_repeats: bool = False

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

    Duplicates come last, sorted by their tiles' scores; ties keep the order of
    the file.
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
  name: str = 'the model'  # For error messages.
  keep_repeats: bool = False  # See `Scores`.
  # Tile bounds of its data count elements, not layout tiles of a TPU.
  in_elements: bool = False
  # In the training data; None: unknown, as from the baseline's run files.
  opcodes: Optional[frozenset[int]] = None
  of_task: str = 'tile'
  args: dict[str, Any] = dataclasses.field(default_factory=dict)  # Of its run.

  @property
  def task(self) -> tasks.Task:
    return tasks.find(self.of_task)

  def read(self, loading: Loading, split: str,
           data: str = '') -> tuple[str, tasks.Problems]:
    """The problems in `data`, else a split; and where they were read from."""
    if data:
      return data, self.task.read(data, loading)
    collection = self.task.collection(self.args, loading)
    return (os.path.join(loading.data_root, *collection, split),
            self.task.read_split(loading, collection, split))

  def score_all(self, problems: tasks.Problems, what: str) -> Iterator[
      tuple[tasks.Problem, Scores]]:
    """Yields every problem with its scores, some scored side by side.

    `what` stands beside the progress bar. Raises UserError unless the problems
    have the columns of the training data, and all scores are finite.
    """
    self.task.check_columns(problems, self.stats)
    problems = self._with_known_opcodes(problems)
    workers = min(os.cpu_count() or 1, self.task.scored_at_once)
    waiting = collections.deque()  # (problem, future), in order.
    with tqdm(desc=what, total=len(problems), unit=self.task.problem,
              disable=None, leave=False) as bar, ThreadPoolExecutor(
                  workers) as pool:
      def finished(most: int) -> Iterator[tuple[tasks.Problem, Scores]]:
        while len(waiting) > most:
          problem, scores = waiting.popleft()
          bar.update()
          yield problem, scores.result()

      for problem, graphs in zip(
          problems, self.task.all_graphs(problems, self.stats)):
        waiting.append((problem, pool.submit(self._scored, problem, graphs)))
        yield from finished(2 * workers)  # More graphs would take memory.
      yield from finished(0)

  def scores(self, problem: tasks.Problem) -> np.ndarray:
    """The output of `forward` for one problem: float32 [configs]."""
    return self.scored(problem).given

  def prepared(self, problem: tasks.Problem) -> tasks.Problem:
    """One problem with opcodes that the model knows; checks its columns."""
    problems = self.task.problems([problem])
    self.task.check_columns(problems, self.stats)
    return next(iter(self._with_known_opcodes(problems)))

  def scored(self, problem: tasks.Problem) -> Scores:
    """Scores and duplicates of one problem; errors as of `score_all`."""
    known = self.prepared(problem)
    return self._scored(known, self.task.graphs(known, self.stats))

  def _scored(self, problem: tasks.Problem,
              graphs: Iterable[tfgnn.GraphTensor]) -> Scores:
    parts, done = [], 0
    for graph in graphs:
      features = load_models.config_feats(graph).numpy()
      configs = features.shape[-2]
      part = self.checked(problem, np.asarray(
          self.model.forward(graph, configs)), features)
      parts.append((part.given, done + part.first))
      done += configs
    given, first = map(np.concatenate, zip(*parts))
    return Scores(given, first, self.keep_repeats)

  def checked(self, problem: tasks.Problem, scores: np.ndarray,
              features: np.ndarray) -> Scores:
    """The output of `forward`, float32 [1, configs], or a UserError.

    `features` float32 [..., configs, G] are what the model saw.
    """
    configs = features.shape[-2]
    if scores.shape != (1, configs):
      raise UserError(
          f'{self.name}: forward gave scores of shape {scores.shape} for '
          f'{problem.name}; it must be (1, {configs}), one score '
          'a configuration')
    if not np.isfinite(scores).all():
      raise UserError(
          f'{self.name}: {np.sum(~np.isfinite(scores))} of the '
          f'{configs} scores of {problem.name} are NaN or '
          'infinite; the model cannot rank it. Train again, with a lower --lr')
    return Scores(
        scores[0], first_copies(features) if self.task.has_duplicates
        else np.arange(configs), self.keep_repeats)

  def _with_known_opcodes(self, problems: tasks.Problems) -> tasks.Problems:
    """Opcodes beyond the embedding become 0, the unknown opcode."""
    if problems.max_opcode < self.num_ops:
      return problems
    _log.warning(
        'there are opcodes up to %d, but %s was trained on data with opcodes '
        'below %d; nodes with others count as opcode 0',
        problems.max_opcode, self.name, self.num_ops)
    return problems.with_opcodes_below(self.num_ops)


def load_ranker(
    model_dir: str, loading: Loading = LoadSettings(),
    known: Optional[tuple[FeatureStats, int]] = None) -> Ranker:
  """Loads a model_<hash> that this package or the baseline's trainer wrote.

  `loading` says where its normalisation and its class come from; `known` is the
  result of `normalisation`, if already computed.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model or to
      the other task.
  """
  task = tasks.find(loading)
  run = artifacts.load_run(model_dir, task.name)
  stats, num_ops = known or normalisation(run, loading)
  model = artifacts.load_model(run, num_ops, task.sample_graph(stats),
                               loading.models_file)
  opcodes = run.info.get('opcodes')
  return Ranker(model, stats, num_ops, name=model_dir,
                keep_repeats=getattr(loading, 'keep_repeats', False),
                in_elements=_counts_elements(run, model),
                opcodes=None if opcodes is None else frozenset(opcodes),
                of_task=task.name, args=run.info['args'])


def _counts_elements(run: artifacts.Run, model: Any) -> bool:
  """According to the statistics that the model was given or has found."""
  given = run.model_kwargs.get('feature_stats')
  if isinstance(given, dict):
    return given.get('tiles') == 'elements'
  found = getattr(model, '_statistics', None)  # In the baseline's trainer.
  return hasattr(found, 'read') and bool(found.read().in_elements())


def normalisation(run: artifacts.Run,
                  loading: Loading) -> tuple[FeatureStats, int]:
  """The scale of a model's features, and its number of opcodes."""
  task, args = tasks.find(loading), run.info['args']
  if loading.stats == 'run':
    if 'feature_stats' in run.info:
      return (FeatureStats.from_json(run.info['feature_stats']),
              run.info['num_ops'])
    _log.info('%s: its run file keeps no normalisation; computing it from %s',
              run.model_dir,
              os.path.join(loading.data_root, *task.collection(args)))
  try:
    stats, num_ops = task.statistics(args, loading)
  except UserError as error:
    raise UserError(f'{error}; --data_root must name the data that '
                    f'{run.model_dir} was trained on') from error
  return stats, run.info.get('num_ops', num_ops)
