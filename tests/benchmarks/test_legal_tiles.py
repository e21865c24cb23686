"""The table of legal tiles, on a program that the compiler took apart."""

import gzip
import json

import pytest

import legal_tiles
from support.tiny_hlo import tiled
from tpu_graphs_ext.hlo import tpu_compiler

WHOLE, HALF, QUARTER = [8192, 8], [128, 8], [64, 8]


@pytest.fixture
def folder(tmp_path):
  """One kernel, f32 [65536, 1024], and the tiles that were weighed for it."""
  module = tiled([65536, 1024], HALF, 100)
  weighed = [[WHOLE, [], 90],  # It would be taken if it fitted.
             [[4096, 8], [], 200],  # 128 MiB in, and as many out.
             [HALF, [], 100], [QUARTER, [], 150], [[1, 1], [], 10 ** 12]]
  for name in 'first', 'second':
    path = tmp_path / 'v5e' / f'{name}_batch_1.pb'
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(module.SerializeToString())
    with gzip.open(path.with_suffix('.json.gz'), 'wt') as file:
      json.dump({'elementwise': weighed}, file)
  return str(tmp_path)


def test_kernels_of_the_sample_data():
  first = next(legal_tiles.of_sample('v5p'))
  assert (first.tiles >= 1).all() and (first.tiles <= first.loops.whole).all()


def test_what_the_compiler_would_change_is_not_legal(folder):
  kernel, = legal_tiles.of_programs(folder, 'v5e', [])  # Each graph once.
  assert kernel.tiles.tolist() == [HALF, QUARTER]
  assert kernel.is_all
  assert not list(legal_tiles.of_programs(folder, 'v5e', ['first', 'second']))
  listed = len(legal_tiles.candidates.candidates(kernel.loops).tiles)
  # Of two known tiles one is larger than the tensor, and others may be legal.
  other = kernel._replace(tiles=kernel.tiles + [[0], [10 ** 6]], is_all=False)
  assert legal_tiles.rows('v5e', iter([kernel, other])) == {
      'v5e, element-wise': {
          'kernels': 2, 'recall': .75, 'precision': 2 / listed}}
  assert legal_tiles.rows('v5e', iter([other])) == {
      'v5e, element-wise': {'kernels': 1, 'recall': .5}}


@pytest.mark.parametrize('count, rest, is_all', [
    ('0', [5], True), ('2', [5], False), ('2', [], True)])
def test_a_product_that_was_tried_again_may_have_more_tiles(
    tmp_path, count, rest, is_all):
  """Rows of products have their memory in bytes beside the cycles."""
  module = tiled([65536, 1024], HALF, 100)
  root = tpu_compiler.root_of(module)
  root.backend_config = json.dumps({
      **tpu_compiler.config_of(root),
      'retry_config': {'retry_count': count}}).encode()
  path = tmp_path / 'v5e' / 'first_batch_1.pb'
  path.parent.mkdir()
  path.write_bytes(module.SerializeToString())
  with gzip.open(path.with_suffix('.json.gz'), 'wt') as file:
    json.dump({'elementwise': [
        [HALF, [], 100, *rest], [QUARTER, [], 150, *rest]]}, file)
  kernel, = legal_tiles.of_programs(str(tmp_path), 'v5e', [])
  assert kernel.is_all is is_all
