"""Files and folders written as a whole or not at all; JSON and CSV with care.

A file gets a temporary name in the same folder, goes to the disk, and then
takes its own name. What a killed process left half-written is removed a day
later.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from tpu_graphs_ext.errors import UserError

try:
  import fcntl
except ImportError:  # Not on Windows: there `held_folder` does not lock.
  fcntl = None

# Of JSON once it is parsed, as `require_parsable` estimates it.
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
_BLOCK_BYTES = 1 << 20
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
  def check(path: str) -> str:
    require_path(flag, path)
    return path

  return check


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
  handle = os.open(path, os.O_RDONLY | getattr(os, 'O_NONBLOCK', 0)
                   | getattr(os, 'O_BINARY', 0))
  try:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
      raise OSError('is not an ordinary file')
    return os.fdopen(handle, 'rb')
  except BaseException:
    os.close(handle)
    raise


def require_replaceable(path: str) -> None:
  """Raises UserError if writing would replace a link, a pipe or a device."""
  try:
    mode = os.lstat(path).st_mode
  except OSError:  # Missing, or writing will say what is wrong.
    return
  if stat.S_ISLNK(mode):
    raise UserError(f'{path}: is a link, which would be replaced; name the '
                    f'file itself ({os.path.realpath(path)})')
  if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
    raise UserError(f'{path}: is a device or a pipe, which would be replaced; '
                    'name a file')


def cannot_be_read(path: str, error: OSError) -> UserError:
  return UserError(f'{path}: cannot be read ({error.strerror or error})')


def cannot_be_written(path: str, error: OSError) -> UserError:
  advice = ('; free some space, or choose another place'
            if error.errno in (errno.ENOSPC, errno.EDQUOT) else '')
  return UserError(f'{path}: cannot be written ({error}){advice}')


# -------------------------------------------------------------------- writing


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
  """A file to fill, which then replaces an ordinary file of its name.

  Raises:
    UserError: it cannot be written, or a link, pipe or device has the name.
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

  Raises:
    UserError: the file cannot be written.
  """
  with new_file(path) as file:
    file.write(content)


@contextlib.contextmanager
def new_folder(path: str, replace: bool = True) -> Iterator[str]:
  """A folder to fill, which then replaces a folder of its name, if any.

  Without `replace` the old folder stays and the new one is dropped.

  Raises:
    OSError: it cannot be written.
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
      except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
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


def remove_folder(path: str) -> None:
  """Removes a folder; other processes see it whole or not at all."""
  away = f'{os.path.abspath(path)}.{secrets.token_hex(4)}{TEMPORARY}'
  with contextlib.suppress(OSError):
    os.rename(path, away)
  shutil.rmtree(away, ignore_errors=True)


@contextlib.contextmanager
def held_folder(path: str) -> Iterator[None]:
  """Keeps a folder, or a file, for one process at a time.

  Raises:
    BlockingIOError: another one has it.
  """
  if fcntl is None:
    yield
    return
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
    for name in os.listdir(folder):
      if match := _LEFTOVER.fullmatch(name):
        with contextlib.suppress(OSError):
          _remove_leftover(os.path.join(folder, name),
                           os.path.join(folder, match['final']),
                           bool(match['aside']))


def _remove_leftover(left: str, final: str, is_aside: bool) -> None:
  if is_aside and not os.path.exists(final):
    os.rename(left, final)
  elif time.time() - os.lstat(left).st_mtime < _LEFTOVER_SECONDS:
    return
  elif os.path.isdir(left) and not os.path.islink(left):
    shutil.rmtree(left, ignore_errors=True)
  else:
    os.remove(left)


def _temporary_name(path: str) -> str:
  """A name in the same folder, which is made and tidied."""
  path = os.path.abspath(path)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  remove_leftovers(os.path.dirname(path))
  return f'{path}.{secrets.token_hex(4)}{TEMPORARY}'


# ------------------------------------------------------------------ ownership


def sums(folder: str) -> dict[str, str]:
  """Path in the folder, with '/' -> checksum of the file, sorted by path.

  A command that may replace a folder keeps these checksums of all that it
  wrote there. A file with another checksum was not written by it, and stops
  the command. An empty folder has the checksum 'empty'; links, pipes and the
  like have '', which is never known. A missing folder has no files.
  """
  found = {}
  for parent, folders, names in os.walk(folder):
    folders.sort()
    links = [name for name in folders
             if os.path.islink(os.path.join(parent, name))]
    for path in [os.path.join(parent, name) for name in [*names, *links]]:
      found[path] = _sum(path)
    if not folders and not names and parent != folder:
      found[parent] = 'empty'
  return {os.path.relpath(path, folder).replace(os.sep, '/'): content
          for path, content in sorted(found.items())}


def foreign(folder: str, *known: Mapping[str, str]) -> list[str]:
  """The paths of `sums` whose checksum is not a known one."""
  return [path for path, content in sums(folder).items()
          if not content
          or content not in [sums_of.get(path) for sums_of in known]]


def _sum(path: str) -> str:
  """The checksum of an ordinary file; '' for anything else."""
  if os.path.islink(path) or not os.path.isfile(path):
    return ''
  digest = hashlib.sha256()
  with open(path, 'rb') as file:
    while block := file.read(_BLOCK_BYTES):
      digest.update(block)
  return digest.hexdigest()[:32]


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

  Raises:
    UserError: `require_parsable` or `checked_json` refuses it.
  """
  require_parsable(text, where, most_bytes)
  try:
    return checked_json(text)
  except (ValueError, RecursionError) as error:
    reason = ' '.join(str(error).split())[:200]
    raise UserError(f'{where}: is not JSON ({reason})') from error


def require_parsable(text: str | bytes, where: str, most_bytes: int) -> None:
  """Raises UserError if JSON would take too much memory as objects.

  A list or object takes 64 to 232 bytes, another value 40 with its place; a
  file of `{},` takes 24 times its size.
  """
  needed = len(text) + sum(size * text.count(
      sign if isinstance(text, str) else sign.encode())
                           for sign, size in (('{', 240), ('[', 64), (',', 40)))
  if needed > most_bytes:
    raise UserError(
        f'{where}: holds so many values that reading it would take about '
        f'{needed / 2**30:.1f} GiB of memory; {most_bytes / 2**30:g} GiB are '
        'allowed')


def checked_json(text: str | bytes) -> Any:
  """json.loads without integers beyond float64 and without half letters.

  Raises ValueError or RecursionError where it is not such JSON.
  """
  found = json.loads(text, parse_int=_int)
  escapes = text if isinstance(text, bytes) else text.encode(
      errors='surrogatepass')
  if _SURROGATE.search(escapes):
    try:
      json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
      raise ValueError('a text holds half a surrogate pair, such as '
                       '"\\ud800", which is not a letter') from error
  return found


def _int(digits: str) -> int:
  if len(digits) > _MOST_DIGITS:
    raise ValueError(f'the number {digits[:12]}... has {len(digits):,} digits; '
                     f'{_MOST_DIGITS} are allowed')
  return int(digits)
