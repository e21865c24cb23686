"""The folder of an interrupted run, and finished runs with the same settings.

  <out_dir>/resume_<hash>/   from the start of a run until its end
    started.json             its seed, and the time in its default names
    checkpoint, ckpt-*       the last finished epoch; see `callbacks`

The hash is of the settings, of models.py and of the data, so a resumed run
finds the folder by it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import artifacts, origin, saved_weights
from tpu_graphs_ext.engine.settings import MOST_SEED, Training
from tpu_graphs_ext.errors import UserError

_log = logging.getLogger(__name__)

# Settings that do not change the model: a resumed run may differ here. Of the
# data the content counts.
_FREE_SETTINGS = ('resume', 'cache_dir', 'tensorboard', 'data_root')

_STARTED = 'started.json'
# What a run and TensorFlow write into its folder; `ckpt-1_temp` is a folder.
_OWN = re.compile(r'(started\.json|checkpoint|ckpt-\d+(_temp|\.index|'
                  r'\.data-[\d-]+of-\d+))(\.tmp.*|\..*' + re.escape(
                      files.TEMPORARY) + ')?')
# Of started.json; see `files.require_forms`.
_FORMS = {'seed': (range(MOST_SEED + 1), f'from 0 to {MOST_SEED}'),
          'milliseconds': (range(10 ** 14), 'before the year 5138')}


class InUseError(UserError):
  """Another process is training the run."""


class ResumeFolder:
  """The folder of one run; nothing is written before it is `held`.

  `seed` is of weights, batches and dropout. The run `is_new` if there is
  nothing to continue from, `is_over` if done, or resuming would not help.
  """

  def __init__(self, settings: Training):
    self.origin = origin.of_training(settings)
    key = json.dumps(
        [_fixed(settings), origin.key(self.origin.info)],
        sort_keys=True).encode()
    out_dir = os.path.expanduser(settings.out_dir)
    self.path = os.path.join(out_dir, 'resume_' + hashlib.md5(key).hexdigest())
    self._start = os.path.join(self.path, _STARTED)
    self.is_over, self._resumes = False, settings.resume
    started = self._read_start() if self._resumes else None
    self.is_new = started is None
    self._started = started or {
        'seed': int.from_bytes(os.urandom(4), 'little')
                if settings.seed is None else settings.seed,
        'milliseconds': int(time.time() * 1000)}
    self.seed = self._started['seed']
    self.args = settings.baseline_args(self._started['milliseconds'])
    self.model_dir = artifacts.model_path(
        out_dir, settings.task.train_hash(self.args))

  def _read_start(self) -> Optional[dict[str, int]]:
    """The seed and the time; None if missing, with a warning if damaged."""
    if not os.path.exists(self._start):
      return None
    try:
      started = files.read_json(self._start)
      files.require_forms(started, _FORMS, _FORMS)
      return started
    except (UserError, AttributeError, ValueError) as error:
      _log.warning('%s: cannot be resumed (%s)', self.path, error)
      return None

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Makes the folder; removes it at the end if the run `is_over`."""
    files.remove_leftovers(os.path.dirname(self.path))
    if os.path.islink(self.path):
      raise UserError(f'{self.path}: is a link; an interrupted run goes into '
                      'a folder of that name, so move the link away')
    files.require_own(self.model_dir, {}, artifacts.SAVED_FILES)
    try:
      os.makedirs(self.path, exist_ok=True)
      with files.held_folder(self.path), (
          files.no_pattern(self.path)) as self.checkpoints:
        files.ordinary_files(self.path, saved_weights.MOST_BYTES)
        if self.is_new:
          if os.path.exists(self._start) and not self._resumes:
            _log.warning(
                '%s: an interrupted run with these settings is dropped; '
                '--resume would have continued it', self.path)
          self._empty()
          files.write_file(self._start, json.dumps(self._started).encode())
        try:
          yield
        finally:
          if self.is_over:
            with contextlib.suppress(OSError):
              self._empty()
              os.rmdir(self.path)
    except BlockingIOError as error:
      raise InUseError(
          f'{self.path}: another process is training this run now; wait for '
          'it, or give another --run_id, --seed or --out_dir') from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError,
            PermissionError) as error:
      raise files.cannot_be_written(self.path, error) from error

  def _empty(self) -> None:
    """Removes what runs wrote, and nothing else."""
    # The start goes first: without it, nobody resumes from the rest.
    for name in sorted(filter(_OWN.fullmatch, os.listdir(self.path)),
                       key=lambda name: name != _STARTED):
      path = os.path.join(self.path, name)
      if name.endswith('_temp'):
        shutil.rmtree(path, ignore_errors=True)
      else:
        os.remove(path)


def finished_run(settings: Training,
                 trained_with: origin.Origin) -> Optional[artifacts.Run]:
  """The latest finished run of these settings, models.py and data."""
  out_dir, fixed = os.path.expanduser(settings.out_dir), _fixed(settings)
  paths = glob.glob(os.path.join(glob.escape(out_dir), 'run_*.jsonz'))
  for path in sorted(paths, key=os.path.getmtime, reverse=True):
    run_hash = os.path.basename(path)[len('run_'):-len('.jsonz')]
    # A run file that is refused may be the baseline's own.
    with contextlib.suppress(UserError):
      run = artifacts.load_run(
          artifacts.model_path(out_dir, run_hash), settings.task)
      # Only the end of a run writes the total.
      if 'total' in run.info.get('seconds', {}) and (
          fixed.items() <= run.info.get('settings', {}).items()
          and origin.key(run.info) == origin.key(trained_with.info)):
        return run
  return None


def _fixed(settings: Training) -> dict[str, Any]:
  """The settings that a run keeps when it is resumed."""
  return {key: value for key, value in dataclasses.asdict(settings).items()
          if key not in _FREE_SETTINGS}
