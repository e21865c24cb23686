"""A trained model without the SavedModel: weights, and how to build it.

  <folder>/model_<hash>/weights.npz   float32 arrays by their place among the
                                      model's trainable variables, as '0007'
  <folder>/run_<hash>.jsonz           the run file, without what only reports
                                      and `predict` need

Every command takes such a folder as it takes one of `train`. A pair of half a
megabyte is small enough to be a part of the package; the baseline's scripts do
not read it.
"""

from __future__ import annotations

import io
import os

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import artifacts, saved_weights

# How to build the model and scale its features, and how it was trained.
_KEPT = ('args', 'feature_stats', 'num_ops', 'opcodes', 'seed', 'versions',
         'final_error')


def write(model_dir: str, folder: str) -> str:
  """Writes a trained model's compact form.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    folder: where to; made if missing.

  Returns:
    The new model folder.

  Raises:
    UserError: a file is missing or damaged, or `folder` cannot be written.
  """
  run = artifacts.load_run(model_dir)
  saved = saved_weights.of_folder(files.full_path(run.model_dir))
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **{
      f'{place:04d}': np.asarray(saved.value(variable), np.float32)
      for place, variable in enumerate(saved.variables)})
  new_dir = artifacts.model_path(folder, artifacts.train_hash(run.info['args']))
  files.write_file(os.path.join(new_dir, saved_weights.COMPACT_FILE),
                   buffer.getvalue())
  artifacts.save_run_file(
      {key: run.info[key] for key in _KEPT if key in run.info}, folder)
  return new_dir
