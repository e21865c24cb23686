"""CSV cells that no spreadsheet runs, and names that need quotes."""

import csv
import io

from tpu_graphs_ext import csv_text
from tpu_graphs_ext.engine import predictions_csv


def test_formulas_become_text_and_numbers_stay():
  assert csv_text.of_rows([
      ['=cmd|x', '=HYPERLINK("a")', '+1', '-1', '@a', '\t=1'],
      ['a=1', -1, -1.5, '', None, 'b,"c"\nd']]) == (
          '\'=cmd|x,"\'=HYPERLINK(""a"")",\'+1,\'-1,\'@a,\'\t=1\n'
          'a=1,-1,-1.5,,,"b,""c""\nd"\n')


def test_a_name_of_a_prediction_stays_one_cell():
  for name in ('a,b', 'a"b', 'a\nb', 'a\rb'):
    text = ''.join(predictions_csv.parts({'plain_1': [1, 0], name: [2]}))
    assert text.startswith('ID,TopConfigs\ntile:xla:plain_1,1;0\n')
    assert list(csv.reader(io.StringIO(text, newline='')))[2] == [
        'tile:xla:' + name, '2']
