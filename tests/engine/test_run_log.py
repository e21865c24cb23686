"""The log and the progress bar of a run."""

import io
import logging
import re
import sys

import pytest
from tqdm import tqdm

from tpu_graphs_ext import cli
from tpu_graphs_ext.cli.flags import VERBS
from tpu_graphs_ext.engine import callbacks, run_log
from tpu_graphs_ext.engine.settings import TrainSettings
from tpu_graphs_ext.errors import UserError

SETTINGS = TrainSettings(model='MLP', epochs=7, run_id='a b')


@pytest.fixture
def package_log():
  """The package's logger, as the command line sets it up."""
  log = logging.getLogger('tpu_graphs_ext')
  level = log.level
  log.setLevel(logging.INFO)
  yield log
  log.setLevel(level)


def messages_of(path):
  """Lines without their times, which are checked."""
  messages = []
  for line in path.read_text().splitlines():
    found = re.fullmatch(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (.*)', line)
    messages.append(found[1] if found else f'no time: {line}')
  return messages


def test_messages_before_the_run_has_a_name_are_kept(tmp_path, package_log):
  path = tmp_path / 'run_1.log'
  with run_log.RunLog(SETTINGS) as log:
    package_log.warning('left out %d kernels', 3)
    assert not path.exists()
    log.open(str(path), resumed=False)
    logging.getLogger('tpu_graphs_ext.engine.x').info('epoch 1')
    assert messages_of(path)[-1] == 'epoch 1'  # At once, not at the end.
    log.write('best OPA')
  package_log.warning('not of this run')
  command = "tpu-graphs-ext train --epochs=7 --model=MLP '--run_id=a b'"
  assert messages_of(path) == [
      command, 'left out 3 kernels', 'epoch 1', 'best OPA']


def test_a_resumed_run_goes_on_in_its_log_and_a_new_one_replaces_it(tmp_path):
  path = tmp_path / 'run_1.log'
  for resumed in (False, True, False):
    with run_log.RunLog(SETTINGS) as log:
      log.open(str(path), resumed)
    assert len(messages_of(path)) == 1 + resumed


def test_how_a_run_ended(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError), run_log.RunLog(SETTINGS) as log:
    log.write('something')
    raise UserError('no data')
  assert list(tmp_path.iterdir()) == []  # A run without a name.
  path = tmp_path / 'run_1.log'
  for error, last in (
      (UserError('the loss became nan'), 'error: the loss became nan'),
      (KeyboardInterrupt(), 'interrupted'),
      (ValueError('odd'), 'ValueError: odd')):
    with pytest.raises(type(error)), run_log.RunLog(SETTINGS) as log:
      log.open(str(path), resumed=False)
      raise error
    assert messages_of(path)[-1] == last
  (tmp_path / 'run_2.log').mkdir()
  with pytest.raises(UserError, match=r'run_2\.log: cannot be written'):
    with run_log.RunLog(SETTINGS) as log:
      log.open(str(tmp_path / 'run_2.log'), resumed=False)


# ---------------------------------------------------------------- progress


class Terminal(io.StringIO):

  def isatty(self):
    return True


def test_the_bar_counts_kernels(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', Terminal())
  bar = callbacks.ProgressBar(5)
  bar.params = {'epochs': 3, 'steps': 4}
  bar.on_epoch_begin(1)
  bar._bar.mininterval = 0
  bar.on_train_batch_end(1, {'loss': 0.25})  # The second step of four.
  assert (bar._bar.n, bar._bar.total) == (10, 20)
  bar._bar.refresh()
  shown = sys.stderr.getvalue()
  assert 'epoch 2 of 3' in shown and '10/20' in shown
  assert re.search(r'<\d\d:\d\d, +[\d.]+kernel/s, loss=0.25', shown), shown
  bar.on_epoch_end(1)


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
      assert log.isEnabledFor(logging.INFO)  # The log of a run has them.
      shown[bool(flags)] = terminal.getvalue()
      assert capsys.readouterr().out == 'result\n'
  finally:
    root.handlers[:] = before
    log.setLevel(level)
  assert shown[True] == 'odd kernel\n'
  assert 'reading' in shown[False] and 'a bar' in shown[False]
