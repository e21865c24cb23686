"""HLO files of compilers: protobufs and text."""

import importlib.util

import pytest
from tensorflow.compiler.xla.service import hlo_pb2

from support.tiny_hlo import convolution, elementwise
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import hlo_files, subprocesses

TEXT = b'''HloModule small, is_scheduled=true

ENTRY main {
  p = f32[24,256]{0,1:T(8,128)} parameter(0)
  ROOT r = f32[24,256]{0,1:T(8,128)} tanh(p)
}
'''


def scheduled():
  module = elementwise([24, 256])
  module.schedule.sequences[1].instruction_ids.append(10)
  return module


@pytest.mark.parametrize('module, path, is_optimized', [
    (elementwise([24, 256]), 'm.before_optimizations.hlo.pb', False),
    (elementwise([24, 256]), 'm.cpu_after_optimizations.hlo.pb', True),
    (convolution(), 'a.pb', True),  # It has a fusion.
    (scheduled(), 'a.pb', True)])
def test_modules_and_whether_a_compiler_has_fused_them(
    module, path, is_optimized):
  for content in (module, hlo_pb2.HloProto(hlo_module=module)):
    file = hlo_files.read_hlo(path, content.SerializeToString())
    assert file == (module, is_optimized)


@pytest.mark.parametrize('content', [
    b'', b'# notes\nnothing', b'\xff' * 40,
    convolution().SerializeToString()[:99]])
def test_other_files(content):
  with pytest.raises(UserError, match=r'a\.pb: its .* bytes are neither HLO'):
    hlo_files.read_hlo('a.pb', content)


@pytest.mark.skipif(importlib.util.find_spec('jaxlib') is None,
                    reason='jaxlib is not installed')
def test_text():
  file = hlo_files.read_hlo('a.txt', TEXT)
  assert file.is_optimized
  node = file.module.computations[0].instructions[1]
  assert (node.opcode, list(node.shape.layout.minor_to_major)) == (
      'tanh', [0, 1])
  assert not hlo_files.read_hlo('a.txt', TEXT.replace(
      b', is_scheduled=true', b'')).is_optimized
  with pytest.raises(UserError, match=r'a\.txt: is not HLO text'):
    hlo_files.read_hlo('a.txt', TEXT.replace(b'tanh(p)', b'tanh('))


def test_text_without_jaxlib(monkeypatch):
  def missing():
    raise ImportError
  monkeypatch.setattr(subprocesses, '_parser', missing)
  with pytest.raises(UserError, match=r'pip install -e "\.\[jax\]"'):
    subprocesses._parsed('a.txt', TEXT.decode())
