"""Writes a trained model as a SavedModel that needs TensorFlow alone.

docs/serving.md describes its signature. The file `MARK` in the folder has the
model's name and the checksums of the other files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator

import tensorflow as tf

import tpu_graphs_ext
from tpu_graphs_ext import files
from tpu_graphs_ext.engine import artifacts, scoring
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.serving import tf_program

SIGNATURE = 'serving_default'
# TensorFlow ignores this folder.
MARK = 'assets.extra/tpu_graphs_ext.json'
_WHAT = 'A ranking model of tpu_graphs_ext, exported for serving.'
_VERSION = 2  # Of the signature.
_ROWS = {'node_feat': 'nodes', 'node_opcode': 'nodes', 'edge_index': 'edges',
         'config_feat': 'configs'}


@dataclasses.dataclass(frozen=True)
class Export:
  """The SavedModel that `export` wrote.

  Attributes:
    out: its folder.
    model: class of the model.
    num_ops: opcodes that it has seen; others count as unknown.
    inputs: name of an input -> its type and shape.
  """
  out: str
  model: str
  num_ops: int
  inputs: dict[str, str]

  def text(self) -> str:
    """A heading, and a line for each input and the output."""
    return '\n'.join([
        f'{self.out}: {self.model} as a SavedModel, signature {SIGNATURE}',
        *(f'  {name:<12} {spec}' for name, spec in self.inputs.items()),
        f'  -> {tf_program.OUTPUT:<9} float32 [configs], lower is faster'])


def export(model_dir: str, out: str,
           loading: LoadSettings = LoadSettings()) -> Export:
  """Writes a model for programs that have neither this package nor TF-GNN.

  The SavedModel takes the arrays of .npz files and returns the scores of the
  model's `forward`. The folder is written whole or not at all.

  Args:
    model_dir: the folder model_<hash>, with its run file beside it.
    out: the folder to write. It may be new, empty, or an export that nobody
      changed, which is replaced.
    loading: how to load the model. `keep_repeats` has no effect: scores are
      `forward`'s.

  Raises:
    UserError: a file is missing or damaged; the model cannot be compiled; `out`
      holds something else, or cannot be written.
  """
  path = os.path.normpath(files.require_path('--out', out))
  _require_ours(path)
  with _write_errors_reported(path):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  ranker = scoring.load_ranker(model_dir, loading)
  module, signatures = servable(ranker)
  with _write_errors_reported(path), files.new_folder(path) as temporary:
    with artifacts.quiet_keras():
      tf.saved_model.save(module, temporary, signatures=signatures)
    run_path = artifacts.run_path_of(artifacts.load_run(model_dir).model_dir)
    files.write_file(os.path.join(temporary, MARK), json.dumps({
        'what': _WHAT, 'version': _VERSION,
        'model': type(ranker.model).__name__,
        'run': os.path.basename(run_path), 'num_ops': ranker.num_ops,
        'versions': {'tpu_graphs_ext': tpu_graphs_ext.__version__,
                     'tensorflow': tf.__version__},
        'files': files.sums(temporary)}, indent=2).encode())
    _require_ours(path)  # Again, because saving takes a while.
  inputs = {}
  for spec in tf_program.kernel_specs(ranker):
    axes = ', '.join(str(size or _ROWS[spec.name]) for size in spec.shape)
    inputs[spec.name] = f'{spec.dtype.name} [{axes}]'
  return Export(path, type(ranker.model).__name__, ranker.num_ops, inputs)


def servable(ranker: scoring.Ranker) -> tuple[tf.Module, dict]:
  """The variables to save, and the function of the signature."""
  module = tf.Module()
  module.model_variables = list(ranker.model.variables)
  return module, {SIGNATURE: tf_program.compiled(
      ranker, tf_program.checked_kernel_function(ranker),
      tf_program.kernel_specs(ranker))}


def _require_ours(path: str) -> None:
  """Raises a UserError if the folder holds anything but an export."""
  if not os.path.lexists(path):
    return
  if os.path.islink(path) or not os.path.isdir(path):
    kind = 'a link' if os.path.islink(path) else 'not a folder'
    raise UserError(f'--out={path}: is {kind}; name a folder')
  known = _sums_in(os.path.join(path, MARK))
  strangers = [name for name in files.foreign(path, known)
               if not known or name != MARK]
  if strangers:
    raise UserError(
        f'--out={path}: holds {strangers[0]!r}, which no export wrote, or '
        'which was changed since; name a new or an empty folder, or remove '
        'this one by hand if nothing in it is needed')


def _sums_in(path: str) -> dict[str, str]:
  """The checksums in an export's mark; {} without such a mark."""
  try:
    mark = {} if os.path.islink(path) else files.read_json(path)
  except UserError:
    return {}
  whole = isinstance(mark, dict) and mark.get('what') == _WHAT and isinstance(
      mark.get('files'), dict)
  return mark['files'] if whole else {}


@contextlib.contextmanager
def _write_errors_reported(path: str) -> Iterator[None]:
  """TensorFlow and the system report a full disk in many ways."""
  try:
    yield
  except OSError as error:
    raise files.cannot_be_written(f'--out={path}', error) from error
  except tf.errors.OpError as error:
    raise UserError(f'--out={path}: cannot be written '
                    f'({str(error)[:300]}); free some space, or choose '
                    'another place') from error
