"""The baseline's scripts, unchanged, in a working copy of its checkout."""

import glob
import shutil

from tpu_graphs_ext.course import checkout


def swapped(checkout_root, folder, task) -> str:
  """A new working copy with our models in place of a task's."""
  copy = checkout.working_copy(checkout_root, f'{folder}/tpu_graphs')
  shutil.copyfile(task.models_file, f'{copy}/{task.baseline_models}')
  return copy


def run(copy, arguments, log):
  """Runs a script with its flags to the end; its output goes to `log`."""
  checkout.run_to_end(
      arguments[0], checkout.script_command(arguments), log, cwd=copy)


def train(copy, script, data, folder, *flags) -> str:
  """Runs a trainer for two epochs; returns the model's folder."""
  run(copy, [script, '--epochs=2', f'--data_root={data}',
             f'--cache_dir={folder}/cache', f'--out_dir={folder}/out', *flags],
      f'{folder}/train.log')
  (model_dir,) = glob.glob(f'{folder}/out/model_*')
  return model_dir
