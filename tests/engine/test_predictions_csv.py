"""The predictions CSV: read as it was written, or refused by line."""

import numpy as np
import pytest

from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.errors import UserError


def test_what_was_written_is_read(tmp_path):
  rng = np.random.default_rng(0)
  best = {''.join(rng.choice([*'abc_:,". -0123456789'], rng.integers(1, 9))):
          rng.integers(0, 10 ** 6, rng.integers(1, 9)).tolist()
          for _ in range(300)}
  path = str(tmp_path / 'a.csv')
  predictions_csv.write(path, best, 'tile:xla:')
  assert predictions_csv.read(path) == {
      'tile:xla:' + name: indices for name, indices in best.items()}


def test_only_ids_that_need_it_are_quoted(tmp_path):
  path = tmp_path / 'a.csv'
  predictions_csv.write(str(path), {'a_1': [1, 0], 'a,"b"': [2]})
  assert path.read_text() == 'ID,TopConfigs\na_1,1;0\n"a,""b""",2'


@pytest.mark.parametrize('places, is_order', [
    ([2, 0, 1], True), ([2, 0], True), ([2, 0, 1, 0, 0], True), ([3, 0], False),
    ([-1, 0], False), ([1, 1], False), ([2, 0, 1, 1], False)])
def test_orders_of_three_configurations(places, is_order):
  assert predictions_csv.is_order(places, 3) == is_order


def test_bad_csv(tmp_path):
  path = tmp_path / 'a.csv'
  for content, message in (
      ('', "its first line must be ID,TopConfigs; it is ''"),
      ('ID,TopConfigs\na,1;x\n', "line 2 is 'a,1;x'; expected an ID and"),
      ('ID,TopConfigs\na,1\nb,1\na,2\n', "line 4 is 'a,2'.*each ID once"),
      # Too long for a number, and digits that are none.
      ('ID,TopConfigs\na,1' + 5000 * '0', "line 2 is 'a,1000"),
      ('ID,TopConfigs\na,\u0663', 'line 2 is'),
      ('ID,TopConfigs\na,1\0\n', 'line 2 is|is not a CSV'),
      ((1 << 20) * 'x', 'its first line must be'),
      ('\udcff', r'a.csv: is .* CSV \(')):
    path.write_text(content, errors='surrogateescape')
    with pytest.raises(UserError, match=message):
      predictions_csv.read(str(path))


def test_long_csv(tmp_path, monkeypatch):
  path = tmp_path / 'a.csv'
  path.write_bytes(b'\xef\xbb\xbfID,TopConfigs\r\na,1;0\r\n\r\n')
  assert predictions_csv.read(str(path)) == {'a': [1, 0]}
  monkeypatch.setattr(predictions_csv, 'MAX_BYTES', 10)
  with pytest.raises(UserError, match='has more than 10 bytes'):
    predictions_csv.read(str(path))
