"""The part of training, scoring and ranking that depends on the task."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional, Protocol, Union

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Problem, Problems
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import results
from tpu_graphs_ext.engine.settings import Loading, Training

Model, Batches, Graph = tf.keras.Model, tf.data.Dataset, tfgnn.GraphTensor


@dataclasses.dataclass(frozen=True, eq=False)
class Splits(read.Dataset):
  """The data of a training run."""
  validated: Problems  # To validate on after each epoch; `valid` at the end.
  stats: FeatureStats  # Scale of the features, from `train`.


class Task(Protocol):
  """The part of the engine that depends on the task."""
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

  def read(self, path: str, loading: Loading) -> Problems:
    """The problems in a folder or file, or a UserError."""

  def collection(self, args: Mapping[str, Any],
                 loading: Optional[Loading] = None) -> tuple[str, ...]:
    """Folders between data root and splits, of a run or as in `loading`."""
    return ()

  def statistics(self, args: Mapping[str, Any],
                 loading: Loading) -> tuple[FeatureStats, int]:
    """Recomputes the scale of a model's features and its number of opcodes."""

  def prepared(self, settings: Training) -> tuple[Training, Splits]:
    """Reads the data; gives the model its statistics, if it takes them."""

  def compiled_model(self, settings: Training, splits: Splits) -> Model:
    """The model with its variables, and its loss, optimizer and metric."""

  def datasets(self, settings: Training, splits: Splits, seed: int,
               first_epoch: int) -> tuple[Batches, Batches]:
    """Batches to train on and to validate on, one pass an epoch."""

  def sample_graph(self, stats: FeatureStats) -> Graph:
    """A graph of one node, to build a model's variables with."""

  def graphs(self, problem: Problem, stats: FeatureStats) -> Iterable[Graph]:
    """A problem with all its configurations, as many in a graph as fit."""

  def all_graphs(self, problems: Problems,
                 stats: FeatureStats) -> Iterable[Iterable[Graph]]:
    """`graphs` of each problem, in order."""
    return (self.graphs(problem, stats) for problem in problems)

  def config_rows(self, problem: Problem,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    """Rows of `config_table`; may skip those within `stats`."""


def find(name: Union[str, Training, Loading]) -> Task:
  """The task with that name, or that settings belong to."""
  name = name if isinstance(name, str) else name.TASK
  return importlib.import_module(f'tpu_graphs_ext.tasks.{name}').TASK
