"""What tiles_gen_predictions_csv.py does with a hand-in, step by step.

  python -I without_package.py FOLDERS steps.py REQUEST.json

A process of its own, started by `sandbox`, that imports nothing of the package.
It continues after a fault as far as it can, so that one run finds all.

Request: `module` to import the class from; `model_dir`; `args` of the run file
or null; `num_ops` and `graphs`, a saved dataset of GraphTensors, each or null;
`answer`, the file to write, whose content `sandbox.Answer` describes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback

import numpy as np
import tensorflow as tf
import tensorflow_gnn  # noqa: F401  Saved graphs have its classes,
import tensorflow_ranking  # noqa: F401  and models its losses and metrics.

# Kernels that are scored twice.
_REPEATED = 3
# Two calls of one model on one kernel differ by less than this, relatively.
_ROUNDING = 1e-5

ANSWER = {'faults': [], 'misfit': '', 'state': 0, 'seconds': 0.0, 'scores': {}}


class CombinedLoss(tf.keras.losses.Loss):
  """Stands in for the baseline's loss: loading needs only its name."""

  def __init__(self, *unused_args, **unused_kwargs):
    super().__init__()

  def call(self, y_true, y_pred):
    return tf.reduce_mean(y_pred)


def fault(text: str, error: BaseException | None = None,
          advice: str = '') -> None:
  """Adds a reason why the hand-in fails."""
  if error is not None:
    # Some messages of TensorFlow are pages long.
    message = ' '.join(str(error).split())[:300]
    text = f'{text} ({type(error).__name__}: {message})'
  ANSWER['faults'].append(f'{text}; {advice}' if advice else text)


def run(request: dict) -> None:
  """Takes all steps; each returns None after a fault."""
  module = import_models(request['module'])
  saved = load_keras(request['model_dir'], module is not None)
  model = module and request['args'] and build(module, request)
  if not (model and request['graphs']):
    return
  graphs = tf.data.Dataset.load(request['graphs'])
  try:
    scored(model, next(iter(graphs)))  # Makes the variables.
  except Exception as error:
    return fault('forward(graph, num_configs), which '
                 'tiles_gen_predictions_csv.py calls, fails on a test kernel',
                 error)
  if saved is not None:
    ANSWER['misfit'] = copy_weights(saved.trainable_variables,
                                    model.trainable_variables)
    if not ANSWER['misfit']:
      start = time.monotonic()
      ANSWER['scores'] = rank(model, graphs)
      ANSWER['seconds'] = time.monotonic() - start


def import_models(name: str):
  try:
    return importlib.import_module(name)
  except (Exception, SystemExit) as error:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if os.path.basename(frame.filename) == 'models.py']
    where = f' at line {lines[-1]}' if lines else ''
    advice = ''
    # Without the checkout, which a relative import needs too.
    if name == 'models' and isinstance(error, ImportError) and (
        (error.name or '').split('.')[0] == 'tpu_graphs'
        or 'relative import' in str(error)):
      advice = ("it needs the checkout's own package: name the checkout with "
                '--root or TPU_GRAPHS_ROOT')
    return fault(f'models.py cannot be imported{where}', error, advice)


def load_keras(path: str, has_classes: bool):
  try:
    with tf.keras.utils.custom_object_scope({'CombinedLoss': CombinedLoss}):
      saved = tf.keras.models.load_model(path)
  except Exception as error:
    # What models.py would have registered is unknown.
    if isinstance(error, ValueError) and not has_classes:
      return None
    return fault('the model folder cannot be loaded by Keras with its loss, '
                 'metrics and optimizer', error, 'copy the whole folder again '
                 'from where it was trained; register your own classes in '
                 'models.py with @tf.keras.utils.register_keras_serializable()')
  ANSWER['state'] = len(saved.non_trainable_variables)
  return saved


def build(module, request: dict):
  args = request['args']
  cls = getattr(module, args['model'], None)
  if cls is None:
    return fault(f'the grader makes the class {args["model"]}, which models.py '
                 'does not have')
  if not request['num_ops']:
    return None
  try:
    return cls(num_configs=args['configs'], num_ops=request['num_ops'],
               **json.loads(args['model_kwargs_json']))
  except Exception as error:
    return fault(
        f'{args["model"]} cannot be built with the arguments of the run file, '
        f'{args["model_kwargs_json"][:200]}', error, 'models.py has changed '
        'since training, or the run file belongs to another model')


def scored(model, graph) -> np.ndarray:
  """float32 [configs], as the script asks for them."""
  configs = int(graph.node_sets['config'].sizes[0])
  scores = np.asarray(model.forward(graph, configs), np.float32)
  if scores.shape != (1, configs):
    raise ValueError(f'its scores have shape {scores.shape} for a kernel with '
                     f'{configs} configurations; it must be (1, {configs})')
  return scores[0]


def retimed(graph):
  """The kernel with other runtimes; those of the test split are all 0."""
  features = graph.node_sets['config'].get_features_dict()
  features['runtimes'] += tf.cumsum(tf.ones_like(features['runtimes']))
  return graph.replace_features(node_sets={'config': features})


def copy_weights(saved, built) -> str:
  """Copies them by position, as the grader does; '' or how they differ."""
  pairs = list(zip(saved, built))
  differ = [(old, new) for old, new in pairs if old.shape != new.shape]
  if len(saved) == len(built) and not differ:
    for old, new in pairs:
      new.assign(old)
    return ''
  text = f'{len(saved)} are saved, and the class has {len(built)}'
  for old, new in differ[:1]:
    text += (f'; {old.name} {tuple(old.shape)} is saved where the class has '
             f'{new.name} {tuple(new.shape)}')
  return text


def rank(model, graphs) -> dict[str, list[float]]:
  """Kernel -> scores [configs]; empty if `forward` fails."""
  scores, broken, unsteady = {}, [], []
  for graph in graphs:
    name = graph.node_sets['g']['tile_id'][0].numpy().decode()
    try:
      once = scored(model, graph)
      again = scored(model, retimed(graph)) if len(scores) < _REPEATED else once
    except Exception as error:
      fault(f'forward fails on the test kernel {name}', error)
      return {}
    if not np.isfinite(once).all():
      broken.append(name)
    elif not np.allclose(once, again, rtol=0,
                         atol=_ROUNDING * np.abs(once).max()):
      unsteady.append(name)
    scores[name] = once.tolist()
  if broken:
    fault(f'the scores of {len(broken)} of {len(scores)} test kernels are NaN '
          f'or infinite, first of {broken[0]}; train again, with a lower --lr')
  if unsteady:
    fault('forward gives other scores when it is called again with other '
          f'runtimes, on {unsteady[0]}: it reads the runtimes, or dropout or '
          'noise is on; turn it off unless call() gets training=True')
  return scores


def main() -> None:
  with open(sys.argv[1], encoding='utf-8') as file:
    request = json.load(file)
  run(request)
  with open(request['answer'], 'w', encoding='utf-8') as file:
    json.dump(ANSWER, file)


if __name__ == '__main__':
  main()
