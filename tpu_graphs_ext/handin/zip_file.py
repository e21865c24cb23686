"""A hand-in as one zip file, and reading such a file safely.

  models.py              to swap for baselines/tiles/models.py
  model_<hash>/...       the saved model
  run_<hash>.jsonz       its run file
  MANIFEST.json          {"format": 1, "model", "model_kwargs_json", "run_hash",
                         "toy_data", "graded_by",
                         "files": {path: {"sha256", "bytes"}}}

The same hand-in always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import zipfile
import zlib
from typing import Any

from tpu_graphs_ext import files, owned
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.handin import verify
from tpu_graphs_ext.host import artifacts, settings

MODELS_NAME, MANIFEST_NAME = 'models.py', 'MANIFEST.json'
FORMAT = 1
# A hand-in is a few MB; what claims to be larger is no hand-in.
MAX_BYTES = 2 << 30
MAX_FILES = 1000


def package(model_dir: str, out: str, *, models_py: str = '', root: str = '',
            data_root: str = settings.DATA_ROOT,
            cache_dir: str = settings.CACHE_DIR,
            force: bool = False) -> verify.Verdict:
  """Verifies a hand-in and writes it as a zip file.

  Args:
    model_dir: see `verify.verify`, also for the arguments from models_py on.
    out: the .zip to write.
    force: pack a model that was trained on toy data; it then is verified on
      toy data.

  Returns:
    What `verify` found.

  Raises:
    UserError: the hand-in fails; lists every reason. Nothing is written.
  """
  path = os.path.expanduser(out)
  if os.path.isdir(path):
    raise UserError(f'--out={out}: is a folder; name a .zip file')
  owned.require_file(path, b'PK', 'zip file')
  where = {'models_py': models_py, 'root': root, 'data_root': data_root,
           'cache_dir': cache_dir}
  verdict = verify.verify(model_dir, **where)
  if verdict.toy_trained and force:
    verdict = verify.verify(model_dir, **where, toy_data=True)
    verdict.toy_trained = True
    verdict.notes.append('packed although it was trained on toy data')
  if not verdict.ok:
    hint = ' (--force packs it all the same)' if verdict.toy_trained else ''
    raise UserError(
        f'{model_dir}: not packed{hint}, because\n  '
        + '\n  '.join(verdict.faults))
  files.write_file(path, _zipped(verdict))
  return verdict


def unpack(path: str, folder: str) -> tuple[str, str]:
  """Reads a hand-in; returns the paths of its model folder and models.py.

  Nothing is written unless every name stays inside the folder and every file
  has the sum that the manifest says.

  Args:
    path: the .zip file.
    folder: where its files go; created where missing.

  Raises:
    UserError: it is no hand-in, or not a safe one; lists all faults.
  """
  full = os.path.expanduser(path)
  try:
    with zipfile.ZipFile(full) as archive:
      faults = _unsafe(archive)
      _raise_all(path, faults)
      contents = {info.filename: archive.read(info)
                  for info in archive.infolist() if not info.is_dir()}
  except OSError as error:
    raise UserError(f'{path}: cannot be read ({error.strerror})') from error
  except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError,
          NotImplementedError) as error:
    raise UserError(f'{path}: is no whole zip file ({error}); copy or pack it '
                    'again') from error
  manifest = _manifest(path, contents)
  _raise_all(path, _unlike_manifest(manifest, contents))
  for name, content in contents.items():
    files.write_file(os.path.join(folder, *name.split('/')), content)
  return (os.path.join(folder, 'model_' + manifest['run_hash']),
          os.path.join(folder, MODELS_NAME))


def _zipped(verdict: verify.Verdict) -> bytes:
  """The archive, without a clock in it."""
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
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, 'w', zipfile.ZIP_DEFLATED) as archive:
    for name, content in contents.items():
      member = zipfile.ZipInfo(name)  # Dated 1980, always.
      member.compress_type = zipfile.ZIP_DEFLATED
      member.external_attr = 0o644 << 16
      archive.writestr(member, content)
  return stream.getvalue()


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
  """Members that must not be unpacked."""
  faults, seen = [], set()
  members = archive.infolist()
  total = sum(info.file_size for info in members)
  if total > MAX_BYTES or len(members) > MAX_FILES:
    return [f'unpacks to {total:,} bytes in {len(members):,} files, more than '
            f'{MAX_BYTES:,} and {MAX_FILES:,}; that is no hand-in']
  for info in members:
    # As stored: the module cuts names at a zero byte.
    name = info.orig_filename
    parts = name.rstrip('/').split('/')
    if (name.startswith('/') or '\\' in name or '\0' in name
        or re.match('[A-Za-z]:', name)
        or any(part in ('', '.', '..') for part in parts)):
      faults.append(f'{name!r} is a path outside the target folder, or may be '
                    'read as one')
    elif stat.S_IFMT(info.external_attr >> 16) not in (
        0, stat.S_IFREG, stat.S_IFDIR):
      faults.append(f'{name!r} is a link or a special file')
    elif name.lower() in seen:
      faults.append(f'{name!r} is there twice')
    seen.add(name.lower())
  return faults


def _manifest(path: str, contents: dict[str, bytes]) -> dict[str, Any]:
  try:
    manifest = json.loads(contents[MANIFEST_NAME])
    sums = {name: entry['sha256']
            for name, entry in manifest['files'].items()}
    known = manifest['format'] == FORMAT and re.fullmatch(
        r'\w+', manifest['run_hash']) and all(map(str.isalnum, sums.values()))
  except (KeyError, ValueError, TypeError, AttributeError) as error:
    raise UserError(
        f'{path}: its {MANIFEST_NAME} is missing or damaged ({error!r}); pack '
        'the hand-in again with `tpu-graphs-ext package`') from error
  if not known:
    raise UserError(f'{path}: its {MANIFEST_NAME} has another format than '
                    f'{FORMAT}; pack it again with this version')
  return manifest


def _unlike_manifest(manifest: dict[str, Any],
                     contents: dict[str, bytes]) -> list[str]:
  listed = manifest['files']
  needed = (MODELS_NAME, f'run_{manifest["run_hash"]}.jsonz',
            f'model_{manifest["run_hash"]}/saved_model.pb')
  return [
      *(f'{name} is missing, which every hand-in has'
        for name in needed if name not in listed),
      *(f'{name} is missing, which {MANIFEST_NAME} lists'
        for name in listed if name not in contents),
      *(f'{name} is not listed in {MANIFEST_NAME}'
        for name in contents if name not in (*listed, MANIFEST_NAME)),
      *(f'{name} has the SHA-256 sum {_sum(content)[:12]}..., but '
        f'{MANIFEST_NAME} says {listed[name]["sha256"][:12]}...'
        for name, content in contents.items()
        if name in listed and _sum(content) != listed[name]['sha256'])]


def _sum(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


def _raise_all(path: str, faults: list[str]) -> None:
  if faults:
    raise UserError(f'{path}: is not unpacked, because\n  '
                    + '\n  '.join(faults))
