"""Arrays out of .npz files that may be damaged, or made to do harm.

An .npz file is a zip archive with one .npy file an array. A header must match
what the archive holds, so that no memory is taken for an array that is not
there, and objects are refused, because reading one runs code.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from tpu_graphs_ext import files

# Of one array. The largest of the published kernels has 2 MB.
MAX_BYTES = 1 << 28
_COMPRESSIONS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # As NumPy writes.
# Of the list of members, 46 bytes and a name each; a kernel has six.
MAX_DIRECTORY = 1 << 20
_MAX_END = 22 + (1 << 16) + 20  # End record, longest comment, locator.
_END, _END_64_LOCATOR = b'PK\x05\x06', b'PK\x06\x07'


class DamagedError(Exception):
  """A file, or one array of it, cannot be read; says why."""


@contextlib.contextmanager
def opened(path: str) -> Iterator[zipfile.ZipFile]:
  """The archive of a file.

  Raises:
    DamagedError: it is not a zip archive, or the `with` block finds damage.
  """
  try:
    with files.open_ordinary(path) as file:
      require_short_directory(file)
      with zipfile.ZipFile(file) as archive:
        yield archive
  except DamagedError:
    raise
  except Exception as error:  # Whatever zipfile and its decoders stumble over.
    raise DamagedError(_text(error)) from error


def require_short_directory(file: BinaryIO) -> None:
  """Raises DamagedError if a zip archive lists far too many members.

  zipfile makes an object of each as soon as it opens an archive.
  """
  size = file.seek(0, os.SEEK_END)
  file.seek(max(0, size - _MAX_END))
  end = file.read()
  file.seek(0)
  at = end.rfind(_END)
  if at < 0 or len(end) < at + 16:
    return
  found, = struct.unpack_from('<I', end, at + 12)
  locator = end[max(0, at - 20):at]
  if locator[:4] == _END_64_LOCATOR:  # zipfile prefers what it points to.
    place, = struct.unpack_from('<Q', locator, 8)
    file.seek(min(place, size))
    record = file.read(48)
    file.seek(0)
    if len(record) == 48:
      found = max(found, struct.unpack_from('<Q', record, 40)[0])
  if found > MAX_DIRECTORY:
    raise DamagedError(f'its directory of members has {found:,} bytes; '
                       f'{MAX_DIRECTORY:,} are allowed')


def array_names(path: str) -> set[str]:
  """Names of the arrays that a file claims to have, without `.npy`.

  Raises:
    DamagedError: the file as a whole cannot be read.
  """
  with opened(path) as archive:
    return {os.path.splitext(name)[0] for name in archive.namelist()}


def read_arrays(path: str, names: Sequence[str],
                max_bytes: int = MAX_BYTES) -> tuple[
                    dict[str, np.ndarray], dict[str, str]]:
  """The arrays of these names that can be read, and faults of the others.

  Args:
    path: an .npz file.
    names: array names, without `.npy`.
    max_bytes: larger arrays are refused.

  Raises:
    DamagedError: the file as a whole cannot be read.
  """
  arrays, faults = {}, {}
  with opened(path) as archive:
    members = {info.filename: info for info in archive.infolist()}
    for name in names:
      info = members.get(name + '.npy')
      if info is None:
        there = sorted(os.path.splitext(member)[0] for member in members)
        faults[name] = ('is missing; the file has '
                        f'{", ".join(there) or "nothing"}'[:500])
        continue
      try:
        with _member(archive, info, max_bytes) as (member, header):
          dtype, order, shape = header
          content = bytearray(member.read())  # At its end zip checks a sum.
        arrays[name] = np.frombuffer(content, dtype).reshape(shape, order=order)
      except Exception as error:  # As above.
        faults[name] = (f'cannot be read ({_text(error)}); it may be damaged '
                        'or pickled')
  return arrays, faults


def shape_of(path: str, name: str) -> tuple[int, ...]:
  """The shape of an array according to its header; reads no more.

  Raises:
    DamagedError: it cannot be read.
  """
  with opened(path) as archive, archive.open(name + '.npy') as member:
    return _header(member)[2]


def blocks(path: str, name: str, rows: int,
           max_bytes: int = MAX_BYTES) -> Iterator[np.ndarray]:
  """The rows of an array in order, `rows` at a time; the last may be fewer.

  An array that is stored column by column is read as a whole.

  Raises:
    DamagedError: the array cannot be read; maybe only after some blocks.
  """
  with opened(path) as archive, _member(
      archive, archive.getinfo(name + '.npy'), max_bytes) as (member, header):
    dtype, order, shape = header
    if order == 'F' or not shape:
      whole = np.frombuffer(member.read(), dtype).reshape(shape, order=order)
      yield from (whole[row:row + rows] for row in range(0, len(whole), rows))
      return
    for row in range(0, shape[0], rows):
      part = (min(rows, shape[0] - row), *shape[1:])
      yield np.frombuffer(
          member.read(math.prod(part) * dtype.itemsize), dtype).reshape(part)
    member.read()  # To the end, where zip checks a sum.


@contextlib.contextmanager
def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo,
            max_bytes: int) -> Iterator[tuple[BinaryIO, tuple]]:
  """An open array, at its first number, and its dtype, order and shape."""
  if info.compress_type not in _COMPRESSIONS:
    raise DamagedError(f'is compressed by method {info.compress_type}; NumPy '
                       'stores or deflates')
  if info.file_size > max_bytes:
    raise DamagedError(f'has {info.file_size:,} bytes; no kernel has more than '
                       f'{max_bytes:,}')
  with archive.open(info) as member:
    dtype, _, shape = header = _header(member)
    size, there = math.prod(shape) * dtype.itemsize, (
        info.file_size - member.tell())
    if size != there:
      raise DamagedError(f'its header says {shape} of {dtype}, {size:,} bytes, '
                         f'but there are {there:,}')
    yield member, header


def _header(member: BinaryIO) -> tuple[np.dtype, str, tuple[int, ...]]:
  """dtype, order and shape of an .npy file, which is read up to its numbers."""
  version = np.lib.format.read_magic(member)
  if version != (1, 0):  # Others may have headers of gigabytes.
    raise DamagedError(f'has version {version} of the .npy format; numbers '
                       'have version (1, 0)')
  shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
  if dtype.hasobject or dtype.kind not in 'biufc':
    raise DamagedError(f'holds {dtype}, not numbers')
  if len(shape) > 32 or min(shape, default=0) < 0:
    raise DamagedError(f'has the shape {str(shape)[:100]}')
  return dtype, 'F' if is_fortran else 'C', shape


def _text(error: Exception) -> str:
  return ' '.join(str(error).split())[:200] or type(error).__name__
