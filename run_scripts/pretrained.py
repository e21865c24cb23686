#!/usr/bin/env python3
"""Makes a trained model the one that comes with the package.

    .venv/bin/python run_scripts/pretrained.py out/model_<hash>

For maintainers. It replaces what is in tpu_graphs_ext/pretrained; measure the
model again, and write the numbers into docs/pretrained.md.
"""

from __future__ import annotations

import argparse
import os
import sys

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('model_dir', help='folder model_<hash>, its run file '
                      'beside it')
  folder = artifacts.PRETRAINED_FOLDER
  try:
    with files.new_folder(folder) as temporary:
      artifacts.save_weights_only(parser.parse_args().model_dir, temporary)
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
