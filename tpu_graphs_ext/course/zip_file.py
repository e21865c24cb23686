"""A hand-in as one zip file, and reading such a file safely.

  models.py              to swap for the checkout's models.py
  model_<hash>/...       the saved model
  run_<hash>.jsonz       its run file
  MANIFEST.json          {"format": 1, "run_hash", "graded_by",
                         "files": {path: {"sha256", "bytes"}}}

The same hand-in always gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.course import sandbox, verify
from tpu_graphs_ext.data import npz
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError

MODELS_NAME, MANIFEST_NAME = 'models.py', 'MANIFEST.json'
FORMAT = 1
MAX_BYTES = sandbox.MOST_BYTES  # Of all files.
# Each part of a name; neither . nor ..
_PART = re.compile(r'(?!\.{1,2}$)[A-Za-z0-9_ .+@=~#,()-]{1,200}')


def package(model_dir: str, out: str, **arguments: Any) -> verify.Verdict:
  """Verifies a hand-in and writes it as a zip file; returns the verdict.

  `out` replaces nothing but a hand-in; `arguments` are the others of `verify`.
  Raises UserError, with every reason, for a hand-in that fails.
  """
  path = files.require_path('--out', out)
  _require_packable(model_dir, path)
  try:
    with _archive(path) if os.path.lexists(path) else contextlib.nullcontext():
      pass
  except UserError as error:
    raise UserError(f'{path}: was not written by `package`, so it is not '
                    'replaced; move it away, or name another file') from error
  verdict = verify.verify(model_dir, **arguments)
  if not verdict.ok:
    raise UserError(f'{model_dir}: not packed, because\n  '
                    + '\n  '.join(verdict.faults))
  with files.new_file(path) as file, zipfile.ZipFile(
      file, 'w', zipfile.ZIP_DEFLATED) as archive:
    for name, content in _contents(verdict).items():
      member = zipfile.ZipInfo(name)  # Dated 1980, always.
      member.compress_type = zipfile.ZIP_DEFLATED
      member.external_attr = 0o644 << 16
      archive.writestr(member, content)
  return verdict


def _require_packable(model_dir: str, out: str) -> None:
  """Raises UserError for names that `unpack` refuses, and an --out inside."""
  folder = os.path.realpath(os.path.expanduser(model_dir))
  if os.path.realpath(out).startswith(folder + os.sep):
    raise UserError(f'--out: {out} is inside the model folder, which is packed;'
                    ' name a file elsewhere')
  run_path = artifacts.run_path_of(model_dir)
  name = os.path.basename(files.full_path(model_dir))
  for path in (os.path.basename(run_path), *(
      f'{name}/{path}' for path, _ in files.contents(files.full_path(
          model_dir)))):
    if not _is_safe(path):
      raise UserError(f'{model_dir}: {path!r} cannot be packed; rename it: '
                      'each part must be 1 to 200 ASCII letters, digits, '
                      'spaces or _.+@=~#,()-')


def _is_safe(name: str) -> bool:
  return len(name) <= 1000 and all(map(_PART.fullmatch, name.split('/')))


def _contents(verdict: verify.Verdict) -> dict[str, bytes]:
  """Name -> content of all files; UserError if too large, or one is a link."""
  name = os.path.basename(verdict.model_dir)
  run_path = artifacts.run_path_of(verdict.model_dir)
  paths = {MODELS_NAME: verdict.models_py, os.path.basename(run_path): run_path,
           **{f'{name}/{path}': os.path.join(verdict.model_dir, path)
              for path in files.ordinary_files(verdict.model_dir, MAX_BYTES)}}
  contents = {name: files.read_file(path, MAX_BYTES)
              for name, path in sorted(paths.items())}
  manifest = {
      'format': FORMAT, 'run_hash': name.removeprefix('model_'),
      'graded_by': verdict.graded_by,
      'files': {name: {'sha256': hashlib.sha256(content).hexdigest(),
                       'bytes': len(content)}
                for name, content in contents.items()}}
  contents[MANIFEST_NAME] = (json.dumps(manifest, indent=2) + '\n').encode()
  return contents


# ----------------------------------------------------------------- reading


def unpack(path: str, folder: str) -> tuple[str, str]:
  """Reads a hand-in; returns the paths of its model folder and models.py.

  Nothing is written unless every name stays inside the folder and every file
  has the size and the sum in the manifest; else UserError lists all faults.
  """
  with _archive(path) as (archive, manifest):
    if faults := list(_faults(archive, manifest['files'])):
      raise UserError(f'{path}: is not unpacked, because\n  '
                      + '\n  '.join(faults))
    for name in manifest['files']:
      files.write_file(os.path.join(folder, *name.split('/')),
                       archive.read(name))
  return (os.path.join(folder, 'model_' + manifest['run_hash']),
          os.path.join(folder, MODELS_NAME))


@contextlib.contextmanager
def _archive(path: str) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
  """An archive and its manifest; UserError if reading it here fails."""
  try:
    with npz.opened(os.path.expanduser(path)) as archive:
      members = archive.infolist()
      if sum(info.file_size for info in members) > MAX_BYTES or not {
          info.compress_type for info in members} <= npz.COMPRESSIONS:
        raise ValueError('its files must be stored or deflated, and have at '
                         f'most {MAX_BYTES:,} bytes')
      manifest = files.parse_json(archive.read(MANIFEST_NAME), path)
      if manifest['format'] != FORMAT or not _PART.fullmatch(
          manifest['run_hash']):
        raise ValueError(f'{MANIFEST_NAME} must have format {FORMAT} and a '
                         "run_hash that is part of a folder's name")
      yield archive, {**manifest, 'files': dict(manifest['files'])}
  except npz.DamagedError as error:
    raise UserError(f'{path}: is not a whole hand-in ({error}); copy or pack '
                    'it again') from error


def _faults(archive: zipfile.ZipFile,
            listed: dict[str, dict[str, Any]]) -> Iterator[str]:
  """Files too many, missing, in unsafe places, or with another content."""
  # As stored: zipfile cuts names at a zero byte.
  names = [info.orig_filename for info in archive.infolist()]
  for name in dict.fromkeys([*listed, *names]):
    if name == MANIFEST_NAME and name not in listed:
      continue
    if names.count(name) != 1 or name not in listed:
      yield (f'{name[:200]!r} is not once in the archive and once in '
             f'{MANIFEST_NAME}')
    elif not _is_safe(name):
      yield f'{name[:200]!r} may lie outside the target folder'
    elif archive.getinfo(name).file_size != listed[name]['bytes'] or (
        hashlib.sha256(archive.read(name)).hexdigest()
        != listed[name]['sha256']):
      yield f'{name!r} has another size or SHA-256 sum than in {MANIFEST_NAME}'
