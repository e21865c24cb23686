"""A hand-in as one zip file, and reading such a file safely.

  models.py              to swap for the checkout's models.py of its task
  model_<hash>/...       the saved model
  run_<hash>.jsonz       its run file
  MANIFEST.json          {"format": 1, "model", "model_kwargs_json", "run_hash",
                         "toy_data", "graded_by",
                         "files": {path: {"sha256", "bytes"}}}

The same hand-in always gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from tpu_graphs_ext import files
from tpu_graphs_ext.course import process_limits, verify
from tpu_graphs_ext.data import npz
from tpu_graphs_ext.engine import artifacts, output_paths, settings
from tpu_graphs_ext.errors import UserError

MODELS_NAME, MANIFEST_NAME = 'models.py', 'MANIFEST.json'
FORMAT = 1
# A hand-in has a few MB. Limits for all files together, one, the manifest.
MAX_BYTES, MAX_FILE_BYTES, MAX_MANIFEST_BYTES = 2 << 30, 512 << 20, 1 << 20
MAX_FILES = 1000
_COMPRESSIONS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # As `package`.
_ENCRYPTED = 1  # Bit of a member's flags.
# Each part of a name; neither . nor ..
_PART = re.compile(r'(?!\.{1,2}$)[A-Za-z0-9_ .+@=~#,()-]{1,200}')
_AGAIN = 'pack the hand-in again with `tpu-graphs-ext package`'


def package(model_dir: str, out: str, *, models_py: str = '', root: str = '',
            data_root: str = '', cache_dir: str = settings.CACHE_DIR,
            time_limit: float = process_limits.DEFAULT_MINUTES,
            force: bool = False, task: str = 'tile') -> verify.Verdict:
  """Verifies a hand-in and writes it as a zip file.

  Args:
    model_dir: see `verify.verify`, also for the arguments from models_py on.
    out: the .zip to write.
    force: pack a model that was trained on toy data; it is then verified on
      toy data.
    task: 'tile' or 'layout'.

  Returns:
    What `verify` found.

  Raises:
    UserError: the hand-in fails; lists every reason. Nothing is written.
  """
  path = files.require_path('--out', out)
  if os.path.isdir(path):
    raise UserError(f'--out={out}: is a folder; name a .zip file')
  _require_own(path)
  how = {'models_py': models_py, 'root': root, 'data_root': data_root,
         'cache_dir': cache_dir, 'time_limit': time_limit, 'task': task}
  verdict = verify.verify(model_dir, **how)
  if verdict.toy_trained and force:
    verdict = verify.verify(model_dir, **how, toy_data=True)
    verdict.toy_trained = True
    verdict.notes.append('packed although it was trained on toy data')
  if not verdict.ok:
    hint = ' (--force packs it all the same)' if verdict.toy_trained else ''
    raise UserError(
        f'{model_dir}: not packed{hint}, because\n  '
        + '\n  '.join(verdict.faults))
  with files.new_file(path) as file:
    _write_zip(file, verdict)
  return verdict


def unpack(path: str, folder: str) -> tuple[str, str]:
  """Reads a hand-in; returns the paths of its model folder and models.py.

  Nothing is written unless every name stays inside the folder and every file
  has the size and the sum in the manifest. What the archive declares is checked
  before anything is unpacked.

  Args:
    path: the .zip file.
    folder: where its files go; created where missing.

  Raises:
    UserError: it is not a hand-in, or not a safe one; lists all faults.
  """
  with _archive(path) as archive:
    manifest = _manifest(path, archive)
    _raise_all(path, _unlike_manifest(manifest['files'], archive))
    for name in manifest['files']:
      with archive.open(name) as member, files.new_file(
          os.path.join(folder, *name.split('/'))) as file:
        shutil.copyfileobj(member, file)
  return (os.path.join(folder, 'model_' + manifest['run_hash']),
          os.path.join(folder, MODELS_NAME))


def _require_own(path: str) -> None:
  """Raises a UserError where writing would replace anything but a hand-in."""
  output_paths.require_file(path, b'PK', 'zip file')
  if not os.path.lexists(path) or not os.path.getsize(path):
    return
  try:
    with _archive(path) as archive:
      _manifest(path, archive)
  except UserError as error:
    raise UserError(f'{path}: was not written by `package`, so it is not '
                    'replaced; move it away, or name another file') from error


# ----------------------------------------------------------------- writing


def _write_zip(file: BinaryIO, verdict: verify.Verdict) -> None:
  """Writes the archive, without the time in it."""
  contents = _contents(verdict)
  args = verdict.run_info['args']
  manifest = {
      'format': FORMAT, 'model': args['model'],
      'model_kwargs_json': args['model_kwargs_json'],
      'run_hash': os.path.basename(verdict.model_dir)[len('model_'):],
      'toy_data': verdict.toy_trained,
      'graded_by': verdict.graded_by,
      'files': {name: {'sha256': hashlib.sha256(content).hexdigest(),
                       'bytes': len(content)}
                for name, content in contents.items()},
  }
  contents[MANIFEST_NAME] = (json.dumps(manifest, indent=2) + '\n').encode()
  with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
    for name, content in contents.items():
      member = zipfile.ZipInfo(name)  # Dated 1980, always.
      member.compress_type = zipfile.ZIP_DEFLATED
      member.external_attr = 0o644 << 16
      archive.writestr(member, content)


def _contents(verdict: verify.Verdict) -> dict[str, bytes]:
  """Name in the archive -> content, sorted by name."""
  parent = os.path.dirname(verdict.model_dir)
  run_path = artifacts.run_path_of(verdict.model_dir)
  paths = {MODELS_NAME: verdict.models_py, os.path.basename(run_path): run_path}
  for folder, _, names in os.walk(verdict.model_dir):
    for name in names:
      full = os.path.join(folder, name)
      paths[os.path.relpath(full, parent).replace(os.sep, '/')] = full
  contents = {}
  for name, path in sorted(paths.items()):
    with open(path, 'rb') as file:
      contents[name] = file.read()
  return contents


# ----------------------------------------------------------------- reading


@contextlib.contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
  """Opens an archive whose declarations are safe.

  Raises:
    UserError: it is not such an archive, or reading it in the `with` fails.
  """
  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      if os.fstat(file.fileno()).st_size > MAX_BYTES:
        raise UserError(f'{path}: no hand-in has more than {MAX_BYTES:,} bytes')
      npz.require_short_directory(file)
      with zipfile.ZipFile(file) as archive:
        _raise_all(path, _unsafe(archive.infolist()))
        yield archive
  except UserError:
    raise
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  except Exception as error:  # Whatever zipfile and zlib stumble over.
    reason = ' '.join(str(error).split())[:200] or type(error).__name__
    raise UserError(f'{path}: is not a whole zip file ({reason}); copy or pack '
                    'it again') from error


def _unsafe(members: list[zipfile.ZipInfo]) -> list[str]:
  """Why an archive must not be unpacked, by what it declares."""
  total = sum(info.file_size for info in members)
  if total > MAX_BYTES or len(members) > MAX_FILES:
    return [f'unpacks to {total:,} bytes in {len(members):,} files, more than '
            f'{MAX_BYTES:,} and {MAX_FILES:,}; that is not a hand-in']
  faults, seen = [], set()
  for info in members:
    # As stored: the module cuts names at a zero byte.
    name = info.orig_filename
    fault = _unsafe_member(name, info)
    if fault or name.lower() in seen:
      faults.append(f'{name[:200]!r} {fault or "is there twice"}')
    seen.add(name.lower())
  return faults


def _unsafe_member(name: str, info: zipfile.ZipInfo) -> str:
  """Why a member may not be unpacked, or ''."""
  if len(name) > 1000 or not all(
      _PART.fullmatch(part) for part in name.rstrip('/').split('/')):
    return 'may lie outside the target folder: `package` writes no such name'
  if stat.S_IFMT(info.external_attr >> 16) not in (
      0, stat.S_IFREG, stat.S_IFDIR):
    return 'is a link or a special file'
  if info.flag_bits & _ENCRYPTED or info.compress_type not in _COMPRESSIONS:
    return (f'is encrypted, or compressed by method {info.compress_type}; '
            '`package` stores or deflates')
  most = MAX_MANIFEST_BYTES if name == MANIFEST_NAME else MAX_FILE_BYTES
  if info.file_size > most:
    return f'has {info.file_size:,} bytes; {most:,} are allowed'
  return ''


def _manifest(path: str, archive: zipfile.ZipFile) -> dict[str, Any]:
  """The manifest, with `run_hash` and `files` as they must be."""
  where = f'{path}: its {MANIFEST_NAME}'
  if MANIFEST_NAME not in archive.namelist():
    raise UserError(f'{where} is missing; {_AGAIN}')
  manifest = files.parse_json(archive.read(MANIFEST_NAME), where)
  listed = manifest.get('files') if isinstance(manifest, dict) else None
  if not isinstance(listed, dict):
    raise UserError(f'{where} is damaged: it has no object `files`; {_AGAIN}')
  if manifest.get('format') is True or manifest.get('format') != FORMAT:
    found = str(manifest.get('format'))[:40]
    raise UserError(f'{where} has another format than {FORMAT}: {found}; pack '
                    'it again with this version')
  run_hash = manifest.get('run_hash')
  if not isinstance(run_hash, str) or not re.fullmatch(
      r'[0-9A-Za-z_]{1,200}', run_hash):
    raise UserError(f'{where} is damaged: run_hash must be letters and digits, '
                    f'got {str(run_hash)[:40]!r}; {_AGAIN}')
  for name, entry in listed.items():
    if (not isinstance(entry, dict) or type(entry.get('bytes')) is not int
        or not re.fullmatch('[0-9a-f]{64}', str(entry.get('sha256')))):
      raise UserError(f'{where} is damaged: files, {name[:80]!r} must have '
                      f'sha256 and bytes, got {str(entry)[:80]}; {_AGAIN}')
  needed = (MODELS_NAME, f'run_{run_hash}.jsonz',
            f'model_{run_hash}/saved_model.pb')
  _raise_all(path, [f'{name} is missing, which every hand-in has'
                    for name in needed if name not in listed])
  return manifest


def _unlike_manifest(listed: Mapping[str, dict[str, Any]],
                     archive: zipfile.ZipFile) -> list[str]:
  """Files too many, missing, of another size or with another content."""
  members = {info.filename: info for info in archive.infolist()
             if not info.is_dir() and info.filename != MANIFEST_NAME}
  faults = [f'{name[:200]} is missing, which {MANIFEST_NAME} lists'
            for name in listed if name not in members]
  for name, info in members.items():
    entry = listed.get(name)
    if entry is None:
      faults.append(f'{name} is not listed in {MANIFEST_NAME}')
    elif info.file_size != entry['bytes']:  # Before anything is unpacked.
      faults.append(f'{name} has {info.file_size:,} bytes, but {MANIFEST_NAME} '
                    f'says {entry["bytes"]:,}')
    elif (found := _sum(archive, info)) != entry['sha256']:
      faults.append(f'{name} has the SHA-256 sum {found[:12]}..., but '
                    f'{MANIFEST_NAME} says {entry["sha256"][:12]}...')
  return faults


def _sum(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
  digest = hashlib.sha256()
  with archive.open(info) as member:
    while block := member.read(1 << 20):
      digest.update(block)
  return digest.hexdigest()


def _raise_all(path: str, faults: list[str]) -> None:
  if faults:
    raise UserError(f'{path}: is not unpacked, because\n  '
                    + '\n  '.join(faults))
