"""HLO files of compilers."""

import pytest
from tensorflow.compiler.xla.service import hlo_pb2

from support.tiny_hlo import convolution, elementwise
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos


def test_modules_and_whether_a_compiler_has_fused_them():
  scheduled = elementwise([24, 256])
  scheduled.schedule.sequences[1].instruction_ids.append(10)
  for module, path, is_optimized in (
      (elementwise([24, 256]), 'm.before_optimizations.hlo.pb', False),
      (elementwise([24, 256]), 'm.cpu_after_optimizations.hlo.pb', True),
      (convolution(), 'a.pb', True),  # It has a fusion.
      (scheduled, 'a.pb', True)):
    for content in (module, hlo_pb2.HloProto(hlo_module=module)):
      assert protos.read_hlo(path, content.SerializeToString()) == module
    assert protos.is_optimized(path, module) == is_optimized


def test_other_files():
  for content in (b'', b'HloModule text', b'\xff' * 40,
                  convolution().SerializeToString()[:99]):
    with pytest.raises(UserError, match=r'a\.pb: its .* are not a whole Hlo'):
      protos.read_hlo('a.pb', content)
