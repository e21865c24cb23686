"""Damaged and hostile .pb files: one clear error each, soon."""

import os

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from support import damage, tiny_tuning
from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, protos, tuning

OWN = [tiny_tuning.tile_data().SerializeToString(),
       tiny_tuning.layout_data().SerializeToString()]


def read(path, content: bytes) -> bool:
  """Reads a file in every way; whether it could be featurized."""
  path.write_bytes(content)
  out = path.with_suffix('')
  with damage.within_limits(content[:100]):
    try:
      for kernel in tuning.read_tile_kernels(str(path)):
        assert np.isfinite(kernel.node_feat).all()
        assert (kernel.runtime_ns > 0).all()
        assert (kernel.normalizer_ns > 0).all()
    except UserError as error:
      assert path.name in str(error)
    try:
      for written in tiny_tuning.featurized(str(path), str(out)):
        os.remove(written)
    except UserError:
      return False
  return True


def fuzz(tmp_path, contents: list[bytes], rounds: int) -> None:
  for seed in range(rounds):
    read(tmp_path / 'x.pb', damage.mutated(
        contents[seed % len(contents)], np.random.default_rng(seed)))


def test_damaged_files_and_files_cut_off(tmp_path):
  assert all(read(tmp_path / 'x.pb', content) for content in OWN)
  fuzz(tmp_path, OWN, 100)
  for content in OWN:
    for end in range(0, len(content), 5):
      read(tmp_path / 'x.pb', content[:end])


@pytest.mark.survive
def test_many_damaged_files(tmp_path, shared_data):
  fuzz(tmp_path, OWN, 2000)
  data = protos.TuningData.FromString(
      (shared_data / 'op_tuning_data.pb').read_bytes())
  fuzz(tmp_path, sorted((
      protos.TuningData(modules=[module]).SerializeToString()
      for module in data.modules), key=len), 2500)


NUMBERS = strategies.integers(-2 ** 63, 2 ** 63 - 1) | strategies.integers(
    -2, 12)


@strategies.composite
def modules(draw):
  """An HLO module with lists of all lengths, and references to anything."""
  module = protos.HloModuleProto(name='m', entry_computation_id=draw(NUMBERS))
  for _ in range(draw(strategies.integers(0, 3))):
    computation = module.computations.add(
        id=draw(NUMBERS), root_id=draw(NUMBERS))
    for _ in range(draw(strategies.integers(0, 4))):
      node = computation.instructions.add(
          id=draw(NUMBERS), parameter_number=draw(NUMBERS),
          opcode=draw(strategies.sampled_from(
              ['parameter', 'fusion', 'convolution', 'reduce', 'tuple', 'no'])))
      for numbers in (node.operand_ids, node.called_computation_ids,
                      node.dimensions, node.shape.dimensions,
                      node.shape.layout.minor_to_major,
                      node.dynamic_slice_sizes):
        numbers.extend(draw(strategies.lists(NUMBERS, max_size=9)))
      for _ in range(draw(strategies.integers(0, 3))):
        node.window.dimensions.add(size=draw(NUMBERS), stride=draw(NUMBERS))
        node.slice_dimensions.add(start=draw(NUMBERS), limit=draw(NUMBERS))
  return module


def featurized(module) -> None:
  with damage.within_limits(module):
    try:
      features.module_arrays(module)
    except UserError:
      pass


@damage.examples(25)
@hypothesis.given(modules())
def test_any_module(module):
  featurized(module)


@pytest.mark.survive
@damage.examples(2500)
@hypothesis.given(modules())
def test_many_modules(module):
  featurized(module)


def test_hundreds_of_thousands_of_dimensions():
  for field in ('shape.dimensions', 'dimensions', 'window.dimensions'):
    data = tiny_tuning.tile_data()
    place = data.modules[0].module.computations[0].instructions[1]
    for name in field.split('.'):
      place = getattr(place, name)
    if field == 'window.dimensions':
      place.MergeFrom([type(place.add())()] * 200_000)
    else:
      place.extend([2] * 200_000)
    with damage.within_limits(field), pytest.raises(
        UserError, match=r"HLO module 'tanh': instruction 'tanh.11' has "
        r'200,00\d dimensions; at most 128'):
      tuning.tile_kernels(data)


def test_limits(tmp_path, monkeypatch):
  path = tmp_path / 'x.pb'
  path.write_bytes(bytes(101))
  layouts = protos.TuningData(modules=[tiny_tuning.layout_data()])
  monkeypatch.setattr(tuning, '_MAX_LAYOUT_VALUES', 35)
  with pytest.raises(UserError, match='layouts of 2 runs of 1 nodes do not'):
    tuning.layout_graphs(layouts)
  monkeypatch.setattr(protos, 'MAX_INSTRUCTIONS', 1)
  with pytest.raises(UserError, match='has 2 instructions; at most 1 are read'):
    tuning.tile_kernels(tiny_tuning.tile_data())
  os.truncate(path, files.MOST_BYTES + 1)
  with pytest.raises(UserError, match='has more than 268,435,456 bytes'):
    tuning.read_tile_kernels(str(path))
  path.unlink()
  os.mkfifo(path)
  with pytest.raises(UserError, match='is not an ordinary file'):
    tuning.read_tile_kernels(str(path))


def test_thousands_of_modules_and_of_nested_messages(tmp_path):
  data = protos.TuningData(modules=tiny_tuning.tile_data().modules[:] * 1000)
  with damage.within_limits('modules'):
    kernel, = tuning.tile_kernels(data)
  assert kernel.num_configs == 2000
  deep = b''
  for _ in range(20_000):  # Field 1, a message of that length, in itself.
    size, length = len(deep), b''
    while size > 127:
      length, size = length + bytes([size & 127 | 128]), size >> 7
    deep = b'\x0a' + length + bytes([size]) + deep
  assert not read(tmp_path / 'x.pb', deep)


def test_another_file_is_not_replaced(tmp_path):
  source, out = tmp_path / 'x.pb', str(tmp_path / 'out')
  source.write_bytes(OWN[0])
  path, = tiny_tuning.featurized(str(source), out)
  assert tiny_tuning.featurized(str(source), out) == [path]
  with np.load(path) as stored:
    edited = {**stored, 'config_runtime': 7 * stored['config_runtime']}
  np.savez(path, **edited)
  with pytest.raises(UserError, match='does not hold what featurize would'):
    tiny_tuning.featurized(str(source), out)
  with np.load(path) as stored:
    np.testing.assert_array_equal(
        stored['config_runtime'], edited['config_runtime'])
