"""Does what the graders do with a hand-in; names every reason why it fails.

The graders swap models.py into the baseline, load the model folder, build the
class that the run file names, copy the weights by position and rank the test
split. So does `verify`, in a `sandbox`; with a checkout also through the
course's unchanged script.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_graphs_ext import files
from tpu_graphs_ext.course import agreement, allowed_imports, checkout, sandbox
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import artifacts, origin, predictions_csv
from tpu_graphs_ext.errors import UserError, reason_of, shortened
from tpu_graphs_ext.tasks import TILE, of_run, tile_batches

SCRIPT = checkout.COURSE_FILES[0]
_TOY = (f'the model was trained with --toy_data, the first {read.TOY_FILES} '
        'files of each split, and cannot be graded on the whole data; train '
        'again without --toy_data')
_STALE = ('a cache of the data is older than its files (`doctor` says which; '
          'train again without it)')
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
  # The run file's content; empty if it cannot be read.
  run_info: dict[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def ok(self) -> bool:
    return not self.faults

  def text(self) -> str:
    return '\n'.join([
        *(f'{title + ":":<11} {text}' for title, text in self.facts.items()),
        *(f'note: {note}' for note in self.notes),
        *(f'fault: {fault}' for fault in self.faults),
        'this hand-in works' if self.ok else 'this hand-in fails'])

  def to_json(self) -> dict[str, Any]:
    return {'ok': self.ok, **{name: value for name, value in vars(self).items()
                              if name != 'run_info'}}


def verify(model_dir: str, *, models_py: str = '', root: str = '',
           data_root: str = TILE.training.data_root,
           cache_dir: str = TILE.training.cache_dir,
           time_limit: float = checkout.TIME_LIMIT_MINUTES) -> Verdict:
  """Grades a hand-in up to its CSV.

  Args:
    model_dir: folder model_<hash>, its run file beside it.
    models_py: the file to hand in; empty: the one that the model was trained
      with, or if its folder has no copy of that, the package's.
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names.
    data_root, cache_dir: see `read.read_dataset`.
    time_limit: minutes that the code of the hand-in may take in all.

  Raises UserError if --root is not a checkout, there is no such model folder or
  the time limit is not positive. All else is a fault of the verdict.
  """
  if not time_limit > 0:
    raise UserError(f'--time_limit must be above 0 minutes; got {time_limit}')
  root = checkout.find(root)
  verdict = Verdict(
      files.full_path(model_dir),
      files.full_path(models_py or origin.copy_of(model_dir)
                      or TILE.models_file))
  if not os.path.isdir(verdict.model_dir):
    raise UserError(f'{verdict.model_dir}: there is no such model folder')
  _read_run_file(verdict)
  copy = origin.copy_of(model_dir)
  if copy and os.path.isfile(verdict.models_py) and (
      files.sha256(copy) != files.sha256(verdict.models_py)):
    verdict.notes.append(f'{verdict.models_py} is not the models.py that the '
                         f'model was trained with, which is {copy}')
  verdict.facts.update(_facts(verdict))
  if verdict.run_info:  # Before the time is spent: it may be another's.
    _log.info('handing in %(class)s: %(trained)s', verdict.facts)
  verdict.faults += allowed_imports.faults_of(verdict.models_py)
  if not os.path.isfile(verdict.models_py):
    return verdict
  with tempfile.TemporaryDirectory(prefix='hand_in_') as folder:
    try:
      place = sandbox.Sandbox(
          folder, verdict.model_dir, verdict.models_py, root, time_limit,
          files.full_path(data_root))
      verdict.facts.update({
          'graded by': (
              f'{SCRIPT} in a copy of {root}' if place.has(SCRIPT) else
              'this package, in a process of its own: no checkout with the '
              "course's scripts is named with --root"),
          'confined': f'at most {time_limit:g} minutes; ' + (
              'kept from your network, files, processes and most variables'
              if sandbox.confines() else
              'this system cannot keep it from your network and files')})
      _Grader(verdict, place, data_root, cache_dir).grade()
    except UserError as error:
      verdict.faults.append(str(error))
    except (OSError, tf.errors.OpError) as error:
      verdict.faults.append(
          f'the hand-in could not be run in {tempfile.gettempdir()} (set '
          f'TMPDIR to use another folder): {reason_of(error)}')
  return verdict


def _read_run_file(verdict: Verdict) -> None:
  task = TILE
  try:
    path = artifacts.run_path_of(verdict.model_dir)
    verdict.run_info = artifacts.read_run_file(path)
    task = of_run(verdict.run_info, path)
    artifacts.check_run(path, verdict.run_info, task)
  except UserError as error:
    verdict.faults.append(str(error))
  if task is not TILE:
    raise UserError(
        f'{verdict.model_dir}: ranks {task.choices}, but the assignment asks '
        f'for {TILE.choices}; `evaluate --task {task.name}` measures this one')
  folder = os.path.dirname(verdict.model_dir)
  if '/model_' in folder:
    verdict.notes.append(
        f'{folder}: the course\'s script replaces every "/model_" of a path, '
        'so it will not find the run file there; hand in from a folder whose '
        'path has none')


def _facts(verdict: Verdict) -> dict[str, str]:
  """What is handed in: how long and how well it was trained, and when."""
  args = verdict.run_info.get('args', {})
  kwargs = args.get('model_kwargs_json', '')[:200]  # Statistics are pages long.
  opas = verdict.run_info.get('train_curve', {}).get('val_opa', [])
  best = max((opa for opa in opas if isinstance(opa, float)), default=np.nan)
  written = time.localtime(os.path.getmtime(verdict.model_dir))
  return {
      'models.py': verdict.models_py, 'model': verdict.model_dir,
      'class': f'{args["model"]} {kwargs}' if args else 'unknown',
      'trained': (f'{len(opas)} epochs to the best validation OPA of {best:.4f}'
                  if opas else 'for unknown epochs')
                 + time.strftime(', written %Y-%m-%d %H:%M', written)}


# ----------------------------------------------------------------- grading


class _Grader:
  """Runs a hand-in in its place; writes what it finds into the verdict."""

  def __init__(self, verdict: Verdict, place: sandbox.Sandbox, data_root: str,
               cache_dir: str):
    self._verdict, self._place = verdict, place
    self._run = verdict.run_info
    self._predicted = self._run.get('test_predictions') or {}
    self._data_root = data_root
    self._read = functools.partial(
        read.read_dataset, data_root, cache_dir=cache_dir)

  def grade(self) -> None:
    """Takes the grader's steps, then runs the course's script."""
    verdict, data = self._verdict, None
    try:
      # As the grader's script does it: statistics of all train kernels.
      data = self._read(min_train_configs=-1)
    except UserError as error:
      verdict.faults.append(f'nothing could be ranked: {error}')
    # The baseline's run file shows it by the number of its predictions.
    is_toy = data and (
        (self._run.get('settings', {}).get('toy_data')
        and max(map(len, (data.every_train, data.valid, data.test)))
        > read.TOY_FILES)
        or len(self._predicted) == read.TOY_FILES < len(data.test))
    if is_toy:
      verdict.faults.append(_TOY)
      return
    answer = self._ask(data)
    script_data = data and self._script_data(data.train)
    data = None  # The script needs the memory for its own.
    verdict.faults += answer.faults
    if answer.misfit and self._ranks_as_here(self._predicted, toy_data=True):
      verdict.faults.append(_TOY)
    elif answer.misfit:
      verdict.faults.append(
          f'the saved variables are not those of {self._run["args"]["model"]} '
          f'built for {verdict.facts["data"]}: {answer.misfit}. models.py, the '
          "class's arguments or the data have changed since training (which "
          f'had num_ops={self._run.get("num_ops", "unknown")}), or the run '
          'file belongs to another model')
    if answer.ranked:
      verdict.facts['ranked'] = (f'{len(answer.scores):,} test kernels in '
                                 f'{answer.seconds:.1f} s')
      self._compare_with_training(answer)
      if self._place.has(SCRIPT):
        self._run_script(answer, script_data)

  def _compare_with_training(self, answer: sandbox.Answer) -> None:
    """Compares the ranking with the one in the run file."""
    if not self._predicted:
      self._verdict.notes.append(
          'the run file has no test_predictions to compare with (training was '
          'interrupted, or had --test_mode=metrics)')
      return
    odd = agreement.differences(self._predicted, answer.scores)
    same = len(answer.scores) - sum(name in answer.scores for name in odd)
    self._verdict.facts['agrees'] = (f'{same:,} of {len(answer.scores):,} '
                                     'kernels are ranked as in the run file')
    if not odd:
      return
    these = (f'in the run file, {len(odd)} kernels '
             f'{" or ".join(sorted(set(odd.values())))} '
             f'({shortened([*odd], 1)}): ')
    if agreement.OTHER_DATA in odd.values():
      self._verdict.faults.append(
          f'{these}it was written with another test split than the one in '
          f'{self._data_root}; name the data that the model was trained on, or '
          f'{_STALE}')
    elif self._ranks_as_here(odd):
      self._verdict.notes.append(
          f'{these}training took the statistics that features are normalised '
          'by from the train kernels of at least '
          f'{self._run["args"]["configs"]} configurations, and the grader '
          'takes them from all. The baseline does so with every model, so '
          'it is no fault; `tpu-graphs-ext evaluate --stats all` shows '
          'what it costs')
    elif self._ranks_as_here(odd, toy_data=True):
      self._verdict.faults.append(_TOY)
    else:
      self._verdict.faults.append(
          f'{these}the model folder and the run file are from different '
          'trainings, or models.py (perhaps the order in which the class '
          f'creates its variables) or the data has changed since, or {_STALE}'
          + ('' if not answer.state else
             f'. The model has {answer.state} variables that are not trained, '
             'as batch normalisation has; the grader copies trained variables '
             'only'))

  def _ranks_as_here(self, odd: Iterable[str], toy_data: bool = False) -> bool:
    """Whether the model ranks some kernels as in the run file when features
    are scaled by the kernels of at least --configs configurations."""
    try:
      data = self._read(min_train_configs=self._run['args']['configs'],
                        toy_data=toy_data)
    except UserError:  # No train kernel has so many configurations.
      return False
    tried = np.flatnonzero(np.isin(data.test.names, [*odd]))
    if not len(tried):  # The run file is of another test split.
      return False
    scores = self._ask(data, tried[:50]).scores  # Enough to tell.
    return bool(scores) and not agreement.differences(
        {name: self._predicted[name] for name in scores}, scores)

  def _script_data(self, train: Partition) -> str:
    """A data root for the script, whose train split is a single kernel.

    Of that split the script takes the range of each column and the largest
    opcode, and nothing else; the whole of it would take 6 GB.
    """
    folder, stats = self._place.new_folder(), FeatureStats.of_partition(train)
    for split in ('valid', 'test'):
      os.symlink(os.path.join(files.full_path(self._data_root), split),
                 os.path.join(folder, split))
    nodes, configs = (np.stack([scale.minimum, scale.maximum])
                      for scale in (stats.node, stats.config))
    configs = np.resize(configs, (max(2, self._run['args']['configs']),
                                  configs.shape[1])) if self._run else configs
    os.mkdir(os.path.join(folder, 'train'))
    Kernel('ranges', nodes, np.full(2, train.max_opcode, np.uint8),
           np.array([[1, 0]]), configs, *2 * [np.ones(len(configs), np.int64)]
           ).save(os.path.join(folder, 'train'))
    return folder

  def _run_script(self, answer: sandbox.Answer, data_root: str) -> None:
    """Runs the course's script and compares its CSV."""
    _log.info('running %s', SCRIPT)
    start = time.monotonic()
    # An empty cache folder: a cache of the baseline does not notice that the
    # data behind it has changed.
    self._place.run([
        SCRIPT, f'--dir={self._place.model_dir}', '--cache_dir=',
        f'--data_root={data_root}'])
    rows = {name.rsplit(':', 1)[1]: indices for name, indices in
            predictions_csv.read(os.path.join(
                self._place.folder, TILE.csv_name)).items()}
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
    """Takes the grader's steps, with data also ranks all or some kernels."""
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
