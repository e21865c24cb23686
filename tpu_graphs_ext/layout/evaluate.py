"""How well a trained model orders the configurations of measured programs.

Means are over programs. Of each program:
  tau       Kendall's tau-b of the runtimes and the places in the model's order
            of all configurations, which is what a CSV of predictions holds.
            The competition scores layout collections by Kendall's tau of that
            order; tau-b is what `scipy.stats.kendalltau` gives, by which the
            organisers' `layout_evaluate.py` measures. An order has no ties;
            equal runtimes are corrected for.
  top-k     how much slower the fastest of the first k configurations is than
            the fastest of all
  OPA       part of the pairs of unlike runtime that the scores order alike
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np

from tpu_graphs_ext.host import metrics, statistics
from tpu_graphs_ext.layout import programs, scoring
from tpu_graphs_ext.layout.programs import Program, Programs
from tpu_graphs_ext.layout.settings import TOP_KS, LayoutLoadSettings


@dataclasses.dataclass(frozen=True)
class ProgramResult:
  """Measures of one program.

  Attributes:
    name: the program.
    nodes: how many.
    configurable: nodes with layouts.
    configs: configurations.
    runtimes: unlike runtimes; few of them bound tau away from 1.
    kendall: see the module; NaN where all runtimes are equal.
    opa: NaN where all runtimes are equal.
    slowdown: k -> `metrics.top_k_slowdown`.
    random: k -> what is to be expected of as many drawn blindly.
  """
  name: str
  nodes: int
  configurable: int
  configs: int
  runtimes: int
  kendall: float
  opa: float
  slowdown: dict[int, float]
  random: dict[int, float]

  @classmethod
  def of(cls, program: Program, scores: np.ndarray,
         ks: Sequence[int] = TOP_KS) -> ProgramResult:
    """Measures of one labelled program with a model's scores."""
    runtime = program.runtime_ns.astype(np.float64)
    order = metrics.best_first(scores)
    return cls(
        name=program.name, nodes=program.num_nodes,
        configurable=program.num_configurable, configs=program.num_configs,
        runtimes=len(np.unique(program.runtime_ns)),
        kendall=kendall_of_order(runtime, order),
        opa=metrics.ordered_pair_accuracy(runtime, scores),
        slowdown={k: metrics.slowdown_of(runtime, order[:k]) for k in ks},
        random={k: metrics.random_slowdown(
            runtime, np.zeros(runtime.size, bool), k) for k in ks})

  def to_json(self) -> dict[str, Any]:
    return _json_of(self)


def kendall_of_order(runtime: np.ndarray, order: np.ndarray) -> float:
  """Kendall's tau-b of runtimes and the places of an order.

  With c pairs ordered alike, d the other way and t pairs of equal runtime,
  of n configurations:
      tau = (c - d) / sqrt((n (n - 1) / 2 - t) n (n - 1) / 2)

  Args:
    runtime: float64 [configs].
    order: int64 [configs], each configuration once, the fastest first.

  Returns:
    -1 to 1; NaN where all runtimes are equal.
  """
  places = np.empty(len(order), np.int64)
  places[order] = np.arange(len(order))
  return metrics.kendall_tau_b(runtime, places)


@dataclasses.dataclass(frozen=True)
class Summary:
  """Means over programs; NaN members are left out of their mean.

  Attributes:
    members: the programs' results.
    kendall, opa, slowdown, random: mean of the members' measure.
  """
  members: Sequence[ProgramResult] = dataclasses.field(repr=False)
  kendall: float
  opa: float
  slowdown: dict[int, float]
  random: dict[int, float]

  @classmethod
  def over(cls, results: Iterable[ProgramResult]) -> Summary:
    results = list(results)
    by_k = {name: {k: _mean(getattr(result, name)[k] for result in results)
                   for k in results[0].slowdown}
            for name in ('slowdown', 'random')}
    return cls(results, **by_k, **{
        name: _mean(getattr(result, name) for result in results)
        for name in ('kendall', 'opa')})

  def values(self, measure: str, k: Optional[int] = None) -> list[float]:
    """Of each program its measure, or where that depends on k, that of k."""
    found = [getattr(member, measure) for member in self.members]
    return found if k is None else [by_k[k] for by_k in found]

  def interval(self, measure: str,
               k: Optional[int] = None) -> tuple[float, float]:
    """95 % interval of the mean over programs, see `host.statistics`."""
    return statistics.bootstrap_interval(self.values(measure, k))

  def minus(self, other: Summary, measure: str,
            k: Optional[int] = None) -> tuple[float, float, float]:
    """Mean and interval of the difference, paired by program."""
    return statistics.paired_difference(
        self.values(measure, k), other.values(measure, k))

  def to_json(self) -> dict[str, Any]:
    return {
        'programs': len(self.members), **_json_of(self, ('members',)),
        'interval': {
            **{name: _list_of(self.interval(name))
               for name in ('kendall', 'opa')},
            'slowdown': {str(k): _list_of(self.interval('slowdown', k))
                         for k in self.slowdown}}}


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Measures of all programs of one source, by one model.

  Attributes:
    model_dir: its folder.
    data: what the programs were read from.
    results: of each program.
  """
  model_dir: str
  data: str
  results: list[ProgramResult]

  @property
  def mean(self) -> Summary:
    return Summary.over(self.results)

  def to_json(self) -> dict[str, Any]:
    """Plain values; None where a measure is undefined."""
    return {'model_dir': self.model_dir, 'data': self.data,
            'mean': self.mean.to_json(),
            'programs': {result.name: result.to_json()
                         for result in self.results}}


def evaluate_all(model_dirs: Sequence[str], data: str = '', *,
                 loading: LayoutLoadSettings | None = None,
                 ks: Sequence[int] = TOP_KS) -> list[Evaluation]:
  """Measures trained models on the same labelled programs.

  Args:
    model_dirs: folders model_<hash>; the run file of each lies beside it.
    data: folder of .npz files, or one; empty: valid of the collection of
      `loading`, or of the first model. Programs without labels are left out,
      with a warning that names them.
    loading: how to load the models; also where the data are.
    ks: how many configurations to try, each at least 1.

  Raises:
    UserError: a file is missing or damaged, has no labels, or belongs to
      another model or task.
  """
  loading = loading or LayoutLoadSettings()
  # All models first: a wrong name must not wait for the others' scores.
  rankers = [scoring.load_ranker(model_dir, loading)
             for model_dir in model_dirs]
  members = programs.labelled(
      programs.read_programs(data, cache_dir=loading.cache_dir) if data
      else scoring.read_split(rankers[0], loading, 'valid'))
  return [Evaluation(ranker.name, members.where,
                     measure(ranker, members, 'evaluate', ks))
          for ranker in rankers]


def measure(ranker: scoring.Ranker, members: Programs, what: str,
            ks: Sequence[int] = TOP_KS) -> list[ProgramResult]:
  """Scores and measures every program.

  Args:
    ranker: the model.
    members: labelled programs.
    what: stands beside the progress bar.
    ks: how many configurations to try, one measure for each.
  """
  return [ProgramResult.of(program, scores, ks)
          for program, scores in ranker.score_all(members, what)]


def to_json(evaluations: Sequence[Evaluation]) -> Any:
  """Of one model its `to_json`, of several a list of them.

  Each of several then has 'differences' too: to every other model, paired by
  program, this one's measure minus the other's: [mean, low, high].
  """
  contents = [evaluation.to_json() for evaluation in evaluations]
  if len(contents) == 1:
    return contents[0]
  for one, content in zip(evaluations, contents):
    content['differences'] = [
        {'to': other.model_dir,
         **{name: _list_of(one.mean.minus(other.mean, name))
            for name in ('kendall', 'opa')},
         'slowdown': {str(k): _list_of(one.mean.minus(
             other.mean, 'slowdown', k)) for k in one.mean.slowdown}}
        for other in evaluations if other is not one]
  return contents


def or_none(value: float) -> Optional[float]:
  """None of NaN, which JSON has not."""
  return None if math.isnan(value) else value


def _list_of(numbers: Iterable[float]) -> list[Optional[float]]:
  return [or_none(number) for number in numbers]


def _json_of(measures: Any, without: Sequence[str] = ('name',)
             ) -> dict[str, Any]:
  found = {}
  for field in dataclasses.fields(measures):
    value = getattr(measures, field.name)
    if field.name not in without:
      found[field.name] = (
          {str(k): or_none(each) for k, each in value.items()}
          if isinstance(value, dict)
          else or_none(value) if isinstance(value, float) else value)
  return found


def _mean(values: Iterable[float]) -> float:
  defined = [value for value in values if not math.isnan(value)]
  return sum(defined) / len(defined) if defined else math.nan
