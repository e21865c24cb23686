"""What files hold, by their content."""

import sys
import time

import pytest

from support import tiny_tuning
from support.tiny_hlo import add, convolution, elementwise
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import (
  libtpu,
  lowering,
  programs,
  protos,
  subprocesses,
  tpu_compiler,
  tuning,
)

MLIR = b'''module attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<8xf32>) { return %x : tensor<8xf32> } }'''
TEXT = b'''// dumped
/* by **XLA** */ /**/
HloModule jit_f, replica_count=2, num_partitions=4
ENTRY e { ROOT p = f32[8] parameter(0) }'''


def test_mlir_says_for_how_many_devices_it_is():
  for content in MLIR, b'\xef\xbb\xbf' + MLIR:  # As Windows saves text.
    assert programs.read('a', content) == programs.Program(MLIR, 'mlir', 1, 4)
  assert not programs.read('a', MLIR).shardy
  assert programs.read('a', MLIR.replace(b'4', b'4' * 5000)).partitions > 1e9
  assert programs.read('a', MLIR + b'sdy.mesh @m = <["a"=4]>').shardy
  module = elementwise([64, 256])
  for meshes in '{}', '{m = #sdy.mesh<["a"=2]>}':  # JAX 0.4.34's, and later.
    module.frontend_attributes.map['xla.sdy.meshes'] = meshes
    assert programs.of_module(module).shardy == (meshes != '{}')
  for text in (b'func.func @main(%x: tensor<8xf32>) { chlo.erf_inv %x }',
               b'func @main(%x: tensor<8xf32>) { "mhlo.tanh"(%x) }'):
    assert programs.read('a', text).program_format == 'mlir'
  # In a file of jax.export the size is before the bytecode.
  bytecode = b'ML\xefR\rStableHLO_v1.0.0' + 30 * b'\1'
  exported = b'head' + len(bytecode).to_bytes(4, 'little') + bytecode + b'end'
  assert programs.read('a', exported).content == bytecode


@pytest.mark.parametrize('text', [
    b'/* ** a */\n' * 20_000 + b'int main() {}', b'func(' * 50_000,
    b'// a\n' * 50_000 + b'Hlo'])
def test_long_text_that_is_no_program_is_refused_at_once(text):
  start = time.process_time()
  with pytest.raises(UserError, match='is text that begins with'):
    programs.read('a.c', text)
  assert time.process_time() - start < 2


def test_text_is_converted_in_another_process(monkeypatch):
  asked = []

  def convert(content, python):
    asked.append((content, python))
    if content.startswith(b'ML'):
      return MLIR
    return elementwise([64, 256]).SerializeToString()

  monkeypatch.setattr(subprocesses, 'convert', convert)
  program = programs.read('a.txt', TEXT, 'python9')
  assert asked == [(TEXT, 'python9')]
  assert program == programs.Program(
      elementwise([64, 256]).SerializeToString(), 'hlo', 2, 4)
  # Bytecode only where its shardings must be read.
  assert programs.read('a', b'ML\xefR..sdy.mesh').partitions == 4
  assert programs.read('a', b'ML\xefR..').partitions == 1 and len(asked) == 2


def test_without_jaxlib_the_kind_is_named(monkeypatch):
  for name in 'jaxlib', 'jaxlib.xla_client':  # TensorFlow 2.15 imports JAX.
    monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(UserError, match=r'^jaxlib reads, but .*--jax_python'):
    lowering.converted(TEXT)
  monkeypatch.setattr(subprocesses, 'convert',
                      lambda content, _: lowering.converted(content))
  with pytest.raises(UserError, match=r'^a\.txt: is HLO text, which jaxlib'):
    programs.read('a.txt', TEXT)


def test_dumps_with_buffers_are_no_tuning_data():
  module = elementwise([64, 256])
  whole = protos.HloProto(hlo_module=module)
  whole.buffer_assignment.logical_buffers.add(id=1, size=4096)
  whole.buffer_assignment.buffer_aliases.add()
  whole.buffer_assignment.heap_simulator_traces.add(buffer_allocation_index=7)
  for message in (module, whole, protos.HloSnapshot(hlo=whole)):
    content = message.SerializeToString()
    assert not tuning.has_runs(content)
    assert programs.read('a', content).content == module.SerializeToString()
  assert tuning.has_runs(tiny_tuning.tile_data().SerializeToString())


def test_notes_of_other_backends_are_dropped():
  module = elementwise([64, 256])
  entry = module.computations[0]
  entry.instructions[1].backend_config = b'{"known_trip_count":{"n":"7"}}'
  call = add(entry, 12, 'custom-call', [4], operands=[11])
  call.backend_config = b'the kernel'
  read = protos.as_module(programs.of_module(module).content)
  assert [node.backend_config for node in protos.nodes(read)] == [
      b'', b'', b'the kernel']
  module = convolution()  # Optimised.
  assert programs.of_module(module).optimized is module


def test_devices_of_a_module():
  def devices(groups=None, of_module=None, opcode='all-reduce', **fields):
    module = protos.HloModuleProto(**of_module or {})
    node = add(module.computations.add(), 1, opcode, [64, 256], **fields)
    node.MergeFromString(protos.DeviceGroups(
        **groups or {}).SerializeToString())
    program = programs.of_module(module)
    return program.replicas, program.partitions

  assert devices() == (1, 1)
  assert devices(sharding={'tile_assignment_dimensions': [2, 4]}) == (1, 8)
  assert devices(of_module={'frontend_attributes': {'map': {
      'xla.sdy.meshes': '{m = #sdy.mesh<["a"=2, "b"=3]>}'}}}) == (1, 6)
  # All-reduce over replicas; with a channel, over partitions.
  assert devices(replica_groups=[{'replica_ids': [0, 3]}]) == (4, 1)
  assert devices(channel_id=1, source_target_pairs=[
      {'source': 1, 'target': 2}]) == (1, 3)
  # As JAX writes groups since 0.4.34, and how XLA writes many.
  listed = {'replica_groups': [{'replica_ids': [0, 1]}]}
  assert devices({'collective_device_list': listed}) == (2, 1)
  iota = {'num_replica_groups': 4, 'num_devices_per_group': 2}
  listed['iota_replica_group_list'] = iota
  assert devices({'collective_device_list': listed}) == (8, 1)
  # As JAX 0.12 and its XLA write groups, partitioned or not.
  for groups in ({'iota_collective_device_list': iota},
                 {'mesh_axes_replica_group_list': {
                     'mesh': {'axes': [{'size': 2}, {'size': 4}]}}}):
    assert devices(groups) == (8, 1)
    assert devices(groups, channel_id=1) == (1, 8)
    assert devices(groups, opcode='tanh') == (1, 1)
  sound = elementwise([64, 256], opcode='all-reduce')
  sound.computations[0].instructions[1].custom_call_target = 'x'
  damaged = sound.SerializeToString().replace(  # Field 28, field 87.
      b'\xe2\x01\x01x', b'\xba\x05\x01\xff')
  with pytest.raises(UserError, match=(  # TensorFlow 2.21 knows the field.
      r'a\.pb: (the groups of devices of an o|its \d+ bytes are not a whole)')):
    programs.read('a.pb', damaged)
  options = protos.CompileOptions.FromString(
      tpu_compiler.compile_options(2, 4)).executable_build_options
  assert list(options.allow_spmd_sharding_propagation_to_output) == [True]
  assert [list(each.replica_device_ids)
          for each in options.device_assignment.computation_devices] == [
              [0, 4], [1, 5], [2, 6], [3, 7]]
  assert devices(of_module={'device_assignment': options.device_assignment}
                 ) == (2, 4)


def test_names_of_generations_and_of_topologies_with_enough_devices():
  for name, tpu in (
      ('V5E', 'v5e'), ('v5litepod-8', 'v5e'), ('TPU v5 lite', 'v5e'),
      ('TPU v5', 'v5p'), ('7x', 'v7x'), ('tpu7x', 'v7x'), ('3', 'v3'),
      ('TPU v6 lite', 'v6e')):
    assert libtpu.generation(name) == tpu
  assert [libtpu.topology_of('v5e', devices) for devices in (1, 4, 5, 16)] == [
      'v5e:2x2x1', 'v5e:2x2x1', 'v5e:4x2x1', 'v5e:4x4x1']
  assert libtpu.topology_of('v7x', 8) == 'tpu7x:2x2x1'  # Two of each chip.
  assert libtpu.topology_of('v5p', 16) == 'v5p:4x2x2'
  with pytest.raises(UserError, match='is for 1,099,511,627,776 devices, more'):
    libtpu.topology_of('v5p', 2**40)
