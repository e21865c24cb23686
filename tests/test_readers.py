"""One table of all that reads files, and a fuzz test that draws from it.

A reader takes ordinary files only, and says in one error what it cannot use.
"""

import ast
import gzip
import io
import json
import os
import pathlib
import re

import numpy as np
import pytest

from support import damage, tiny_kernels, tiny_traces, tiny_tuning
from support.places import PROJECT, TESTS
from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.cli import app
from tpu_graphs_ext.course import sandbox, swap, zip_file
from tpu_graphs_ext.data import cache, check, kernel, npz
from tpu_graphs_ext.engine import artifacts, evaluate, predictions_csv
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import featurize, kernel_sources, lowering, tuning
from tpu_graphs_ext.sweep import grid
from tpu_graphs_ext.tasks import tile
from tpu_graphs_ext.traces import calibrate, kineto

PACKAGE = PROJECT / 'tpu_graphs_ext'
JSON = json.dumps({'a': [1, {'b': 'c'}], 'd': 2.5}).encode()
MODELS = b'import numpy\nclass M:\n  def __init__(self, width=1): pass\n'


def kernel_file() -> bytes:
  content = io.BytesIO()
  np.savez(content, **tiny_kernels.diamond().stored())
  return content.getvalue()


# Function that opens a file -> (a sound file, what reads it, ending).
READERS = {
    'cli/app.py _read_config': (lambda: JSON, app._read_config),
    'course/sandbox.py read_answer': (lambda: JSON, sandbox.read_answer),
    'course/swap.py _recorded': (
        lambda: 64 * b'a', lambda path: swap._recorded(
            path.removesuffix(swap.RECORD)), swap.RECORD),
    'course/zip_file.py _archive': (
        kernel_file, lambda path: zip_file.unpack(
            path, path + '.folder')),
    'data/cache.py content_key': (
        lambda: b'abc', lambda path: cache.content_key([path])),
    'data/check.py check_file': (kernel_file, check.check_file, '.npz'),
    'data/npz.py opened': (kernel_file, npz.array_names),
    'data/npz.py read_arrays': (
        kernel_file, lambda path: npz.read_arrays(path, ['node_feat'])),
    'data/npz.py array_names': (kernel_file, npz.array_names),
    'data/npz.py shape_of': (
        kernel_file, lambda path: npz.shape_of(path, 'node_feat')),
    'data/npz.py blocks': (
        kernel_file, lambda path: list(npz.blocks(path, 'node_feat', 1))),
    'data/rules.py TaskRules': (kernel_file, kernel.Kernel.load, '.npz'),
    'engine/artifacts.py read_run_file': (
        lambda: gzip.compress(b'{"seed": 1, "args": {"model": "M", '
                              b'"model_kwargs_json": "{}", "configs": 2}}'),
        artifacts.read_run_file),
    'engine/evaluate.py read_scores': (
        kernel_file, lambda path: evaluate.read_scores(
            path, tile.LoadSettings()), '.npz'),
    'engine/predictions_csv.py read': (
        lambda: b'ID,TopConfigs\ntile:xla:a,0;1\n', predictions_csv.read),
    'files.py read_file': (lambda: b'abc', files.read_file),
    'files.py sha256': (lambda: b'abc', files.sha256),
    'files.py require_kind': (
        lambda: b'abc', lambda path: files.require_kind(path, 'abc', 'file')),
    'files.py read_json': (lambda: JSON, files.read_json),
    'hlo/featurize.py _kernels': (
        lambda: b'module,runtime_ns\na.pb,12\n', lambda path: (
            pathlib.Path(path).with_name('modules.json').write_text(
                '{"modules": [{"module": "a.pb"}, 3]}'),
            featurize._kernels(path, 'v3', '', '', []))),
    'hlo/lowering.py require_names': (
        lambda: MODELS, lambda path: lowering.require_names(
            f'{path}:f', 'f32[2]'), '.py'),
    'hlo/tuning.py _read': (
        lambda: tiny_tuning.layout_data().SerializeToString(),
        tuning.read_results),
    'load_models.py models_module': (
        lambda: MODELS, load_models.models_module),
    'load_models.py parsed': (
        lambda: MODELS, lambda path: load_models.require_in_text(
            'M', ['width'], path)),
    'hlo/kernel_sources.py open_source': (
        lambda: tiny_tuning.tile_data().SerializeToString(),
        kernel_sources.open_source),
    'sweep/grid.py read': (
        lambda: b'{"models": ["MLP"]}', grid.read),
    'traces/calibrate.py read': (lambda: JSON, calibrate.read),
    'traces/kineto.py read': (
        lambda: json.dumps({'traceEvents': tiny_traces.one_step()}).encode(),
        kineto.read),
}
# The same of what is read beside other files -> the tests that damage it.
ELSEWHERE = {
    'course/sandbox.py _copy': 'course/test_sandbox.py',
    'course/swap.py install': 'course/test_swap.py',
    'course/swap.py state': 'course/test_doctor.py',
    'course/training.py train': 'course/test_swap.py',
    'course/verify.py verify': 'course/test_verify.py',
    'course/zip_file.py _contents': 'course/test_zip_file.py',
    'data/cache.py Entry': 'data/test_cache_damaged.py',
    'data/programs.py _blocks': 'data/test_programs.py',
    'engine/saved_weights.py _check': 'engine/test_saved_weights.py',
    'engine/origin.py of_training': 'engine/test_train.py',
    'engine/origin.py _is_known': 'engine/test_artifacts.py',
    'engine/origin.py models_file_of': 'engine/test_artifacts.py',
    'engine/resume.py ResumeFolder': 'engine/test_resume.py',
    'engine/saved_weights.py read': 'engine/test_saved_weights.py',
    'files.py _sum_of': 'test_files.py',
    'hlo/featurize.py _measured': 'hlo/test_kernel_modules.py',
    'hlo/featurize.py measured_kernels': 'hlo/test_kernel_modules.py',
    'hlo/tuning.py write_results': 'hlo/test_hlo_tuning.py',
    'hlo/tuning.py _require_one_task': 'hlo/test_hlo_tuning.py',
    'sample/write.py _statistics_in': 'sample/test_sample_write.py',
    'sample/write.py tpu_of': 'sample/test_sample_write.py',
    'serving/export.py _require_ours': 'serving/test_export.py',
    'sweep/rank_many.py _settings': 'sweep/test_rank_many.py',
    'sweep/trials.py _storage': 'sweep/test_sweep.py'}
# What opens files without the opener: its own, or those of the package.
OPENS = {
    'cli/app.py _run', 'cli/app.py main', 'course/checkout.py run_to_end',
    'course/sandbox.py Sandbox', 'course/sandbox.py _copy',
    'course/steps.py main', 'data/cache.py _build',
    'data/cache.py Entry', 'engine/artifacts.py save_run',
    'engine/origin.py remember', 'engine/saved_weights.py _of_checkpoint',
    'files.py open_ordinary', 'files.py new_file', 'files.py new_folder',
    'files.py held_folder', 'hlo/protos.py _define',
    'hlo/tuning.py write_results',
    'sample/kernels.py unpacked',
    'serving/block_kernels.py checked', 'stacks/imports.py _silently',
    'stacks/versions.py _stack', 'sweep/pool.py called',
    'sweep/rank_many.py _journal'}
_READING = re.compile(
    r'((files|npz)\.)?(open_ordinary|read_file|read_json|sha256|opened|'
    r'read_arrays|array_names|shape_of|blocks)')
_OPENING = re.compile(
    r'((os|gzip|lzma|io|bz2)\.)?open|np\.(load|memmap|fromfile|loadtxt)|'
    r'(?s:.*\.)?(read_bytes|read_text|load_checkpoint)')


def calls_in_package():
  """(file and its function or class, what is called) of each call."""
  def within(node, path, place):
    for child in ast.iter_child_nodes(node):
      inner = place or getattr(child, 'name', '')
      if isinstance(child, ast.Call):
        yield f'{path} {inner}', ast.unparse(child.func)
      yield from within(child, path, inner)

  for path in PACKAGE.rglob('*.py'):
    if not path.is_symlink():
      yield from within(ast.parse(path.read_text(encoding='utf-8')),
                        path.relative_to(PACKAGE).as_posix(), '')


def test_every_reader_has_a_row():
  reads, opens = set(), set()
  for place, called in calls_in_package():
    if _READING.fullmatch(called):
      reads.add(place)
    if _OPENING.fullmatch(called):
      opens.add(place)
  assert reads - opens - READERS.keys() - ELSEWHERE.keys() == set()
  assert opens == OPENS
  assert (READERS.keys() | ELSEWHERE.keys()) - reads == set()
  for test in ELSEWHERE.values():
    assert (TESTS / test).exists()


# Sums in these files let no other number pass.
SUMMED = ('engine/artifacts.py read_run_file', 'data/npz.py read_arrays')


def refused(read, path, expected=None) -> str:
  """The one error of a reader, or '' where it takes the file.

  Then it must give what is `expected`.
  """
  try:
    faults = read(str(path))
    if expected and not (isinstance(faults, tuple) and faults[1]):
      np.testing.assert_equal(faults, expected)
  except (UserError, npz.DamagedError) as error:
    return str(error)
  # Two say it in their result.
  if isinstance(faults, tuple) and isinstance(faults[0], list):
    return ''.join(map(str, faults[0]))
  return ''


@pytest.mark.parametrize('name', READERS)
def test_only_ordinary_files_are_read(tmp_path, name):
  _, read, *ending = READERS[name]
  for number, make in enumerate((os.mkfifo, os.mkdir, (
      lambda path: os.symlink('/dev/zero', path)))):
    path = tmp_path / ''.join([str(number), *ending])
    make(path)
    with damage.within_limits(name):
      said = refused(read, path)
    # Python itself says what it cannot import.
    assert said or name == 'hlo/lowering.py require_names', number


@pytest.mark.parametrize('rounds', [
    12, pytest.param(1000, marks=pytest.mark.survive)])
@pytest.mark.parametrize('name', READERS)
def test_damaged_files_give_one_error_or_a_result(tmp_path, name, rounds):
  make, read, *ending = READERS[name]
  sound = make()
  path = tmp_path / ''.join(['x', *ending])
  path.write_bytes(sound)
  expected = read(str(path)) if name in SUMMED else None
  for seed in range(rounds):
    path.write_bytes(damage.mutated(sound, np.random.default_rng(seed))
                     if seed else b'')
    with damage.within_limits((name, seed)):
      refused(read, path, expected)
