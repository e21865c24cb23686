"""The part of training, scoring and ranking that depends on the task."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional, Union

import tensorflow_gnn as tfgnn

from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Problems
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import results
from tpu_graphs_ext.engine.settings import Loading, Training


@dataclasses.dataclass(frozen=True, eq=False)
class Splits(read.Dataset):
  """The data of a training run."""
  validated: Problems  # To validate on after each epoch; `valid` at the end.
  stats: FeatureStats  # Scale of the features, from `train`.


class Task:
  """The part of the engine that depends on the task; a task also has:

    read(path, loading): the problems in a folder or file, or a UserError.
    statistics(args, loading): recomputes the scale of a model's features and
      its number of opcodes.
    prepared(settings): reads the data; the settings, with the statistics if the
      model takes them, and `Splits`.
    compiled_model(settings, splits): the model with its variables, loss,
      optimizer and metric.
    datasets(settings, splits, seed, first_epoch): batches to train on and to
      validate on, one pass an epoch.
    sample_graph(stats): one node, to build a model's variables with.
    graphs(problem, stats): a problem with all its configurations, as many in a
      `GraphTensor` as fit.
    config_rows(problem, stats): rows of `config_table`; may skip those within
      `stats`.
  """
  name: str  # 'tile' or 'layout'.
  problem: str  # Noun for one problem.
  loading: type[Loading]
  evaluation: type[results.Results]
  row_of: Callable[..., dict[str, Any]]  # (problem, scores, ks): its measures.
  top_ks: Sequence[int]  # How many configurations an evaluation tries.
  final: Sequence[tuple[str, str]]  # Means in a run file: (measure, key).
  csv_name: str  # Default name of the predictions CSV.
  csv_id: str  # The beginning of its IDs before the collection.
  csv_end: str  # The end of its last line.
  csv_configs: Optional[int]  # Configurations of each problem; None: all.
  test_configs: Optional[int]  # By `train`; None: not in the run file.
  scored_at_once: int  # Problems to score side by side: each takes memory.
  config_table: str  # The field of a file with the configurations.
  has_duplicates: bool  # Whether files list a configuration several times.

  def collection(self, args: Mapping[str, Any],
                 loading: Optional[Loading] = None) -> tuple[str, ...]:
    """Folders between data root and splits, of a run or as in `loading`."""
    return ()

  def all_graphs(self, problems: Problems, stats: FeatureStats
                 ) -> Iterable[Iterable[tfgnn.GraphTensor]]:
    """`graphs` of each problem, in order."""
    return (self.graphs(problem, stats) for problem in problems)


def find(name: Union[str, Training, Loading]) -> Task:
  """The task with that name, or that settings belong to."""
  name = name if isinstance(name, str) else name.TASK
  return importlib.import_module(f'tpu_graphs_ext.tasks.{name}').TASK
