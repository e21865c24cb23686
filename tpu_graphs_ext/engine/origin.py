"""The code and the data that a run was trained with, which it keeps.

  model_<hash>/trained_models.py   a copy of its models.py

The run file has `models_py` {file, sha256} and `data` {split: sum of its files,
'' for a split without files}. A copy is code, and a model folder may be
somebody else's: it is run only if this user has trained with the same file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.data import cache, read, schema
from tpu_graphs_ext.engine.settings import Loading, Training
from tpu_graphs_ext.errors import UserError

_log = logging.getLogger(__name__)

COPY = 'trained_models.py'  # In the model's folder.


@dataclasses.dataclass(frozen=True)
class Origin:
  """What a run is trained with."""
  source: bytes  # Content of the models.py.
  info: Mapping[str, Any]  # `models_py` and `data` of the run file.


def key(run_info: Mapping[str, Any]) -> list[Any]:
  """What must be equal for a run to be continued."""
  return [run_info.get('models_py', {}).get('sha256'), run_info.get('data')]


def of_training(settings: Training) -> Origin:
  """Reads the models.py, and what the files of the splits sum to."""
  path = files.full_path(settings.models_file)
  source = files.read_file(path)
  data = {split: sum_of(os.path.join(
      settings.data_root, *settings.task.collection({}, settings), split))
          for split in schema.SPLITS}
  return Origin(source, {
      'models_py': {'file': path, 'sha256': hashlib.sha256(source).hexdigest()},
      'data': data})


def sum_of(folder: str) -> str:
  """A sum over the .npz files of a folder, or of one file; '' without any."""
  with contextlib.suppress(UserError):
    return cache.content_key(read.find_npz(folder))
  return ''


def remember(source: bytes) -> None:
  """Notes that this user trains with a models.py, so that its copies may run.

  Where that cannot be written, copies must be named with --models_py.
  """
  digest = hashlib.sha256(source).hexdigest()
  with contextlib.suppress(OSError):
    if not _is_known(digest):
      os.makedirs(os.path.dirname(_known()), exist_ok=True)
      with open(_known(), 'a', encoding='ascii') as file:
        file.write(digest + '\n')


def _known() -> str:
  """The file of the sums of all that this user has trained with."""
  return os.path.join(files.full_path(os.environ.get(
      'XDG_DATA_HOME') or '~/.local/share'), 'tpu_graphs_ext', 'trained_with')


def _is_known(digest: str) -> bool:
  with contextlib.suppress(OSError):
    with files.open_ordinary(_known()) as file:
      return digest.encode() in file.read().split()
  return False


def copy_of(model_dir: str) -> str:
  """The models.py that a model folder has kept; '' without one."""
  path = os.path.join(files.full_path(model_dir), COPY)
  return path if os.path.lexists(path) else ''


def models_file_of(model_dir: str, run_info: Mapping[str, Any],
                   loading: Loading) -> str:
  """The file to load a run's class from; warns if it is not what trained it.

  That is the file that `loading` names; else the package's if the run was
  trained with the same; else the run's copy, if this user has trained with it.
  Raises UserError if the copy was changed.
  """
  copy = copy_of(model_dir)
  trained = run_info.get('models_py', {}).get('sha256')
  if copy:
    copied = files.sha256(copy)
    if trained and copied != trained:
      raise UserError(f'{copy}: is not the models.py that the run was trained '
                      f'with (its SHA-256 is not {trained}); copy the model '
                      'folder again, or name a file with --models_py')
    trained = copied
  chosen = files.full_path(loading.models_file)
  if not (trained and os.path.isfile(chosen)) or (
      files.sha256(chosen) == trained):
    return loading.models_file
  if not loading.models_py and copy:
    if _is_known(trained):
      _log.info('%s: was trained with another models.py than the package has '
                'now; its copy is used, %s', model_dir, copy)
      return copy
    _log.warning('%s: its copy of models.py, %s, is not run, because you have '
                 'not trained with it here; if you trust it, name it with '
                 '--models_py', model_dir, copy)
  _log.warning(
      '%s: was trained with another models.py than %s (SHA-256 %s, not %s); '
      'the scores may be others', model_dir, chosen, str(trained)[:8],
      files.sha256(chosen)[:8])
  return loading.models_file


def warn_of_other_data(name: str, trained: Mapping[str, str], folder: str,
                       split: str) -> None:
  """Says so if a split is not the one that a run was `trained` with."""
  if trained.get(split) and trained[split] != sum_of(folder):
    _log.warning('%s: was trained with other files in the split %s than those '
                 'in %s now', name, split, folder)
