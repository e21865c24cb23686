"""Sweeps of trials that are no trainings: what is done, kept and told."""

import json

import pytest

from support import damage, fake_trials, inline_pool, tiny_models
from tpu_graphs_ext import cli, files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import pool, sweep, trials

pytest.importorskip('optuna', reason='needs the extra [scale]')


@pytest.fixture
def swept(tmp_path, monkeypatch):
  """Returns a function that sweeps; it returns (leaderboard, pool).

  Keys of the grid may be given, and after how many trials Ctrl-C comes.
  """
  data_root = fake_trials.write_data(tmp_path / 'data')

  def of(interrupted_after=None, retry_failed=False, **more):
    crew = of.crew = inline_pool.InlinePool()
    crew.stop_after = interrupted_after
    monkeypatch.setattr(pool, 'run', crew)
    monkeypatch.setattr(trials, 'run', fake_trials.trained)
    path = fake_trials.write_grid(
        tmp_path, more.pop('data_root', data_root), tiny_models.__file__,
        **more)
    return sweep.sweep(path, str(tmp_path / 'out'),
                       retry_failed=retry_failed), crew

  of.out = tmp_path / 'out'
  return of


def widths(trials_done):
  return [(trial.configuration.kwargs['width'], trial.seed)
          for trial in trials_done]


def test_what_is_done_or_interrupted_is_not_repeated(swept, tmp_path, caplog):
  for done in (2, 3):
    with pytest.raises(KeyboardInterrupt):
      swept(interrupted_after=done)
  assert 'interrupted: 5 of 6 trials are done' in caplog.text
  assert (tmp_path / 'out' / 'trials.csv').read_text().count('\n') == 1 + 5
  board, crew = swept()
  assert widths(crew.done) == [(8, 1)] and len(board.trials) == 6
  assert [kwargs['width'] for kwargs in board.groups['kwargs']] == [8, 4, 2]
  assert board.groups['opa_mean'].iloc[0] == pytest.approx(0.0805)
  table = (tmp_path / 'out' / 'leaderboard.csv').read_text()
  again, crew = swept()
  assert crew.done == [] and again.trials.equals(board.trials)
  assert (tmp_path / 'out' / 'leaderboard.csv').read_text() == table


def test_failures_are_rows_until_they_are_tried_again(swept):
  failing = {'kwargs': {'width': [13, 2]}, 'seeds': [0]}
  board, unused_crew = swept(**failing)
  assert list(board.trials['state']) == [trials.FINISHED, trials.FAILED]
  assert list(board.trials['error']) == ['', 'out of memory']
  assert swept(**failing)[1].done == []
  # A search copies the failure; the grid's second attempt comes after it.
  swept(search={'method': 'random', 'configurations': 2}, **failing)
  _, crew = swept(retry_failed=True, **failing)
  assert widths(crew.done) == [(13, 0)]
  board, _ = swept(**failing)
  assert list(board.trials['attempts']) == [1, 2]


def test_faults_come_before_any_trial(swept, tmp_path):
  with pytest.raises(UserError, match=r"grid.json: models\[0\]: .*TinyRanker "
                     r"has no argument 'widht'; it takes width"):
    swept(kwargs={'widht': 3})
  with pytest.raises(UserError, match=r'has no \.npz files'):
    swept(data_root=str(tmp_path / 'nothing'))
  assert not swept.crew.done


def test_folders_and_journals_that_are_refused(swept, tmp_path):
  out = tmp_path / 'out'
  out.mkdir()
  with files.held_folder(str(out)):
    with pytest.raises(UserError, match='another sweep is at work in this'):
      swept()
  (out / 'trials.csv').write_text('my,trials\n')
  with pytest.raises(UserError, match=r'trials\.csv: is not a table of a'):
    swept()
  (out / 'trials.csv').unlink()
  (out / trials.FILE).write_bytes(b'#\n{}\n')
  with pytest.raises(UserError, match=r'sweep\.journal: is damaged'):
    swept()
  assert not swept.crew.done


@pytest.mark.parametrize('every', [
    151, pytest.param(1, marks=pytest.mark.survive)])
def test_hostile_values_in_a_journal(swept, tmp_path, every):
  """A line of the journal with values of every type: an error, or a table."""
  search = {'search': {'method': 'random', 'configurations': 2}}
  swept(**search)
  journal = tmp_path / 'out' / trials.FILE
  lines = [json.loads(line) for line in journal.read_text().splitlines()]
  hostile = [(f'line {number}: {what}', number, changed)
             for number, line in enumerate(lines)
             for what, changed in damage.hostile(line)]
  large = [each for each in hostile if 'seed/all = 1' in each[0]]
  assert large  # A seed of more than 64 bits.
  for what, number, changed in large + hostile[::every]:
    journal.write_text(''.join(
        json.dumps(line) + '\n'
        for line in (*lines[:number], changed, *lines[number + 1:])))
    with damage.within_limits(what):
      try:
        swept(**search)
      except UserError:
        pass
      except Exception as error:
        raise AssertionError(f'{what}: {error!r}') from error


def test_a_journal_names_no_code_to_run(swept, tmp_path):
  search = {'search': {'method': 'random', 'configurations': 2}}
  swept(**search)
  journal = tmp_path / 'out' / trials.FILE
  journal.write_text(journal.read_text().replace(
      '"models_py":"', f'"models_py":"{tmp_path}/other'))
  with pytest.raises(UserError, match='names another models'):
    swept(**search)
  journal.write_text(journal.read_text().replace('"epochs":2,', '"epochs":"",'))
  with pytest.raises(UserError, match='trial 0: its epochs must be a wh'):
    swept(**search)


def test_a_search_goes_on_with_what_it_drew(swept):
  search = {'search': {'method': 'bayes', 'configurations': 6, 'seed': 1},
            'kwargs': {'width': {'min': 1.0, 'max': 1000.0, 'log': True}},
            'models': ['TinyRanker', {'model': 'TinyRanker',
                                      'settings': {'lr': [0.1, 0.2]}}]}
  before = []
  for done in (5, 1):  # Within the seeds of a configuration, and between.
    with pytest.raises(KeyboardInterrupt):
      swept(interrupted_after=done, **search)
    before += widths(swept.crew.done)
  board, crew = swept(**search)
  after = widths(crew.done)
  # The sixth was begun, but not done.
  assert before[5] == (before[4][0], 1) and len(set(before + after)) == 12
  assert sum(board.groups['trials']) == 12
  assert list(board.trials['attempts']).count(2) == 2
  assert swept(**search)[1].done == []
  # The search learns from all, also from those that were still to begin.
  study, = (storage := trials._storage(str(swept.out))).get_all_studies()
  assert all(trial.params for trial in storage.get_all_trials(study._study_id))
  more = {**search, 'search': {**search['search'], 'configurations': 8}}
  assert len(swept(**more)[1].done) == 4
  # Other seeds: another search.
  assert len(swept(**{**search, 'seeds': [5]})[1].done) == 6


def drawn(out):
  """States of Optuna's trials of the only study in a folder."""
  study, = (storage := trials._storage(str(out))).get_all_studies()
  return [trial.state.name
          for trial in storage.get_all_trials(study._study_id)]


@pytest.mark.parametrize('method', ['random', 'bayes'])
def test_a_search_draws_all_that_there_are_and_ends(swept, method, caplog):
  """Ten configurations, in two models of different sizes, and twelve asked."""
  search = {'models': ['TinyRanker', {
      'model': 'TinyRanker', 'kwargs': {'width': {'min': 3, 'max': 12}}}],
            'kwargs': {'width': [3, 4]}, 'seeds': [0],
            'search': {'method': method, 'configurations': 12}}
  board, crew = swept(**search)
  assert sorted(widths(crew.done)) == [(width, 0) for width in range(3, 13)]
  assert 'configurations: there are only 10, not 12' in caplog.text
  before = drawn(swept.out)
  assert set(before) == {'COMPLETE', 'FAIL'}  # None runs for ever.
  again, crew = swept(**search)
  assert again.trials.equals(board.trials) and not crew.done
  assert drawn(swept.out) == before


def test_a_search_takes_what_a_grid_trained(swept):
  board, _ = swept()
  search = {'search': {'method': 'bayes', 'configurations': 2}}
  found, crew = swept(**search)
  assert not crew.done and len(found.groups) == 2
  again, crew = swept(**search)
  assert not crew.done and again.trials.equals(found.trials)
  assert set(again.trials['attempts']) == {1}
  assert swept()[0].trials.equals(board.trials)


def test_the_command(swept, tmp_path, capsys):
  swept()
  out = str(tmp_path / 'out')
  assert cli.main(['sweep', str(tmp_path / 'grid.json'), '--out', out,
                   '--workers=2']) == 0
  said = capsys.readouterr().out.splitlines()
  assert said[0].split()[:7] == [
      'rank', 'model', 'width', 'seeds', 'trials', 'stopped', 'failed']
  assert said[1].split()[:5] == ['1', 'TinyRanker', '8', '2', '2']
  assert '6 trials: 6 finished' in said
  swept(kwargs={'width': 13})  # Each trial fails.
  assert cli.main(['sweep', str(tmp_path / 'grid.json'), '--out', out]) == 1
  said = capsys.readouterr().out.splitlines()
  assert said[1].split() == ['TinyRanker', *'0202'] and (
      '2 trials: 2 failed' in said)
  assert cli.main(['sweep', str(tmp_path / 'no.json'), '--out', out]) == 1
  assert 'no.json: cannot be read' in capsys.readouterr().err
