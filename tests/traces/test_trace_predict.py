"""Predicted times by hand: one byte or multiply-add a nanosecond."""

import json

import pytest

from support import tiny_traces as tiny
from support.tiny_traces import kernel, launch, op
from tpu_graphs_ext.analytic import roofline
from tpu_graphs_ext.analytic.roofline import EmbeddingBags, Gpu
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import analysis, hardware, predict


@pytest.fixture
def analysed(tmp_path):
  def analyse(events, device='gpu', **machine):
    return analysis.analyse(
        tiny.write(tmp_path / 't.json', events), None,
        tiny.write_hardware(tmp_path / 'hw.json', device=device, **machine))

  return analyse


def launched(*calls, work=None):
  """Each call with a kernel of 4 us, launched within it."""
  events = []
  for number, call in enumerate(calls, 1):
    events += [call, launch(number, call['ts'] + 1),
               kernel(number, 1000 + 10 * number, 4, **(work or {}))]
  return events


def rows_of(found):
  return {row.name: row for row in found.rows}


def test_a_step_by_hand(tmp_path):
  found = analysis.analyse(tiny.write(tmp_path / 't.json', tiny.one_step()),
                           3, tiny.write_hardware(tmp_path / 'hw.json'))
  rows = rows_of(found)
  # 4 * (2 * 8 + 8 * 4 + 2 * 4) = 224 bytes, and only 64 multiply-adds.
  assert rows['aten::addmm'].price.us == pytest.approx(0.224)
  assert rows['aten::addmm'].price.bound == 'memory'
  # 8 + 4 values are read and 8 written.
  assert rows['aten::add'].price.us == pytest.approx(0.080)
  assert [row.measured_us for row in found.rows] == [8, 20]
  product, added = found.groups
  assert (product.kind, added.kind) == ('fully connected', 'element-wise')
  assert product.mean_error == pytest.approx(1 - 0.224 / 8)
  errors = 1 - 0.224 / 8, 1 - 0.080 / 20
  total = found.total
  assert (total.calls, total.measured_us) == (2, 28)
  assert total.predicted_us == pytest.approx(0.304)
  assert total.mean_error == pytest.approx(sum(errors) / 2)
  assert total.geometric_error == pytest.approx((errors[0] * errors[1]) ** .5)
  assert total.deviation == pytest.approx(abs(errors[0] - errors[1]) / 2**.5)
  assert (found.attributed, found.measured_us) == (2, 28)
  assert found.busy_us == {0: 28} and found.idle_us[0]['aten::add'] == 26
  linear = {one.name: one for one in found.operators}['aten::linear']
  assert (linear.cpu_us, linear.self_cpu_us, linear.gpu_us,
          linear.self_gpu_us, linear.idle_us) == (40, 16, 8, 0, 0)


@pytest.mark.parametrize('name, dims, nanoseconds', [
    # Multiply-adds of 16 x 32 by 32 x 16, and of 4 of them; bytes are fewer.
    ('aten::mm', [[16, 32], [32, 16]], 16 * 16 * 32),
    ('mm', [[16, 32], [32, 16]], 16 * 16 * 32),
    ('aten::addmm', [[16], [16, 32], [32, 16], [], []], 16 * 16 * 32),
    ('aten::linear', [[4, 4, 32], [16, 32], [16]], 16 * 16 * 32),
    ('aten::bmm', [[4, 16, 32], [4, 32, 16]], 4 * 16 * 16 * 32),
    ('aten::baddbmm', [[4, 16, 16], [4, 16, 32], [4, 32, 16], []],
     4 * 16 * 16 * 32),
    # A vector: 4 * (32 + 32 + 1) bytes.
    ('aten::mm', [[1, 32], [32, 1]], 260),
    ('aten::relu', [[10, 3]], 2 * 120),
    ('aten::threshold_backward', [[10, 3], [10, 3], []], 3 * 120),
    ('aten::add_', [[10, 3], [3], []], 120 + 12 + 120),
    ('aten::mul', [[10, 1], [3]], 40 + 12 + 120),
    ('aten::mul', [[10, 3], []], 240),
    ('aten::fill_', [[10, 3], []], 120),
    ('aten::copy_', [[10, 3], [10, 3], []], 240)])
def test_operators_by_hand(analysed, name, dims, nanoseconds):
  row, = analysed(launched(op(name, 0, 10, dims))).rows
  assert row.price.us == pytest.approx(nanoseconds / 1000)
  assert row.measured_us == 4


def test_lists_of_tensors_have_shapes_in_newer_traces(analysed):
  row, = analysed(launched(op(
      'aten::cat', 0, 10, [[[2, 3], [2, 5]], []],
      ['TensorList', 'Scalar']))).rows
  assert row.price.us == pytest.approx(2 * 4 * 16 / 1000)
  assert row.kind == 'concat'
  row, = analysed(launched(op(
      'aten::cat', 0, 10, [[], []], ['TensorList', 'Scalar']))).rows
  assert row.price.us is None
  assert 'lacks the shapes of lists' in row.price.reason
  # Read: both lists; written: the first.
  row, = analysed(launched(op(
      'aten::_foreach_add_', 0, 10, [[[8], [2]], [[8], [2]], []],
      ['TensorList', 'TensorList', 'Scalar']))).rows
  assert row.price.us == pytest.approx(3 * 40 / 1000)


@pytest.mark.parametrize('kind, bytes_each', [
    ('float', 4), ('c10::Half', 2), ('c10::BFloat16', 2), ('double', 8),
    ('long int', 8), ('long', 8), ('int', 4), ('bool', 1),
    ('unsigned char', 1)])
def test_types_have_their_sizes(analysed, kind, bytes_each):
  row, = analysed(launched(op('aten::relu', 0, 10, [[30]], [kind]))).rows
  assert row.price.us == pytest.approx(2 * 30 * bytes_each / 1000)


def test_tensor_cores_are_told_by_the_kernel_and_the_type(analysed):
  size = [[64, 64], [64, 64]]  # 262,144 multiply-adds, 49,152 bytes of floats.
  faster = {'tf32_gflop_s': 2, 'half_gflop_s': 4}

  def predicted(types, name):
    row, = analysed(launched(op('aten::mm', 0, 10, size, types),
                             work={'name': name}), **faster).rows
    assert row.price.bound == 'arithmetic'
    return row.price.us

  floats, halves = ['float'] * 2, ['c10::Half'] * 2
  assert predicted(floats, 'volta_sgemm_128x64_nn') == pytest.approx(262.144)
  assert predicted(floats, 'cutlass_80_tensorop_s1688gemm_64x64') == (
      pytest.approx(131.072))
  assert predicted(halves, 'anything') == pytest.approx(65.536)


def test_copies_and_fills_tell_their_bytes(analysed):
  events = [op('aten::copy_', 0, 10, [[4], [4], []]), launch(1, 1),
            launch(2, 3), launch(3, 5), op('aten::zero_', 20, 5, [[9]]),
            launch(4, 21)]
  for number, (name, category) in enumerate((
      ('Memcpy HtoD (Pinned -> Device)', 'gpu_memcpy'),
      ('Memcpy DtoH (Device -> Pageable)', 'gpu_memcpy'),
      ('Memcpy DtoD (Device -> Device)', 'gpu_memcpy'),
      ('Memset (Device)', 'gpu_memset')), 1):
    events.append(kernel(number, 20 * number, 5, name, category, bytes=1000))
  copies, fill = analysed(events).rows
  # Two over the link at half a byte a nanosecond, one read and written.
  assert copies.price.us == pytest.approx(2 + 2 + 2)
  assert (copies.kind, copies.work, copies.measured_us) == (
      'copy or fill', 3, 15)
  assert fill.price.us == pytest.approx(1)


def test_a_fill_within_a_product_is_the_products(analysed):
  row, = analysed([op('aten::mm', 0, 10, [[2, 2], [2, 2]]), launch(1, 1),
                   launch(2, 4), kernel(1, 10, 3),
                   kernel(2, 20, 1, 'Memset', 'gpu_memset', bytes=4)]).rows
  assert (row.kind, row.work, row.measured_us) == ('fully connected', 2, 4)


def test_work_of_an_operator_within_belongs_to_the_nearest_kind(analysed):
  rows = rows_of(analysed([
      op('aten::linear', 0, 30, [[2, 2], [2, 2]]),
      op('aten::addmm', 2, 10, [[2], [2, 2], [2, 2]]), launch(1, 4),
      op('aten::odd', 20, 5), launch(2, 21), op('aten::sum', 40, 5, [[4]]),
      launch(3, 41), kernel(1, 50, 1), kernel(2, 60, 2), kernel(3, 70, 3),
      kernel(99, 80, 4)]))
  assert {name: row.measured_us for name, row in rows.items()} == {
      'aten::addmm': 1, 'aten::linear': 2, 'aten::sum': 3, analysis.NOBODY: 4}
  assert rows['aten::sum'].price.reason == analysis.NO_FORMULA
  assert rows[analysis.NOBODY].price.reason == analysis.NOBODY


def test_the_shortest_kernel_bounds_all(analysed):
  found = analysed(launched(op('aten::relu', 0, 10, [[30]])), kernel_us=2.5)
  assert found.rows[0].price[:2] == (2.5, 'launch')


@pytest.mark.parametrize('name, dims, types, reason', [
    ('aten::mm', None, None, 'no shapes here'),
    ('aten::mm', [[2, 3], [4, 5]], None, 'are no product'),
    ('aten::mm', [[2, 0], [0, 5]], None, 'an empty product'),
    ('aten::mm', [[2, 3]], None, 'argument 1 is no tensor'),
    ('aten::mm', [[2, 3], [3, 4]], ['float'], '2 shapes and 1 types'),
    ('aten::mm', [[2, -3], [3, 4]], None, 'is no shape'),
    ('aten::mm', [[2, 'x'], [3, 4]], None, 'is no shape'),
    ('aten::mm', [[2], [2]], None, 'are no product'),
    ('aten::add', [[2], [3]], None, 'shapes that do not fit'),
    ('aten::add', [[], []], ['Scalar', 'Scalar'], 'none of its arguments'),
    ('aten::cat', [[2, 3]], ['float'], 'no list of tensors'),
    ('aten::cat', [[[2], 3]], ['TensorList'], 'is no shape'),
    ('aten::_embedding_bag', [[9, 4], [6], [0]], ['float', 'long', 'long'],
     'nothing is looked up'),
    ('aten::embedding', [[9], [6]], ['float', 'long'],
     'a table of 1 dimensions')])
def test_what_cannot_be_predicted_says_why(analysed, name, dims, types,
                                           reason):
  row, = analysed(launched(op(name, 0, 10, dims, types))).rows
  assert row.price.us is None and reason in row.price.reason
  assert row.measured_us == 4


# ----------------------------------------------------------------- embeddings


def lookup(kind, start, tables, rows, width, batch, indices, concrete=False,
           index_type='long'):
  """A lookup of FBGEMM, its arguments by their positions."""
  weights, dims = rows * width * tables, [[]] * 13
  types = ['Scalar'] * 13
  dense = kind.startswith('dense')
  for place, (size, of) in {
      (0 if dense else 1): (weights, 'float'),
      (2 if dense else 6): (tables + 1, 'int'),
      (7 if dense else 11): (indices, index_type),
      (8 if dense else 12): (tables * batch + 1, 'long')}.items():
    dims[place], types[place] = [size], of
  if not dense:
    dims[2], types[2] = [0], 'float'
  more = {}
  if concrete:
    more['Concrete_Inputs'] = [''] * 13
    more['Concrete_Inputs'][3 if dense else 7] = str(tables * width)
  return op(f'fbgemm::{kind}', start, 10, dims, types, **more)


SPLIT = 'split_embedding_codegen_lookup_rowwise_adagrad_function'
DENSE = 'dense_embedding_codegen_lookup_function'


def backward(optimizer, start, batch, width, sequence):
  return op(f'torch::autograd::CppNode<SplitLookupFunction_{optimizer}_Op>',
            start, 10, [[batch, width]], Sequence_number=sequence)


# 3 tables of 50 x 8 floats, 4 bags each, of 24 / 12 = 2 rows.
BAGS = EmbeddingBags(batch_size=4, rows=50, tables=3, bag_size=2, width=8,
                     index_bytes_each=8)
MACHINE = Gpu(dram_gb_s=1, l2_gb_s=1, l2_bytes=1, multiprocessors=1, gflop_s=1)


def test_lookups_and_their_backward_passes(analysed):
  found = analysed(launched(
      lookup(SPLIT, 0, 3, 50, 8, 4, 24), lookup(SPLIT, 20, 1, 10, 4, 6, 12),
      # The second lookup's comes first, as the later number says.
      backward('rowwise_adagrad', 40, 6, 4, 9),
      backward('rowwise_adagrad', 60, 4, 24, 8)))
  first, second, of_second, of_first = found.rows
  assert first.price.us == pytest.approx(
      roofline.embedding_forward_us(BAGS, MACHINE))
  assert first.price.sizes == '3 tables of 50 x 8, 4 bags of 2.0'
  assert second.price.sizes == of_second.price.sizes == (
      '1 tables of 10 x 4, 6 bags of 2.0')
  # 12 * (64 + 2 * 32 + (3 * 2 + 1) * 32) = 4224 bytes.
  assert of_first.price.us == pytest.approx(4.224)
  assert [row.phase for row in found.rows] == ['forward'] * 2 + [
      'backward'] * 2
  assert {row.kind for row in found.rows} == {predict.EMBEDDING}


@pytest.mark.parametrize('optimizer, nanoseconds', [
    # 12 bags of two offsets, indices and the gradient, a sector each, and
    # of 2 rows, once, twice or three times read and written.
    ('sgd', 12 * (64 + 64 + 4 * 32)), ('adagrad', 12 * (64 + 64 + 8 * 32)),
    ('adam', 12 * (64 + 64 + 12 * 32))])
def test_optimizers(analysed, optimizer, nanoseconds):
  forward = SPLIT.replace('rowwise_adagrad', optimizer)
  _, step = analysed(launched(
      lookup(forward, 0, 3, 50, 8, 4, 24),
      backward(optimizer, 40, 4, 24, 8))).rows
  assert step.price.us == pytest.approx(nanoseconds / 1000)


def test_gradients_of_dense_lookups_are_added_up(analysed):
  looked_up, step = analysed(launched(
      lookup(DENSE, 0, 3, 50, 8, 4, 24), backward('Dense', 40, 4, 24, 8))).rows
  assert looked_up.price.us == pytest.approx(
      roofline.embedding_forward_us(BAGS, MACHINE))
  assert step.price.us == pytest.approx(
      roofline.embedding_backward_us(BAGS, MACHINE))


def test_widths_from_values_where_there_is_no_backward_pass(analysed):
  row, = analysed(launched(
      lookup(SPLIT, 0, 3, 50, 8, 4, 24, concrete=True))).rows
  assert row.price.us == pytest.approx(
      roofline.embedding_forward_us(BAGS, MACHINE))
  row, = analysed(launched(lookup(SPLIT, 0, 3, 50, 8, 4, 24))).rows
  assert row.price.reason == 'the trace does not tell how wide rows are'


@pytest.mark.parametrize('events, reason', [
    ([backward('sgd', 40, 4, 24, 8)], 'not to be told'),
    # Another number of bags than the only lookup has.
    ([lookup(SPLIT, 0, 3, 50, 8, 4, 24),
      backward('sgd', 40, 5, 24, 8)], 'not to be told'),
    ([lookup(SPLIT, 0, 3, 50, 8, 4, 24), backward('lamb', 40, 4, 24, 8)],
     'no formula for the optimizer lamb'),
    ([lookup(SPLIT, 0, 3, 50, 8, 4, 24),
      backward('sgd', 40, 4, 24, None)], 'not to be told')])
def test_backward_passes_without_a_prediction(analysed, events, reason):
  row = analysed(launched(*events)).rows[-1]
  assert row.price.us is None and reason in row.price.reason


def test_bags_of_a_block_are_those_of_the_kernel(analysed):
  cache = {'l2_bytes': 2000, 'l2_gb_s': 1}
  row, = analysed(launched(lookup(SPLIT, 0, 3, 50, 8, 4, 24, concrete=True),
                           work={'block': [8, 4, 1]}), **cache).rows
  four = EmbeddingBags(batch_size=4, rows=50, tables=3, bag_size=2, width=8,
                       index_bytes_each=8, rows_per_block=4)
  machine = Gpu(1, 1, 2000, 1, 1)
  assert roofline.hit_rate(four, machine) == 1
  assert row.price.us == pytest.approx(
      roofline.embedding_forward_us(four, machine))
  assert row.price.us != pytest.approx(
      roofline.embedding_forward_us(BAGS, machine))


def test_bags_of_one_table(analysed):
  types = ['float', 'long int', 'long int', 'Scalar']
  concrete = ['', '', '', 'False', '0', 'False', '', 'True', '-1']
  bag, last, each, gradient = analysed(launched(
      op('aten::_embedding_bag', 0, 10, [[50, 8], [8], [4], []], types),
      op('aten::_embedding_bag', 20, 10, [[50, 8], [8], [5], []], types,
         Concrete_Inputs=concrete),
      op('aten::embedding', 40, 10, [[50, 8], [2, 4]], types[:2]),
      op('aten::_embedding_bag_dense_backward', 60, 10,
         [[4, 8], [8], [8], []], types))).rows
  assert bag.price.sizes == last.price.sizes == (
      '1 tables of 50 x 8, 4 bags of 2.0')
  assert each.price.sizes == '1 tables of 50 x 8, 8 bags of 1.0'
  # 4 * (64 + 32 + (2 * 2 + 1) * 32) bytes.
  assert gradient.price.us == pytest.approx(4 * 256 / 1000)


# ------------------------------------------------------------------ on a CPU


def test_on_a_cpu_own_times_count(analysed):
  found = analysed([
      op('aten::relu', 0, 20, [[30]]), op('aten::clamp_min', 5, 10, [[30]]),
      op('aten::empty', 7, 2), op('aten::sum', 30, 5)], device='cpu')
  assert found.on_cpu
  rows = rows_of(found)
  # relu is there for clamp_min, whose time has that of empty.
  assert rows['aten::clamp_min'].measured_us == 10
  assert rows['aten::clamp_min'].price.us == pytest.approx(0.240)
  assert {name: row.measured_us for name, row in rows.items()} == {
      'aten::clamp_min': 10, 'aten::relu': 10, 'aten::sum': 5}
  assert found.measured_us == 25
  assert found.total.calls == 1


def test_times_of_a_cpu_are_not_compared_with_a_gpu(analysed):
  found = analysed([op('aten::relu', 0, 20, [[30]])])
  assert found.hardware is None and not found.groups
  assert 'no work of a GPU' in found.notes[0]


# ------------------------------------------------------------------ hardware


@pytest.mark.parametrize('name, memory, preset', [
    ('Tesla V100-SXM2-32GB', 34e9, 'v100'),
    ('NVIDIA A100-PG509-200', 42e9, 'a100-40gb'),
    ('NVIDIA A100-SXM4-80GB', 0, 'a100-80gb'),
    ('NVIDIA A100', 85e9, 'a100-80gb'), ('NVIDIA H100 PCIe', 85e9, 'h100-pcie'),
    ('NVIDIA H100 80GB HBM3', 85e9, 'h100-sxm'),
    ('NVIDIA GeForce RTX 2080 Ti', 11e9, None)])
def test_the_trace_names_the_gpu(tmp_path, name, memory, preset):
  path = tiny.write(tmp_path / 't.json', tiny.one_step(), deviceProperties=[
      {'id': 0, 'name': name, 'totalGlobalMem': int(memory)},
      {'id': 1, 'name': 'another'}])
  found = analysis.analyse(path)
  assert (found.hardware and found.hardware.name) == preset
  if not preset:
    assert found.notes == [f'nothing is predicted: no preset for {name}; '
                           '--hardware NAME or FILE.json says what it can do']


def test_the_documents_gpu_is_a_preset():
  assert hardware.find('notebook-v100').gpu == Gpu()
  # Multiply-adds, half of the operations of a data sheet.
  assert hardware.find('V100').gpu.gflop_s == 15700 / 2


@pytest.mark.parametrize('content, said', [
    ('[]', 'must hold an object'), ('{', 'is not JSON'),
    ('{"dram_gb_s": 1}', 'lacks gflop_s, without which'),
    ('{"dram_gb": 1}', 'dram_gb is no field; the fields are .*did you mean '
     'dram_gb_s'),
    ('{"dram_gb_s": 0, "gflop_s": 1}', 'dram_gb_s is 0; it must be a number '
     'above 0'),
    ('{"dram_gb_s": 1, "gflop_s": "1"}', "gflop_s is '1'; it must be a"),
    ('{"dram_gb_s": NaN, "gflop_s": 1}', 'dram_gb_s is nan'),
    ('{"dram_gb_s": 1, "gflop_s": 1, "l2_bytes": 1.5}', 'it must be whole'),
    ('{"dram_gb_s": 1, "gflop_s": 1, "kernel_us": -1}', 'at least 0'),
    ('{"dram_gb_s": 1, "gflop_s": 1, "device": "tpu"}', 'gpu or cpu'),
    ('{"dram_gb_s": 1e300, "gflop_s": 1}', r'dram_gb_s is 1e\+300'),
    ('{"dram_gb_s": [], "gflop_s": true}', r'dram_gb_s is \[\]'),
    ('{"calibration": []}', 'calibration: must hold an object'),
    ('{"calibration": {"source": ""}}', 'calibration: lacks kinds and')])
def test_hardware_files_that_are_refused(tmp_path, content, said):
  path = tmp_path / 'hw.json'
  path.write_text(content)
  with pytest.raises(UserError, match=said) as raised:
    hardware.find(str(path))
  assert str(path) in str(raised.value)


def test_hardware_that_is_not_known(tmp_path):
  with pytest.raises(UserError, match=r'--hardware=v10: must be one of .* or a '
                     r'\.json file; did you mean v100'):
    hardware.find('v10')
  with pytest.raises(UserError, match=r'no\.json: cannot be read'):
    hardware.find(str(tmp_path / 'no.json'))


def test_a_file_without_a_cache_has_none(tmp_path):
  path = tmp_path / 'hw.json'
  path.write_text(json.dumps(tiny.SLOW))
  found = hardware.find(str(path)).gpu
  assert (found.l2_gb_s, found.l2_bytes, found.kernel_us) == (1, 1, 0)
