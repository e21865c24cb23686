"""The same seed gives the same bytes, whichever process it is."""

import json
import os
import subprocess
import sys

import pytest

from tpu_graphs_ext.engine import saved_weights

SMALL = '{"hidden_dim": 8, "op_embed_dim": 4}'


def ran(hash_seed: str, *arguments: str) -> str:
  """What a command prints, in a process whose sets have another order."""
  return subprocess.run(
      [sys.executable, '-m', 'tpu_graphs_ext.cli', *arguments], check=True,
      stdout=subprocess.PIPE, text=True,
      env={**os.environ, 'PYTHONHASHSEED': hash_seed}).stdout


def contents(folder) -> dict[str, bytes]:
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in folder.rglob('*') if path.is_file()}


def made(folder, hash_seed: str) -> dict:
  """Sample data, weights, a run file's numbers and what evaluate prints."""
  data, out = folder / 'data', folder / 'out'
  ran(hash_seed, 'sample-data', f'--out={data}', '--kernels=14')
  flags = [f'--data_root={data}', '--cache_dir=']
  ran(hash_seed, 'train', '--model=MyEarlyJoinSAGE', '--seed=4', '--batch=2',
      '--configs=5', '--epochs=2', f'--model_kwargs_json={SMALL}',
      f'--out_dir={out}', f'--results_csv={folder / "results.csv"}', *flags)
  model_dir, = out.glob('model_*')
  evaluation = json.loads(
      ran(hash_seed, 'evaluate', f'--dir={model_dir}', '--json', *flags))
  assert evaluation.pop('model_dir') == str(model_dir)
  assert evaluation.pop('data').startswith(str(data))
  return {'data': contents(data), 'evaluation': json.dumps(evaluation),
          'predictions': (folder / 'results.csv').read_bytes(),
          'weights': [value.tobytes() for _, value in saved_weights.read(
              str(model_dir))]}


@pytest.mark.survive
def test_same_seed_same_bytes(tmp_path):
  first, second = (made(tmp_path / name, name) for name in ('1', '2'))
  assert first == second
