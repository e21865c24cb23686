"""The competition's file: rows by ID, every fault named."""

import pytest

from tpu_graphs_ext import cli
from tpu_graphs_ext.course import kaggle
from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.errors import UserError

SAMPLE = {
    'tile:xla:aa': '0;1;2;3;4', 'tile:xla:bb': '0;1;2;3;4',
    'layout:xla:default:net': '0;1;2', 'layout:nlp:random:bert': '0;1',
}
TILES = {'tile:xla:aa': '6;5;4;3;2', 'tile:xla:bb': '0;1;2;0;0'}


def write(path, rows: dict[str, str]) -> str:
  path.write_text('ID,TopConfigs\n' + '\n'.join(
      f'{name},{indices}' for name, indices in rows.items()))
  return str(path)


@pytest.fixture
def sample(tmp_path) -> str:
  return write(tmp_path / 'sample_submission.csv', SAMPLE)


def run(tmp_path, tile: dict[str, str], **kwargs) -> list[str]:
  """Lines of the file that is made from these tile rows."""
  out = tmp_path / 'out' / 'kaggle.csv'
  kaggle.kaggle_csv(write(tmp_path / 'tile.csv', tile), str(out), **kwargs)
  return out.read_text().splitlines()


def test_rows_are_matched_by_id_and_have_five_places(tmp_path, sample):
  assert run(tmp_path, {'tile:xla:bb': '1;2;0;0;0;0;0;0;0;0',
                        'tile:xla:aa': '9;8;7;6;5;4;3;2;1;0'},
             sample=sample) == [
      'ID,TopConfigs', 'tile:xla:aa,9;8;7;6;5', 'tile:xla:bb,1;2;0;0;0',
      'layout:xla:default:net,0;1;2', 'layout:nlp:random:bert,0;1']


def test_faults_of_the_rows(tmp_path, sample):
  with pytest.raises(UserError, match=(
      r'(?s)4 faults\n  tile:xla:aa has 1 indices.*tile:xla:zz is not a row of '
      r'the competition\n  layout:x belongs into .*\n  tile:xla:bb is missing; '
      'was the model run on all')):
    run(tmp_path, {'tile:xla:aa': '1', 'tile:xla:zz': '0;1;2;3;4',
                   'layout:x': '1'}, sample=sample)


def test_a_tile_row_may_repeat_only_the_zeros_that_pad_it(tmp_path, sample):
  for row in ('0;0;0;0;0', '1;0;0;0;0', '0;1;2;0;0', '3;2;1;0;0;0'):
    assert run(tmp_path, {**TILES, 'tile:xla:aa': row}, sample=sample)[
        1] == f'tile:xla:aa,{row[:9]}'
  for row in ('7;7;7;7;7', '0;1;0;2;3', '5;5;0;0;0', '1;2;3;4;4'):
    with pytest.raises(UserError, match='aa names a configuration twice'):
      run(tmp_path, {**TILES, 'tile:xla:aa': row}, sample=sample)


def test_no_input_is_replaced(tmp_path, sample, monkeypatch):
  monkeypatch.chdir(tmp_path)
  tile = write(tmp_path / 'tile.csv', TILES)
  for out in ('tile.csv', './sample_submission.csv', 'layout.csv'):
    with pytest.raises(UserError, match=f'--out: {out} is also read'):
      kaggle.kaggle_csv(tile, out, sample=sample, layout=['layout.csv'])


def test_given_layout_rows(tmp_path, sample):
  layouts = [
      write(tmp_path / 'one.csv', {'layout:nlp:random:bert': '1;0'}),
      write(tmp_path / 'two.csv', {'layout:xla:default:net': '2;0;1'})]
  assert run(tmp_path, TILES, sample=sample, layout=layouts)[3:] == [
      'layout:xla:default:net,2;0;1', 'layout:nlp:random:bert,1;0']
  sample = write(tmp_path / 'sample.csv', {
      **SAMPLE, 'layout:xla:default:other': '0;1;2'})
  for rows, message in (
      ({'layout:nlp:random:bert': '1;0'}, 'nlp:random:bert is in two'),
      ({'layout:xla:default:net': '0;1;1'}, 'each of its 3 configurations'),
      ({'layout:xla:default:net': '0;1;2'}, 'layout:xla:default:other is miss'),
      (TILES, 'belongs into a file for the other flag')):
    with pytest.raises(UserError, match=message):
      run(tmp_path, TILES, sample=sample,
          layout=[layouts[0], write(tmp_path / 'layout.csv', rows)])


def test_a_whole_file(tmp_path, caplog, capsys):
  """894 rows, by the command; other numbers are a warning."""
  rows = {f'{prefix}{i}': '0;1;2;3;4' for prefix, number in (
      ('tile:xla:', 844), ('layout:xla:random:', 50)) for i in range(number)}
  sample = write(tmp_path / 'sample.csv', rows)
  tile = write(tmp_path / 'tile.csv', {
      name: '4;3;2;1;0' for name in reversed(rows) if 'tile' in name})
  out = str(tmp_path / 'k.csv')
  assert cli.main(['kaggle-csv', f'--tile={tile}', f'--sample={sample}',
                   f'--out={out}']) == 0
  assert capsys.readouterr().out == f'894 rows: {out}\n' and not caplog.text
  assert list(predictions_csv.read(out)) == list(rows)
  run(tmp_path, TILES, sample=write(tmp_path / 'few.csv', SAMPLE))
  assert 'it has 4 rows, and the competition has 894' in caplog.text
