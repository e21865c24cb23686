"""What somebody does with an exported model who has nothing but TensorFlow.

    foreign_host.py PAGE FOLDER
runs the Python of docs/serving.md under "Without it" in FOLDER, then
`saved_model_cli`, in a process in which this package, TF-GNN and Keras cannot
be imported.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys

MISSING = ('tpu_graphs_ext', 'tensorflow_gnn', 'tensorflow_ranking', 'models',
           'tf_keras', 'keras')


def main(page: str, folder: str) -> None:
  for name in MISSING:
    sys.modules[name] = None  # An ImportError for whoever wants it.
  text = pathlib.Path(page).read_text(encoding='utf-8')
  text = text.split('\n## Without it\n')[1]
  os.chdir(folder)
  names = {}
  for block in re.findall(r'^```python\n(.*?)^```', text,
                          re.DOTALL | re.MULTILINE):
    exec(compile(block, page, 'exec'), names)
  from tensorflow.python.tools import saved_model_cli
  sys.argv = [
      'saved_model_cli', 'run', '--dir', 'served/tiles/1', '--tag_set', 'serve',
      '--signature_def', 'serving_default', '--inputs', ';'.join(
          f'{name}=kernel.npz[{name}]' for name in (
              'node_feat', 'node_opcode', 'edge_index', 'config_feat'))]
  saved_model_cli.main()
  assert all(sys.modules[name] is None for name in MISSING)


if __name__ == '__main__':
  main(*sys.argv[1:])
