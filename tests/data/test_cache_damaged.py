"""Damaged cache entries are built again, and no number changes."""

import json
import zlib

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


@pytest.mark.parametrize('rounds', [
    30, pytest.param(2000, marks=pytest.mark.survive)])
def test_damaged_entries(cached, rounds):
  names = [cache.META_FILE, *rules.TILE.arrays]
  for seed in range(rounds):
    path = cached.entry / names[seed % len(names)]
    content = path.read_bytes()
    if not content:
      continue
    path.write_bytes(damage.mutated(content, np.random.default_rng(seed)))
    cached.check((path.name, seed))


@pytest.mark.parametrize('every', [
    61, pytest.param(1, marks=pytest.mark.survive)])
def test_any_meta(cached, every):
  """The checksum is right: whoever wrote it could do harm."""
  file = cached.entry / cache.META_FILE
  meta = json.loads(json.loads(file.read_text())['meta'])
  for what, changed in [*damage.hostile(meta)][::every]:
    text = json.dumps(changed)
    file.write_text(json.dumps(
        {'crc32': zlib.crc32(text.encode()), 'meta': text}))
    cached.check(what)


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
