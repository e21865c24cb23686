"""Hand-ins of the layout task, by the baseline's unchanged scripts.

Run with `TPU_GRAPHS_ROOT=/path/to/tpu_graphs pytest -m baseline`. Everything
happens in copies; the checkout itself stays as it is.
"""

from __future__ import annotations

import glob
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_layouts
from tpu_graphs_ext import cli, load_models
from tpu_graphs_ext.course import checkout, verify

pytestmark = pytest.mark.baseline
SMALL = {'hidden_dim': 8, 'op_embed_dim': 4}


def with_last_opcode(path) -> None:
  with np.load(path) as stored:
    arrays = dict(stored)
  arrays['node_opcode'][0] = tiny_layouts.NUM_OPS - 1
  np.savez_compressed(path, **arrays)


@pytest.fixture(scope='module')
def trained(checkout_root, tmp_path_factory):
  """(folder, model folder) of a MyLayoutSAGE of the unchanged script."""
  folder = tmp_path_factory.mktemp('layout_handin')
  tiny_layouts.write_collection(str(folder / 'data'), train=6)
  # The number of opcodes, which is that of all splits, is not toy data's own.
  with_last_opcode(next((folder / 'data/xla/random/valid').glob('*.npz')))
  copy = checkout.working_copy(
      checkout_root, str(folder / 'copy'), load_models.models_path('layout'),
      'layout')
  checkout.run_script(copy, [
      'layout_train.py', '--epochs=1', '--configs=6', '--batch=2',
      '--source=xla', '--search=random', f'--data_root={folder}/data',
      f'--cache_dir={folder}/cache', f'--out_dir={folder}/out',
      '--keep_nodes=30', '--model=MyLayoutSAGE',
      f'--model_kwargs_json={json.dumps(SMALL)}'], f'{folder}/train.log')
  (model_dir,) = glob.glob(f'{folder}/out/model_*')
  return folder, model_dir


def verified(trained, root, model_dir='', **changes):
  folder, own = trained
  return verify.verify(
      model_dir or own, **{'task': 'layout', 'root': root,
                           'data_root': f'{folder}/data', **changes})


def test_a_hand_in_works_and_can_be_packed(
    trained, checkout_root, tmp_path, capsys):
  folder, model_dir = trained
  flags = ['--task', 'layout', '--root', checkout_root, '--data_root',
           f'{folder}/data']
  out = str(tmp_path / 'hand_in.zip')
  assert cli.main(['package', '--model_dir', model_dir, '--out', out,
                   *flags]) == 0
  said = capsys.readouterr().out
  assert '2 of 2 programs are ranked as in' in said
  assert 'layout_evaluate.py ranked 2 programs' in said
  assert cli.main(['verify', '--package', out, '--json', *flags]) == 0
  verdict = json.loads(capsys.readouterr().out)
  assert verdict['ok'] and verdict['graded_by'] == 'layout_evaluate.py'
  assert ', 2 of them as here' in verdict['facts']['script']


def test_faults_of_files_are_named(trained, checkout_root, tmp_path):
  _, model_dir = trained
  copied = tmp_path / os.path.basename(model_dir)
  shutil.copytree(model_dir, copied)
  assert 'run file' in verified(trained, checkout_root, str(copied)).faults[0]
  models_py = tmp_path / 'models.py'
  models_py.write_text('import tensorflow as tf\n')
  verdict = verified(trained, checkout_root, models_py=str(models_py))
  assert any('makes the class ResModel' in fault for fault in verdict.faults)


def test_the_baselines_own_file_does_not_take_what_the_script_gives(
    trained, checkout_root):
  """The reason why its layout_train.py breaks off after training."""
  theirs = os.path.join(checkout_root, checkout.LAYOUT_MODELS_PY)
  verdict = verified(trained, checkout_root, models_py=theirs)
  assert any('backprop=False), which layout_train.py calls, fails' in fault
             for fault in verdict.faults), verdict.text()


def test_weights_and_predictions_of_different_trainings(
    trained, checkout_root, tmp_path):
  folder, _ = trained
  (csv_path,) = folder.glob('out/results_*.csv')
  before = csv_path.read_text()
  head, first, *rest = before.splitlines()
  name, order = first.split(',')
  changed = ';'.join(order.split(';')[::-1])
  try:
    csv_path.write_text('\n'.join([head, f'{name},{changed}', *rest]) + '\n')
    verdict = verified(trained, checkout_root)
  finally:
    csv_path.write_text(before)
  assert len(verdict.faults) == 1
  assert 'ranks 1 programs differently from the saved' in verdict.faults[0]


def test_a_model_that_draws_its_scores(trained, checkout_root, tmp_path):
  source = pathlib.Path(load_models.models_path('layout')).read_text()
  models_py = tmp_path / 'models.py'
  models_py.write_text(source + '''

_quiet = MyLayoutSAGE.forward


def _noisy(self, *args, **kwargs):
  scores = _quiet(self, *args, **kwargs)
  return scores + tf.random.normal(tf.shape(scores))


MyLayoutSAGE.forward = _noisy
''')
  verdict = verified(trained, checkout_root, models_py=str(models_py))
  assert any('other scores when it is called again' in fault
             for fault in verdict.faults), verdict.text()
  assert any('layout_evaluate.py ranks 2 programs differently' in fault
             for fault in verdict.faults)


def test_a_model_of_toy_data(trained, checkout_root, tmp_path):
  """Of 5 train files a column less varies than of all 6."""
  folder, _ = trained
  data = tmp_path / 'data'
  shutil.copytree(folder / 'data', data)
  # The baseline takes the files in the folder's own order.
  last = tf.io.gfile.glob(str(data / 'xla' / 'random' / 'train' / '*.npz'))[-1]
  with np.load(last) as stored:
    arrays = dict(stored)
  arrays['node_feat'][0, 20] = 7  # A column that is 0 in all the others.
  np.savez_compressed(last, **arrays)
  verdict = verified(trained, checkout_root, data_root=str(data))
  assert verdict.toy_trained
  assert any('trained with --toy_data' in fault for fault in verdict.faults)
