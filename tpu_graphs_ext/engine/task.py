"""What the engine asks of a task; it knows no task and imports none.

Settings name their task (`settings.task`), and so does a `scoring.Ranker`. This
module imports no TensorFlow: the command line reads a task's attributes.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Protocol

if TYPE_CHECKING:
  import numpy as np
  import tensorflow as tf
  import tensorflow_gnn as tfgnn

  from tpu_graphs_ext.data.kernel import Problem, Problems
  from tpu_graphs_ext.data.normalize import FeatureStats
  from tpu_graphs_ext.engine.results import Results
  from tpu_graphs_ext.engine.settings import Loading, Training


@dataclasses.dataclass(frozen=True, eq=False)
class Splits:
  """The data of a training run."""
  train: Problems
  validated: Problems  # To validate on after each epoch.
  valid: Problems  # To measure the best epoch on.
  test: Problems
  num_ops: int  # One more than the largest opcode: rows of an embedding.
  stats: FeatureStats  # Scale of the features, from `train`.


class Task(Protocol):
  """Problems with configurations to rank: how to read, feed and measure them.

  A task is one object of a subclass, which must have the first block and the
  abstract methods.
  """
  name: str  # As in run files, which name their task.
  problem: str  # Noun for one problem.
  training: type[Training]  # Settings of `train`; their `task` is this one,
  loading: type[Loading]  # and so it is of those that load a trained model.
  models_file: str  # Full path of the file with its models.

  collection_args: Sequence[str] = ()  # Of a run: see `collection`.
  keeps_optimizer: bool = True  # Whether the saved model has its state.
  unhashed: Sequence[str] = ()  # Arguments that are not in the hash of a run.
  top_ks: Sequence[int] = (1, 5, 10)  # How many configurations to try.
  # Means in a run file: (measure, key).
  final: Sequence[tuple[str, str]] = (('slowdown', 'final_error'),)
  csv_name: str = 'predictions.csv'  # Default name of the predictions CSV.
  csv_id: str = ''  # The beginning of its IDs, before the collection.
  csv_end: str = ''  # The end of its last line.
  csv_configs: Optional[int] = None  # How many of each problem; None: all.
  test_configs: Optional[int] = None  # By `train`; None: not in the run file.
  scored_at_once: int = 1  # Threads that call `graphs`; each takes memory.
  config_table: str = 'config_feat'  # Field of a file with configurations.
  has_duplicates: bool = False  # Whether files list a configuration twice.

  @abc.abstractmethod
  def read(self, path: str, loading: Loading) -> Problems:
    """The problems of a folder or file, in the order of their names.

    `path` may begin with `~`. Raises UserError if nothing is there, or a file
    is damaged or another task's.
    """

  @abc.abstractmethod
  def statistics(self, args: Mapping[str, Any],
                 loading: Loading) -> tuple[FeatureStats, int]:
    """The scale of a model's features and its number of opcodes, read anew.

    `args` are of the run that trained it, on the data root of `loading`. Raises
    UserError if that cannot be read.
    """

  @abc.abstractmethod
  def prepared(self, settings: Training) -> tuple[Training, Splits]:
    """The settings, with the statistics if the model takes them; the data.

    Raises UserError if there is no such model, or the data are missing,
    damaged or too few.
    """

  def compiled_model(self, settings: Training,
                     splits: Splits) -> tf.keras.Model:
    """A new model with its variables, loss, optimizer and metric.

    Raises UserError if the model refuses its arguments.
    """
    from tpu_graphs_ext.engine import compiled_model
    return compiled_model.model(
        settings, splits.num_ops, self.sample_graph(splits.stats),
        compiled_model.ListMLE(), steps=-(-len(splits.train) // settings.batch))

  @abc.abstractmethod
  def datasets(self, settings: Training, splits: Splits, seed: int,
               first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Batches to train on and to validate on; a pass over one is an epoch.

    Elements are (GraphTensor of B problems, runtimes float32 [B, configs]). The
    order depends on the seed and the number of the epoch alone, which is
    `first_epoch` in the first pass.
    """

  @abc.abstractmethod
  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    """A problem of one node, to create a model's variables for its columns."""

  @abc.abstractmethod
  def graphs(self, problem: Problem,
             stats: FeatureStats) -> Iterable[tfgnn.GraphTensor]:
    """A problem with all its configurations, in the order of the file.

    Each graph has as many as fit into memory at once, and the features scaled:
    float32 [..., configs, columns] for `load_models.config_feats`.
    """

  def in_known_features(self, problem: Problem,
                        stats: FeatureStats) -> Problem:
    """The problem with known features in place of some that training lacked."""
    return problem

  def config_rows(self, problem: Problem,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    """Rows of `config_table` as stored, float32 [rows, columns], in blocks.

    They are searched for values beyond `stats`; without any, blocks may lack.
    """
    return [problem.config_feat]

  @property
  def evaluation(self) -> type[Results]:
    """What `evaluate` returns, and measures problems with."""
    from tpu_graphs_ext.engine import results
    return results.Results

  def collection(self, args: Mapping[str, Any],
                 loading: Optional[Loading] = None) -> tuple[str, ...]:
    """Folders between data root and splits: of a run, or as `loading` says."""
    return tuple((loading and getattr(loading, name)) or args[name]
                 for name in self.collection_args)

  def owns(self, run_info: Mapping[str, Any]) -> bool:
    """Whether a run file is of this task."""
    name = run_info.get('task')
    return name == self.name if name else self.has_args(run_info['args'])

  def has_args(self, args: Mapping[str, Any]) -> bool:
    """The same by the arguments: the baseline's run files name no task."""
    return False

  def train_hash(self, args: Mapping[str, Any]) -> str:
    """The hash that names a run: MD5 of its arguments as sorted JSON."""
    hashed = {key: value for key, value in args.items()
              if key not in self.unhashed}
    return hashlib.md5(json.dumps(hashed, sort_keys=True).encode()).hexdigest()
