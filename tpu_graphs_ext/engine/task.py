"""What the verbs know of a task: the protocol of a problem, and `Task`.

A problem has configurations that are to be ranked: a kernel has tiles, a
program layouts. Training, scoring, evaluating, predicting and ranking are
written once, against what is here; what is of one task alone is in its `TASK`.
For a further task, name the module of its `TASK` in `_HOMES`.
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
    num_nodes: of its graph.
    num_configs: how many are to be ranked.
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
    max_opcode: the largest of any node.
    opcodes: of all nodes, each once, ascending.
  """
  max_opcode: int
  opcodes: list[int]

  def __len__(self) -> int: ...

  def __iter__(self) -> Iterator[RankingProblem]: ...

  def select(self, mask: np.ndarray) -> Problems:
    """Those where bool [problems] is true."""

  def with_opcodes_below(self, number: int) -> Problems:
    """The same, in which other opcodes are 0."""


@dataclasses.dataclass(frozen=True, eq=False)
class Splits:
  """What a run trains on and measures itself by.

  Attributes:
    train: problems with enough configurations.
    validated: those that are looked at after each epoch.
    valid: all that its model is measured on.
    test: labelled where the run measures it.
    stats: scale of the features: that of `train`.
    num_ops: rows of an embedding of the opcodes.
  """
  train: Problems
  validated: Problems
  valid: Problems
  test: Problems
  stats: FeatureStats
  num_ops: int


class Task(abc.ABC):
  """What is of one task alone.

  Attributes:
    name: 'tile' or 'layout'.
    problem: what one problem is called.
    loading: the settings of loading its models.
    evaluation: `Results` that its rows are of.
    top_ks: how many configurations an evaluation tries.
    final: means of them that a run file has: (measure, its key).
    csv_name: what `predict` writes, unless told otherwise.
    csv_id: what IDs in it begin with, before the collection.
    csv_end: of its last line.
    csv_configs: configurations of each problem in it; None: all.
    test_configs: the same in what `train` writes, which the run file then has
      too; None: all, which it has not.
    scored_at_once: problems that are scored side by side: each takes memory.
    config_table: the field of a file that configurations are in.
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
    """What a user names as problems: a folder or a file.

    Raises:
      UserError: it is not there, of another kind, or damaged.
    """

  @abc.abstractmethod
  def read_split(self, loading: Loading, collection: Sequence[str],
                 split: str) -> Problems:
    """A split of a collection; its first files alone with `toy_data`.

    Args:
      loading: has the data root.
      collection: see `collection`.
      split: 'train', 'valid' or 'test'.

    Raises:
      UserError: see `read`.
    """

  @abc.abstractmethod
  def collection(self, args: Mapping[str, Any],
                 loading: Optional[Loading] = None) -> tuple[str, ...]:
    """Folders between the data root and its splits.

    Args:
      args: of the run of a model.
      loading: may name another collection.
    """

  @abc.abstractmethod
  def statistics(self, args: Mapping[str, Any],
                 loading: Loading) -> tuple[FeatureStats, int]:
    """What a model was scaled by, computed anew, and the number of opcodes.

    Args:
      args: of its run.
      loading: where the data are.
    """

  # ----------------------------------------------------------------- training

  @abc.abstractmethod
  def prepared(self, settings: Training) -> tuple[Training, Splits]:
    """Reads the data; the settings may get statistics of them.

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
    """Batches to train on and to validate on, an epoch a pass."""

  @abc.abstractmethod
  def reported(self, run: artifacts.Run) -> Optional[str]:
    """The CSV of a finished run, where it has one, which is there again."""

  # ------------------------------------------------------------------ scoring

  @abc.abstractmethod
  def check_columns(self, problems: Problems, stats: FeatureStats) -> None:
    """Raises a UserError unless the features have the columns of `stats`."""

  @abc.abstractmethod
  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    """A graph of one node, which builds a model's variables."""

  @abc.abstractmethod
  def problems(self, members: Sequence[RankingProblem]) -> Problems:
    """Several problems as one."""

  @abc.abstractmethod
  def graphs(self, problem: RankingProblem,
             stats: FeatureStats) -> Iterable[tfgnn.GraphTensor]:
    """A problem with all its configurations, so many in a graph as fit."""

  @abc.abstractmethod
  def all_graphs(self, problems: Problems, stats: FeatureStats
                 ) -> Iterable[Iterable[tfgnn.GraphTensor]]:
    """`graphs` of each problem, in order."""

  @abc.abstractmethod
  def first_copies(self, features: np.ndarray) -> np.ndarray:
    """For each configuration of a graph the first that equals it: int64 [c].

    Args:
      features: float32 [..., c, G], as the model sees them.
    """

  @abc.abstractmethod
  def config_rows(self, problem: RankingProblem,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    """Rows of `config_table`, some of which may be beyond `stats`."""

  # ---------------------------------------------------------------- measuring

  @abc.abstractmethod
  def row_of(self, problem: RankingProblem, scores: Scores,
             ks: Sequence[int]) -> dict[str, Any]:
    """Measures of one labelled problem, a row of `evaluation`."""


def find(name: Union[str, Training, Loading]) -> Task:
  """The task of that name, or of settings."""
  return importlib.import_module(
      _HOMES[name if isinstance(name, str) else name.TASK]).TASK
