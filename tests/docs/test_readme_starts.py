"""README.md's first block as it stands, from a bare machine: timed."""

import os
import re
import subprocess
import time

import pytest

from support.libtpu import needs_libtpu
from support.places import PROJECT

TEXT = (PROJECT / 'README.md').read_text(encoding='utf-8')
BLOCKS = re.findall(r'^```(\w+)\n(.*?)^```', TEXT, re.DOTALL | re.MULTILINE)
MOST_MINUTES = 20  # README says five to ten; a busy machine takes more.


def lines_of(text: str) -> set[str]:
  return set(text.splitlines()) - {'...', '  ...', ''}


def shown_by(number: int) -> set[str]:
  """The lines that README prints below a block."""
  language, text = BLOCKS[number + 1]
  assert language == 'text'
  return lines_of(text)


def shown_in_ranking() -> set[str]:
  """What docs/ranking.md prints of the same command."""
  page = (PROJECT / 'docs' / 'ranking.md').read_text(encoding='utf-8')
  return lines_of(re.search(r'## What is printed.*?```text\n(.*?)^```', page,
                            re.DOTALL | re.MULTILINE)[1])


def test_the_page_begins_with_a_clone_and_both_frameworks():
  assert [language for language, _ in BLOCKS[:4]] == [
      'bash', 'text', 'python', 'text']
  assert BLOCKS[0][1].startswith('git clone "$REPOSITORY"')


@pytest.mark.slow
@needs_libtpu
def test_it_starts(tmp_path):
  """A home without anything, a clone, an environment from the package index."""
  variables = {name: os.environ[name] for name in os.environ
               if name in ('PATH', 'LANG') or name.startswith(('PIP_', 'SSL'))}
  variables.update(HOME=str(tmp_path), REPOSITORY=f'file://{PROJECT}',
                   JAX_PLATFORMS='cpu')  # As the block sets it.
  start = time.monotonic()
  done = subprocess.run(
      ['bash', '-euo', 'pipefail', '-c', BLOCKS[0][1]], cwd=tmp_path,
      env=variables, text=True, check=False, capture_output=True)
  minutes = (time.monotonic() - start) / 60
  print(f'README\'s first block: {minutes:.1f} minutes')
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
  printed = set(done.stdout.splitlines())
  assert not (shown_by(0) | shown_in_ranking()) - printed, done.stdout
  assert minutes < MOST_MINUTES
  clone = tmp_path / 'tpu-graphs-ext'
  done = subprocess.run(
      [clone / '.venv/bin/python', '-c', BLOCKS[2][1]], cwd=tmp_path,
      env=variables, text=True, check=False, capture_output=True)
  assert done.returncode == 0, done.stderr[-2000:]
  assert not shown_by(2) - set(done.stdout.splitlines()), done.stdout
