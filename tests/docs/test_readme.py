"""The README's first example, as a reader runs it."""

import re

from support.libtpu import needs_libtpu
from support.places import PROJECT

TEXT = (PROJECT / 'README.md').read_text(encoding='utf-8')


@needs_libtpu
def test_the_example_prints_what_the_page_shows(monkeypatch, capsys):
  """Names of kernels and choices differ between versions of the compiler."""
  monkeypatch.chdir(PROJECT)
  exec(re.search(r'^```python\n(.*?)^```', TEXT, re.DOTALL | re.MULTILINE)[1],
       {})
  printed = capsys.readouterr().out.splitlines()
  shown = re.search(r'^```\n(kernel  .*?)^```', TEXT,
                    re.DOTALL | re.MULTILINE)[1].splitlines()
  start = next(number for number, line in enumerate(printed)
               if line.split() == shown[0].split())
  operations = {line.split()[-1] for line in printed[start + 1:start + 7]}
  assert {line.split()[-1] for line in shown[1:]} <= operations
