"""Programs of the sample data: names, splits, that all families compile."""

import itertools

import pytest

from tpu_graphs_ext.hlo import compile as hlo_compile
from tpu_graphs_ext.sample import programs

SPLITS = ('train', 'valid', 'test')


def first(split, count, seed=0):
  return list(itertools.islice(programs.programs(split, seed), count))


def test_a_name_says_everything():
  program = programs.Program(
      'lstm', (('batch', 16), ('width', 256)), 'bf16', 'adam')
  assert program.name == 'lstm_batch_16_width_256_adam_train.bf16'
  forward = programs.Program('lstm', (('batch', 16),), 'f32', '')
  assert forward.name == 'lstm_batch_16_infer.f32'


def test_no_program_is_in_two_splits():
  names = {split: {p.name for p in first(split, 150)} for split in SPLITS}
  assert all(len(found) == 150 for found in names.values())
  for a, b in itertools.combinations(SPLITS, 2):
    assert not names[a] & names[b]


def test_same_sizes_stay_in_one_split_in_every_dtype():
  sizes = {split: {(p.family, p.sizes) for p in first(split, 150)}
           for split in SPLITS}
  for a, b in itertools.combinations(SPLITS, 2):
    assert not sizes[a] & sizes[b]


def test_valid_and_test_have_families_of_their_own():
  families = {split: {p.family for p in first(split, 30)} for split in SPLITS}
  assert families['valid'] - families['train'] == {
      'inception', 'gru_translator', 'two_tower'}
  assert {'unet', 'densenet', 'deep_cross'} <= (
      families['test'] - families['train'])
  assert 'resnet' in families['train'] & families['valid'] & families['test']


def test_seed_draws_other_programs():
  assert first('train', 20) == first('train', 20)
  assert first('train', 20) != first('train', 20, seed=1)


def test_there_are_enough_programs_for_the_full_size():
  # 5,709 train kernels at no more than 14 a program.
  assert len(first('train', 440)) == 440


def test_forward_and_training_compile():
  sizes = (('batch', 64), ('width', 256), ('depth', 2))
  counts = {}
  for optimizer in ('', 'adam'):
    program = programs.Program('deep_cross', sizes, 'f32', optimizer)
    function, specs = programs.traced_function(program)
    module = hlo_compile.function_module(function, *specs)
    entry = module.computations[-1]
    assert sum(n.opcode == 'parameter' for n in entry.instructions) == len(
        specs)
    counts[optimizer] = sum(n.opcode == 'dot' for n in entry.instructions)
  # Five dense layers; training has two more products for each, less the
  # gradients of the program's input that nobody asks for: x is read by the
  # first cross layer and by the deep part.
  assert counts == {'': 5, 'adam': 13}


@pytest.mark.slow
@pytest.mark.parametrize('family', sorted(programs.FAMILIES))
def test_every_family_compiles_at_its_smallest_and_largest(family):
  sizes = programs.FAMILIES[family].sizes
  for pick, dtype, optimizer in ((min, 'bf16', 'lamb'), (max, 'f32', '')):
    program = programs.Program(
        family, tuple((k, pick(v)) for k, v in sizes.items()), dtype,
        optimizer)
    function, specs = programs.traced_function(program)
    assert hlo_compile.function_module(function, *specs).computations
