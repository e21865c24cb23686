"""Damaged and hostile .npz files: one clear error each, and no number wrong."""

import concurrent.futures
import os
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from support import damage, tiny_kernels
from tpu_graphs_ext.data import check, npz
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.errors import UserError


@pytest.fixture
def path(tmp_path) -> str:
  """A sound file."""
  return tiny_kernels.lawful(tiny_kernels.diamond()).save(str(tmp_path))


def with_array(path: str, name: str, npy: bytes,
               method: int = zipfile.ZIP_STORED) -> str:
  """Puts other bytes in place of one array."""
  with zipfile.ZipFile(path) as archive:
    members = {member: archive.read(member) for member in archive.namelist()}
  members[name + '.npy'] = npy
  with zipfile.ZipFile(path, 'w', method) as archive:
    for member, content in members.items():
      archive.writestr(member, content)
  return path


def npy(header: str, content: bytes = b'') -> bytes:
  text = header.encode()
  return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text + content


def test_fortran_order_is_read_and_another_version_refused(tmp_path):
  array = np.asarray(np.arange(6).reshape(2, 3), order='F')
  with zipfile.ZipFile(tmp_path / 'x.npz', 'w') as archive:
    for version in (1, 2):
      with archive.open(f'{version}.npy', 'w') as member:
        np.lib.format.write_array(member, array, version=(version, 0))
  arrays, faults = npz.read_arrays(str(tmp_path / 'x.npz'), ['1', '2'])
  np.testing.assert_array_equal(arrays['1'], array)
  assert 'has version (2, 0) of the .npy format' in faults['2']


HEADERS = [
    (b'\x93NUMPY\x07\x00' + bytes(20), 'has version .7, 0. of the .npy'),
    (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", b'1234'),
     r'says \(2, 3\) of float32, 24 bytes, but there are 4'),
    # As much memory as nobody has, and more than fits a number.
    (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}"),
     '8,000,000,000,000 bytes, but there are 0'),
    (npy("{'descr': '<f8', 'fortran_order': False, 'shape': "
         f'({2 ** 62}, {2 ** 62}, 0, 1)}}', b'x'), '0 bytes, but there are 1'),
    (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), 'shape'),
    (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
     'object, not numbers'),
    (npy('(' * 5000), 'cannot be read'),
    (npy('__import__("os")'), 'cannot be read'),
]


def test_a_header_that_is_not_believed(path):
  for content, message in HEADERS:
    with_array(path, 'config_feat', content)
    with pytest.raises(UserError, match=rf'diamond_0\.npz: .*{message}'):
      Kernel.load(path)
    fault, = check.check_file(path)[0]
    assert fault.field == 'config_feat'


def test_threads_parse_headers_in_turn(monkeypatch):
  """Else Python 3.11.7 and before may call a sound file damaged."""
  parse, inside = np.lib.format.read_array_header_1_0, []

  def parse_slowly(member):
    inside.append(member)
    time.sleep(0.05)
    assert inside == [member]
    return parse(inside.pop())

  monkeypatch.setattr(np.lib.format, 'read_array_header_1_0', parse_slowly)
  headers = [npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({n},)}}")
             for n in (77_771, 77_772)]  # Not parsed before.
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    shapes = [shape for _, _, shape in pool.map(npz._parsed, headers)]
  assert shapes == [(77_771,), (77_772,)]


def test_other_compressions_and_large_arrays_are_not_unpacked(path):
  with_array(path, 'config_feat', bytes(10), zipfile.ZIP_LZMA)
  with pytest.raises(UserError, match='compressed by method 14'):
    Kernel.load(path)
  with_array(path, 'config_feat', bytes(10_001), zipfile.ZIP_DEFLATED)
  assert os.path.getsize(path) < 10_000
  with pytest.raises(npz.DamagedError, match='bytes; 10,000 are allowed'):
    npz.read_arrays(path, ['config_feat'], 10_000)


def test_no_array_is_held_twice(tmp_path):
  array = np.zeros((1 << 21, 2), np.float32)
  np.savez_compressed(tmp_path / 'x.npz', a=array, b=array)
  tracemalloc.start()
  try:
    npz.read_arrays(str(tmp_path / 'x.npz'), ['a', 'b'])
    assert tracemalloc.get_traced_memory()[1] < 2 * array.nbytes + (8 << 20)
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize(
    'rounds', [300, pytest.param(8000, marks=pytest.mark.survive)])
def test_damaged_files(tmp_path, path, rounds):
  """No damage gives a traceback, a hang or another number."""
  kernel, fuzzed = Kernel.load(path), tmp_path / 'fuzzed.npz'
  with open(path, 'rb') as file:
    content = file.read()
  for seed in range(rounds):
    fuzzed.write_bytes(damage.mutated(content, np.random.default_rng(seed)))
    with damage.within_limits(seed):
      faults = check.check_file(str(fuzzed))[0]
      try:
        loaded = Kernel.load(str(fuzzed))
      except UserError:
        assert faults, seed
        continue
    for name in STORED_NAMES:
      np.testing.assert_array_equal(
          getattr(loaded, name), getattr(kernel, name), err_msg=str(seed))


def test_a_directory_of_very_many_members_is_not_read(tmp_path, monkeypatch):
  path = tmp_path / 'many.npz'
  with zipfile.ZipFile(path, 'w') as archive:
    for number in range(100):  # 46 bytes and a name of 5 each.
      archive.writestr(f'{number:05}', b'')
  monkeypatch.setattr(zipfile, 'ZipFile', None)
  with pytest.raises(npz.DamagedError, match='5,100 bytes; 1,000 are'):
    monkeypatch.setattr(npz, 'MAX_DIRECTORY', 1000)
    npz.array_names(str(path))
