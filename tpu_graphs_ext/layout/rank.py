"""Lists the configurations of programs that a trained model predicts best."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np

from tpu_graphs_ext.host import metrics
from tpu_graphs_ext.layout import programs, scoring, unfamiliar
from tpu_graphs_ext.layout.programs import Program
from tpu_graphs_ext.layout.settings import TOP_CONFIGS, LayoutLoadSettings


@dataclasses.dataclass(frozen=True)
class Choice:
  """One configuration that the model likes.

  Attributes:
    index: its row in the file, from 0.
    score: lower is faster, without a unit.
    runtime_ns: measured time; None where not measured.
    slowdown: runtime over that of the best configuration, minus 1; None where
      not measured.
  """
  index: int
  score: float
  runtime_ns: Optional[int]
  slowdown: Optional[float]


@dataclasses.dataclass(frozen=True)
class Ranking:
  """The model's first choices for one program, best first."""
  name: str
  nodes: int
  configurable: int
  configs: int
  choices: list[Choice]

  @classmethod
  def of(cls, program: Program, scores: np.ndarray, top_k: int) -> Ranking:
    """The first `top_k` configurations to try; fewer where there are fewer."""
    runtime = program.runtime_ns if program.is_labelled else None
    choices = [Choice(
        index=index, score=float(scores[index]),
        runtime_ns=None if runtime is None else int(runtime[index]),
        slowdown=None if runtime is None
        else float(runtime[index] / runtime.min() - 1))
               for index in metrics.best_first(scores)[:top_k].tolist()]
    return cls(program.name, program.num_nodes, program.num_configurable,
               program.num_configs, choices)

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  def text(self) -> str:
    """A heading and one line a choice."""
    lines = [f'{self.name}: {self.nodes:,} nodes, {self.configurable:,} of '
             f'them configurable, {self.configs:,} configurations',
             f'  {"place":>6} {"config":>7} {"score":>10}  {"runtime_ns":>15} '
             f'{"over best":>9}']
    for place, choice in enumerate(self.choices, 1):
      runtime = slowdown = '-'
      if choice.runtime_ns is not None:
        runtime = str(choice.runtime_ns)
        slowdown = f'{100 * choice.slowdown:.2f} %'
      lines.append(f'  {place:>6} {choice.index:>7} {choice.score:>10.4f}  '
                   f'{runtime:>15} {slowdown:>9}')
    return '\n'.join(lines)


def rank(model_dir: str, data: str = '', *, top_k: int = TOP_CONFIGS,
         loading: LayoutLoadSettings | None = None) -> list[Ranking]:
  """Ranks the configurations of every program, labelled or not.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    data: folder of .npz files, or one; empty: test of the collection of
      `loading`, or of the model.
    top_k: configurations of each program to list.
    loading: how to load the model; also where the data are.

  Warns of features that the model was not trained on.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model.
  """
  loading = loading or LayoutLoadSettings()
  ranker = scoring.load_ranker(model_dir, loading)
  members = (programs.read_programs(data, cache_dir=loading.cache_dir) if data
             else scoring.read_split(ranker, loading, 'test'))
  unfamiliar.warn(ranker, members)
  return [Ranking.of(program, scores, top_k)
          for program, scores in ranker.score_all(members, 'rank')]
