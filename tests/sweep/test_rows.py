"""What a row and a part hold, and that Parquet keeps it."""

import dataclasses
import io
import json

import numpy as np
import pytest

from support import model_checks, tiny_kernels
from support.tiny_hlo import product
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import duplicate_configs, rank, scoring
from tpu_graphs_ext.serving import kernel_sources, tile_search
from tpu_graphs_ext.sweep import rank_shard, rows
from tpu_graphs_ext.sweep.storage import Found


class FirstFirst:
  """The first tile is the fastest."""

  def forward(self, graph, num_configs):
    return np.arange(num_configs, dtype=np.float32)[np.newaxis]

  def constants(self):
    return {}


def legal_row():
  kernel, _ = kernel_sources.untiled_kernel(product(64, 128, 256), 'dense')
  stats = model_checks.stats_of([tiny_kernels.make_kernel(num_configs=9)])
  ranker = scoring.Ranker(FirstFirst(), stats, schema.NUM_OPCODES)
  advice = tile_search.advice_on(
      ranker, kernel_sources.SourceKernel(kernel, 2, ('own',)), 2)
  return advice, rows.of_advice('a.hlo', ['of the file'], advice)


def listed_row():
  scores = duplicate_configs.Scores(
      np.array([2, 1, 3, 4], np.float32), np.arange(4))
  return rows.of_ranking('a.npz', rank.ranking_of(
      tiny_kernels.make_kernel(), scores, 2), [])


def read(kind, lines):
  parquet = pytest.importorskip('pyarrow.parquet')
  file = io.BytesIO()
  rows.write_parquet(file, lines, kind)
  return parquet.ParquetFile(io.BytesIO(file.getvalue()))


def test_a_row_of_legal_tiles():
  advice, row = legal_row()
  assert list(row) == list(rows.LEGAL)
  assert (row['tile_id'], row['copies'], row['error']) == ('dense', 2, None)
  assert row['notes'] == ['of the file', *advice.notes]
  assert [pick['place'] for pick in row['picks']] == [1, 2]
  assert row['unfamiliar'] == [
      f'{found.table}.{found.column}' for found in advice.unfamiliar]
  with pytest.raises(ValueError, match='colour'):
    rows.row(rows.LISTED, 'a.npz', colour=1)


@pytest.mark.parametrize('kind', [rows.LISTED, rows.LEGAL])
def test_parquet_keeps_every_value(kind):
  row = legal_row()[1] if kind is rows.LEGAL else listed_row()
  lines = [rows.line_of(row), rows.line_of(
      rows.row(kind, 'b.npz', error='damaged'))]
  assert read(kind, lines).read().to_pylist() == [
      json.loads(line) for line in lines]
  assert read(kind, []).read().column_names == list(kind)


def test_groups_depend_on_rows_alone(monkeypatch):
  monkeypatch.setattr(rows, '_GROUP_ROWS', 4)
  lines = [rows.line_of(listed_row())] * 9
  file = read(rows.LISTED, lines)
  assert [file.metadata.row_group(i).num_rows for i in range(3)] == [4, 4, 1]
  monkeypatch.setattr(rows, '_GROUP_TILES', 5)  # Two tiles a row.
  assert read(rows.LISTED, lines).metadata.row_group(0).num_rows == 3


# --------------------------------------------------------------------- parts


def names(files, size=2, basis='model'):
  return [shard.part for shard in rank_shard.shards(files, size, basis)]


def test_a_part_is_named_by_all_that_its_rows_depend_on():
  files = [Found(f'{name}.npz', f'/d/{name}.npz', 'stamp') for name in 'abcde']
  assert len(set(names(files))) == 3 and names(files) == names(files)
  assert not set(names(files)) & set(names(files, basis='another'))
  changed = [*files[:2], dataclasses.replace(files[2], stamp='new'),
             *files[3:]]
  assert [old == new for old, new in zip(names(files), names(changed))] == [
      True, False, True]


def test_a_damaged_part_is_none(tmp_path):
  pytest.importorskip('fsspec', reason='needs the extra [scale]')
  parts = rank_shard.parts_in(str(tmp_path))
  lines = [b'{"file":"a"}\n', '{"file":"é"}\n'.encode()]
  whole = parts['a'] = rank_shard.sealed(lines, 1.5)
  assert rank_shard.read_part(parts, 'a') == (lines, 1.5)
  for place in range(len(whole)):
    for damaged in (whole[:place] + b'#' + whole[place + 1:], whole[:place]):
      assert rank_shard.read_part({'a': damaged}, 'a') is None, damaged
  assert rank_shard.read_part(parts, 'b') is None
