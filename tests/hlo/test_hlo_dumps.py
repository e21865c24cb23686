"""HLO files of compilers: protobufs and text."""

import importlib.util

import pytest
from tensorflow.compiler.xla.service import hlo_pb2

from support.tiny_hlo import convolution, elementwise
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import dumps, features, lowering_subprocess

TEXT = b'''HloModule small, is_scheduled=true

ENTRY main {
  p = f32[24,256]{0,1:T(8,128)} parameter(0)
  ROOT r = f32[24,256]{0,1:T(8,128)} tanh(p)
}
'''
HAS_JAX = importlib.util.find_spec('jaxlib') is not None


def test_modules_and_what_xla_wraps_them_in():
  module = elementwise([24, 256])
  for content in (module.SerializeToString(),
                  hlo_pb2.HloProto(hlo_module=module).SerializeToString()):
    dump = dumps.read_dump('a.pb', content)
    assert dump.module == module and not dump.is_optimized


@pytest.mark.parametrize('module, path, is_optimized', [
    (convolution(), 'a.pb', True),  # It has a fusion.
    (elementwise([24, 256]), 'm.cpu_after_optimizations.hlo.pb', True),
    (elementwise([24, 256]), 'm.before_optimizations.hlo.pb', False)])
def test_whether_a_compiler_has_fused_it(module, path, is_optimized):
  assert dumps.read_dump(
      path, module.SerializeToString()).is_optimized == is_optimized


def test_a_schedule_says_that_it_is_optimized():
  module = elementwise([24, 256])
  module.schedule.sequences[1].instruction_ids.append(10)
  assert dumps.read_dump('a.pb', module.SerializeToString()).is_optimized


@pytest.mark.parametrize('content', [
    b'', b'# notes\nnothing', b'\xff' * 40,
    convolution().SerializeToString()[:99]])
def test_other_files(content):
  with pytest.raises(UserError, match=r'a\.pb: its .* bytes are neither HLO'):
    dumps.read_dump('a.pb', content)


def test_what_cannot_be_read(tmp_path):
  with pytest.raises(UserError, match='cannot be read'):
    dumps.content_of(str(tmp_path / 'none.pb'))


@pytest.mark.skipif(not HAS_JAX, reason='jaxlib is not installed')
def test_text():
  dump = dumps.read_dump('a.txt', TEXT)
  assert dump.is_optimized
  arrays = features.module_arrays(dump.module)
  assert len(arrays.node_opcode) == 2
  node = dump.module.computations[0].instructions[1]
  assert (node.opcode, list(node.shape.layout.minor_to_major)) == (
      'tanh', [0, 1])
  assert not dumps.read_dump('a.txt', TEXT.replace(
      b', is_scheduled=true', b'')).is_optimized


@pytest.mark.skipif(not HAS_JAX, reason='jaxlib is not installed')
def test_text_that_is_damaged():
  with pytest.raises(UserError, match=r'a\.txt: is not HLO text'):
    dumps.read_dump('a.txt', TEXT.replace(b'tanh(p)', b'tanh('))


def test_text_without_jaxlib(monkeypatch):
  def missing():
    raise ImportError
  monkeypatch.setattr(lowering_subprocess, '_parser', missing)
  with pytest.raises(UserError, match=r'pip install -e "\.\[jax\]"'):
    lowering_subprocess._parsed('a.txt', TEXT.decode())


def test_a_process_that_dies(monkeypatch):
  monkeypatch.setattr(lowering_subprocess.sys, 'executable', '/bin/false')
  with pytest.raises(UserError, match=r'process .* ended with code 1'):
    lowering_subprocess.module_of_text('a.txt', TEXT)
