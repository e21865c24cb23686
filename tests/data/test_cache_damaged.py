"""Damaged cache entries are built again, and no number changes."""

import json
import zlib

import hypothesis
import numpy as np
import pytest

from support import damage, tiny_kernels
from tpu_graphs_ext.data import cache, kernel, rules
from tpu_graphs_ext.errors import UserError


class Cached:
  """Two kernels, and the entry of their cache."""

  def __init__(self, folder):
    self.paths = [tiny_kernels.diamond().save(str(folder)),
                  tiny_kernels.one_node().save(str(folder))]
    self.sound = kernel.open_files(self.paths)
    self.folder = str(folder / 'cache')
    kernel.open_files(self.paths, self.folder)
    self.entry, = (folder / 'cache').iterdir()

  def check(self, what) -> None:
    with damage.within_limits(what):
      read = kernel.open_files(self.paths, self.folder)
    assert read.names == self.sound.names
    for stored, expected in zip(read, self.sound):
      tiny_kernels.assert_same(stored, expected)


@pytest.fixture(scope='module')
def cached(tmp_path_factory):
  return Cached(tmp_path_factory.mktemp('cached'))


def rounds(few: int, many: int):
  return pytest.mark.parametrize(
      'rounds', [few, pytest.param(many, marks=pytest.mark.survive)])


@rounds(30, 2000)
def test_damaged_entries(cached, rounds):
  names = [cache.META_FILE, *rules.TILE.arrays]
  for seed in range(rounds):
    path = cached.entry / names[seed % len(names)]
    content = path.read_bytes()
    if not content:
      continue
    path.write_bytes(damage.mutated(content, np.random.default_rng(seed)))
    cached.check((path.name, seed))


PATHS = hypothesis.strategies.lists(
    hypothesis.strategies.integers(0, 9), max_size=4)


def with_other_meta(cached, path, value) -> None:
  """The checksum is right: whoever wrote it could do harm."""
  file = cached.entry / cache.META_FILE
  meta = json.loads(json.loads(file.read_text())['meta'])
  text = json.dumps(damage.with_something_else(meta, path, value))
  if text == json.dumps(meta):
    return
  file.write_text(json.dumps(
      {'crc32': zlib.crc32(text.encode()), 'meta': text}))
  try:
    cached.check((path, value))
  finally:
    if file.exists():
      file.unlink()
    cached.check('mended')


@rounds(10, 1500)
def test_any_meta(cached, rounds):
  damage.examples(rounds)(hypothesis.given(path=PATHS, value=damage.JSON)(
      lambda path, value: with_other_meta(cached, path, value)))()


def test_an_entry_with_something_else_stays(tmp_path):
  path = tiny_kernels.diamond().save(str(tmp_path))
  folder = tmp_path / 'cache'
  kernel.open_files([path], str(folder))
  entry, = folder.iterdir()
  (entry / 'notes.txt').write_text('mine')
  assert len(kernel.open_files([path], str(folder))) == 1
  (entry / cache.META_FILE).write_text('{}')
  with pytest.raises(UserError, match=r"holds 'notes\.txt', which"):
    kernel.open_files([path], str(folder))
  assert (entry / 'notes.txt').read_text() == 'mine'
