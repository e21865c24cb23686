"""Writes a trained model as a SavedModel that needs TensorFlow alone.

docs/serving.md describes its signature. The file `MARK` in the folder has the
model's name and the checksums of the other files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os

import tensorflow as tf

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import artifacts, scoring
from tpu_graphs_ext.engine.settings import checked
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.serving import tf_program
from tpu_graphs_ext.tasks.tile import LoadSettings

SIGNATURE = 'serving_default'
# TensorFlow ignores this folder.
MARK = 'assets.extra/tpu_graphs_ext.json'
_WHAT = 'A ranking model of tpu_graphs_ext, exported for serving.'


@dataclasses.dataclass(frozen=True)
class Export:
  """The SavedModel that `export` wrote."""
  out: str  # Its folder.
  model: str  # Class of the model.
  num_ops: int  # Opcodes that it knows; others count as unknown.
  inputs: dict[str, str]  # Name -> type and shape.

  def text(self) -> str:
    """A heading, and a line for each input and the output."""
    return '\n'.join([
        f'{self.out}: {self.model} as a SavedModel, signature {SIGNATURE}',
        *(f'  {name:<12} {spec}' for name, spec in self.inputs.items()),
        f'  -> {tf_program.OUTPUT:<9} float32 [configs], lower is faster'])


@checked
def export(model_dir: str, out: str,
           loading: LoadSettings = LoadSettings()) -> Export:
  """Writes a model for programs that have neither this package nor TF-GNN.

  The SavedModel takes the arrays of .npz files and returns the scores of the
  model's `forward`. The folder is written whole or not at all.

  Args:
    model_dir, loading: see `CostModel.load`. `keep_repeats` has no effect:
      scores are `forward`'s.
    out: the folder to write. It may be new, empty, or an export that nobody
      changed, which is replaced.

  Raises UserError if a file is missing or damaged, the model cannot be
  compiled, or `out` holds something else or cannot be written.
  """
  path = os.path.normpath(files.require_path('--out', out))
  _require_ours(path)  # Before the work, too.
  ranker = scoring.load_ranker(model_dir, loading)
  program = tf_program.compiled(ranker, for_export=True)
  module = tf.Module()
  module.model_variables = list(ranker.model.variables)
  kind = type(ranker.model).__name__
  try:
    with files.new_folder(
        path, lambda: _require_ours(path)) as temporary, (
            artifacts.quiet_keras()):
      tf.saved_model.save(module, temporary, signatures={SIGNATURE: program})
      files.write_file(os.path.join(temporary, MARK), json.dumps({
          'what': _WHAT, 'model': kind,
          'run': os.path.basename(artifacts.run_path_of(
              artifacts.load_run(model_dir, loading.task).model_dir)),
          'num_ops': ranker.num_ops,
          'files': files.sums(temporary)}, indent=2).encode())
  except (OSError, tf.errors.OpError) as error:
    raise files.cannot_be_written(f'--out={path}', error) from error
  inputs = {}
  for spec, field in zip(
      program.get_concrete_function().structured_input_signature[0],
      schema.TILE_FIELDS):
    axes = [str(size or axis) for size, axis in zip(spec.shape, field.axes)]
    inputs[spec.name] = f'{spec.dtype.name} [{", ".join(axes)}]'
  return Export(path, kind, ranker.num_ops, inputs)


def _require_ours(path: str) -> None:
  """Raises a UserError if the folder holds anything but an export."""
  known, names = {}, []
  with contextlib.suppress(UserError, LookupError, TypeError, ValueError):
    mark = files.read_json(os.path.join(path, MARK))
    if mark['what'] == _WHAT:
      known, names = dict(mark['files']), [MARK]
  files.require_own(path, known, names)
