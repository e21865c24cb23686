"""Ranking many files, one after the other in this process."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from support import inline_pool, tiny_hlo, tiny_kernels
from tpu_graphs_ext import cli, files
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import threads
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import kernel_sources
from tpu_graphs_ext.serving import tile_ranking, tile_search
from tpu_graphs_ext.sweep import pool, rank_many


@pytest.fixture
def inline(monkeypatch):
  """Ranks files in this process."""
  monkeypatch.setattr(threads, 'one_each', lambda *_: None)
  run = inline_pool.InlinePool()
  monkeypatch.setattr(pool, 'run', run)
  return run


def numbers(inline):
  """Of the files that were ranked."""
  return ''.join(file.name[-len('4.npz')] for _, file in inline.done)


@pytest.fixture
def folder(tmp_path):
  """Seven kernels of 4 tiles, but one of a single one."""
  rng = np.random.default_rng(3)
  (tmp_path / 'data').mkdir()
  for number in range(7):
    tiny_kernels.learnable_kernel(
        f'net_{number}', rng, 1 if number == 4 else 4
    ).save(str(tmp_path / 'data'))
  return tmp_path / 'data'


@pytest.fixture
def ranked(saved_model_dir, folder, tmp_path, inline):
  """A function that ranks the folder; gives the summary and the bytes."""
  def call(source=folder, model_dir=saved_model_dir, **chosen):
    inline.done = []
    summary = rank_many.rank_many(
        str(model_dir), [str(source)], str(tmp_path / 'new' / 'out.jsonl'),
        **chosen)
    return summary, (tmp_path / 'new' / 'out.jsonl').read_bytes()

  return call


@pytest.fixture
def interrupted(ranked, inline, tmp_path):
  """A function that ranks four files; returns the journal's path."""
  def call():
    inline.stop_after = 4
    with pytest.raises(KeyboardInterrupt):
      ranked()
    inline.stop_after = None
    return tmp_path / 'new' / 'out.jsonl.partial'

  return call


def rows_in(content):
  return [json.loads(line) for line in content.splitlines()]


def test_rows_are_what_the_model_says(ranked, folder, inline):
  summary, content = ranked(top_k=2)
  assert summary.text.startswith('7 kernels with 25 tiles ranked, of 7 files')
  _, model = rank_many.loaded(inline.done[0][0])
  for number, row in enumerate(rows_in(content)):
    assert list(row) == list(rank_many.LISTED)
    path = str(folder / f'net_{number}.npz')
    expected = model.rank(path, top=2).to_json()
    assert row['file'] == path and row['error'] is None
    assert {name: row[name] for name in expected} == expected
  assert row['choices'][0]['runtime_ns']
  assert ranked(f'{folder}/*.npz', top_k=2)[1] == content


def test_a_run_that_was_interrupted_continues(
    ranked, interrupted, inline, folder, caplog):
  journal = interrupted()
  assert f'the rows so far are kept in {journal}' in caplog.text
  assert not journal.with_suffix('').exists()
  journal.rename(folder / 'kept')
  _, expected = ranked()
  (folder / 'kept').rename(journal)
  summary, content = ranked()
  assert numbers(inline) == '456' and content == expected
  assert '(4 by an earlier run)' in summary.text
  assert not journal.exists()
  interrupted()
  ranked(top_k=1)  # Other rows: nothing is kept.
  assert numbers(inline) == '0123456'
  interrupted()
  tiny_kernels.make_kernel('net_1').save(str(folder))
  _, content = ranked()
  assert numbers(inline) == '1456'
  assert rows_in(content)[1]['nodes'] == 3


def test_a_damaged_journal(ranked, interrupted, inline):
  _, expected = ranked()
  journal = interrupted()
  whole = journal.read_bytes()
  start = whole.index(b'\n') + 1
  rng = np.random.default_rng(0)
  for place in [start, len(whole) - 1, *rng.integers(start, len(whole), 12)]:
    for damaged in (whole[:place] + b'#' + whole[place + 1:], whole[:place]):
      journal.write_bytes(damaged)
      assert ranked()[1] == expected
      assert numbers(inline).endswith('3456' if place > start else '0123456')


def test_a_journal_that_is_not_ours_or_in_use(ranked, interrupted):
  journal = interrupted()
  with files.held_folder(str(journal)):
    with pytest.raises(UserError, match='another command is ranking into it'):
      ranked()
  for path, what in ((journal, 'journal of rankings'),
                     (journal.with_suffix(''), 'file of rankings')):
    path.write_bytes(b'mine')
    with pytest.raises(UserError, match=f'is not a {what}'):
      ranked()
    assert path.read_bytes() == b'mine'


def test_another_model_uses_no_row(ranked, interrupted, inline,
                                   saved_model_dir, tmp_path):
  copy = tmp_path / 'model_copy'
  shutil.copytree(saved_model_dir, copy)
  shutil.copy(saved_model_dir.replace('model_', 'run_') + '.jsonz',
              tmp_path / 'run_copy.jsonz')
  interrupted()
  ranked(model_dir=copy)  # The same content under another name.
  assert numbers(inline) == '456'
  interrupted()
  (copy / 'fingerprint.pb').write_bytes(b'other')
  ranked(model_dir=copy)
  assert numbers(inline) == '0123456'


def test_files_that_cannot_be_ranked_have_rows(ranked, folder, tmp_path):
  whole = Kernel.load(str(folder / 'net_0.npz'))
  (folder / 'net_1.npz').write_bytes(b'no archive')
  dataclasses.replace(whole, tile_id='net_2', config_feat=np.full_like(
      whole.config_feat, np.nan)).save(str(folder))
  dataclasses.replace(whole, tile_id='net_3',
                      node_feat=whole.node_feat[:, 1:]).save(str(folder))
  (folder / 'net_5.npz').unlink()
  (folder / 'net_5.npz').symlink_to(tmp_path / 'gone.npz')
  (folder / 'net_6.npz').rename(folder / 'net_6\udcff.npz')
  summary, content = ranked()
  rows = rows_in(content)
  for number, said in ((1, 'be read as a tile file'), (2, 'config_feat'),
                       (3, '139'), (5, 'not exist'), (6, 'is not UTF-8')):
    assert f'net_{number}' in rows[number]['error']
    assert said in rows[number]['error'], rows[number]['error']
  assert len(summary.errors) == 5 and '2 kernels' in summary.text


def test_a_file_whose_worker_dies_costs_no_other_its_row(ranked, inline):
  inline.kills = lambda item: 'net_4' in item[1].name
  summary, content = ranked()
  error, = summary.errors
  assert 'net_4.npz: its worker died, 3 times' in error
  assert [row['error'] for row in rows_in(content)] == [
      error if number == 4 else None for number in range(7)]


# ------------------------------------------------------------- the command


def test_the_command(saved_model_dir, folder, tmp_path, inline, capsys):
  (folder / 'net_1.npz').write_bytes(b'no archive')
  call = ['rank', '--dir', saved_model_dir, '--data', str(folder), '--workers',
          '2', '--out', str(tmp_path / 'new' / 'out.jsonl'), '--all',
          '--jax_python', 'mine']
  assert cli.main(call) == 1
  assert inline.done[0][0].jax_python == 'mine'
  told = capsys.readouterr()
  assert '6 kernels with 21 tiles ranked, of 7 files' in told.out
  assert told.err.count('error: ') == 1 and 'net_1.npz' in told.err
  (folder / 'net_1.npz').unlink()
  assert cli.main(call) == 0


def test_all_legal_tiles_of_files(ranked, tmp_path, monkeypatch):
  """Of HLO: a kernel that has tiles, and damage."""
  folder = tmp_path / 'hlo'
  folder.mkdir()
  (folder / 'a.hlo').write_bytes(tiny_hlo.convolution().SerializeToString())
  (folder / 'b.hlo').write_bytes(b'HloM')
  (folder / 'c.txt').write_bytes(b'')
  empty = {field.name: None
           for field in dataclasses.fields(tile_ranking.KernelRanking)}
  monkeypatch.setattr(
      tile_search, 'rank_kernel', lambda ranker, kernel, *asked, at_once, tpu:
      tile_ranking.KernelRanking(**{
          **empty, 'name': f'{asked} of {tpu!r}', 'scored': 4, 'choices': [],
          'opcodes': [], 'notes': ['a note'], 'unfamiliar': []}))
  asked, read = [], kernel_sources.read_source
  monkeypatch.setattr(kernel_sources, 'read_source', lambda path, **settings: (
      asked.append(settings) or read(path, **settings)))
  summary, content = ranked(folder, all_tiles=True, top_k=3, jax_python='mine')
  assert asked == 2 * [{'tpu': 'v3', 'jax_python': 'mine'}]
  first, second = rows_in(content)
  assert list(first) == list(second) == list(rank_many.LEGAL)
  assert first['tile_id'] == "(3,) of 'v3'" and first['notes'][-1] == 'a note'
  assert 'b.hlo: is text that begins with' in second['error']
  assert '1 kernels with 4 tiles' in summary.text
