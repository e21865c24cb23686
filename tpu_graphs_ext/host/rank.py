"""Lists the tiles of each kernel that a trained model predicts to be best."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.host import distinct, inputs, scoring, unfamiliar
from tpu_graphs_ext.host.settings import TOP_CONFIGS, LoadSettings


@dataclasses.dataclass(frozen=True)
class Choice:
  """One configuration that the model likes.

  Attributes:
    index: its row in the file, from 0.
    score: what the model gave its tile; lower is faster, without a unit.
    output_bounds: tile size of the output in layout tiles, most major physical
      dimension first; empty where the configuration sets none.
    kernel_bounds: the same of a convolution's kernel.
    runtime_ns: measured time; None where not measured.
    slowdown: runtime over that of the best configuration, minus 1; None where
      not measured.
  """
  index: int
  score: float
  output_bounds: list[int]
  kernel_bounds: list[int]
  runtime_ns: Optional[int]
  slowdown: Optional[float]


@dataclasses.dataclass(frozen=True)
class Ranking:
  """The model's first choices for one kernel, best first."""
  tile_id: str
  nodes: int
  configs: int
  rankable: bool
  choices: list[Choice]

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  def text(self) -> str:
    """A heading and one line a choice."""
    lines = [f'{self.tile_id}: {self.nodes} nodes, {self.configs} '
             f'configurations']
    if not self.rankable:
      lines.append('  all configurations are identical; listed as in the file')
    lines.append(f'  {"place":>5} {"config":>6} {"score":>9}  '
                 f'{"output_bounds":<16} {"kernel_bounds":<16} '
                 f'{"runtime_ns":>12} {"over best":>9}')
    for place, choice in enumerate(self.choices, 1):
      runtime = slowdown = '-'
      if choice.runtime_ns is not None:
        runtime = str(choice.runtime_ns)
        slowdown = f'{100 * choice.slowdown:.1f} %'
      lines.append(
          f'  {place:>5} {choice.index:>6} {choice.score:>9.4f}  '
          f'{_shape(choice.output_bounds):<16} '
          f'{_shape(choice.kernel_bounds):<16} {runtime:>12} {slowdown:>9}')
    return '\n'.join(lines)


def rank(model_dir: str, data: str = '', *, top_k: int = TOP_CONFIGS,
         loading: LoadSettings = LoadSettings()) -> list[Ranking]:
  """Ranks the configurations of every kernel, labelled or not.

  Warns of features that the model was not trained on.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    data: folder of .npz files, one .npz or a .pb; empty: <data_root>/test.
    top_k: configurations of each kernel to list.
    loading: how to load the model; also data_root and cache_dir of `data`.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model.
  """
  ranker = scoring.load_ranker(model_dir, loading)
  partition = inputs.read_kernels(
      data or f'{loading.data_root}/test', cache_dir=loading.cache_dir)
  unfamiliar.warn(
      ranker.stats, partition, ranker.name, ranker.opcodes)
  return [ranking_of(kernel, scores, top_k)
          for kernel, scores in ranker.score_all(partition, 'rank')]


def ranking_of(kernel: Kernel, scores: distinct.Scores,
               top_k: int) -> Ranking:
  """The first `top_k` configurations to try; fewer where there are fewer."""
  measured = bool((kernel.runtime_ns > 0).all())
  choices = []
  for index in scores.order[:top_k].tolist():
    row = kernel.config_feat[index]
    choices.append(Choice(
        index=index,
        score=float(scores.of_tiles[index]),
        output_bounds=bounds_of(row, 'output_bounds'),
        kernel_bounds=bounds_of(row, 'kernel_bounds'),
        runtime_ns=int(kernel.runtime_ns[index]) if measured else None,
        slowdown=_slowdown(kernel, index) if measured else None))
  return Ranking(
      tile_id=kernel.tile_id, nodes=kernel.num_nodes,
      configs=kernel.num_configs, rankable=kernel.is_rankable,
      choices=choices)


def _slowdown(kernel: Kernel, index: int) -> float:
  runtime = kernel.runtime_rel
  return float(runtime[index] / runtime.min() - 1)


def bounds_of(row: np.ndarray, group: str) -> list[int]:
  """The bounds of one configuration, without the zeros that fill the row."""
  bounds = row[schema.CONFIG_GROUPS[group]][:schema.MAX_DIMS]
  used = np.flatnonzero(bounds)
  return bounds[:used[-1] + 1].astype(int).tolist() if used.size else []


def _shape(bounds: list[int]) -> str:
  return 'x'.join(map(str, bounds)) or '-'
