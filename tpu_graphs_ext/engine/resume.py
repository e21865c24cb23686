"""The folder of an interrupted run, and finished runs with the same settings.

  <out_dir>/resume_<hash>/   from the start of a run until its end
    started.json             its settings, the `args` of its run file, its seed
    checkpoint, ckpt-*       the last finished epoch; see `callbacks`
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

from tpu_graphs_ext.engine import artifacts, run_file
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
      interrupted = cls._latest(settings)
      if interrupted:
        return interrupted
      finished = _finished_run(settings)
      _log.info('--resume: this run is finished' if finished else
                '--resume: no interrupted run with these settings in '
                f'{settings.out_dir}; starting a new one')
    seed = settings.seed
    if seed is None:
      seed = int.from_bytes(os.urandom(4), 'little')
    return cls(settings, settings.baseline_args(), seed, True, finished)

  @classmethod
  def _latest(cls, settings: Training) -> Optional[ResumeFolder]:
    """The folder of the latest interrupted run with the same settings."""
    found, others = [], []
    for path, started in _started(os.path.expanduser(settings.out_dir)):
      if different := _different(settings, started['settings']):
        others.append(f'{os.path.basename(path)} (differs in '
                      f'{", ".join("--" + key for key in different)})')
        continue
      folder = cls(settings, started['args'], started['seed'], is_new=False)
      if folder.path == path and _may_have(settings, started['args']):
        found.append((os.path.getmtime(path), path, folder))
    if not found and others:
      _log.info('--resume: interrupted runs in %s with other settings: %s',
                settings.out_dir, '; '.join(others))
    return max(found, key=lambda item: item[:2])[2] if found else None

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Makes the folder of a new run; no other process may train the run.

    Removes it at the end if the run `is_over`.

    Raises:
      InUseError: another process trains it.
      UserError: the folder cannot be made.
    """
    remove_leftovers(os.path.dirname(self.path))
    try:
      os.makedirs(self.path, exist_ok=True)
      with held_folder(self.path):
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
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
      raise UserError(f'{self.path}: cannot be written ({error}); choose '
                      'another --out_dir') from error

  def _start(self) -> None:
    """Removes an older run's files and writes what the run starts from."""
    started = os.path.join(self.path, _STARTED)
    with contextlib.suppress(FileNotFoundError):
      os.remove(started)  # First: without it, nobody resumes from the rest.
    for name in os.listdir(self.path):
      self._remove(name)
    write_file(started, json.dumps({
        'args': self.args, 'seed': self.seed,
        'settings': fixed(self._settings)}).encode())

  def keep_only(self, checkpoint: str) -> None:
    """Removes checkpoints that a killed process did not finish."""
    kept = os.path.basename(checkpoint) + '.'
    for name in os.listdir(self.path):
      if name.startswith('ckpt-') and not name.startswith(kept):
        self._remove(name)

  def _remove(self, name: str) -> None:
    path = os.path.join(self.path, name)
    if os.path.isdir(path) and not os.path.islink(path):
      shutil.rmtree(path, ignore_errors=True)
    else:
      os.remove(path)


def _finished_run(settings: Training) -> Optional[artifacts.Run]:
  """The latest finished run with the same settings, if any."""
  out_dir = os.path.expanduser(settings.out_dir)
  found = []
  for name in _names(out_dir):
    if not (name.startswith('run_') and name.endswith('.jsonz')):
      continue
    path = os.path.join(out_dir, name)
    try:
      run = artifacts.load_run(
          artifacts.model_path(out_dir, name[len('run_'):-len('.jsonz')]),
          task='')
    except UserError:  # Another run, or a damaged one.
      continue
    if (_may_have(settings, run.info['args']) and run_file.is_finished(run.info)
        and not _different(settings, run.info['settings'])):
      found.append((os.path.getmtime(path), path, run))
  return max(found, key=lambda item: item[:2])[2] if found else None


def fixed(settings: Training) -> dict[str, Any]:
  """The settings that a run keeps when it is resumed."""
  return {key: value for key, value in dataclasses.asdict(settings).items()
          if key not in _FREE_SETTINGS}


def _different(settings: Training, stored: dict[str, Any]) -> list[str]:
  """Settings in which a stored run differs."""
  return [key for key, value in fixed(settings).items()
          if stored.get(key) != value]


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


def _started(out_dir: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields (folder, content of its started.json) of every resume folder."""
  for name in _names(out_dir):
    path = os.path.join(out_dir, name)
    file_path = os.path.join(path, _STARTED)
    if not name.startswith('resume_') or not os.path.isfile(file_path):
      continue
    try:
      started = read_json(file_path)
      if not (isinstance(started, dict)
              and isinstance(started.get('args'), dict)
              and isinstance(started.get('settings'), dict)
              and type(started.get('seed')) is int
              and 0 <= started['seed'] <= MOST_SEED):
        raise UserError(f'{file_path}: is not the start of a run')
      yield path, started
    except UserError as error:
      _log.warning('%s: cannot be resumed (%s)', path, error)


def _names(folder: str) -> list[str]:
  return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
