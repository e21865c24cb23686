"""The C API of libtpu, and the process that it runs in."""

import os
import sys
import time

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import compiling, pjrt


def test_positions_are_those_of_the_header():
  import tensorflow as tf
  path = os.path.join(os.path.dirname(tf.__file__),
                      'include/xla/pjrt/c/pjrt_c_api.h')
  with open(path, encoding='utf-8') as header:
    names = [line.split('(')[1].split(')')[0] for line in header
             if line.startswith('  _PJRT_API_STRUCT_FIELD(')]
  assert pjrt.FUNCTIONS == {name: names.index(name) for name in pjrt.FUNCTIONS}


def test_options_are_written_as_protobuf_has_them():
  # Field 3, 15 bytes: field 1 = -1 in 10 bytes, fields 4 and 5 = 1.
  build = b'\x1a\x0f' + b'\x08' + 9 * b'\xff' + b'\x01' + b'\x20\x01\x28\x01'
  assert pjrt.compile_options() == build
  # Field 7, a map: key in field 1, value in field 2: bool 2, int 3, string 1.
  assert pjrt.compile_options({'a': True}) == (
      build + b'\x3a\x07\x0a\x01a\x12\x02\x10\x01')
  assert pjrt.compile_options({'a': 300}) == (
      build + b'\x3a\x08\x0a\x01a\x12\x03\x18\xac\x02')
  assert pjrt.compile_options(argument_layouts=[b'xy']) == b'\x0a\x02xy' + build


def test_library_that_is_none():
  with compiling.CompilingProcess(os.__file__, 'v3:2x2x1') as process:
    with pytest.raises(UserError, match=r'cannot be loaded .*\[tpu\]'):
      process.compile(b'')


class _Fake(compiling.CompilingProcess):
  """Its process answers by a script instead of by libtpu."""

  def __init__(self, answers: str, **settings):
    super().__init__('unused', 'unused', **settings)
    self._answers = answers

  def _command(self):
    return [sys.executable, '-c', f"""
import os, sys, time
from tpu_graphs_ext.hlo import compiling
class Compiler:
  def __init__(self, library, topology): pass
  def compile(self, program, program_format, options):
{self._answers}
compiling.pjrt.Compiler = Compiler
compiling._serve('', '')"""]


def test_many_programs_in_one_process_each_with_its_log():
  with _Fake("""
    print('printed', program.decode())
    return program_format.encode() + b'%d' % os.getpid()""") as process:
    first = process.compile(b'a' * 200_000)
    assert process.log == b'printed ' + b'a' * 200_000 + b'\n'
    assert process.compile(b'b') == first
    assert process.log == b'printed b\n'


def test_process_that_ends_or_hangs_is_started_again():
  with _Fake("""
    if program == b'abort':
      sys.stderr.write('F0000 Check failed: x'); sys.stderr.flush()
      os.abort()
    if program == b'hang': time.sleep(60)
    return program""", time_limit_seconds=5) as process:
    with pytest.raises(compiling.CompileError,
                       match=r'ended with code -6 .F0000 Check failed: x'):
      process.compile(b'abort')
    assert process.compile(b'more') == b'more'
    start = time.monotonic()
    with pytest.raises(compiling.CompileError, match='more than 5 s'):
      process.compile(b'hang')
    assert time.monotonic() - start < 30
    assert process.compile(b'more') == b'more'


def test_refusal_leaves_the_process():
  with _Fake("""
    if program == b'bad': raise compiling.pjrt.PjrtError('no\\n such shape')
    return b'%d' % os.getpid()""") as process:
    number = process.compile(b'')
    with pytest.raises(compiling.CompileError, match='no such shape'):
      process.compile(b'bad')
    assert process.compile(b'') == number
