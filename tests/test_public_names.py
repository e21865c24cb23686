"""The names that programs may rely on, and that importing them is cheap."""

import subprocess
import sys

import pytest

import tpu_graphs_ext
from support.places import PROJECT


def test_importing_the_package_imports_nothing_large():
  code = ('import sys, tpu_graphs_ext as t\n'
          'assert set(t.__all__) <= set(dir(t))\n'
          'print(*sorted({"numpy", "tensorflow", "pandas", "typing"} '
          '& set(sys.modules)))\n'
          'assert t.UserError and t.Kernel\n'
          'assert "tensorflow" not in sys.modules')
  done = subprocess.run(
      [sys.executable, '-S', '-c',
       f'import sys; sys.path[:0] = {sys.path!r}\n{code}'],
      cwd=PROJECT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert done.stdout.split() == []


def test_every_name_is_there_and_no_other():
  for name in tpu_graphs_ext.__all__:
    value = getattr(tpu_graphs_ext, name)
    assert value.__name__ == name and value.__doc__
    assert vars(tpu_graphs_ext)[name] is value  # Looked up once.
  assert set(tpu_graphs_ext._HOMES) == set(tpu_graphs_ext.__all__)
  with pytest.raises(AttributeError, match="has no attribute 'CostModell'"):
    _ = tpu_graphs_ext.CostModell
