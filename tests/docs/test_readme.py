"""The README's first example, run as a reader runs it, prints what it shows."""

import re
import sys

from support.libtpu import needs_libtpu
from support.places import PROJECT

TEXT = (PROJECT / 'README.md').read_text(encoding='utf-8')


@needs_libtpu
def test_the_example_prints_what_the_page_shows(monkeypatch, capsys):
  monkeypatch.chdir(PROJECT)
  code, shown = re.search(r'^```python\n(.*?)^```.*?^```\n(.*?)^```', TEXT,
                          re.DOTALL | re.MULTILINE).groups()
  exec(code, {})
  printed = capsys.readouterr().out.splitlines()
  head, *rows = shown.splitlines()
  start = next(number for number, line in enumerate(printed)
               if line.split() == head.split()) + 1
  printed = printed[start:start + len(rows)]
  if sys.version_info[:2] != (3, 11):
    # Another libtpu: kernels have other names, and other tiles may be first.
    rows, printed = ([line.split()[-1] for line in lines]
                     for lines in (rows, printed))
  assert printed == rows
