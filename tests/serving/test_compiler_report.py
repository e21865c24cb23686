"""The compiler's own report, with neither a model nor TensorFlow."""

import csv
import io
import json
import subprocess
import sys

import pytest

from support.feature_tiles import kernel_of_module
from support.places import PROJECT
from support.tiny_hlo import tiled, written
from tpu_graphs_ext import cli
from tpu_graphs_ext.serving import compiler_report


@pytest.fixture
def path(tmp_path):
  """An optimised program of one kernel."""
  return written(tmp_path / 'a.after_optimizations.hlo.pb',
                 tiled([32, 256], [4, 2], 1500))


def test_from_python(path):
  report = compiler_report.kernels(path, tpu='v5e')
  kernel, = report.kernels
  assert (kernel.name, kernel.runs, kernel.share, kernel.cycles) == (
      'elementwise', 1, 1, 1500)
  assert (kernel.output_bounds, kernel.flops, kernel.hbm_bytes) == (
      (4, 2), 8192, 65536)
  assert report.text().split('\n')[-1].split() == [
      *'elementwise 100.0 % 1,500 4x2 0.000 0.06 0.06 0.1 0.00'.split()]
  with open(path, 'wb') as file:  # Of no estimate; the column is left out.
    file.write(tiled([32, 256], [4, 2], 2**62).SerializeToString())
  assert compiler_report.kernels(path, tpu='v5e').text().split('\n')[
      -1].split()[:2] == ['elementwise', '4x2']


def test_the_command(path, capsys):
  assert cli.main(['kernels', path, '--json']) == 0
  report, = json.loads(capsys.readouterr().out)
  assert report['kernels'][0]['output_bounds'] == [4, 2]
  assert cli.main(['kernels', path, path, '--csv']) == 0
  rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
  assert len(rows) == 2 and rows[0] == rows[1]
  assert (rows[0]['source'], rows[0]['output_bounds'], rows[0]['cycles']) == (
      path, '4x2', '1500')
  assert cli.main(['kernels', path, 'none.pb', '--tpu', 'v5litepod-8']) == 1
  printed = capsys.readouterr()
  assert 'none.pb: no such file' in printed.err and '1,500' in printed.out


def test_csv_cells():
  """Whole numbers stay so beside none; no spreadsheet runs a name."""
  kernels = [compiler_report.KernelReport(
      'a', '=op', 2, False, share, cycles, (16, 32), (), 10, 20, 30, .5, 7)
             for share, cycles in ((None, None), (.25, 5))]
  assert compiler_report.to_csv([compiler_report.CompilerReport(
      'f', 'v5e', kernels, [])]).split('\n')[1:] == [
          "f,v5e,a,'=op,2,False,,,16x32,,10,20,30,0.5,7",
          "f,v5e,a,'=op,2,False,0.25,5,16x32,,10,20,30,0.5,7", '']


def test_kernels_without_a_program(tmp_path, capsys):
  path = kernel_of_module(tiled([32, 256], [4, 2], 1500)).save(str(tmp_path))
  assert cli.main(['kernels', path]) == 1
  printed = capsys.readouterr()
  assert not printed.out
  assert 'has kernels and their tiles but no program to compile' in printed.err


def test_neither_tensorflow_nor_pandas_is_loaded(path):
  code = ('import sys, tpu_graphs_ext.cli\n'
          f'tpu_graphs_ext.cli.main(["kernels", {path!r}])\n'
          'assert not {"tensorflow", "pandas", "scipy"} & set(sys.modules)')
  done = subprocess.run([sys.executable, '-c', code], cwd=PROJECT, check=False,
                        capture_output=True, text=True)
  assert done.returncode == 0 and '1,500' in done.stdout, done.stderr
