"""A trained layout model together with all that it takes to score a program."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import artifacts
from tpu_graphs_ext.layout import batches, programs
from tpu_graphs_ext.layout.programs import Program, Programs
from tpu_graphs_ext.layout.settings import LayoutLoadSettings

# Of the configurations that a model is given at once: 64 MB of float32, beside
# which the program's own features are small.
_CHUNK_FLOATS = 1 << 24
TASK = 'layout'

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Ranker:
  """Scores configurations, some at a time, whatever their number.

  Attributes:
    model: built model with `forward(graph, num_configs)`.
    stats: how features are normalised.
    num_ops: opcodes that the model has an embedding for.
    name: stands in error messages.
    source: collection of programs that it was trained on.
    search: collection of configurations that it was trained on.
    opcodes: that some program of the training data had; None where the run file
      does not say.
  """
  model: Any
  stats: FeatureStats
  num_ops: int
  name: str = 'the model'
  source: str = ''
  search: str = ''
  opcodes: Optional[frozenset[int]] = None

  def score_all(self, members: Sequence[Program], what: str
                ) -> Iterator[tuple[Program, np.ndarray]]:
    """Yields every program with its scores, float32 [configs].

    The lowest score is predicted to be the fastest.

    Args:
      members: the programs.
      what: stands beside the progress bar, which counts configurations.

    Raises:
      UserError: the model gives scores of a wrong shape or that are not
        finite.
    """
    self._warn_of_opcodes(members)
    with tqdm(desc=what, total=sum(one.num_configs for one in members),
              unit='config', disable=None, leave=False) as bar:
      for program in members:
        bar.set_postfix_str(program.name[:30])
        yield program, self.scores(program, bar)

  def scores(self, program: Program, bar: Any = None) -> np.ndarray:
    """float32 [configs]; see `score_all`.

    Args:
      program: the program.
      bar: of tqdm, moved on by each configuration.
    """
    known = dataclasses.replace(program, node_opcode=np.where(
        program.node_opcode < self.num_ops, program.node_opcode, 0))
    at_once = max(1, _CHUNK_FLOATS // (
        program.num_configurable * self.stats.config.num_used))
    parts = []
    for configs in programs.blocks_of(program.num_configs, at_once):
      graph = batches.program_graph(known, configs, self.stats)
      parts.append(self._checked(
          program, len(configs),
          np.asarray(self.model.forward(graph, len(configs)))))
      if bar is not None:
        bar.update(len(configs))
    return np.concatenate(parts)

  def _checked(self, program: Program, configs: int,
               scores: np.ndarray) -> np.ndarray:
    if scores.shape != (1, configs):
      raise UserError(
          f'{self.name}: forward gave scores of shape {scores.shape} for '
          f'{configs} configurations of {program.name}; it must be '
          f'(1, {configs}), one score a configuration')
    if not np.isfinite(scores).all():
      raise UserError(
          f'{self.name}: {np.sum(~np.isfinite(scores))} of {configs} scores of '
          f'{program.name} are NaN or infinite; the model cannot rank it. '
          'Train again, with a lower --lr')
    return scores[0]

  def _warn_of_opcodes(self, members: Sequence[Program]) -> None:
    most = max((int(one.node_opcode.max()) for one in members), default=0)
    if most >= self.num_ops:
      _log.warning(
          'there are opcodes up to %d, but %s was trained on data with opcodes '
          'below %d; nodes with others count as opcode 0', most, self.name,
          self.num_ops)


def load_ranker(model_dir: str, loading: LayoutLoadSettings) -> Ranker:
  """Loads a model that this package or the baseline's trainer wrote.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    loading: where its normalisation and its class come from. The data are
      read only to compute the normalisation.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model or to
      the tile task.
  """
  run = artifacts.load_run(model_dir, TASK)
  stats, num_ops = _normalisation(run, loading)
  model = artifacts.load_model(
      run, num_ops, sample_graph(stats), models_path(loading.models_py))
  args = run.info['args']
  known = run.info.get('opcodes')
  return Ranker(model, stats, num_ops, name=model_dir, source=args['source'],
                search=args['search'],
                opcodes=None if known is None else frozenset(known))


def models_path(models_py: str) -> str:
  """Where the classes are: the file that is named, or the package's."""
  return models_py or load_models.models_path(TASK)


def _normalisation(run: artifacts.Run,
                   loading: LayoutLoadSettings) -> tuple[FeatureStats, int]:
  """The statistics that features are scaled by, and the number of opcodes."""
  if loading.stats == 'run' and 'feature_stats' in run.info:
    return (FeatureStats.from_json(run.info['feature_stats']),
            run.info['num_ops'])
  args = run.info['args']
  if loading.stats == 'run':
    _log.info('%s: its run file keeps no normalisation; computing it from '
              '%s/%s of %s', run.model_dir, args['source'], args['search'],
              loading.data_root)
  collection = programs.read_collection(
      loading.data_root, args['source'], args['search'],
      min_configs=args['configs'], cache_dir=loading.cache_dir,
      toy_data=loading.toy_data)
  return (collection.train.stats,
          run.info.get('num_ops', collection.num_ops))


def sample_graph(stats: FeatureStats) -> Any:
  """Graph of one node with two configurations: builds a model's variables."""
  rows = np.broadcast_to(stats.config.minimum,
                         (2, 1, len(stats.config.minimum)))
  return batches.program_graph(
      Program(
          name='sample', path='', node_feat=stats.node.minimum[np.newaxis],
          node_opcode=np.zeros(1, np.uint8),
          edge_index=np.zeros((0, 2), np.int64),
          node_config_ids=np.zeros(1, np.int64),
          runtime_ns=np.ones(2, np.int64), bounds=stats,
          read_layouts=lambda configs: rows[configs]),
      np.arange(2), stats)


def folder_for(ranker: Ranker, loading: LayoutLoadSettings,
               split: str) -> str:
  """The split of the collection that is asked for, or the model's own."""
  return programs.folder_of(
      loading.data_root, loading.source or ranker.source,
      loading.search or ranker.search, split)


def read_split(ranker: Ranker, loading: LayoutLoadSettings,
               split: str) -> Programs:
  """The programs of `folder_for`."""
  return programs.read_folder(
      folder_for(ranker, loading, split), cache_dir=loading.cache_dir,
      limit=programs.TOY_FILES if loading.toy_data else None)
