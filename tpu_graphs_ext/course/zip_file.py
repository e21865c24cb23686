"""A hand-in as one zip file, and reading such a file safely.

  models.py              to swap for the checkout's models.py
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
import pathlib
import re
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from tpu_graphs_ext import files
from tpu_graphs_ext.course import verify
from tpu_graphs_ext.data import npz
from tpu_graphs_ext.engine import artifacts, output_paths
from tpu_graphs_ext.errors import UserError

MODELS_NAME, MANIFEST_NAME = 'models.py', 'MANIFEST.json'
FORMAT = 1
# A hand-in has a few MB. Limits of all files together, and of the manifest.
MAX_BYTES, MAX_MANIFEST_BYTES = 1 << 30, 1 << 20
_COMPRESSIONS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # As `package`.
# Each part of a name; neither . nor ..
_PART = re.compile(r'(?!\.{1,2}$)[A-Za-z0-9_ .+@=~#,()-]{1,200}')


def package(model_dir: str, out: str, **given: Any) -> verify.Verdict:
  """Verifies a hand-in and writes it as a zip file.

  Args:
    model_dir: folder model_<hash>, its run file beside it.
    out: the .zip to write.
    given: the other arguments of `verify.verify`.

  Returns:
    What `verify` found.

  Raises:
    UserError: the hand-in fails; lists every reason. Nothing is written.
  """
  path = files.require_path('--out', out)
  if os.path.isdir(path):
    raise UserError(f'--out={out}: is a folder; name a .zip file')
  _require_own(path)
  verdict = verify.verify(model_dir, **given)
  if not verdict.ok:
    raise UserError(f'{model_dir}: not packed, because\n  '
                    + '\n  '.join(verdict.faults))
  with files.new_file(path) as file:
    write(file, verdict)
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
  with _archive(path) as (archive, manifest):
    if faults := _differences(archive, manifest['files']):
      raise UserError(f'{path}: is not unpacked, because\n  '
                      + '\n  '.join(faults))
    for name in manifest['files']:
      files.write_file(os.path.join(folder, *name.split('/')),
                       archive.read(name))
  return (os.path.join(folder, 'model_' + manifest['run_hash']),
          os.path.join(folder, MODELS_NAME))


def _require_own(path: str) -> None:
  """Raises a UserError if writing would replace anything but a hand-in."""
  output_paths.require_file(path, b'PK', 'zip file')
  if os.path.exists(path) and os.path.getsize(path):
    try:
      with _archive(path):
        pass
    except UserError as error:
      raise UserError(f'{path}: was not written by `package`, so it is not '
                      'replaced; move it away, or name another file') from error


def write(file: BinaryIO, verdict: verify.Verdict) -> None:
  """Writes the archive of a sound hand-in, without the time in it."""
  model_dir = pathlib.Path(verdict.model_dir)
  run_path = pathlib.Path(artifacts.run_path_of(verdict.model_dir))
  paths = {MODELS_NAME: pathlib.Path(verdict.models_py),
           run_path.name: run_path,
           **{path.relative_to(model_dir.parent).as_posix(): path
              for path in model_dir.rglob('*') if path.is_file()}}
  contents = {name: path.read_bytes() for name, path in sorted(paths.items())}
  args = verdict.run_info['args']
  manifest = {
      'format': FORMAT, 'model': args['model'],
      'model_kwargs_json': args['model_kwargs_json'],
      'run_hash': model_dir.name.removeprefix('model_'),
      'toy_data': False, 'graded_by': verdict.graded_by,
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


# ----------------------------------------------------------------- reading


@contextlib.contextmanager
def _archive(path: str) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
  """Opens an archive; gives it and its manifest, as `_checked` has it.

  Raises:
    UserError: it is not such an archive, or reading it in the `with` fails.
  """
  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      npz.require_short_directory(file)
      with zipfile.ZipFile(file) as archive:
        methods = {info.compress_type for info in archive.infolist()}
        if not methods <= _COMPRESSIONS:
          raise UserError(f'{path}: is compressed by another method than '
                          '`package` uses: it stores or deflates')
        if archive.getinfo(MANIFEST_NAME).file_size > MAX_MANIFEST_BYTES:
          raise UserError(f'{path}: its {MANIFEST_NAME} has more than '
                          f'{MAX_MANIFEST_BYTES:,} bytes')
        where = f'{path}: its {MANIFEST_NAME}'
        yield archive, _checked(
            where, files.parse_json(archive.read(MANIFEST_NAME), where))
  except UserError:
    raise
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  except Exception as error:  # Whatever zipfile and zlib stumble over.
    reason = ' '.join(str(error).split())[:200] or type(error).__name__
    raise UserError(f'{path}: is not a whole hand-in ({reason}); copy or pack '
                    'it again') from error


def _checked(where: str, manifest: Any) -> dict[str, Any]:
  """The manifest, if it names files of moderate size inside its folder."""
  try:
    if type(manifest['format']) is not int or manifest['format'] != FORMAT:
      raise ValueError(f'format must be {FORMAT}, got {manifest["format"]!r}')
    if not re.fullmatch(r'[0-9A-Za-z_]{1,200}', manifest['run_hash']):
      raise ValueError('run_hash must be letters and digits, got '
                       f'{manifest["run_hash"]!r}')
    for name, entry in manifest['files'].items():
      if len(name) > 1000 or not all(map(_PART.fullmatch, name.split('/'))):
        raise ValueError(f'{name[:80]!r} may lie outside the target folder')
      if type(entry['bytes']) is not int or not re.fullmatch(
          '[0-9a-f]{64}', entry['sha256']):
        raise ValueError(f'{name!r} must have sha256 and bytes, got {entry}')
    total = sum(entry['bytes'] for entry in manifest['files'].values())
    if total > MAX_BYTES:
      raise ValueError(f'its files have {total:,} bytes, and {MAX_BYTES:,} are '
                       'allowed')
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    reason = f'{type(error).__name__}: {error}'[:200]
    raise UserError(f'{where} is damaged or of another version ({reason}); '
                    'pack the hand-in again with `package`') from error
  return manifest


def _differences(archive: zipfile.ZipFile,
                 listed: dict[str, dict[str, Any]]) -> list[str]:
  """Files too many, missing, of another size or with another content."""
  # As stored: zipfile cuts names at a zero byte.
  members = [info for info in archive.infolist()
             if info.orig_filename != MANIFEST_NAME]
  names = [info.orig_filename for info in members]
  faults = [f'{name} is missing, which {MANIFEST_NAME} lists'
            for name in listed if name not in names]
  for name, info in zip(names, members):
    if name not in listed or names.count(name) > 1:
      faults.append(f'{name[:200]!r} is not listed in {MANIFEST_NAME}, or is '
                    'there twice')
    elif info.file_size != listed[name]['bytes']:  # Before it is unpacked.
      faults.append(f'{name} has {info.file_size:,} bytes, but {MANIFEST_NAME} '
                    f'says {listed[name]["bytes"]:,}')
    elif hashlib.sha256(archive.read(info)).hexdigest() != (
        listed[name]['sha256']):
      faults.append(f'{name} has another SHA-256 sum than {MANIFEST_NAME} says')
  return faults
