"""The README's table: what is in it, and that it is current."""

import sys

import pytest

from support.places import BENCHMARKS, PROJECT
from tpu_graphs_ext.errors import UserError

sys.path.insert(0, str(BENCHMARKS))

import accuracy_table

RESULTS = BENCHMARKS / 'results'


def row(model='EarlyJoinSAGE', name='', seed=0, epochs=25, **changes):
  """A run whose top-k are 40, 20 and 10 % on test kernels, a tenth on real."""
  top = {f'{split}_micro_{measure}': factor * number
         for split, factor in (('test', 1), ('real', 0.1))
         for measure, number in (('top1', 0.4), ('top5', 0.2), ('top10', 0.1))}
  return {'data': 'compiled_v3', 'model': model, 'name': name or model,
          'kwargs': name, 'seed': seed, 'epochs': epochs, 'status': 'ok',
          'test_kernels': 100, 'real_kernels': 15, **top, **changes}


def rows_of(tmp_path, *rows):
  """The rows as they come back from a CSV."""
  results = accuracy_table.Results(str(tmp_path / 'accuracy.csv'))
  for each in rows:
    results.put(each)
  return results.rows()


def test_the_table_of_the_readme_has_the_runs_of_most_epochs(tmp_path):
  # 1 % and 3 %: mean 2, squares 1 + 1 over 1, root 1.4.
  some = rows_of(
      tmp_path, row('MyEarlyJoinSAGE', seed=0, test_micro_top1=0.01,
                    test_micro_opa=0.5),
      row('MyEarlyJoinSAGE', seed=1, test_micro_top1=0.03, test_micro_opa=0.6),
      row(epochs=9))
  lines = accuracy_table.readme_table(some).splitlines()
  assert lines[0].startswith(
      '|  | test programs: top-1 % | top-5 % | OPA | real kernels: top-1 % | ')
  assert lines[2].startswith(
      '| `MyEarlyJoinSAGE` | 2.0 ± 1.4 | 20.0 ± 0.0 | 0.550 | 4.0 ± 0.0 | ')
  # EarlyJoinSAGE has no run of so many epochs, the others none at all.
  assert [line.split(' | ')[0] for line in lines[3:]] == [
      "| the compiler's default tile", '| a random choice']
  first, last = accuracy_table.README_MARKS
  text = f'before\n{first}\nold\n{last}\nafter\n'
  new = accuracy_table.with_readme_table(text, some)
  assert new.split('\n\n')[1].splitlines() == lines
  assert new.startswith('before\n') and new.endswith('\nafter\n')
  with pytest.raises(UserError, match='--readme: the file must have'):
    accuracy_table.with_readme_table(f'{last}\n{first}\n', some)


def test_the_readme_has_the_data_and_models_that_were_run(tmp_path):
  nothing = accuracy_table.readme_table([])
  assert nothing == 'Not measured yet.'
  # Other data, an ablation that is not shown and a failed run are none.
  others = [row(data='other'), row(name='no rounds'), row(status='failed')]
  assert accuracy_table.readme_table(rows_of(tmp_path, *others)) == nothing
  measured = [
      row(name, data='measured_tiles', valid_kernels=150, valid_micro_top1=top)
      for name, top in (('MyEarlyJoinSAGE', 0.04), ('LightGBM', 0.03))]
  lines = accuracy_table.readme_table(
      rows_of(tmp_path, row('MyEarlyJoinSAGE'), *measured)).splitlines()
  assert lines[0].count('|') == 11
  assert 'timed on a CPU (valid): top-1 %' in lines[0]
  assert lines[2].split('|')[8:11] == [' 4.0 ', ' - ', ' - ']
  assert lines[3].startswith('| LightGBM on columns made by hand | - | ')
  assert lines[3].split('|')[8] == ' 3.0 '
  assert len(lines) == 6


def test_the_readme_has_the_table_of_its_results():
  committed = accuracy_table.Results(str(RESULTS / 'accuracy.csv')).rows()
  text = (PROJECT / 'README.md').read_text()
  assert accuracy_table.with_readme_table(text, committed) == text, (
      'write it: python benchmarks/accuracy.py --table_only --readme README.md')
