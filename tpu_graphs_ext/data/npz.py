"""Arrays out of .npz files that may be damaged, or made to do harm.

An .npz file is a zip archive with one .npy file an array. Nothing in it is
believed before it is checked: what a header declares must be what the archive
holds, so that no memory is taken for an array that is not there, and objects
are refused, because reading one runs code.
"""

from __future__ import annotations

import ast
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
# Of the header of one array. NumPy's own limit.
_MAX_HEADER = 10_000
_COMPRESSIONS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # As NumPy writes.
# Of the list of members, 46 bytes and a name each; a kernel has six.
MAX_DIRECTORY = 1 << 20
_MAX_END = 22 + (1 << 16) + 20  # End record, longest comment, locator.
_END, _END_64_LOCATOR = b'PK\x05\x06', b'PK\x06\x07'
_ENCRYPTED = 1  # Bit of a zip member's flags.


class DamagedError(Exception):
  """A file, or one array of it, cannot be read; says why."""


@contextlib.contextmanager
def opened(path: str) -> Iterator[zipfile.ZipFile]:
  """The archive of a file.

  Raises:
    DamagedError: there is no such file, or it is no zip archive. What goes
      wrong inside of the `with` is one, too.
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
  """Raises a DamagedError where a zip archive lists far too many members.

  zipfile makes an object of each as soon as it opens an archive. Looks only at
  the archive's end; what is no archive passes.
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
  if locator[:4] == _END_64_LOCATOR:  # What it points to goes first.
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
  """Names of the arrays that a file says it has, without `.npy`.

  Raises:
    DamagedError: the file as a whole cannot be read.
  """
  with opened(path) as archive:
    return {os.path.splitext(name)[0] for name in archive.namelist()}


def read_arrays(path: str, names: Sequence[str],
                max_bytes: int | None = None) -> tuple[
                    dict[str, np.ndarray], dict[str, str]]:
  """The arrays of these names that can be read, and what is wrong with others.

  Args:
    path: an .npz file.
    names: of the arrays, without `.npy`.
    max_bytes: of one array; larger ones are refused. None: `MAX_BYTES`.

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
        arrays[name] = _array(archive, info, max_bytes or MAX_BYTES)
      except Exception as error:  # As above.
        faults[name] = (f'cannot be read ({_text(error)}); it may be damaged '
                        'or pickled')
  return arrays, faults


def shape_of(path: str, name: str) -> tuple[int, ...]:
  """The shape of an array, as its header says, without reading the array.

  Raises:
    DamagedError: it cannot be read.
  """
  with opened(path) as archive, archive.open(name + '.npy') as member:
    return _header(member)[2]


def blocks(path: str, name: str, rows: int,
           max_bytes: int | None = None) -> Iterator[np.ndarray]:
  """The rows of an array, so many at a time, in order.

  An array that is stored column by column is read as a whole.

  Args:
    path: an .npz file.
    name: of the array, without `.npy`.
    rows: of a block; the last may have fewer.
    max_bytes: as of `read_arrays`.

  Raises:
    DamagedError: the array cannot be read; maybe only after some blocks.
  """
  with opened(path) as archive:
    info = archive.getinfo(name + '.npy')
    _require_readable(info, max_bytes or MAX_BYTES)
    with archive.open(info) as member:
      dtype, order, shape, start = _header(member)
      _require_size(info, dtype, shape, start)
      if order == 'F' or not shape:
        whole = np.frombuffer(member.read(), dtype).reshape(shape, order=order)
        yield from (whole[row:row + rows] for row in range(0, len(whole), rows))
        return
      for row in range(0, shape[0], rows):
        part = (min(rows, shape[0] - row), *shape[1:])
        yield np.frombuffer(
            member.read(math.prod(part) * dtype.itemsize), dtype).reshape(part)
      member.read()  # To the end, where zip checks a sum.


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo,
           max_bytes: int) -> np.ndarray:
  _require_readable(info, max_bytes)
  with archive.open(info) as member:
    dtype, order, shape, start = _header(member)
    _require_size(info, dtype, shape, start)
    content = bytearray(member.read())  # To the end, where zip checks a sum.
  return np.frombuffer(content, dtype).reshape(shape, order=order)


def _require_readable(info: zipfile.ZipInfo, max_bytes: int) -> None:
  if info.flag_bits & _ENCRYPTED:
    raise DamagedError('is encrypted')
  if info.compress_type not in _COMPRESSIONS:
    raise DamagedError(f'is compressed by method {info.compress_type}; NumPy '
                       'stores or deflates')
  if info.file_size > max_bytes:
    raise DamagedError(f'has {info.file_size:,} bytes; no kernel has more than '
                       f'{max_bytes:,}')


def _require_size(info: zipfile.ZipInfo, dtype: np.dtype, shape: tuple,
                  start: int) -> None:
  size = math.prod(shape) * dtype.itemsize
  if size != info.file_size - start:
    raise DamagedError(
        f'its header says {shape} of {dtype}, {size:,} bytes, but there are '
        f'{info.file_size - start:,}')


def _header(member) -> tuple[np.dtype, str, tuple, int]:
  """dtype, order, shape and length of the header of an .npy file."""
  start = member.read(8)
  if start[:6] != b'\x93NUMPY' or len(start) < 8 or start[6] not in (1, 2, 3):
    raise DamagedError('is no .npy file of version 1 to 3')
  length_format = '<H' if start[6] == 1 else '<I'
  width = struct.calcsize(length_format)
  length, = struct.unpack(length_format, member.read(width))
  if length > _MAX_HEADER:
    raise DamagedError(f'has a header of {length:,} bytes; {_MAX_HEADER:,} are '
                       'allowed')
  header = ast.literal_eval(member.read(length).decode('latin1').strip())
  if not isinstance(header, dict) or set(header) != {
      'descr', 'fortran_order', 'shape'}:
    raise DamagedError('has a header that is not of the .npy format')
  if not isinstance(header['descr'], str):
    raise DamagedError('is an array of records')
  dtype, shape = np.dtype(header['descr']), header['shape']
  if dtype.hasobject or dtype.kind not in 'biufc':
    raise DamagedError(f'holds {dtype}, not numbers')
  if not isinstance(shape, tuple) or len(shape) > 32 or not all(
      isinstance(size, int) and size >= 0 for size in shape):
    raise DamagedError(f'has the shape {str(shape)[:100]}')
  return dtype, 'F' if header['fortran_order'] else 'C', shape, (
      8 + width + length)


def _text(error: Exception) -> str:
  """What an exception says, on one short line."""
  text = ' '.join(str(error).split())[:200]
  return text or type(error).__name__
