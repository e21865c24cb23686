"""What is ranked at a time, and the file with its rows.

A part is named by the sum of all that its rows follow from: the files of its
shard and when they changed, the model, the settings. So what is there under
the name is right, whoever wrote it, and no other part is ever taken for it.

A part is JSON lines, a row a kernel, and a last line with what is in it and a
checksum.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Optional

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import places
from tpu_graphs_ext.sweep.places import Found

_ENDING = '.rows'
# Of a shard. Those of one are lost where a worker dies.
SHARD_FILES = 64
# Of one part; of more the rows are counted.
MOST_MESSAGES = 20


@dataclasses.dataclass(frozen=True)
class Shard:
  """Files that one worker ranks at a time.

  Attributes:
    key: names it, see `shards`.
    files: in order.
  """
  key: str
  files: tuple[Found, ...]

  @property
  def part(self) -> str:
    """The name of its part."""
    return self.key + _ENDING


def shards(files: list[Found], size: int, basis: str) -> Iterator[Shard]:
  """Cuts a list of files into shards, the same ones for the same list.

  Args:
    files: in order.
    size: files of a shard; the last has fewer.
    basis: the sum of what else their rows follow from.
  """
  for start in range(0, len(files), size):
    chosen = tuple(files[start:start + size])
    yield Shard(sum_of([basis, [dataclasses.astuple(file)
                                for file in chosen]]), chosen)


def sum_of(content: Any) -> str:
  """Of anything that JSON can hold."""
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:32]


def sum_of_files(path: str) -> str:
  """Of the content and the names of all files of a folder, or of one file."""
  found = [path] if os.path.isfile(path) else [
      os.path.join(parent, name) for parent, _, names in os.walk(path)
      for name in names]
  content = []
  for file in sorted(found):
    with open(file, 'rb') as opened:
      content.append([os.path.relpath(file, path),
                      hashlib.sha256(opened.read()).hexdigest()])
  return sum_of(content)


# ---------------------------------------------------------------- content


@dataclasses.dataclass
class Contents:
  """What the rows of a part, or of several, are about.

  Attributes:
    rows: lines.
    kernels: those of them that have a ranking.
    errors: those of them that have an error.
    configs: configurations that were scored.
    seconds: of processor time that ranking took, without loading the model.
    strange: kernels with features that the model was not trained on.
    columns: name of such a feature -> kernels that have it.
    messages: the first errors.
  """
  rows: int = 0
  kernels: int = 0
  errors: int = 0
  configs: int = 0
  seconds: float = 0.0
  strange: int = 0
  columns: dict[str, int] = dataclasses.field(default_factory=dict)
  messages: list[str] = dataclasses.field(default_factory=list)

  def add(self, other: Contents) -> None:
    for name in ('rows', 'kernels', 'errors', 'configs', 'seconds', 'strange'):
      setattr(self, name, getattr(self, name) + getattr(other, name))
    self.columns = dict(collections.Counter(self.columns)
                        + collections.Counter(other.columns))
    self.messages = (self.messages + other.messages)[:MOST_MESSAGES]

  def add_row(self, row: dict[str, Any], configs: int) -> None:
    """One more row; `configs` of it were scored."""
    columns = row['unfamiliar'] or []
    self.add(Contents(
        1, int(row['tile_id'] is not None and row['error'] is None),
        int(row['error'] is not None), configs, strange=int(bool(columns)),
        columns=dict.fromkeys(columns, 1),
        messages=[row['error']] if row['error'] else []))


class Writer:
  """Writes the rows of a part.

  Attributes:
    contents: of what was written.
  """

  def __init__(self, file: BinaryIO):
    self._file = file
    self._crc32 = 0
    self.contents = Contents()

  def add(self, row: dict[str, Any], configs: int) -> None:
    """Writes a row; `configs` is how many were scored for it."""
    line = line_of(row)
    self._crc32 = zlib.crc32(line, self._crc32)
    self._file.write(line)
    self.contents.add_row(row, configs)

  def end(self) -> None:
    """Writes the last line."""
    told = dataclasses.asdict(self.contents)
    self._file.write(line_of({
        'crc32': zlib.crc32(line_of(told), self._crc32), **told}))


def line_of(row: dict[str, Any]) -> bytes:
  """A row as a line of JSON.

  Raises:
    ValueError: it has a number that JSON cannot hold.
  """
  return json.dumps(row, allow_nan=False, ensure_ascii=False,
                    separators=(',', ':')).encode() + b'\n'


@contextlib.contextmanager
def new_part(folder: str, shard: Shard) -> Iterator[Writer]:
  """The part of a shard, which is there when all rows are.

  Raises:
    UserError: it cannot be written.
  """
  with places.new_file(places.join(folder, shard.part)) as file:
    writer = Writer(file)
    yield writer
    writer.end()


def contents_of(folder: str, shard: Shard) -> Optional[Contents]:
  """What the part of a shard holds; None where it is damaged or gone."""
  crc32, last = 0, b''
  try:
    with places.reading(places.join(folder, shard.part)) as file:
      for line in file:
        crc32, last = zlib.crc32(last, crc32), line
    told = json.loads(last)
    if told.pop('crc32') != zlib.crc32(line_of(told), crc32):
      return None
    return Contents(**told)
  except (UserError, OSError, ValueError, TypeError, KeyError,
          AttributeError):
    return None


def rows_of(folder: str, shard: Shard) -> list[bytes]:
  """The lines of a part's rows.

  Raises:
    UserError: it cannot be read.
  """
  with places.reading(places.join(folder, shard.part)) as file:
    return file.readlines()[:-1]


def parts_among(names: Iterable[str]) -> list[str]:
  """Those names that are of parts, or of parts that were being written."""
  return sorted(name for name in names if _ENDING in name
                and len(name.partition(_ENDING)[0]) == 32)
