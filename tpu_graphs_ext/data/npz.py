"""Arrays out of .npz files that may be damaged, or made to do harm.

A header must match what the archive holds, so that no memory is taken for an
array that is not there; objects are refused, because reading one runs code.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import re
import threading
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError, reason_of

# Of all arrays of a file. The largest of the published kernels has 2 MB.
MAX_BYTES = 1 << 28
_READ_BYTES = 1 << 20  # At once; else zipfile holds an array twice.
COMPRESSIONS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # As NumPy writes.
# Of the list of members, 46 bytes and a name each; a kernel has six.
MAX_DIRECTORY = 1 << 20
# Before Python 3.11.8 two threads that parse headers may both fail (CPython's
# issue 106905).
_PARSING = threading.Lock()


class DamagedError(Exception):
  """A file, or one array of it, cannot be read; says why."""


@contextlib.contextmanager
def opened(path: str) -> Iterator[zipfile.ZipFile]:
  """The archive of a file; DamagedError if it or its use shows damage."""
  try:
    if re.search('[\ud800-\udfff]', os.path.basename(path)):
      raise DamagedError('its name is not UTF-8; rename it')
    with files.open_ordinary(path) as file:
      # zipfile makes an object of each member when it opens an archive.
      end = zipfile._EndRecData(file)
      if end and (size := end[zipfile._ECD_SIZE]) > MAX_DIRECTORY:
        raise DamagedError(f'its directory of members has {size:,} bytes; '
                           f'{MAX_DIRECTORY:,} are allowed')
      with zipfile.ZipFile(file) as archive:
        yield archive
  except (DamagedError, UserError):
    raise
  except Exception as error:  # Whatever zipfile and its decoders stumble over.
    reason = getattr(error, 'strerror', None) or reason_of(error)
    raise DamagedError(reason) from error


def array_names(path: str) -> list[str]:
  """Sorted names of the arrays in a file, or a DamagedError."""
  with opened(path) as archive:
    return sorted(os.path.splitext(name)[0] for name in archive.namelist())


def read_arrays(path: str, names: Sequence[str],
                max_bytes: int = MAX_BYTES) -> tuple[
                    dict[str, np.ndarray], dict[str, str]]:
  """The arrays of these names that can be read, and faults of the others.

  Raises DamagedError if the file as a whole cannot be read, or its arrays have
  more than `max_bytes` together.
  """
  arrays, faults = {}, {}
  with opened(path) as archive:
    there = set(archive.namelist())
    total = sum(info.file_size for info in archive.infolist())
    if total > max_bytes:
      raise DamagedError(f'its arrays have {total:,} bytes; {max_bytes:,} are '
                         'allowed')
    for name in names:
      if name + '.npy' not in there:
        faults[name] = (
            f"is missing; the file has {', '.join(sorted(there))}"[:500])
        continue
      try:
        with _member(archive, name) as (member, (dtype, order, shape)):
          content = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
          start = 0
          while start < len(content) and (block := member.read(_READ_BYTES)):
            content[start:start + len(block)] = memoryview(block)
            start += len(block)  # With the last zip checks a sum.
        arrays[name] = content.view(dtype).reshape(shape, order=order)
      except Exception as error:  # As above.
        faults[name] = (f'cannot be read ({reason_of(error)}); it may be '
                        'damaged or pickled')
  return arrays, faults


def shape_of(path: str, name: str) -> tuple[int, ...]:
  """The shape of an array by its header, or a DamagedError."""
  with opened(path) as archive, _member(archive, name) as (_, header):
    return header[2]


def blocks(path: str, name: str, rows: int) -> Iterator[np.ndarray]:
  """The rows of an array in order, `rows` at a time; the last may be fewer.

  Raises DamagedError if it cannot be read, maybe only after some blocks.
  """
  with opened(path) as archive, _member(
      archive, name) as (member, (dtype, order, shape)):
    if order == 'F':
      raise DamagedError('is stored column by column; save it row by row')
    for row in range(0, shape[0], rows):
      part = (min(rows, shape[0] - row), *shape[1:])
      yield np.frombuffer(
          member.read(math.prod(part) * dtype.itemsize), dtype).reshape(part)
    member.read()  # To the end, where zip checks a sum.


@contextlib.contextmanager
def _member(archive: zipfile.ZipFile, name: str) -> Iterator[
    tuple[BinaryIO, tuple[np.dtype, str, tuple[int, ...]]]]:
  """An open array, at its first number, and its dtype, order and shape."""
  info = archive.getinfo(name + '.npy')
  if info.compress_type not in COMPRESSIONS:
    raise DamagedError(f'is compressed by method {info.compress_type}; NumPy '
                       'stores or deflates')
  with archive.open(info) as member:
    start = member.read(10)  # It ends with the number of bytes that follow.
    dtype, _, shape = header = _parsed(
        start + member.read(int.from_bytes(start[8:], 'little')))
    size = math.prod(shape) * dtype.itemsize
    there = info.file_size - member.tell()
    if size != there:
      raise DamagedError(f'its header says {shape} of {dtype}, {size:,} bytes, '
                         f'but there are {there:,}')
    yield member, header


@functools.lru_cache(maxsize=256)  # A quarter of the time of reading a kernel.
def _parsed(header: bytes) -> tuple[np.dtype, str, tuple[int, ...]]:
  """dtype, order and shape of an .npy file, by the bytes before its numbers."""
  member = io.BytesIO(header)
  version = np.lib.format.read_magic(member)
  if version != (1, 0):  # Others may have headers of gigabytes.
    raise DamagedError(f'has version {version} of the .npy format; numbers '
                       'have version (1, 0)')
  with _PARSING:
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
  if dtype.hasobject or dtype.kind not in 'biufc':
    raise DamagedError(f'holds {dtype}, not numbers')
  if len(shape) > 32 or min(shape, default=0) < 0:
    raise DamagedError(f'has the shape {str(shape)[:100]}')
  return dtype, 'F' if is_fortran else 'C', shape
