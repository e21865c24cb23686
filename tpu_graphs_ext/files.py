"""Files and folders written as a whole or not at all; JSON and CSV with care.

A file gets a temporary name in the same folder, goes to the disk, and then
takes its own name. What a killed process left half-written is removed a day
later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, BinaryIO, Optional

from tpu_graphs_ext.errors import UserError, reason_of

MOST_BYTES = 1 << 28  # Of a file that is read as a whole, once unpacked.
# Of JSON once it is parsed, as `parse_json` estimates it.
MOST_JSON_BYTES = 1 << 30
_MOST_DIGITS = 300  # A float64 has at most 309.
_SURROGATE = re.compile(rb'\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]')
# End of names that nobody else gives.
TEMPORARY = '.tpu_graphs_ext.tmp'
_ASIDE = '.aside' + TEMPORARY
_LEFTOVER = re.compile(
    r'(?P<final>.+)\.[0-9a-f]{8}(?P<aside>\.aside)?' + re.escape(TEMPORARY))
_tidied: set[str] = set()  # Folders that this process has already tidied.
_LEFTOVER_SECONDS = 24 * 3600  # Nobody fills a file or folder for longer.
# What makes Excel and LibreOffice read a cell as a formula (OWASP, "CSV
# Injection").
_FORMULA_STARTS = ('=', '+', '-', '@', '\t', '\r', '\n')


# ---------------------------------------------------------------------- paths


def require_path(flag: str, path: str) -> str:
  """Expands ~; raises UserError for an empty path, which means this folder."""
  if not os.fspath(path or '').strip():
    raise UserError(f'{flag} is empty; name a file or folder (is the variable '
                    'that should hold it set?)')
  return os.path.expanduser(path)


def path_flag(flag: str) -> Callable[[str], str]:
  """A function that checks a path of the command line, and returns it."""
  return lambda path: require_path(flag, path) and path


def full_path(path: str) -> str:
  """The absolute path of '~/a' or 'a'."""
  return os.path.abspath(os.path.expanduser(path))


# -------------------------------------------------------------------- reading


def open_ordinary(path: str) -> BinaryIO:
  """Opens a file for reading.

  Raises OSError if it cannot be opened, or is not an ordinary file: a named
  pipe would block, and a device never end.
  """
  # Without O_NONBLOCK opening a pipe waits for a writer.
  handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  if stat.S_ISREG(os.fstat(handle).st_mode):
    return os.fdopen(handle, 'rb')
  os.close(handle)
  raise OSError('is not an ordinary file')


def read_file(path: str, most_bytes: int = MOST_BYTES,
              unpack: bool = False) -> bytes:
  """The content of an ordinary file; `unpack`: what gzip packed, unpacked.

  Raises UserError if it cannot be read or has more than `most_bytes`.
  """
  try:
    with open_ordinary(os.path.expanduser(path)) as file:
      packed = unpack and file.peek(2).startswith(b'\x1f\x8b')
      content = (gzip.GzipFile(fileobj=file) if packed else file).read(
          most_bytes + 1)
  except (OSError, EOFError, ValueError, zlib.error) as error:
    raise cannot_be_read(path, error) from error
  if len(content) > most_bytes:
    raise UserError(f'{path}: cannot be read (it has more than '
                    f'{most_bytes:,} bytes, the most that is read here)')
  return content


@contextlib.contextmanager
def no_pattern(folder: str) -> Iterator[str]:
  """A path of a folder that TensorFlow, which matches [x], finds as it is."""
  if not re.search(r'[\[\\]', folder):
    yield folder
    return
  with tempfile.TemporaryDirectory() as place:
    os.symlink(os.path.abspath(folder), f'{place}/link')
    yield f'{place}/link'


def sha256(path: str) -> str:
  """The SHA-256 sum of an ordinary file in hex, or a UserError."""
  digest = hashlib.sha256()
  try:
    with open_ordinary(path) as file:
      for block in iter(lambda: file.read(1 << 20), b''):
        digest.update(block)
  except OSError as error:
    raise cannot_be_read(path, error) from error
  return digest.hexdigest()


def cannot_be_read(path: str, error: Exception) -> UserError:
  reason = getattr(error, 'strerror', None) or error
  return UserError(f'{path}: cannot be read ({reason})')


# -------------------------------------------------------------------- writing


def require_replaceable(path: str, folder: bool = False) -> None:
  """Raises UserError if writing a file, or a folder, would replace others."""
  is_kind, kind, other = ((os.path.isdir, 'folder', 'file') if folder
                          else (os.path.isfile, 'file', 'folder'))
  if os.path.islink(path) or os.path.exists(path) != is_kind(path):
    raise UserError(f'{path}: is a link, a {other}, a device or a pipe, which '
                    f'would be replaced; name a {kind}')


def cannot_be_written(path: str, error: Exception) -> UserError:
  # TensorFlow's errors have no number, and a full disk is their usual reason.
  number = getattr(error, 'errno', errno.ENOSPC)
  is_full = number in (errno.ENOSPC, errno.EDQUOT)
  advice = 'free some space, or choose' if is_full else 'choose'
  return UserError(f'{path}: cannot be written ({error}); {advice} another '
                   'place')


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
  """A file to fill, which then replaces an ordinary file of its name.

  Raises UserError if it cannot be written or something else has the name.
  """
  require_replaceable(path)
  temporary = ''
  try:
    temporary = _temporary_name(path)
    with open(temporary, 'xb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except OSError as error:
    raise cannot_be_written(path, error) from error
  finally:
    with contextlib.suppress(OSError):
      os.remove(temporary)


def write_file(path: str, content: bytes) -> None:
  """Writes a whole file; see `new_file`."""
  with new_file(path) as file:
    file.write(content)


@contextlib.contextmanager
def new_folder(path: str, require_own: Optional[Callable[[], None]] = None
               ) -> Iterator[str]:
  """A folder to fill, which then takes its name.

  Where a folder has the name, `require_own` is called before and after the new
  one is filled, and raises if the old one must stay. Without it the old one
  stays, and the new one is dropped. Raises OSError if it cannot be written.
  """
  if require_own:
    require_own()
  temporary = _temporary_name(path)
  os.mkdir(temporary)
  try:
    yield temporary
    for parent, _, names in os.walk(temporary):
      for name in names:
        with open(os.path.join(parent, name), 'rb') as file:
          os.fsync(file.fileno())
    if require_own:
      require_own()
      _replace_folder(temporary, path)
    else:
      try:
        os.rename(temporary, path)
      except OSError:
        if not os.path.isdir(path):
          raise
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _replace_folder(new: str, path: str) -> None:
  """Folders cannot replace one another: the old one steps aside first.

  It is held meanwhile, so that no other process takes it for a killed one's.
  """
  aside = path + '.' + secrets.token_hex(4) + _ASIDE
  with contextlib.ExitStack() as held:
    try:
      with contextlib.suppress(FileNotFoundError):
        held.enter_context(held_folder(path))
        os.rename(path, aside)
      os.rename(new, path)
    finally:  # Also if a signal interrupted.
      if os.path.exists(aside) and not os.path.exists(path):
        os.rename(aside, path)
      shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def held_folder(path: str) -> Iterator[None]:
  """Keeps a folder or file for one process; BlockingIOError if it is taken."""
  handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  try:
    try:
      fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise
    except OSError:  # Some network file systems have no locks.
      pass
    yield
  finally:
    os.close(handle)  # The lock goes, too, as when the process dies.


def remove_leftovers(folder: str) -> None:
  """Removes what killed processes left half-written in a folder.

  A folder that stepped aside for one that never came takes its place again.
  Once a process and folder, for folders of many files.
  """
  folder = os.path.abspath(folder)
  names = []
  if folder not in _tidied:
    with contextlib.suppress(OSError, ValueError):  # None, or not ours to list.
      names = os.listdir(folder)
  _tidied.add(folder)
  for match in filter(None, map(_LEFTOVER.fullmatch, names)):
    left, final = (os.path.join(folder, match[part]) for part in (0, 'final'))
    with contextlib.suppress(OSError):
      if match['aside'] and not os.path.exists(final):
        with held_folder(left):  # Else its process lives.
          if not os.path.exists(final):
            os.rename(left, final)
      elif time.time() - os.lstat(left).st_mtime > _LEFTOVER_SECONDS:
        shutil.rmtree(left, ignore_errors=True)
        os.remove(left)  # It was a file.


def _temporary_name(path: str) -> str:
  """A name in the same folder, which is made and tidied."""
  path = os.path.abspath(path)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  remove_leftovers(os.path.dirname(path))
  return f'{path}.{secrets.token_hex(4)}{TEMPORARY}'


# -------------------------------------------------- outputs, before the work


def require_kind(path: str, start: str | bytes, what: str) -> None:
  """Raises UserError if writing a file would destroy one of another kind.

  Files of the kind `what` begin with `start`, or are empty.
  """
  require_replaceable(path)
  start = start.encode() if isinstance(start, str) else start
  try:
    with open_ordinary(path) as file:
      beginning = file.read(len(start))
  except FileNotFoundError:
    return
  except OSError as error:
    raise cannot_be_read(path, error) from error
  if beginning and beginning != start:
    raise UserError(f'{path}: is not a {what}, so it is not replaced; move it '
                    'away, or name another file')


def check_folder(flag: str, path: str) -> str:
  """The path of a folder that can be written, or a UserError; makes it."""
  folder = require_path(flag, path)
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=TEMPORARY) as file:
      file.write(b'x')
  except OSError as error:
    raise cannot_be_written(f'{flag}={path}', error) from error
  return folder


def require_new(flag: str, path: str) -> None:
  """Raises a UserError if there is anything of that name."""
  if os.path.lexists(full_path(path)):
    raise UserError(f'{flag}={path}: is there already; name a new folder')


@dataclasses.dataclass(frozen=True)
class Output:
  """A kind of file that a verb writes where its flag says; see `require_kind`.
  """
  flag: str
  start: str
  what: str

  def check(self, path: str) -> str:
    """The path of the file, ~ expanded, or a UserError; makes its folder."""
    expanded = require_path(self.flag, path)
    require_kind(expanded, self.start, self.what)
    check_folder(self.flag, os.path.dirname(os.path.abspath(expanded)))
    return expanded

  def write(self, path: str, text: str) -> None:
    """Writes the file, which appears when complete."""
    write_file(self.check(path), text.encode())


# ------------------------------------------------------------------ ownership


def contents(folder: str) -> Iterator[tuple[str, str]]:
  """(path in the folder, with '/', what it is) of all that a folder holds.

  It is a 'file', 'empty' (a folder without anything in it) or '': a link, a
  pipe and the like. What is no folder holds nothing.
  """
  inner = [''] if os.path.isdir(folder) else []
  while inner:
    parent = inner.pop()
    entries = sorted(os.scandir(os.path.join(folder, parent)),
                     key=lambda entry: entry.name)
    if parent and not entries:
      yield parent[:-1], 'empty'
    for entry in entries:
      if entry.is_dir(follow_symlinks=False):
        inner.append(f'{parent}{entry.name}/')
      else:
        yield parent + entry.name, ('file' if entry.is_file(
            follow_symlinks=False) else '')


def ordinary_files(folder: str, most_bytes: int) -> list[str]:
  """The sorted paths of the files in a folder, of `most_bytes` together.

  Raises UserError if they have more, or the folder holds anything else.
  """
  paths, total = [], 0
  for path, kind in contents(folder):
    full = os.path.join(folder, path)
    if not kind:
      raise UserError(f'{full}: is a link, a device or a pipe, which is not '
                      'followed; put the file itself there')
    if kind == 'file':
      paths.append(path)
      total += os.path.getsize(full)
  if total > most_bytes:
    raise UserError(f'{folder}: its files have {total:,} bytes; {most_bytes:,} '
                    'are allowed')
  return sorted(paths)


def sums(folder: str) -> dict[str, str]:
  """Path in the folder -> checksum, or 'empty', by path; see `contents`.

  A command keeps the checksums of all that it wrote, so a file with another was
  not written by it; nor was a link or the like, whose checksum is ''.
  """
  return {path: _sum_of(folder, path, kind)
          for path, kind in sorted(contents(folder))}


def _sum_of(folder: str, path: str, kind: str) -> str:
  return sha256(os.path.join(folder, path))[:32] if kind == 'file' else kind


def require_own(folder: str, known: Mapping[str, str],
                names: Collection[str] = ()) -> None:
  """Raises UserError where a folder holds what its command did not write.

  It wrote files with `known` checksums (see `sums`) and, with any content,
  those of `names`. Ends at the first stranger, and reads only what is known.
  """
  require_replaceable(folder, folder=True)
  for path, kind in contents(folder):
    if not kind or (path not in names and (
        path not in known or known[path] != _sum_of(folder, path, kind))):
      raise UserError(f'{folder}: holds {path!r}, which this command did not '
                      'write, or which was changed since, and which would be '
                      'lost; move it away, or name another folder')


# --------------------------------------------------------------- CSV and JSON


def csv_of(frame: Any) -> str:
  """A pandas frame as CSV; texts that begin like formulas get an apostrophe."""
  def safe(cell: Any) -> Any:
    if not isinstance(cell, str):
      return cell
    cell = cell.replace('\0', '\ufffd')  # Which Python 3.10 does not write.
    return "'" + cell if cell.startswith(_FORMULA_STARTS) else cell

  # Unlike `map`, this leaves whole numbers beside None as they are.
  return frame.apply(
      lambda column: column if column.dtype.kind in 'iufb'
      else type(column)([*map(safe, column)], column.index, dtype=object)
  ).to_csv(index=False, lineterminator='\n')


def read_json(path: str) -> Any:
  """`parse_json` of an ordinary file; UserError if it cannot be read."""
  return parse_json(read_file(path), path)


def parse_json(text: str | bytes, where: str,
               most_bytes: int = MOST_JSON_BYTES) -> Any:
  """Reads JSON from an untrusted source.

  As objects, a list or object takes 64 to 232 bytes, another value 40 with its
  place: a file of `{},` takes 24 times its size.

  Raises UserError if it is not JSON, would take more than `most_bytes`, or
  holds an integer beyond float64 or half a surrogate pair.
  """
  content = text if isinstance(text, bytes) else text.encode(
      errors='surrogatepass')
  needed = len(content) + sum(size * content.count(sign) for sign, size in (
      (b'{', 240), (b'[', 64), (b',', 40)))
  if needed > most_bytes:
    raise UserError(f'{where}: holds so many values that reading it would take '
                    f'about {needed / 2**30:.1f} GiB of memory; '
                    f'{most_bytes / 2**30:g} GiB are allowed')
  try:
    value = json.loads(text, parse_int=_int)
    if _SURROGATE.search(content):  # Half a pair cannot be encoded.
      json.dumps(value, ensure_ascii=False).encode()
    return value
  except (ValueError, RecursionError) as error:
    raise UserError(f'{where}: is not JSON, or is cut off ('
                    f'{reason_of(error)})') from error


def _int(digits: str) -> int:
  if len(digits) > _MOST_DIGITS:
    raise ValueError(f'the number {digits[:12]}... has {len(digits):,} digits; '
                     f'{_MOST_DIGITS} are allowed')
  return int(digits)


def require_forms(fields: Mapping[str, Any], forms: Mapping[str, Any],
                  required: Collection[str] = ()) -> None:
  """Raises ValueError if a field lacks its form or a required one is empty.

  `forms` are field -> (form, what it must be). A form is a range of whole
  numbers, several types, a list [form] or an object {'': form} of such values.
  """
  for name, (form, rule) in forms.items():
    value = fields.get(name)
    if (name in {*fields, *required} and not _has_form(value, form)) or (
        name in required and value == ''):
      raise ValueError(f'its {name} must be {rule}; it is {repr(value)[:100]}')


def _has_form(value: Any, form: Any) -> bool:
  if isinstance(form, range):
    return type(value) is int and value in form
  if isinstance(form, tuple):
    return type(value) in form  # True is no whole number.
  parts = value.values() if isinstance(value, dict) else value
  return type(value) is type(form) and all(
      _has_form(part, *(form.values() if isinstance(form, dict) else form))
      for part in parts)
