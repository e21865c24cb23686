#!/usr/bin/env python3
"""Makes a trained model the one that comes with the package.

    .venv/bin/python run_scripts/pretrained.py out/model_<hash> --tpu v3

For maintainers. It replaces what is in tpu_graphs_ext/pretrained/<tpu>; measure
the model again, and write the numbers into docs/pretrained.md.
"""

from __future__ import annotations

import argparse
import io
import os
import sys

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import artifacts, pretrained, saved_weights
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sample.kernels import CLOCK_GHZ
from tpu_graphs_ext.tasks import TILE

# Where the model lay on the machine that trained it is nobody else's concern.
_PLACES = {'out_dir': '~/out/tpugraphs_tiles', 'results_csv': ''}
# What builds a model and scales its features, and how it was trained.
_KEPT = ('args', 'feature_stats', 'num_ops', 'opcodes', 'seed', 'versions',
         'final_error')


def save_weights_only(model_dir: str, folder: str, tpu: str = '') -> str:
  """Writes a trained model's weights and how to build it, half a megabyte.

    <folder>/model_<hash>/weights.npz   see `saved_weights`
    <folder>/run_<hash>.jsonz           the run file, as far as verbs need it

  Every verb takes such a folder, which is returned; the baseline's scripts do
  not. Its run file does not name the folder it was trained in, so the hash is
  another.

  Raises:
    UserError: a file is missing or damaged, or `folder` cannot be written.
  """
  run = artifacts.load_run(model_dir, TILE)
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **{
      f'{place:04d}': np.asarray(value, np.float32)
      for place, (_, value) in enumerate(
          saved_weights.read(files.full_path(run.model_dir)))})
  args = {**run.info['args'], **_PLACES}
  new_dir = artifacts.model_path(folder, TILE.train_hash(args))
  files.write_file(os.path.join(new_dir, saved_weights.COMPACT_FILE),
                   buffer.getvalue())
  kept = {key: run.info[key] for key in _KEPT if key in run.info}
  artifacts.save_run_file({**kept, 'args': args, 'tpu': tpu}, folder, TILE)
  return new_dir


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('model_dir', help='folder model_<hash>, its run file '
                      'beside it')
  parser.add_argument('--tpu', choices=sorted(CLOCK_GHZ), required=True,
                      help='generation whose kernels it was trained on')
  args = parser.parse_args()
  folder = os.path.join(pretrained.FOLDER, args.tpu)
  try:
    with files.new_folder(folder, lambda: None) as temporary:  # Replaces.
      save_weights_only(args.model_dir, temporary, args.tpu)
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  for parent, _, names in os.walk(folder):
    for name in names:
      path = os.path.join(parent, name)
      print(f'{os.path.getsize(path):>9,} bytes  {path}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
