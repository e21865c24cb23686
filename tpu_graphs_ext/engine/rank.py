"""The configurations that a model predicts to be best: listed, or as a CSV."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext.data.kernel import Problem, Problems
from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.engine.results import aligned
from tpu_graphs_ext.engine.scoring import Ranker, Scores
from tpu_graphs_ext.engine.settings import Loading


@dataclasses.dataclass(frozen=True)
class Choice:
  """One of the model's first choices."""
  index: int  # Row of the configuration in the file, from 0.
  score: float  # The model's, of its tile; lower is faster, without a unit.
  # Tile size of the output in layout tiles, most major physical dimension
  # first; empty where none is set. None where there are no tiles.
  output_bounds: Optional[list[int]] = None
  kernel_bounds: Optional[list[int]] = None  # Of a convolution's kernel.
  runtime_ns: Optional[int] = None  # None where it was not measured.
  slowdown: Optional[float] = None  # Runtime over the best's, minus 1.

  def to_json(self) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(self).items()
            if self.output_bounds is not None or not name.endswith('_bounds')}

  def cells(self) -> list[str]:
    bounds = ['x'.join(map(str, sizes)) or '-'
              for sizes in (self.output_bounds, self.kernel_bounds)
              if sizes is not None]
    measured = ['-', '-'] if self.runtime_ns is None else [
        f'{self.runtime_ns / 1000:,.3f}', f'{100 * self.slowdown:.2f} %']
    return [str(self.index), f'{self.score:.4f}', *bounds, *measured]


@dataclasses.dataclass(frozen=True)
class Ranking:
  """The model's first choices for one kernel or program."""
  tile_id: str  # Name of the kernel or program.
  nodes: int  # Number of nodes of its graph.
  configurable: Optional[int]  # Those of a program with layouts; else None.
  configs: int  # Number of its configurations.
  rankable: bool  # Whether any two of them differ in their features.
  choices: list[Choice]  # Best first.

  def to_json(self) -> dict[str, Any]:
    content = {**vars(self), 'choices': [
        choice.to_json() for choice in self.choices]}
    if content['configurable'] is None:
      del content['configurable']
      return content
    del content['rankable']  # Every program is.
    return {'name': content.pop('tile_id'), **content}

  def text(self) -> str:
    bounds = [name for name in ('output_bounds', 'kernel_bounds')
              if self.choices and getattr(self.choices[0], name) is not None]
    rows = [('place', 'config', 'score', *bounds, 'runtime us', 'over best'),
            *((str(place), *choice.cells())
              for place, choice in enumerate(self.choices, 1))]
    ending = '' if self.configs == 1 else (
        's' if self.rankable else 's, all identical')
    return '\n'.join([
        f'{self.tile_id}: {self.nodes:,} nodes, {self.configs:,} configuration'
        + ending, *aligned(rows)])


def ranking_of(problem: Problem, scores: Scores,
               top_k: Optional[int]) -> Ranking:
  """The first `top_k` configurations to try, or all."""
  # For all configurations at once: the choices may be as many.
  of_tiles = scores.of_tiles
  slowdown = (problem.runtime_rel / problem.runtime_rel.min() - 1
              if (problem.runtime_ns > 0).all() else None)
  choices = []
  for index in scores.order[:top_k].tolist():
    measured = {} if slowdown is None else {
        'runtime_ns': int(problem.runtime_ns[index]),
        'slowdown': float(slowdown[index])}
    choices.append(Choice(index, float(of_tiles[index]),
                          **problem.details(index), **measured))
  return Ranking(
      problem.name, problem.num_nodes,
      getattr(problem, 'num_configurable', None), problem.num_configs,
      problem.is_rankable, choices)


def write_csv(path: str, ranker: Ranker, problems: Problems,
              count: Optional[int],
              loading: Optional[Loading] = None) -> predictions_csv.Best:
  """Writes the CSV of the ranker's task and returns `best_configs` as a dict.

  With all configurations (None), which memory could not hold, it is used up.
  """
  best = best_configs(ranker, problems, count)
  if count is not None:
    best = dict(best)
  collection = ranker.task.collection(ranker.args, loading)
  prefix = ranker.task.csv_id + ''.join(f'{part}:' for part in collection)
  predictions_csv.write(path, best, prefix, ranker.task.csv_end)
  return best


def best_configs(ranker: Ranker, problems: Problems,
                 count: Optional[int]) -> Iterator[tuple[str, list[int]]]:
  """Yields (name, `count` indices, best first, padded with 0); None: all."""
  for problem, scores in ranker.score_all(problems, 'predict'):
    indices = scores.order[:count].tolist()
    yield problem.name, indices + [0] * ((count or 0) - len(indices))
