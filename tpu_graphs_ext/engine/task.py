"""The protocol of a ranking problem, and what the engine needs of a task.

A problem has configurations to rank: a kernel has tiles, a program layouts.
Training, scoring, evaluating, predicting and ranking are written once, against
this module. For a further task, name the module of its `TASK` in `_HOMES`.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Protocol, Union

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import artifacts, results
from tpu_graphs_ext.engine.duplicate_configs import Scores
from tpu_graphs_ext.engine.settings import Loading, Training

_HOMES = {'tile': 'tpu_graphs_ext.tasks.tile',
          'layout': 'tpu_graphs_ext.tasks.layout'}


class RankingProblem(Protocol):
  """A `Kernel` or a `Program`.

  Attributes:
    name: the file name without its ending.
    num_nodes: number of nodes of its graph.
    num_configs: number of configurations to rank.
    node_feat: float32 [nodes, columns].
    node_opcode: uint8 [nodes].
    runtime_ns: int64 [configs], measured; 0 where withheld.
    runtime_rel: float64 [configs], the same in the unit that configurations
      are compared in.
    is_labelled: whether there are runtimes.
    is_rankable: whether any two configurations differ.
  """
  name: str
  num_nodes: int
  num_configs: int
  node_feat: np.ndarray
  node_opcode: np.ndarray
  runtime_ns: np.ndarray
  runtime_rel: np.ndarray
  is_labelled: bool
  is_rankable: bool

  def details(self, config: int) -> dict[str, Any]:
    """Further fields of the `Choice` of a configuration."""


class Problems(Protocol):
  """A `Partition` of kernels, or `Programs`.

  Attributes:
    names: name of each problem.
    max_opcode: the largest opcode of any node.
    opcodes: the opcodes of all nodes, each once, ascending.
  """
  names: Sequence[str]
  max_opcode: int
  opcodes: list[int]

  def __len__(self) -> int: ...

  def __iter__(self) -> Iterator[RankingProblem]: ...

  def select(self, mask: np.ndarray) -> Problems:
    """The problems where bool [problems] is true."""

  def with_opcodes_below(self, number: int) -> Problems:
    """The same, in which other opcodes are 0."""


@dataclasses.dataclass(frozen=True, eq=False)
class Splits:
  """The data of a training run.

  Attributes:
    train: problems with enough configurations.
    validated: the problems to validate on after each epoch.
    valid: all that the final model is measured on.
    test: labelled if the run measures it.
    stats: scale of the features, from `train`.
    num_ops: rows of an embedding of the opcodes.
  """
  train: Problems
  validated: Problems
  valid: Problems
  test: Problems
  stats: FeatureStats
  num_ops: int


class Task(abc.ABC):
  """The part of the engine that depends on the task.

  Attributes:
    name: 'tile' or 'layout'.
    problem: noun for one problem.
    loading: the settings class for loading a model.
    evaluation: the `Results` class.
    top_ks: how many configurations an evaluation tries.
    final: means in a run file: (measure, key).
    csv_name: the file that `predict` writes by default.
    csv_id: beginning of its IDs, before the collection.
    csv_end: end of its last line.
    csv_configs: configurations of each problem in it; None: all.
    test_configs: the same in what `train` writes, which the run file then
      stores too; None: all, which it does not store.
    scored_at_once: problems to score side by side: each takes memory.
    config_table: the field of a file with the configurations.
  """
  name: str
  problem: str
  loading: type[Loading]
  evaluation: type[results.Results]
  top_ks: Sequence[int]
  final: Sequence[tuple[str, str]]
  csv_name: str
  csv_id: str
  csv_end: str
  csv_configs: Optional[int]
  test_configs: Optional[int]
  scored_at_once: int
  config_table: str

  # ------------------------------------------------------------------ reading

  @abc.abstractmethod
  def read(self, path: str, loading: Loading) -> Problems:
    """The problems in a folder or file that a user names.

    Raises:
      UserError: it is missing, of another kind, or damaged.
    """

  @abc.abstractmethod
  def read_split(self, loading: Loading, collection: Sequence[str],
                 split: str) -> Problems:
    """A split of a collection below `loading.data_root`; errors as `read`."""

  @abc.abstractmethod
  def collection(self, args: Mapping[str, Any],
                 loading: Optional[Loading] = None) -> tuple[str, ...]:
    """Folders between the data root and its splits.

    Args:
      args: the arguments of a model's run.
      loading: may name another collection.
    """

  @abc.abstractmethod
  def statistics(self, args: Mapping[str, Any],
                 loading: Loading) -> tuple[FeatureStats, int]:
    """Recomputes the scale of a model's features and its number of opcodes."""

  # ----------------------------------------------------------------- training

  @abc.abstractmethod
  def prepared(self, settings: Training) -> tuple[Training, Splits]:
    """Reads the data; adds its statistics to the settings if a model takes it.

    Raises:
      UserError: data, model or settings cannot be used.
    """

  @abc.abstractmethod
  def compiled_model(self, settings: Training,
                     splits: Splits) -> tf.keras.Model:
    """The model with its variables, and its loss, optimizer and metric."""

  @abc.abstractmethod
  def datasets(
      self, settings: Training, splits: Splits, seed: int,
      first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Batches to train on and to validate on, one pass an epoch."""

  @abc.abstractmethod
  def reported(self, run: artifacts.Run) -> Optional[str]:
    """The CSV of a finished run, restored if it is gone; None without one."""

  # ------------------------------------------------------------------ scoring

  @abc.abstractmethod
  def check_columns(self, problems: Problems, stats: FeatureStats) -> None:
    """Raises UserError unless the features have the columns of `stats`."""

  @abc.abstractmethod
  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    """A graph of one node, to build a model's variables with."""

  @abc.abstractmethod
  def problems(self, members: Sequence[RankingProblem]) -> Problems:
    """Joins several problems."""

  @abc.abstractmethod
  def graphs(self, problem: RankingProblem,
             stats: FeatureStats) -> Iterable[tfgnn.GraphTensor]:
    """A problem with all its configurations, as many in a graph as fit."""

  @abc.abstractmethod
  def all_graphs(self, problems: Problems, stats: FeatureStats
                 ) -> Iterable[Iterable[tfgnn.GraphTensor]]:
    """`graphs` of each problem, in order."""

  @abc.abstractmethod
  def first_copies(self, features: np.ndarray) -> np.ndarray:
    """The first configuration equal to each: [..., c, G] -> int64 [c]."""

  @abc.abstractmethod
  def config_rows(self, problem: RankingProblem,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    """Rows of `config_table`; may skip those within `stats`."""

  # ---------------------------------------------------------------- measuring

  @abc.abstractmethod
  def row_of(self, problem: RankingProblem, scores: Scores,
             ks: Sequence[int]) -> dict[str, Any]:
    """Measures of one labelled problem, a row of `evaluation`."""


def find(name: Union[str, Training, Loading]) -> Task:
  """The task with that name, or that settings belong to."""
  return importlib.import_module(
      _HOMES[name if isinstance(name, str) else name.TASK]).TASK
