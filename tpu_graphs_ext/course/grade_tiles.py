"""Grading of tile models: the data, the course's script, likely causes."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.course import agreement, checkout
from tpu_graphs_ext.course.agreement import Agreement
from tpu_graphs_ext.course.sandbox import Answer, Sandbox
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import artifacts, predictions_csv, settings
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.tasks import tile_batches

# Kernels that are ranked once more with the statistics of training.
_TRIED_KERNELS = 50
TOY_TEXT = (
    'the model was trained with --toy_data, the first '
    f'{read.TOY_FILES} files of each split, and cannot be graded on the whole '
    'data; train again without --toy_data')


@dataclasses.dataclass(frozen=True)
class Features:
  """What a model is given besides a kernel's own arrays.

  Attributes:
    stats: how features are normalised.
    num_ops: opcodes that the model is built for.
    test: the kernels to rank.
  """
  stats: FeatureStats
  num_ops: int
  test: Partition

  def text(self) -> str:
    return (f'{self.stats.node.num_used} node and '
            f'{self.stats.config.num_used} config columns, '
            f'num_ops={self.num_ops}')

  def some(self, names: list[str]) -> Features:
    """At most `_TRIED_KERNELS` of these test kernels."""
    chosen = np.flatnonzero(np.isin(self.test.tile_ids, names))
    return dataclasses.replace(
        self, test=self.test.select(chosen[:_TRIED_KERNELS]))


class TileGrader:
  """What grading needs to know about the tile task."""

  script, item = checkout.COURSE_FILES[0], 'kernel'

  def __init__(self, run_info: dict[str, Any] | None, data_root: str,
               cache_dir: str, toy_data: bool):
    """Reads the data.

    Args:
      run_info: content of the run file, or None.
      data_root: folder of the splits train, valid and test.
      cache_dir: see `read.read_dataset`.
      toy_data: grade with the first files of each split only.
    """
    self._run_info, self.args = run_info or {}, (run_info or {}).get('args')
    self._data_root, self._cache_dir = data_root, cache_dir or None
    self._toy_data, self._largest_split = toy_data, 0
    self.faults, self._graded = [], None
    try:
      # As the grader's script has it: statistics of all train kernels.
      self._graded = self._read(least_configs=-1)
    except UserError as error:
      self.faults.append(f'nothing could be ranked: {error}')

  def data_text(self) -> str:
    return self._graded.text() if self._graded else ''

  def ask(self, place: Sandbox) -> Answer:
    """Takes the grader's steps."""
    if self._graded:
      return self._ask(place, self._graded)
    # Without data the class is built for as many opcodes as in training.
    return place.ask({'args': self.args, 'graphs': None,
                      'num_ops': self._run_info.get('num_ops')})

  def toy_trained(self) -> bool:
    """True if the run file shows that training read a part of the data."""
    if not self._graded or self._toy_data:
      return False
    predicted = self._run_info.get('test_predictions') or {}
    return (
        self._largest_split > read.TOY_FILES
        and bool(self._run_info.get('settings', {}).get('toy_data'))
    ) or len(self._graded.test) > len(predicted) == read.TOY_FILES

  def explain_variables(self, place: Sandbox) -> str:
    """Why the saved variables are not those of the class, as a sentence."""
    if self.toy_trained():
      return TOY_TEXT
    trained = self._as_in_training()
    if trained and self._ask(place, trained).fits:
      return (f'They fit the train kernels that have at least --configs '
              f'configurations ({trained.text()}); the grader takes all train '
              'kernels, so train with a smaller --configs')
    built_for = self._run_info.get('num_ops', self._graded.num_ops)
    if built_for != self._graded.num_ops:
      return (f'The model was trained on other data, with num_ops={built_for}: '
              'name it with --data_root, or train again')
    return ('models.py or the class\'s arguments have changed since training, '
            'or the run file belongs to another model, or the data has changed')

  def scores_after_training(self, answer: Answer) -> dict[str, np.ndarray]:
    """Kernel -> scores."""
    return answer.scores

  def trained_choices(self) -> tuple[dict[str, list[int]], str]:
    """Kernel -> choices after training; what has them, or why there are none.
    """
    choices = self._run_info.get('test_predictions')
    return choices or {}, 'the run file' if choices else (
        'the run file has no test_predictions to compare with (training was '
        'interrupted, or had --test_mode=metrics)')

  def explain_choices(self, place: Sandbox, answer: Answer,
                      found: Agreement) -> tuple[str, bool]:
    """Why the choices after training do not follow from the scores.

    Returns:
      The explanation, and whether it is a reason to fail.
    """
    what = '; '.join(
        f'{len(names)} kernels {text} ({shortened(names, 1)})'
        for names, text in (
            (found.different, 'have other configurations in the run file'),
            (found.impossible,
             'have configurations in the run file that they lack'),
            (found.missing, 'are not in the run file'),
            (found.unknown, 'of the run file are not in the data')) if names)
    if self.toy_trained():
      return f'{what}: {TOY_TEXT}', True
    if found.unknown or found.impossible:
      return (f'{what}: the run file was written with another test split than '
              f'the one in {self._data_root}; name the data that the model was '
              'trained on'), True
    if not found.different:  # Only missing.
      return (f'{what}: the run file was written with a part of the test '
              'split; the model ranks the rest too'), False
    if self._statistics_explain(place, found.different):
      return (f'{what}: training took the statistics that features are '
              'normalised by from the train kernels of at least '
              f'{self.args["configs"]} configurations, and the grader takes '
              'them from all. The baseline does so with every model, so it is '
              'no fault; `tpu-graphs-ext evaluate --stats all` shows what it '
              'costs'), False
    state = (f' It has {answer.state} variables that are not trained, as batch '
             'normalisation has; the grader copies trained variables only, so '
             'keep no other state.' if answer.state else '')
    return (f'{what}: the model folder and the run file are from different '
            'trainings, or models.py (perhaps the order in which the class '
            f'creates its variables) or the data has changed since.{state}'
            ), True

  def run_script(self, place: Sandbox, answer: Answer) -> tuple[int, list[str]]:
    """Runs the course's script; returns its rows, and kernels that differ.

    Raises:
      UserError: the script failed, or its CSV cannot be read.
    """
    # An empty cache folder: a cache of the baseline does not notice that the
    # data behind it has changed.
    place.run([self.script, f'--dir={place.model_dir}', '--cache_dir=',
               f'--data_root={files.full_path(self._data_root)}',
               *(['--toy_data'] if self._toy_data else [])])
    rows = {name.rsplit(':', 1)[1]: indices for name, indices in
            predictions_csv.read(
                os.path.join(place.place, settings.CSV_NAME)).items()}
    return len(rows), agreement.compare(rows, answer.scores).odd

  def why_not_compared(self) -> str:
    """Why the script's ranking cannot be compared: it always can."""
    return ''

  def _read(self, least_configs: int) -> Features:
    dataset = read.read_dataset(
        self._data_root, min_train_configs=least_configs,
        cache_dir=self._cache_dir, toy_data=self._toy_data)
    self._largest_split = max(
        len(split) for split in (dataset.train, dataset.valid, dataset.test))
    return Features(FeatureStats.of_partition(dataset.train), dataset.num_ops,
                    dataset.test)

  def _as_in_training(self) -> Features | None:
    """With statistics of the train kernels that training uses, if others."""
    try:
      trained = self._read(self.args['configs'])
    except UserError:  # No train kernel has so many configurations.
      return None
    same = trained.stats.to_json() == self._graded.stats.to_json()
    return None if same else trained

  def _statistics_explain(self, place: Sandbox, names: list[str]) -> bool:
    """True if the model makes the run file's choices with others."""
    trained = self._as_in_training()
    if not trained:
      return False
    scores = self._ask(place, trained.some(names)).scores
    predicted = self._run_info['test_predictions']
    return bool(scores) and agreement.compare(
        {name: predicted[name] for name in scores}, scores).complete

  def _ask(self, place: Sandbox, features: Features) -> Answer:
    graphs = os.path.join(place.new_folder(), 'graphs')
    with artifacts.quiet_keras():
      tile_batches.kernel_graphs(features.test, features.stats).save(graphs)
    return place.ask({'args': self.args, 'graphs': graphs,
                      'num_ops': features.num_ops}, len(features.test))
