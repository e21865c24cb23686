"""The folder of an interrupted run, and finished runs with the same settings.

  <out_dir>/resume_<hash>/   from the start of a run until its end
    started.json             its settings, the `args` of its run file, its seed
    checkpoint, ckpt-*       the last finished epoch; see `callbacks`
  <out_dir>/run_<hash>.log   the messages of the run, with the time before each
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.engine.settings import MOST_SEED, Training
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import (
  held_folder,
  read_json,
  remove_folder,
  remove_leftovers,
  write_file,
)

_log = logging.getLogger(__name__)
_PACKAGE_LOG = logging.getLogger(__name__.partition('.')[0])

# Settings that do not change the model: a resumed run may differ here.
_FREE_SETTINGS = ('resume', 'cache_dir', 'tensorboard', 'csv_log')

_STARTED = 'started.json'


class InUseError(UserError):
  """Another process is training the run."""


class ResumeFolder:
  """The folder of one run; nothing is written before it is `held`.

  Attributes:
    path: <out_dir>/resume_<hash>.
    model_dir: <out_dir>/model_<hash>, for its model.
    log_path: <out_dir>/run_<hash>.log.
    args: the `args` of the run file.
    seed: of weights, batches and dropout; drawn where none was given.
    is_new: there is nothing to continue from.
    is_over: the run is done, or resuming it would not help.
    finished: the run itself, if it is to be resumed and already ended.
  """

  def __init__(self, settings: Training, args: dict[str, Any], seed: int,
               is_new: bool, finished: Optional[artifacts.Run] = None):
    run_hash = artifacts.train_hash(args)
    self.model_dir = artifacts.model_path(settings.out_dir, run_hash)
    out_dir = os.path.dirname(self.model_dir)
    self.log_path = os.path.join(out_dir, f'run_{run_hash}.log')
    self.path = os.path.join(out_dir, f'resume_{run_hash}')
    self.args, self.seed, self.is_new = args, seed, is_new
    self.finished, self.is_over = finished, False
    self._settings = settings

  @classmethod
  def of(cls, settings: Training) -> ResumeFolder:
    """The folder of the run to resume, or else of a new one."""
    finished = None
    if settings.resume:
      started = _latest(settings, 'resume_', _read_start)
      if started:
        return cls(settings, started['args'], started['seed'], is_new=False)
      finished = _latest(settings, 'run_', _read_finished)
      _log.info('--resume: this run is finished' if finished else
                '--resume: no interrupted run with these settings in '
                f'{settings.out_dir}; starting a new one')
    seed = settings.seed
    if seed is None:
      seed = int.from_bytes(os.urandom(4), 'little')
    return cls(settings, settings.baseline_args(), seed, True,
               finished and finished['run'])

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Makes the folder; removes it at the end if the run `is_over`.

    Messages go to the log meanwhile. Raises InUseError if another process
    trains the run.
    """
    remove_leftovers(os.path.dirname(self.path))
    try:
      os.makedirs(self.path, exist_ok=True)
      with held_folder(self.path), _logged(self.log_path, not self.is_new):
        if self.is_new:
          self._start()
        try:
          yield
        finally:
          if self.is_over:
            remove_folder(self.path)
    except BlockingIOError as error:
      raise InUseError(
          f'{self.path}: another process is training this run now; wait for '
          'it, or give another --run_id, --seed or --out_dir') from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError,
            PermissionError) as error:
      raise UserError(f'{self.path}: cannot be written ({error}); choose '
                      'another --out_dir') from error

  def _start(self) -> None:
    """Removes an older run's files and writes what the run starts from."""
    # The start goes first: without it, nobody resumes from the rest.
    for name in sorted(os.listdir(self.path), key=lambda name: (
        name != _STARTED)):
      path = os.path.join(self.path, name)
      shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    write_file(os.path.join(self.path, _STARTED), json.dumps({
        'args': self.args, 'seed': self.seed,
        'settings': _fixed(self._settings)}).encode())


@contextlib.contextmanager
def _logged(path: str, append: bool) -> Iterator[None]:
  """Adds the package's messages, and the error at the end, to a file."""
  handler = logging.FileHandler(path, 'a' if append else 'w', 'utf-8')
  handler.setFormatter(
      logging.Formatter('%(asctime)s  %(message)s', '%Y-%m-%d %H:%M:%S'))
  # On a full disk the run itself says so where it matters.
  handler.handleError = lambda record: None
  _PACKAGE_LOG.addHandler(handler)
  try:
    yield
  except BaseException as error:
    handler.emit(logging.makeLogRecord(
        {'msg': f'{type(error).__name__}: {error}'}))
    raise
  finally:
    _PACKAGE_LOG.removeHandler(handler)
    handler.close()


def _latest(settings: Training, start: str,
            read: Any) -> Optional[dict[str, Any]]:
  """The latest run with the same settings: what `read` makes of its path.

  A damaged start is named in a warning. A run file that `read` refuses may be
  the baseline's own.
  """
  out_dir = os.path.expanduser(settings.out_dir)
  found = []
  for name in os.listdir(out_dir) if os.path.isdir(out_dir) else ():
    path = os.path.join(out_dir, name)
    if not name.startswith(start) or name.endswith('.log'):
      continue
    try:
      run = read(path)
      if _may_have(settings, run['args']) and _fixed(settings) == {
          key: run['settings'].get(key) for key in _fixed(settings)}:
        found.append((os.path.getmtime(path), path, run))
    except (UserError, OSError, LookupError, TypeError, ValueError,
            AttributeError) as error:
      _log.log(logging.WARNING if read is _read_start else logging.DEBUG,
               '%s: cannot be resumed (%s)', path, error)
  return max(found, key=lambda item: item[:2])[2] if found else None


def _read_start(path: str) -> dict[str, Any]:
  started = read_json(os.path.join(path, _STARTED))
  run_hash = artifacts.train_hash(started['args'])
  if not os.path.basename(path).endswith('_' + run_hash) or not (
      type(started['seed']) is int and 0 <= started['seed'] <= MOST_SEED):
    raise UserError(f'{path}: is not the start of a run')
  return started


def _read_finished(path: str) -> dict[str, Any]:
  folder, name = os.path.split(path)
  run = artifacts.load_run(artifacts.model_path(
      folder, name[len('run_'):-len('.jsonz')]), task='')
  if 'total' not in run.info['seconds']:  # Only the end of a run writes it.
    raise UserError(f'{path}: is not finished')
  return {**run.info, 'run': run}


def _fixed(settings: Training) -> dict[str, Any]:
  """The settings that a run keeps when it is resumed."""
  return {key: value for key, value in dataclasses.asdict(settings).items()
          if key not in _FREE_SETTINGS}


def _may_have(settings: Training, args: dict[str, Any]) -> bool:
  """Whether a run with these settings may have these `args`.

  The default name of the CSV has a clock in it; the folder must be the same.
  """
  expected = settings.baseline_args()
  csv = args.get('results_csv')
  if not settings.results_csv and isinstance(csv, str) and (
      os.path.dirname(csv) == os.path.dirname(expected['results_csv'])):
    expected['results_csv'] = csv
  return args == expected
