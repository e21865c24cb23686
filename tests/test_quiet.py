"""Progress bars and messages, which --quiet leaves out."""

import io
import logging
import sys

from tqdm import tqdm

from tpu_graphs_ext import cli
from tpu_graphs_ext.cli.flags import VERBS


class Terminal(io.StringIO):

  def isatty(self):
    return True


def test_quiet_shows_warnings_and_results_alone(monkeypatch, capsys, tmp_path):
  """Bars, which look whether stderr is a terminal, and messages."""
  log = logging.getLogger('tpu_graphs_ext')
  root = logging.getLogger()
  before, level = list(root.handlers), log.level

  def work(unused_args):
    log.info('reading')
    log.warning('odd kernel')
    for _ in tqdm(range(3), desc='a bar', disable=None):
      pass
    print('result')
    return 0

  monkeypatch.setitem(
      VERBS, 'check-data', VERBS['check-data']._replace(run=work))
  shown = {}
  try:
    for flags in ([], ['--quiet'], []):
      root.handlers[:] = []
      terminal = Terminal()
      monkeypatch.setattr(sys, 'stderr', terminal)
      assert cli.main(['check-data', str(tmp_path), *flags]) == 0
      shown[bool(flags)] = terminal.getvalue()
      assert capsys.readouterr().out == 'result\n'
  finally:
    root.handlers[:] = before
    log.setLevel(level)
  assert shown[True] == 'odd kernel\n'
  assert 'reading' in shown[False] and 'a bar' in shown[False]
