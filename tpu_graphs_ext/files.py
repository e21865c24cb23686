"""Files and folders written as a whole or not at all; JSON and CSV with care.

A file gets a temporary name in the same folder, goes to the disk, and then
takes its own name. What a killed process left half-written is removed a day
later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from tpu_graphs_ext.errors import UserError

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
  if not path.strip():
    raise UserError(f'{flag} is empty; name a file or folder (is the variable '
                    'that should hold it set?)')
  return os.path.expanduser(path)


def path_flag(flag: str) -> Callable[[str], str]:
  """A function that checks a path of the command line, and returns it."""
  return lambda path: require_path(flag, path) and path


def full_path(path: str) -> str:
  """The absolute path of '~/a' or 'a'."""
  return os.path.abspath(os.path.expanduser(path))


def open_ordinary(path: str) -> BinaryIO:
  """Opens a file for reading.

  Raises:
    OSError: it cannot be opened, or is not an ordinary file: a named pipe
      would block, and a device never end.
  """
  # Without O_NONBLOCK opening a pipe waits for a writer.
  handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  if stat.S_ISREG(os.fstat(handle).st_mode):
    return os.fdopen(handle, 'rb')
  os.close(handle)
  raise OSError('is not an ordinary file')


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


def require_replaceable(path: str) -> None:
  """Raises UserError if writing would replace anything but a file."""
  if os.path.islink(path) or os.path.exists(path) != os.path.isfile(path):
    raise UserError(f'{path}: is a link, a folder, a device or a pipe, which '
                    'would be replaced; name a file')


def cannot_be_read(path: str, error: OSError) -> UserError:
  return UserError(f'{path}: cannot be read ({error.strerror or error})')


def cannot_be_written(path: str, error: OSError) -> UserError:
  return UserError(f'{path}: cannot be written ({error}); free some space, or '
                   'choose another place')


# -------------------------------------------------------------------- writing


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
  """Writes a file that appears under its name only when complete.

  Raises UserError if the file cannot be written.
  """
  with new_file(path) as file:
    file.write(content)


@contextlib.contextmanager
def new_folder(path: str, replace: bool = True) -> Iterator[str]:
  """A folder to fill, which then replaces a folder of its name, if any.

  Without `replace` the old folder stays and the new one is dropped.

  Raises OSError if it cannot be written.
  """
  temporary = _temporary_name(path)
  os.mkdir(temporary)
  try:
    yield temporary
    for parent, _, names in os.walk(temporary):
      for name in names:
        with open(os.path.join(parent, name), 'rb') as file:
          os.fsync(file.fileno())
    if replace:
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
  """Folders cannot replace one another: the old one steps aside first."""
  aside = path + '.' + secrets.token_hex(4) + _ASIDE
  try:
    with contextlib.suppress(FileNotFoundError):
      os.rename(path, aside)
    os.rename(new, path)
  finally:  # Also if a signal interrupted.
    if os.path.exists(aside) and not os.path.exists(path):
      os.rename(aside, path)
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def held_folder(path: str) -> Iterator[None]:
  """Keeps a folder, or a file, for one process at a time.

  Raises BlockingIOError if another one has it.
  """
  handle = os.open(path, os.O_RDONLY)
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
  if folder in _tidied:
    return
  _tidied.add(folder)
  with contextlib.suppress(OSError):
    for match in filter(None, map(_LEFTOVER.fullmatch, os.listdir(folder))):
      with contextlib.suppress(OSError):
        _remove_leftover(os.path.join(folder, match[0]),
                         os.path.join(folder, match['final']),
                         bool(match['aside']))


def _remove_leftover(left: str, final: str, is_aside: bool) -> None:
  if is_aside and not os.path.exists(final):
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
    with open(path, 'rb') as file:
      found = file.read(len(start))
  except FileNotFoundError:
    return
  except OSError as error:
    raise cannot_be_read(path, error) from error
  if found and found != start:
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


def sums(folder: str) -> dict[str, str]:
  """Path in the folder, with '/' -> checksum of the file, sorted by path.

  A command that may replace a folder keeps these checksums of all that it
  wrote there. A file with another checksum was not written by it, and stops
  the command. An empty folder has the checksum 'empty'; links, pipes and the
  like have '', which is never known. A missing folder has no files.
  """
  found = {}
  for path in pathlib.Path(folder).rglob('*'):
    if path.is_dir() and not path.is_symlink():
      content = 'empty' if not any(path.iterdir()) else None
    elif path.is_file() and not path.is_symlink():
      content = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    else:
      content = ''
    if content is not None:
      found[path.relative_to(folder).as_posix()] = content
  return dict(sorted(found.items()))


def foreign(folder: str, known: Mapping[str, str]) -> list[str]:
  """The paths of `sums` whose checksum is not the known one."""
  return [path for path, content in sums(folder).items()
          if not content or content != known.get(path)]


# --------------------------------------------------------------- CSV and JSON


def csv_of(frame: Any) -> str:
  """A pandas frame as CSV whose texts no spreadsheet runs as formulas.

  Texts that begin like a formula get an apostrophe in front, which
  spreadsheets take for "this is text". Numbers stay as they are.
  """
  def safe(cell: Any) -> Any:
    return ("'" + cell if isinstance(cell, str)
            and cell.startswith(_FORMULA_STARTS) else cell)

  return frame.apply(
      lambda column: column if column.dtype.kind in 'iufb'
      else column.map(safe)).to_csv(index=False, lineterminator='\n')


def read_json(path: str) -> Any:
  """`parse_json` of an ordinary file; UserError if it cannot be read."""
  try:
    with open_ordinary(path) as file:
      content = file.read()
  except OSError as error:
    raise cannot_be_read(path, error) from error
  return parse_json(content, path)


def parse_json(text: str | bytes, where: str,
               most_bytes: int = MOST_JSON_BYTES) -> Any:
  """Reads JSON from an untrusted source.

  As objects, a list or object takes 64 to 232 bytes, another value 40 with its
  place: a file of `{},` takes 24 times its size.

  Raises:
    UserError: it is not JSON, would take more than `most_bytes`, or holds an
      integer beyond float64 or half a surrogate pair.
  """
  content = text if isinstance(text, bytes) else text.encode(
      errors='surrogatepass')
  needed = len(content) + sum(size * content.count(sign) for sign, size in (
      (b'{', 240), (b'[', 64), (b',', 40)))
  if needed > most_bytes:
    raise UserError(
        f'{where}: holds so many values that reading it would take about '
        f'{needed / 2**30:.1f} GiB of memory; {most_bytes / 2**30:g} GiB are '
        'allowed')
  try:
    found = json.loads(text, parse_int=_int)
    if _SURROGATE.search(content):  # Half a pair cannot be encoded.
      json.dumps(found, ensure_ascii=False).encode()
    return found
  except (ValueError, RecursionError) as error:
    reason = ' '.join(str(error).split())[:200]
    raise UserError(
        f'{where}: is not JSON, or is cut off ({reason})') from error


def _int(digits: str) -> int:
  if len(digits) > _MOST_DIGITS:
    raise ValueError(f'the number {digits[:12]}... has {len(digits):,} digits; '
                     f'{_MOST_DIGITS} are allowed')
  return int(digits)
