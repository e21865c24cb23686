"""Hostile modules and tuning data: one clear error each, soon.

`test_readers.py` damages the bytes of files.
"""

import contextlib

import numpy as np
import pytest

from support import damage, hostile_modules, tiny_loops, tiny_tuning
from support.tiny_hlo import convolution, elementwise, product, tiled, written
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import kernel_sources, programs, protos, tuning
from tpu_graphs_ext.serving import compiler_report


def looping():
  """A program with a loop, around a fused convolution."""
  module = tiny_loops.counting(0, 12, inner=(3, 'LT'))
  for computation in convolution().computations:
    inner = module.computations.add()
    inner.CopyFrom(computation)
    inner.id += 5000
    for node in inner.instructions:
      node.called_computation_ids[:] = [
          number + 5000 for number in node.called_computation_ids]
  module.computations[0].instructions[-1].opcode = 'call'
  module.computations[0].instructions[-1].called_computation_ids.append(5002)
  return module


def reducing():
  module = elementwise([32, 256], opcode='reduce-window')
  for size in 3, 300:
    module.computations[0].instructions[1].window.dimensions.add(size=size)
  return module


PROGRAMS = (
    looping, convolution, reducing, lambda: product(64, 256, 512),
    lambda: tiled([64, 256], [8, 2], 100))


@pytest.mark.parametrize('rounds', [
    60, pytest.param(2000, marks=pytest.mark.survive)])
@pytest.mark.parametrize('program', range(len(PROGRAMS)))
def test_damaged_programs_give_one_error_or_a_report(program, rounds):
  """As `kernels` reports a file with an optimised program."""
  sound = PROGRAMS[program]()
  for seed in range(rounds):
    module = hostile_modules.changed(sound, np.random.default_rng(seed))
    source = kernel_sources.Source('f', [], [], [], 'v5e', programs.Program(
        b'', 'hlo', optimized=module))
    with damage.within_limits(seed), contextlib.suppress(UserError):
      compiler_report.report_of(kernel_sources.compiled(source)).text()


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


def test_another_file_is_not_replaced(tmp_path):
  source = written(tmp_path / 'x.pb', tiny_tuning.tile_data())
  out = str(tmp_path / 'out')
  path, = tiny_tuning.featurized(source, out)
  assert tiny_tuning.featurized(source, out) == [path]
  with np.load(path) as stored:
    edited = {**stored, 'config_runtime': 7 * stored['config_runtime']}
  np.savez(path, **edited)
  with pytest.raises(UserError, match='does not hold what featurize would'):
    tiny_tuning.featurized(source, out)
  with np.load(path) as stored:
    np.testing.assert_array_equal(
        stored['config_runtime'], edited['config_runtime'])
