"""The README's figure and table: what is in them, and that they are current."""

import sys
import xml.etree.ElementTree

import pytest

from support.places import BENCHMARKS, PROJECT
from tpu_graphs_ext.errors import UserError

sys.path.insert(0, str(BENCHMARKS))

import accuracy_figure
import accuracy_table

RESULTS = BENCHMARKS / 'results'


def row(model='EarlyJoinSAGE', name='', seed=0, epochs=25, **changes):
  """A run whose top-k are 40, 20 and 10 % on test kernels, a tenth on real."""
  top = {f'{split}_micro_{measure}': factor * number
         for split, factor in (('test', 1), ('real', 0.1))
         for measure, number in (('top1', 0.4), ('top5', 0.2), ('top10', 0.1))}
  return {'data': 'synthetic', 'model': model, 'name': name or model,
          'kwargs': name, 'seed': seed, 'epochs': epochs, 'status': 'ok',
          'test_kernels': 100, 'real_kernels': 15, **top, **changes}


def rows_of(tmp_path, *rows):
  """The rows as they come back from a CSV."""
  results = accuracy_table.Results(str(tmp_path / 'accuracy.csv'))
  for each in rows:
    results.put(each)
  return results.rows()


@pytest.fixture
def rows(tmp_path):
  """Two models at 25 epochs, and what is not to be drawn."""
  return rows_of(
      tmp_path, row(), row('NetA', seed=0, test_micro_top5=0.02),
      row('NetA', seed=1, test_micro_top5=0.05),
      row('NetA', seed=2, status='failed'), row('NetA', 'an ablation'),
      row('MyEarlyJoinSAGE', 'without feature_stats'), row('MLP'),
      row('NetA', epochs=100), row(epochs=100), row('NetB', data='elsewhere'))


def test_drawn_are_our_models_at_the_epochs_that_most_have(rows):
  drawn = accuracy_figure.picture(rows)
  # By top-5: 3.5 %, then twice 20 %, by name.
  assert list(drawn.bars) == [
      'NetA', 'EarlyJoinSAGE', 'MyEarlyJoinSAGE without feature_stats']
  assert (drawn.epochs, drawn.seeds) == ('25', '1 to 2')
  assert drawn.kernels == {'test': '100', 'real': '15'}
  assert drawn.bars['NetA']['test', 'top5'] == pytest.approx((3.5, 2, 5))
  assert drawn.bars['NetA']['real', 'top10'] == pytest.approx((1, 1, 1))


@pytest.mark.parametrize('models', [[], ['NetA'], ['EarlyJoinSAGE', 'MLP']])
def test_without_the_baseline_or_another_model_nothing_is_drawn(
    tmp_path, capsys, models):
  some = rows_of(tmp_path, *(row(model) for model in models))
  assert not accuracy_figure.write(some, str(tmp_path / 'a.svg'))
  assert 'no figure: the models' in capsys.readouterr().err
  assert not (tmp_path / 'a.svg').exists()


def test_without_matplotlib_it_says_so(rows, tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  assert not accuracy_figure.write(rows, str(tmp_path / 'a.svg'))
  assert 'matplotlib is not installed' in capsys.readouterr().err


def test_equal_rows_give_an_equal_picture(rows, tmp_path):
  pytest.importorskip('matplotlib', reason='draws with matplotlib')
  paths = [tmp_path / 'new' / name for name in ('a.svg', 'b.svg', 'c.svg')]
  rows_c = [dict(one, test_micro_top1='0.41') for one in rows]
  for path, drawn in zip(paths, (rows, rows, rows_c)):
    assert accuracy_figure.write(drawn, str(path))
  a, b, c = (path.read_text() for path in paths)
  assert a == b != c
  assert accuracy_figure.is_of(a, rows) and not accuracy_figure.is_of(c, rows)
  # A mark for each of 3 models, 3 measures, 2 splits, and 3 in the legend.
  colours = [colour for _, colour, *_ in accuracy_figure.MARKS.values()]
  marks = [element for element in xml.etree.ElementTree.fromstring(a).iter()
           if element.tag.endswith('use') and any(
               colour.lower() in element.get('style', '').lower()
               for colour in colours)]
  assert len(marks) == 3 * 3 * 2 + 3


def test_the_figure_of_the_project_shows_its_results():
  committed = accuracy_table.Results(str(RESULTS / 'accuracy.csv')).rows()
  assert accuracy_figure.is_of(
      (RESULTS / 'accuracy.svg').read_text(), committed), (
          'draw it: python benchmarks/accuracy_figure.py')


def test_the_table_of_the_readme_has_the_runs_of_most_epochs(tmp_path):
  # 1 % and 3 %: mean 2, squares 1 + 1 over 1, root 1.4.
  some = rows_of(
      tmp_path, row('MyEarlyJoinSAGE', seed=0, test_micro_top1=0.01,
                    test_micro_opa=0.5),
      row('MyEarlyJoinSAGE', seed=1, test_micro_top1=0.03, test_micro_opa=0.6),
      row(epochs=9))
  lines = accuracy_table.readme_table(some).splitlines()
  assert lines[0].startswith(
      '|  | former sample data (test): top-1 % | top-5 % | OPA | real kernels')
  assert lines[2].startswith(
      '| `MyEarlyJoinSAGE` | 2.0 ± 1.4 | 20.0 ± 0.0 | 0.550 | 4.0 ± 0.0 | ')
  assert set(lines[4].split('|')[2:-1]) == {' - '}
  first, last = accuracy_table.README_MARKS
  text = f'before\n{first}\nold\n{last}\nafter\n'
  new = accuracy_table.with_readme_table(text, some)
  assert new.split('\n\n')[1].splitlines() == lines
  assert new.startswith('before\n') and new.endswith('\nafter\n')
  with pytest.raises(UserError, match='--readme: the file must have'):
    accuracy_table.with_readme_table(f'{last}\n{first}\n', some)


def test_the_readme_has_lightgbm_and_measured_tiles_where_they_were_run(
    tmp_path):
  ours = row('MyEarlyJoinSAGE', valid_micro_top1=0.04, valid_micro_top5=0.02,
             valid_micro_opa=0.8)
  trees = dict(row('LightGBM', valid_micro_top1=0.03),
               data='measured_tiles')
  lines = accuracy_table.readme_table(rows_of(tmp_path, ours)).splitlines()
  assert len(lines) == 7 and 'timed on a CPU' not in lines[0]
  # Trees alone make no block of their own, and so no row.
  assert accuracy_table.readme_table(
      rows_of(tmp_path, trees)).splitlines() == lines
  lines = accuracy_table.readme_table(rows_of(
      tmp_path, dict(ours, data='measured_tiles'))).splitlines()
  assert lines[0].count('|') == 11
  assert 'timed on a CPU (valid): top-1 %' in lines[0]
  assert lines[2].split('|')[8:11] == [' 4.0 ', ' 2.0 ', ' 0.800 ']
  assert lines[5].startswith('| LightGBM on columns made by hand | - | ')
  assert lines[5].split('|')[8] == ' 3.0 '


def test_the_readme_has_the_table_of_its_results():
  committed = accuracy_table.Results(str(RESULTS / 'accuracy.csv')).rows()
  text = (PROJECT / 'README.md').read_text()
  assert accuracy_table.with_readme_table(text, committed) == text, (
      'write it: python benchmarks/accuracy.py --table_only --readme README.md')
