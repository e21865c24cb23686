"""Does what the graders do with a hand-in; names every reason why it fails.

The graders swap models.py into the baseline, load the model folder, build the
class that the run file names, copy the weights by position and rank the test
split. So does `verify`, in a `sandbox`; with a checkout also through the
course's unchanged script.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
import time
from typing import Any

import numpy as np

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import agreement, allowed_imports, checkout, sandbox
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import artifacts, predictions_csv, settings
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.tasks import tile_batches

SCRIPT = checkout.COURSE_FILES[0]
# Without one of these a folder is not a saved Keras model.
_MODEL_FILES = ('saved_model.pb', 'keras_metadata.pb',
                os.path.join('variables', 'variables.index'),
                os.path.join('variables', 'variables.data-00000-of-00001'))
# Kernels that are ranked once more with the statistics of training.
_TRIED_KERNELS = 50
_TOY_TEXT = (
    'the model was trained with --toy_data, the first '
    f'{read.TOY_FILES} files of each split, and cannot be graded on the whole '
    'data; train again without --toy_data')
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class Verdict:
  """What became of a hand-in; paths are full paths."""
  model_dir: str
  models_py: str
  # What was done, title -> text; why it fails; what is worth knowing.
  facts: dict[str, str] = dataclasses.field(default_factory=dict)
  faults: list[str] = dataclasses.field(default_factory=list)
  notes: list[str] = dataclasses.field(default_factory=list)
  graded_by: str = 'tpu_graphs_ext'  # Or the script that ranked.
  toy_trained: bool = False  # On a part of the data.
  run_info: dict[str, Any] | None = None  # The run file's content.

  @property
  def ok(self) -> bool:
    return not self.faults

  def text(self) -> str:
    lines = [f'{title + ":":<11} {text}' for title, text in self.facts.items()]
    lines += [f'note: {note}' for note in self.notes]
    lines += [f'fault: {fault}' for fault in self.faults]
    number = len(self.faults)
    return '\n'.join([*lines, (
        f'{number} reason{"s" * (number > 1)} why this hand-in fails'
        if number else 'this hand-in works')])

  def to_json(self) -> dict[str, Any]:
    content = dataclasses.asdict(self)
    del content['run_info']
    return {'ok': self.ok, **content}


def verify(model_dir: str, *, models_py: str = '', root: str = '',
           data_root: str = settings.DATA_ROOT,
           cache_dir: str = settings.CACHE_DIR,
           time_limit: float = checkout.TIME_LIMIT_MINUTES) -> Verdict:
  """Grades a hand-in up to its CSV.

  Args:
    model_dir: folder model_<hash>, its run file beside it.
    models_py: the file to hand in; empty: the package's.
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names.
    data_root: folder of the splits train, valid and test.
    cache_dir: see `read.read_dataset`.
    time_limit: minutes that the code of the hand-in may take in all.

  Raises:
    UserError: --root is not a checkout, the time limit is not a positive
      number, or a path is empty. Everything else is a fault of the verdict.
  """
  files.require_path('--model_dir', model_dir)
  sandbox.check_minutes(time_limit)
  root = checkout.find(root)
  models_py = (files.full_path(models_py) if models_py
               else load_models.models_path())
  verdict = Verdict(files.full_path(model_dir), models_py)
  _read_run_file(verdict)
  if verdict.run_info and artifacts.task_of(verdict.run_info['args']) != 'tile':
    verdict.faults = [
        f'{verdict.model_dir}: ranks layouts, but the assignment asks for a '
        'tile model; `evaluate --task layout` measures this one']
    return verdict
  verdict.faults += [*_faults_of_folder(verdict.model_dir),
                     *allowed_imports.faults_of(models_py)]
  if not os.path.isfile(models_py):
    return verdict
  with tempfile.TemporaryDirectory(prefix='hand_in_') as folder:
    try:
      place = sandbox.Sandbox(
          folder, verdict.model_dir, models_py, root, time_limit)
      verdict.facts.update(_facts(verdict, root, place, time_limit))
      _Grader(verdict, place, data_root, cache_dir).grade()
    except UserError as error:
      verdict.faults.append(str(error))
    except OSError as error:
      reason = ' '.join(str(error).split())[:300]
      verdict.faults.append(f'the hand-in could not be run: {reason}')
  return verdict


def _read_run_file(verdict: Verdict) -> None:
  try:
    path = artifacts.run_path_of(verdict.model_dir)
    if not os.path.exists(path):
      raise UserError(
          f'{verdict.model_dir}: its run file {path} is missing; it says how '
          'the model is built, so copy it from where it was trained')
    verdict.run_info = artifacts.read_run_file(path)
    artifacts.check_hash(path, verdict.run_info)
  except UserError as error:
    verdict.faults.append(str(error))
  folder = os.path.dirname(verdict.model_dir)
  if '/model_' in folder:
    verdict.notes.append(
        f'{folder}: the course\'s script replaces every "/model_" of a path, '
        'so it will not find the run file there; hand in from a folder whose '
        'path has none')


def _faults_of_folder(model_dir: str) -> list[str]:
  if not os.path.isdir(model_dir):
    return [f'{model_dir}: there is no such model folder']
  paths = {name: os.path.join(model_dir, name) for name in _MODEL_FILES}
  return [f'{model_dir}: {name} is missing or empty; copy the whole folder '
          'again from where it was trained' for name, path in paths.items()
          if not (os.path.isfile(path) and os.path.getsize(path))]


def _facts(verdict: Verdict, root: str | None, place: sandbox.Sandbox,
           minutes: float) -> dict[str, str]:
  facts = {'models.py': verdict.models_py, 'model': verdict.model_dir}
  if verdict.run_info:
    args = verdict.run_info['args']
    facts['class'] = (
        f'{args["model"]} {sandbox.brief(args["model_kwargs_json"])}')
  if place.has(SCRIPT):
    facts['graded by'] = f'{SCRIPT} in a copy of {root}'
  else:
    why = (f'the course\'s scripts are neither in {root} nor in a folder '
           f'{checkout.COURSE_FOLDER} beside it' if root
           else 'no checkout of the baseline is named with --root')
    facts['graded by'] = f'this package, in a process of its own ({why})'
  facts['confined'] = sandbox.limits_text(minutes)
  return facts


# ----------------------------------------------------------------- grading


class _Grader:
  """Runs a hand-in in its place; writes what it finds into the verdict."""

  def __init__(self, verdict: Verdict, place: sandbox.Sandbox, data_root: str,
               cache_dir: str):
    self._verdict, self._place = verdict, place
    self._run = verdict.run_info or {}
    self._predicted = self._run.get('test_predictions') or {}
    self._data_root, self._cache_dir = data_root, cache_dir or None

  def grade(self) -> None:
    """Takes the grader's steps, then runs the course's script.

    Raises:
      UserError: a process ended early, or damaged its answer.
    """
    verdict, data = self._verdict, None
    try:
      # As the grader's script does it: statistics of all train kernels.
      data = self._read(least_configs=-1)
    except UserError as error:
      verdict.faults.append(f'nothing could be ranked: {error}')
    else:
      if self._is_toy_trained(data):
        verdict.toy_trained = True
        verdict.faults.append(_TOY_TEXT)
        return
    answer = self._ask(data)
    verdict.faults += answer.faults
    if answer.misfit:
      verdict.faults.append(
          f'the saved variables are not those of {self._run["args"]["model"]} '
          f'built for {verdict.facts["data"]}: {answer.misfit}. '
          f'{self._explain_misfit(data.num_ops)}')
    if answer.ranked:
      verdict.facts['ranked'] = (f'{len(answer.scores):,} test kernels in '
                                 f'{answer.seconds:.1f} s')
      self._compare_with_training(answer)
      if self._place.has(SCRIPT):
        self._run_script(answer)

  def _read(self, least_configs: int) -> read.Dataset:
    return read.read_dataset(
        self._data_root, min_train_configs=least_configs,
        cache_dir=self._cache_dir)

  def _is_toy_trained(self, data: read.Dataset) -> bool:
    """Whether the run file shows that training read only a part of the data."""
    largest = max(map(len, (data.train, data.valid, data.test)))
    if largest > read.TOY_FILES and (
        self._run.get('settings', {}).get('toy_data')):
      return True
    return len(data.test) > len(self._predicted) == read.TOY_FILES

  def _explain_misfit(self, num_ops: int) -> str:
    trained = self._run.get('num_ops', num_ops)
    if trained != num_ops:
      return (f'The model was trained on other data, with num_ops={trained}: '
              'name it with --data_root, or train again')
    return ('models.py or the class\'s arguments have changed since training, '
            'or the run file belongs to another model, or the data has '
            'changed, or --configs left out train kernels that the grader '
            'reads')

  def _compare_with_training(self, answer: sandbox.Answer) -> None:
    """Compares the ranking with the one in the run file."""
    verdict = self._verdict
    if not self._predicted:
      verdict.notes.append(
          'the run file has no test_predictions to compare with (training was '
          'interrupted, or had --test_mode=metrics)')
      return
    odd = agreement.differences(self._predicted, answer.scores)
    same = len(answer.scores) - sum(name in answer.scores for name in odd)
    verdict.facts['agrees'] = (
        f'{same:,} of {len(answer.scores):,} kernels are ranked as in the run '
        'file')
    if not odd:
      return
    texts = []
    for how in dict.fromkeys(odd.values()):
      names = [name for name in odd if odd[name] == how]
      texts.append(f'{len(names)} kernels {how} ({shortened(names, 1)})')
    why, is_fault = self._explain_choices(odd, answer)
    (verdict.faults if is_fault else verdict.notes).append(
        f'in the run file, {"; ".join(texts)}: {why}')

  def _explain_choices(self, odd: dict[str, str],
                       answer: sandbox.Answer) -> tuple[str, bool]:
    """Why the run file has other choices, and whether that is a fault."""
    if set(odd.values()) != {agreement.DIFFERENT}:
      return ('the run file was written with another test split than the one '
              f'in {self._data_root}; name the data that the model was trained '
              'on'), True
    if self._statistics_explain(odd):
      return ('training took the statistics that features are normalised by '
              'from the train kernels of at least '
              f'{self._run["args"]["configs"]} configurations, and the grader '
              'takes them from all. The baseline does so with every model, so '
              'it is no fault; `tpu-graphs-ext evaluate --stats all` shows '
              'what it costs'), False
    state = (f' It has {answer.state} variables that are not trained, as batch '
             'normalisation has; the grader copies trained variables only, so '
             'keep no other state.' if answer.state else '')
    return ('the model folder and the run file are from different trainings, '
            'or models.py (perhaps the order in which the class creates its '
            f'variables) or the data has changed since.{state}'), True

  def _statistics_explain(self, odd: dict[str, str]) -> bool:
    """Whether the model ranks as in training with training's statistics."""
    try:
      data = self._read(self._run['args']['configs'])
    except UserError:  # No train kernel has so many configurations.
      return False
    tried = np.flatnonzero(np.isin(data.test.tile_ids, [*odd]))
    scores = self._ask(data, tried[:_TRIED_KERNELS]).scores
    return bool(scores) and not agreement.differences(
        {name: self._predicted[name] for name in scores}, scores)

  def _run_script(self, answer: sandbox.Answer) -> None:
    """Runs the course's script and compares its CSV.

    Raises:
      UserError: the script failed, or its CSV cannot be read.
    """
    _log.info('running %s', SCRIPT)
    start = time.monotonic()
    # An empty cache folder: a cache of the baseline does not notice that the
    # data behind it has changed.
    self._place.run([
        SCRIPT, f'--dir={self._place.model_dir}', '--cache_dir=',
        f'--data_root={files.full_path(self._data_root)}'])
    rows = {name.rsplit(':', 1)[1]: indices for name, indices in
            predictions_csv.read(os.path.join(
                self._place.folder, settings.CSV_NAME)).items()}
    odd = agreement.differences(rows, answer.scores)
    self._verdict.graded_by = SCRIPT
    self._verdict.facts['script'] = (
        f'{SCRIPT} ranked {len(rows):,} kernels in '
        f'{time.monotonic() - start:.1f} s, {len(rows) - len(odd):,} of them '
        'as here')
    if odd:
      self._verdict.faults.append(
          f'{SCRIPT} ranks {len(odd)} kernels differently from loading the '
          f'model here ({shortened([*odd])}); the model depends on more than '
          'its trained variables')

  def _ask(self, data: read.Dataset | None,
           kernels: np.ndarray | None = None) -> sandbox.Answer:
    """Takes the grader's steps with all or some test kernels.

    Without data it takes them as far as they go.
    """
    graphs, num_ops = None, self._run.get('num_ops')
    if data:
      stats, num_ops = FeatureStats.of_partition(data.train), data.num_ops
      test = data.test if kernels is None else data.test.select(kernels)
      self._verdict.facts.setdefault('data', (
          f'{stats.node.num_used} node and {stats.config.num_used} config '
          f'columns, num_ops={num_ops}'))
      graphs = os.path.join(self._place.new_folder(), 'graphs')
      with artifacts.quiet_keras():
        tile_batches.kernel_graphs(test, stats).save(graphs)
      _log.info('ranking %d kernels', len(test))
    return self._place.ask({'args': self._run.get('args'), 'graphs': graphs,
                            'num_ops': num_ops})
