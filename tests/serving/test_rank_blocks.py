"""Blocks for a function that is one product."""

import dataclasses
import json
import re

import pytest
import tensorflow as tf

from support.tiny_hlo import add, elementwise, matmul
from tpu_graphs_ext import cli
from tpu_graphs_ext.analytic.products import GroupedProduct, Product, product_of
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos
from tpu_graphs_ext.serving import blocks
from tpu_graphs_ext.serving.cost_model import CostModel


def test_products_of_matrices():
  assert product_of(matmul()) == Product(1, 512, 256, 1024, 2, 2, 2)
  whole = matmul(types=('S8', 'S8', 'S32'))
  assert product_of(whole) == Product(1, 512, 256, 1024, 1, 1, 4, narrow='int8')
  floats = matmul(types=('F8E4M3FN', 'F8E5M2', 'BF16'))
  assert product_of(floats) == Product(1, 512, 256, 1024, 1, 1, 2, narrow='fp8')
  # jnp.einsum('bqhd,bkhd->bhqk'): batch 2 x 4, k 128, rows 64, columns 32.
  attention = matmul(
      (2, 64, 4, 128), (2, 32, 4, 128), (2, 4, 64, 32),
      lhs_contracting_dimensions=[3], rhs_contracting_dimensions=[3],
      lhs_batch_dimensions=[0, 2], rhs_batch_dimensions=[0, 2])
  assert product_of(attention) == Product(8, 64, 128, 32, 2, 2, 2)
  # Rows are the first argument's, whatever the order.
  module = matmul(out=(1024, 512), swapped=True, lhs_contracting_dimensions=[0],
                  rhs_contracting_dimensions=[1])
  assert product_of(module) == Product(1, 512, 256, 1024, 2, 2, 2)


def test_calls_of_jitted_functions_are_inlined():
  """entry: (0, dot(x, w))[1], where a called function makes the tuple."""
  module = matmul()
  callee = module.computations[0]
  add(callee, 13, 'tuple', [], operands=[10, 12])
  callee.root_id = 13
  module.entry_computation_id = 2
  entry = module.computations.add(id=2, root_id=23)
  for number, dims in enumerate(((512, 256), (256, 1024))):
    add(entry, 20 + number, 'parameter', dims, element_type='BF16',
        parameter_number=number)
  add(entry, 22, 'call', [], operands=[20, 21], called_computation_ids=[1])
  add(entry, 23, 'get-tuple-element', [512, 1024], operands=[22], tuple_index=1)
  assert product_of(module) == Product(1, 512, 256, 1024, 2, 2, 2)


def test_weights_are_read_in_their_stored_type():
  module = matmul(types=('BF16', 'S8', 'BF16'))
  entry = module.computations[0]
  entry.instructions[2].operand_ids[1] = 13
  add(entry, 13, 'convert', [256, 1024], operands=[11], element_type='BF16')
  assert product_of(module) == Product(1, 512, 256, 1024, 2, 1, 2)


def test_other_functions_are_refused():
  with pytest.raises(UserError, match=r"is one matrix product.* has tanh"):
    product_of(elementwise([4, 8]))
  module = matmul((256, 256), (256, 256), (256, 256))
  x, _, dot = module.computations[0].instructions
  for number, name in (12, 'f64'), (32, 'f4e2m1fn'):  # TF 2.15 lacks this.
    x.shape.element_type = number
    with pytest.raises(UserError, match=f'of the type {name}; blocks are rank'):
      product_of(module)
  dot.operand_ids[:] = [10, 10]
  with pytest.raises(UserError, match='an argument by itself'):
    product_of(module)
  with pytest.raises(UserError, match='multiplies a tensor without elements'):
    product_of(matmul((512, 0), (0, 1024)))


PRODUCT = Product(1, 2048, 8192, 8192, 2, 2, 2)
GIVEN = [(2048, 8192, 8192), (128, 128, 128), (512, 8192, 512), (7, 1, 1),
         (256, 2048, 1024)]


def test_given_blocks_are_ranked_and_impossible_ones_dropped():
  ranking = blocks.rank_blocks(PRODUCT, 'v6e', GIVEN, top=2, vmem_limit=96)
  assert [choice.block for choice in ranking.choices] == [GIVEN[2], GIVEN[4]]
  assert [choice.index for choice in ranking.choices] == [2, 4]
  # 2 x 2 x (512 x 8192 + 8192 x 512 + 512 x 512) bytes = 33 MiB, 8 of rows
  # that are kept and half a one of others; the second needs no more than the
  # default of 32 MiB.
  assert [choice.vmem_limit_bytes for choice in ranking.choices] == [
      42 * 2**20, None]
  assert sorted(ranking.dropped) == [0, 3]
  assert ranking.dropped[0].startswith('takes 416.5 MiB')
  assert json.loads(json.dumps(ranking.to_json()))['candidates'] == 5
  text = dataclasses.replace(ranking, choices=[
      dataclasses.replace(choice, refusal=refusal) for choice, refusal in zip(
          ranking.choices, ('', 'VMEM is full'))]).text()
  assert [re.split('  +', line)[6:] for line in text.splitlines()[-2:]] == [
      ['44040192', 'yes'], ['default', 'no: VMEM is full']]
  assert 'm 2,048 x k 8,192 x n 8,192 on v6e: 5 blocks, 2 that no' in text


def test_what_compiles_by_default_is_what_is_recommended():
  default = blocks.rank_blocks(PRODUCT, 'v5e', top=None)
  assert default.vmem_limit_bytes == 16 * 2**20
  assert all(choice.vmem_bytes <= 16 * 2**20 and not choice.vmem_limit_bytes
             for choice in default.choices)
  assert blocks.rank_blocks(PRODUCT, 'v5e', vmem_limit=100).candidates > (
      default.candidates)
  for limit in (0, -1, 129, float('nan')):
    with pytest.raises(UserError, match='at most 128 MiB, the on-chip memory'):
      blocks.rank_blocks(PRODUCT, 'v5e', vmem_limit=limit)
  with pytest.raises(UserError, match=r'none takes at most 0\.01 MiB; allow'):
    blocks.rank_blocks(PRODUCT, 'v5e', vmem_limit=0.01)


def test_wrong_blocks():
  for wrong in ([], [(1, 2)], [(128, 128.0, 128)], [(0, 128, 128)], 'all',
                '128x512', ','):
    with pytest.raises(UserError, match=r'must be .usual., or a list of .bm,'):
      blocks.rank_blocks(PRODUCT, 'v5e', wrong)
  with pytest.raises(UserError, match=r'can have none of the 1; the first is '
                     r'\(2048, 8192, 8192\)'):
    blocks.rank_blocks(PRODUCT, 'v5e', GIVEN[:1])


def with_epilogue(*opcodes, second=False, **parameters):
  """entry: opcodes in a row, of the product and parameters 2, 3, ...

  `second`: another product of parameter 0, with parameter 9, is an operand of
  the first of them.
  """
  module = matmul()
  entry = module.computations[0]
  operands = [12]
  for number, (name, dims) in enumerate(parameters.items()):
    add(entry, 30 + number, 'parameter', dims, parameter_number=2 + number
        ).name = name
    operands.append(30 + number)
  if second:
    add(entry, 40, 'parameter', [256, 1024], parameter_number=9)
    add(entry, 41, 'dot', [512, 1024], operands=[10, 40], dot_dimension_numbers=
        entry.instructions[2].dot_dimension_numbers)
    operands.append(41)
  for number, opcode in enumerate(opcodes):
    add(entry, 50 + number, opcode, [512, 1024], element_type='BF16',
        operands=operands)
    operands = [50 + number]
  entry.root_id = operands[0]
  return module


def test_epilogues():
  """A bias and an activation cost nothing here; a residual is read."""
  product = product_of(with_epilogue('add', 'tanh', bias=[1024]))
  assert product == Product(
      1, 512, 256, 1024, 2, 2, 2,
      ignored=('reading bias[1024]', 'computing add, tanh'))
  residual = product_of(with_epilogue('add', residual=[512, 1024]))
  assert residual.extra_bytes == 4 and residual.ignored == ('computing add',)
  text = blocks.rank_blocks(product, 'v5e').text()
  assert 'not counted: reading bias[1024]; computing add, tanh' in text


def test_a_gate_is_two_products_of_the_same_rows():
  gate = product_of(with_epilogue('logistic', 'multiply', second=True))
  assert (gate.weights, gate.m, gate.k, gate.n) == (2, 512, 256, 1024)
  assert '2 products of the same rows' in gate.text()
  other = with_epilogue('multiply', second=True)
  nodes = protos.by_id(other.computations[0].instructions)
  nodes[40].shape.dimensions[:], dot = [512, 256], nodes[41]
  dot.operand_ids[:] = [40, 11]  # The second argument is shared.
  gate = product_of(other)
  assert (gate.weights, gate.m, gate.k, gate.n) == (2, 1024, 256, 512)
  dot.operand_ids[1] = 40
  with pytest.raises(UserError, match='multiplies an argument by itself'):
    product_of(other)


def doubling_calls(depth):
  """entry: tanh of a function that calls another twice, and so on."""
  module = with_epilogue('tanh')
  module.computations[0].id = 100
  entry_ids = module.computations[0].instructions[:2]
  for level in range(1, depth + 1):
    caller = module.computations.add(id=level + 100, root_id=1000 * level + 4)
    for number, parameter in enumerate(entry_ids):
      add(caller, 1000 * level + number, 'parameter',
          parameter.shape.dimensions, parameter_number=number)
    for number in (2, 3):
      add(caller, 1000 * level + number, 'call', [512, 1024],
          operands=[1000 * level, 1000 * level + 1],
          called_computation_ids=[level + 99])
    add(caller, 1000 * level + 4, 'add', [512, 1024],
        operands=[1000 * level + 2, 1000 * level + 3])
  module.entry_computation_id = depth + 100
  return module


def test_a_function_that_is_called_twice_counts_twice():
  """The same product twice shares both arguments, so it is no gate."""
  with pytest.raises(UserError, match='has 2 products of different rows'):
    product_of(doubling_calls(1))
  with pytest.raises(UserError, match='more than 10,000 operations'):
    product_of(doubling_calls(40))


def test_what_is_no_epilogue():
  for opcode in ('reduce', 'slice', 'sort', 'gather'):
    for part in (), ('get-tuple-element',):
      with pytest.raises(UserError, match=f'this one has {opcode}$'):
        product_of(with_epilogue('add', opcode, *part))
  module = with_epilogue('add')
  module.computations[0].instructions[-1].shape.dimensions[:] = [512]
  with pytest.raises(UserError, match='its result has not the 524,288 elem'):
    product_of(module)
  computed = matmul()
  entry = computed.computations[0]
  add(entry, 13, 'tanh', [512, 256], operands=[10])
  entry.instructions[2].operand_ids[0] = 13
  with pytest.raises(UserError, match='tanh computes an operand of its'):
    product_of(computed)


def grouped_module(x, w, out, contracted, ragged, group):
  """entry: ragged-dot(parameter 0, parameter 1, sizes of 8 groups)."""
  module = matmul(x, w, out)
  entry = module.computations[0]
  add(entry, 14, 'parameter', [8], element_type='S32', parameter_number=2)
  node = entry.instructions[2]
  node.opcode = 'ragged-dot'
  node.operand_ids.append(14)
  node.ClearField('dot_dimension_numbers')
  left, right = contracted
  # Fields 1 to 3: contracted, rows in groups, groups of the second operand.
  node.MergeFromString(bytes([
      0xd2, 0x05, 8 + 3 + 3 * len(group),
      0x0a, 6, 0x0a, 1, left, 0x12, 1, right, 0x12, 1, ragged,
      *(byte for dim in group for byte in (0x1a, 1, dim))]))
  return module


def test_grouped_products():
  # jax.lax.ragged_dot of JAX 0.10.2 and both of its gradients, as lowered.
  assert product_of(grouped_module(
      (1024, 256), (8, 256, 512), (1024, 512), (1, 1), 0, [0])) == (
          GroupedProduct('forward', 8, 1024, 256, 512, 2, 2, 2))
  assert product_of(grouped_module(
      (1024, 512), (8, 256, 512), (1024, 256), (1, 2), 0, [0])) == (
          GroupedProduct('dlhs', 8, 1024, 512, 256, 2, 2, 2))
  weights = product_of(grouped_module(
      (1024, 256), (1024, 512), (8, 256, 512), (0, 0), 0, []))
  assert weights == GroupedProduct('drhs', 8, 1024, 256, 512, 2, 2, 2)
  ranking = blocks.rank_blocks(weights, 'v7x', top=3)
  assert len(ranking.choices) == 3 < ranking.candidates
  assert "gradient of the weights: m 1,024 in 8 groups x" in ranking.text()
  with pytest.raises(UserError, match='is a batch of grouped products'):
    product_of(grouped_module((2, 1024, 256), (8, 256, 512), (2, 1024, 512),
                              (2, 1), 1, [0]))
  module = grouped_module(
      (1024, 256), (8, 256, 512), (1024, 512), (1, 1), 0, [0])
  entry = module.computations[0]
  add(entry, 20, 'tanh', [1024, 512], operands=[entry.root_id])
  entry.root_id = 20
  with pytest.raises(UserError, match='has tanh'):
    product_of(module)
  with pytest.raises(UserError, match='--check: compiles blocks of plain'):
    blocks.block_kernels.checked(ranking, '')


def test_a_jax_that_is_too_new_is_no_fault_of_the_block(monkeypatch):
  ranking = blocks.rank_blocks(product_of(matmul(
      (512, 256), (256, 512), (512, 512))), 'v5e', top=1)
  checker, reasons = blocks.block_kernels, []

  def refuse(*_):
    raise UserError(reasons[-1])

  monkeypatch.setattr(checker.libtpu, 'library', lambda: '/libtpu.so')
  monkeypatch.setattr(checker.subprocesses, 'lower_named', lambda *_: b'')
  monkeypatch.setattr(checker.subprocesses, 'compile_program', refuse)
  reasons.append('vmem, size 44.0M and limit 16.0M')
  assert checker.checked(ranking, '').choices[0].refusal == (
      'takes 44.0M of on-chip memory, the limit is 16.0M')
  reasons.append("Could not convert JSON ...: no such field: 'debug_locations'")
  with pytest.raises(UserError, match=r"^--check: .*'; this JAX .* --jax_py"):
    checker.checked(ranking, '')


SHAPES = 'f32[512,256] f32[256,1024]'


def test_the_command(capsys):
  flags = ['rank', 'tensorflow:matmul', f'--shapes={SHAPES}', '--tpu=v3']
  assert cli.main([*flags, '--blocks=512x256x256 256x256x256', '--json']) == 0
  ranking = json.loads(capsys.readouterr().out)
  assert ranking['product']['k'] == 256 and len(ranking['choices']) == 2


def test_from_a_model(saved_model_dir):
  ranking = CostModel.load(saved_model_dir).rank(
      tf.matmul, SHAPES, blocks='usual', tpu='v5e', top=3)
  assert len(ranking.choices) == 3 < ranking.candidates
  assert ranking.product == Product(1, 512, 256, 1024, 4, 4, 4)
