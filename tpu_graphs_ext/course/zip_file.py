"""A hand-in as one zip file, and reading such a file safely.

  models.py              to swap for baselines/tiles/models.py, or of the
                         layout task baselines/layout/models.py
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

from tpu_graphs_ext import file_ownership, files
from tpu_graphs_ext.course import process_limits, verify, verify_layout
from tpu_graphs_ext.data import npz
from tpu_graphs_ext.engine import artifacts, settings
from tpu_graphs_ext.errors import UserError

MODELS_NAME, MANIFEST_NAME = 'models.py', 'MANIFEST.json'
FORMAT = 1
# A hand-in is a few MB; what claims to be larger is no hand-in. Of all files
# together, of one, and of the manifest.
MAX_BYTES, MAX_FILE_BYTES, MAX_MANIFEST_BYTES = 2 << 30, 512 << 20, 1 << 20
MAX_FILES = 1000
MAX_PACKED_BYTES = MAX_BYTES + (1 << 20)  # With names and sums.
_COMPRESSIONS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # As `package`.
_ENCRYPTED = 1  # Bit of a member's flags.
_BLOCK = 1 << 20
_AGAIN = 'pack the hand-in again with `tpu-graphs-ext package`'


def package(model_dir: str, out: str, *, models_py: str = '', root: str = '',
            data_root: str = '',
            cache_dir: str = settings.CACHE_DIR,
            time_limit: float = process_limits.DEFAULT_MINUTES,
            force: bool = False, task: str = 'tile') -> verify.Verdict:
  """Verifies a hand-in and writes it as a zip file.

  Args:
    model_dir: see `verify.verify`, also for the arguments from models_py on.
    data_root: empty: where the data of the task are by default.
    out: the .zip to write.
    force: pack a model that was trained on toy data; it then is verified on
      toy data.
    task: 'tile' or 'layout', whose hand-in it is.

  Returns:
    What `verify` found.

  Raises:
    UserError: the hand-in fails; lists every reason. Nothing is written.
  """
  path = files.require_path('--out', out)
  if os.path.isdir(path):
    raise UserError(f'--out={out}: is a folder; name a .zip file')
  _require_own(path)
  data_root = data_root or {'tile': settings.DATA_ROOT,
                            'layout': verify_layout.DATA_ROOT}[task]
  where = {'models_py': models_py, 'root': root, 'data_root': data_root,
           'time_limit': time_limit}
  check = verify_layout.verify_layout
  if task == 'tile':
    check, where = verify.verify, {**where, 'cache_dir': cache_dir}
  verdict = check(model_dir, **where)
  if verdict.toy_trained and force:
    verdict = check(model_dir, **where, toy_data=True)
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


def _require_own(path: str) -> None:
  """Raises a UserError where writing would replace anything but a hand-in."""
  file_ownership.require_file(path, b'PK', 'zip file')
  if not os.path.lexists(path) or not os.path.getsize(path):
    return
  try:
    with _archive(path) as archive:
      _raise_all(path, _unsafe(archive))
      _manifest(path, archive.read(MANIFEST_NAME))
  except UserError as error:
    raise UserError(f'{path}: is no hand-in of `package`, so it is not '
                    'replaced; move it away, or name another file') from error


def unpack(path: str, folder: str) -> tuple[str, str]:
  """Reads a hand-in; returns the paths of its model folder and models.py.

  Nothing is written unless every name stays inside the folder and every file
  has the size and the sum that the manifest says. What the archive declares is
  looked at before anything is unpacked.

  Args:
    path: the .zip file.
    folder: where its files go; created where missing.

  Raises:
    UserError: it is no hand-in, or not a safe one; lists all faults.
  """
  with _archive(path) as archive:
    _raise_all(path, _unsafe(archive))
    members = {info.filename: info for info in archive.infolist()
               if not info.is_dir()}
    if MANIFEST_NAME not in members:
      raise UserError(f'{path}: its {MANIFEST_NAME} is missing; {_AGAIN}')
    manifest = _manifest(path, archive.read(MANIFEST_NAME))
    _raise_all(path, _unlike_manifest(manifest, members)
               + _wrong_sums(manifest, archive, members))
    for name in manifest['files']:
      with archive.open(name) as member, files.new_file(
          os.path.join(folder, *name.split('/'))) as file:
        shutil.copyfileobj(member, file)
  return (os.path.join(folder, 'model_' + manifest['run_hash']),
          os.path.join(folder, MODELS_NAME))


@contextlib.contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
  """Opens an archive; all that goes wrong in the `with` is a UserError."""
  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      size = os.fstat(file.fileno()).st_size
      if size > MAX_PACKED_BYTES:
        raise UserError(f'{path}: has {size:,} bytes; no hand-in has more than '
                        f'{MAX_PACKED_BYTES:,}')
      npz.require_short_directory(file)
      with zipfile.ZipFile(file) as archive:
        yield archive
  except UserError:
    raise
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  except Exception as error:  # Whatever zipfile and zlib stumble over.
    reason = ' '.join(str(error).split())[:200] or type(error).__name__
    raise UserError(f'{path}: is no whole zip file ({reason}); copy or pack it '
                    'again') from error


def _write_zip(file: BinaryIO, verdict: verify.Verdict) -> None:
  """Writes the archive, without a clock in it."""
  contents = _contents(verdict)
  args = verdict.run_info['args']
  manifest = {
      'format': FORMAT, 'model': args['model'],
      'model_kwargs_json': args['model_kwargs_json'],
      'run_hash': os.path.basename(verdict.model_dir)[len('model_'):],
      'toy_data': verdict.toy_trained,
      'graded_by': verdict.graded_by,
      'files': {name: {'sha256': _sum(content), 'bytes': len(content)}
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
  parent, model_name = os.path.split(verdict.model_dir)
  run_path = artifacts.run_path_of(verdict.model_dir)
  paths = {MODELS_NAME: verdict.models_py, os.path.basename(run_path): run_path}
  for folder, _, names in os.walk(os.path.join(parent, model_name)):
    for name in names:
      full = os.path.join(folder, name)
      paths[os.path.relpath(full, parent).replace(os.sep, '/')] = full
  contents = {}
  for name, path in sorted(paths.items()):
    with open(path, 'rb') as file:
      contents[name] = file.read()
  return contents


def _unsafe(archive: zipfile.ZipFile) -> list[str]:
  """Members that must not be unpacked, by what the archive declares."""
  faults, seen = [], set()
  members = archive.infolist()
  total = sum(info.file_size for info in members)
  if total > MAX_BYTES or len(members) > MAX_FILES:
    return [f'unpacks to {total:,} bytes in {len(members):,} files, more than '
            f'{MAX_BYTES:,} and {MAX_FILES:,}; that is no hand-in']
  for info in members:
    # As stored: the module cuts names at a zero byte.
    name = info.orig_filename
    fault = _unsafe_name(name) or _unsafe_content(info)
    if fault:
      faults.append(f'{name[:200]!r} {fault}')
    elif name.lower() in seen:
      faults.append(f'{name!r} is there twice')
    seen.add(name.lower())
  return faults


def _unsafe_name(name: str) -> str:
  """Why a name may not be written to, or ''."""
  parts = name.rstrip('/').split('/')
  if (name.startswith('/') or '\\' in name or re.match('[A-Za-z]:', name)
      or any(part in ('', '.', '..') for part in parts)
      or any(ord(letter) < 32 for letter in name)):
    return 'is a path outside the target folder, or may be read as one'
  if max(map(len, parts)) > 200 or len(name) > 1000:
    return f'is a name of {len(name):,} characters; files have shorter ones'
  return ''


def _unsafe_content(info: zipfile.ZipInfo) -> str:
  """Why a member may not be unpacked, or ''."""
  if stat.S_IFMT(info.external_attr >> 16) not in (
      0, stat.S_IFREG, stat.S_IFDIR):
    return 'is a link or a special file'
  if info.flag_bits & _ENCRYPTED:
    return 'is encrypted'
  if info.compress_type not in _COMPRESSIONS:
    return (f'is compressed by method {info.compress_type}; `package` stores '
            'or deflates')
  most = (MAX_MANIFEST_BYTES if info.filename == MANIFEST_NAME
          else MAX_FILE_BYTES)
  if info.file_size > most:
    return f'has {info.file_size:,} bytes; {most:,} are allowed'
  return ''


def _manifest(path: str, text: bytes) -> dict[str, Any]:
  """The manifest, of which `run_hash` and `files` are what they must be."""
  manifest = files.parse_json(text, f'{path}: {MANIFEST_NAME}')
  if not isinstance(manifest, dict) or not isinstance(
      manifest.get('files'), dict):
    raise UserError(f'{path}: its {MANIFEST_NAME} is damaged: it has no object '
                    f'`files`; {_AGAIN}')
  if type(manifest.get('format')) is not int or manifest['format'] != FORMAT:
    found = str(manifest.get('format'))[:40]
    raise UserError(f'{path}: its {MANIFEST_NAME} has another format than '
                    f'{FORMAT}: {found}; pack it again with this version')
  run_hash = manifest.get('run_hash')
  if not isinstance(run_hash, str) or not re.fullmatch(
      r'[0-9A-Za-z_]{1,200}', run_hash):
    raise UserError(f'{path}: its {MANIFEST_NAME} is damaged: run_hash must be '
                    f'letters and digits, got {str(run_hash)[:40]!r}; {_AGAIN}')
  for name, entry in manifest['files'].items():
    if (not isinstance(entry, dict) or type(entry.get('bytes')) is not int
        or not re.fullmatch('[0-9a-f]{64}', str(entry.get('sha256')))):
      raise UserError(
          f'{path}: its {MANIFEST_NAME} is damaged: files, {name[:80]!r} must '
          f'have sha256 and bytes, got {str(entry)[:80]}; {_AGAIN}')
  return manifest


def _unlike_manifest(manifest: dict[str, Any],
                     members: Mapping[str, zipfile.ZipInfo]) -> list[str]:
  """Files too many, missing or of another size."""
  listed = manifest['files']
  needed = (MODELS_NAME, f'run_{manifest["run_hash"]}.jsonz',
            f'model_{manifest["run_hash"]}/saved_model.pb')
  return [
      *(f'{name} is missing, which every hand-in has'
        for name in needed if name not in listed),
      *(f'{name[:200]} is missing, which {MANIFEST_NAME} lists'
        for name in listed if name not in members or name == MANIFEST_NAME),
      *(f'{name} is not listed in {MANIFEST_NAME}'
        for name in members if name not in (*listed, MANIFEST_NAME)),
      *(f'{name} has {info.file_size:,} bytes, but {MANIFEST_NAME} says '
        f'{listed[name]["bytes"]:,}'
        for name, info in members.items()
        if name in listed and info.file_size != listed[name]['bytes'])]


def _wrong_sums(manifest: dict[str, Any], archive: zipfile.ZipFile,
                members: Mapping[str, zipfile.ZipInfo]) -> list[str]:
  """Files of the right size whose content is not what was packed."""
  faults = []
  for name, entry in manifest['files'].items():
    if name not in members or members[name].file_size != entry['bytes']:
      continue
    found = hashlib.sha256()
    with archive.open(members[name]) as member:
      while block := member.read(_BLOCK):
        found.update(block)
    if found.hexdigest() != entry['sha256']:
      faults.append(f'{name} has the SHA-256 sum {found.hexdigest()[:12]}..., '
                    f'but {MANIFEST_NAME} says {entry["sha256"][:12]}...')
  return faults


def _sum(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


def _raise_all(path: str, faults: list[str]) -> None:
  if faults:
    raise UserError(f'{path}: is not unpacked, because\n  '
                    + '\n  '.join(faults))
