"""Hostile modules and tuning data: one clear error each, soon.

`test_readers.py` damages the bytes of files.
"""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from support import damage, tiny_tuning
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, protos, tuning

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
        UserError, match=r"HLO module 'tanh': instruction 'elementwise' has "
        r'200,00\d dimensions; at most 128'):
      tuning.tile_kernels(data)


def test_limits(monkeypatch):
  layouts = protos.TuningData(modules=[tiny_tuning.layout_data()])
  monkeypatch.setattr(tuning, '_MAX_LAYOUT_VALUES', 35)
  with pytest.raises(UserError, match='layouts of 2 runs of 1 nodes do not'):
    tuning.layout_graphs(layouts)
  monkeypatch.setattr(protos, 'MAX_INSTRUCTIONS', 1)
  with pytest.raises(UserError, match='has 2 instructions; at most 1 are read'):
    tuning.tile_kernels(tiny_tuning.tile_data())


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
  (tmp_path / 'x.pb').write_bytes(deep)
  with pytest.raises(UserError, match='bytes are not a whole TuningData'):
    tuning.read_results(str(tmp_path / 'x.pb'))


def test_another_file_is_not_replaced(tmp_path):
  source, out = tmp_path / 'x.pb', str(tmp_path / 'out')
  source.write_bytes(tiny_tuning.tile_data().SerializeToString())
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
