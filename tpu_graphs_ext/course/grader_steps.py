"""What the grader's script does with a hand-in, step by step.

  python -I without_package.py SETTINGS grader_steps.py REQUEST.json

Runs in a process of its own, started by `sandbox`, and imports nothing of the
package. Goes on after a fault as far as it can, so that one run tells all.

Request: `module` to import the class from; `model_dir`; `args` of the run file
or null; `num_ops`; `graphs`, a saved dataset of GraphTensors, or null;
`copy_state`: copy variables that are not trained too; `memory_advice`: what to
say where memory runs out; `answer` and `scores`, the files to write.

Answer: `faults`, a list of texts; `saved` and `built`, [name, shape] of the
trainable variables, or null; `state`, how many variables that are not trained
the saved model has; `kernels` ranked; `seconds` of ranking. Scores: an .npz of
`tile_ids`, `counts` and all scores one after another.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import json
import os
import sys
import time
import traceback

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn
import tensorflow_ranking as tfr

# Saved graphs and models are made of their classes.
_NEEDED = (tfgnn, tfr)
# Kernels that are scored twice.
REPEATED = 3
# Two calls of one model on one kernel differ by less than this, relatively.
ROUNDING = 1e-5
RANKED = 'ranked a kernel'
# Characters of arguments that are shown.
LONGEST = 200


class CombinedLoss(tf.keras.losses.Loss):
  """Stands in for the baseline's loss: loading needs the name, no more."""

  def __init__(self, *unused_args, **unused_kwargs):
    super().__init__()

  def call(self, y_true, y_pred):
    return tf.reduce_mean(y_pred)


class OutOfMemory(BaseException):
  """The hand-in took all the memory it may; nothing can go on after that."""


class Steps:
  """The steps, and what they found."""

  def __init__(self, request: dict):
    self.request = request
    self.answer = {'faults': [], 'saved': None, 'built': None, 'state': 0,
                   'kernels': 0, 'seconds': 0.0}

  def fault(self, text: str, error: BaseException | None = None,
            advice: str = '') -> None:
    if error is not None:
      # Some messages of TensorFlow are pages long.
      message = ' '.join(str(error).split())[:300]
      text = f'{text} ({type(error).__name__}: {message})'
    spent = isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError))
    advice = self.request['memory_advice'] if spent else advice
    self.answer['faults'].append(f'{text}; {advice}' if advice else text)
    if spent:
      raise OutOfMemory

  def run(self) -> None:
    module = self.import_models()
    saved = self.load_keras()
    model = self.build(module) if module and self.request['args'] else None
    graphs = None
    if model is not None and self.request['graphs']:
      graphs = tf.data.Dataset.load(self.request['graphs'])
      if not self.forward_once(model, graphs):
        return
      self.answer['built'] = listed(model.trainable_variables)
    if saved is not None:
      self.look_at(saved)
    if graphs is not None and saved is not None and self.copy(saved, model):
      self.rank(model, graphs)

  def import_models(self):
    try:
      return importlib.import_module(self.request['module'])
    except (Exception, SystemExit) as error:
      frames = [frame for frame in traceback.extract_tb(error.__traceback__)
                if os.path.basename(frame.filename) == 'models.py']
      line = f' at line {frames[-1].lineno}' if frames else ''
      self.fault(f'models.py cannot be imported{line}', error)
      return None

  def load_keras(self):
    if not os.path.isdir(self.request['model_dir']):
      return None  # The caller knows.

    def load(**kwargs):
      with tf.keras.utils.custom_object_scope({'CombinedLoss': CombinedLoss}):
        return tf.keras.models.load_model(self.request['model_dir'], **kwargs)

    try:
      return load()
    except Exception as error:
      try:
        loaded = load(compile=False)
      except Exception:
        self.fault('the model folder cannot be loaded by Keras', error,
                   'copy the whole folder again from where it was trained')
        return None
      self.fault(
          'the model folder cannot be loaded with its loss, metrics and '
          'optimizer, as the grader loads it', error,
          'register your classes in models.py with '
          '@tf.keras.utils.register_keras_serializable()')
      return loaded

  def build(self, module):
    args = self.request['args']
    cls = getattr(module, args['model'], None)
    if cls is None:
      names = [name for name, value in vars(module).items()
               if inspect.isclass(value) and issubclass(value, tf.keras.Model)
               and not name.startswith('_')]
      nearest = difflib.get_close_matches(args['model'], names, 1, 0.4)
      hint = f'did you mean {nearest[0]}? ' if nearest else ''
      self.fault(f"the run file names the class {args['model']}, which "
                 f'models.py does not have; {hint}it has {", ".join(names)}')
      return None
    if self.request['num_ops'] is None:
      return None  # There is no data to count them in; the caller knows.
    try:
      kwargs = json.loads(args['model_kwargs_json'])
      return cls(num_configs=args['configs'],
                 num_ops=self.request['num_ops'], **kwargs)
    except Exception as error:
      self.fault(
          f"{args['model']} cannot be built with the arguments of the run file,"
          f" {brief(args['model_kwargs_json'])}", error,
          'models.py has changed since training, or the run file is of another '
          'model')
      return None

  def forward_once(self, model, graphs) -> bool:
    """Builds the variables and checks what `forward` gives."""
    graph = next(iter(graphs))
    count = int(graph.node_sets['config'].sizes[0])
    try:
      shape = tuple(model.forward(graph, count).shape)
    except Exception as error:
      self.fault('forward(graph, num_configs) fails on a test kernel', error)
      return False
    if shape != (1, count):
      self.fault(f'forward gives scores of shape {shape} for a kernel of '
                 f'{count} configurations; it must be (1, {count})')
      return False
    return True

  def look_at(self, saved) -> None:
    """Lists the saved variables and looks for NaN in them."""
    self.answer['saved'] = listed(saved.trainable_variables)
    self.answer['state'] = len(saved.non_trainable_variables)
    bad = [variable.name for variable in saved.trainable_variables
           if not np.isfinite(variable.numpy()).all()]
    if bad:
      self.fault(
          f'{len(bad)} of the {len(saved.trainable_variables)} saved variables '
          f'hold NaN or infinity ({_some(bad)}): training has diverged; train '
          'again, with a lower --lr')

  def copy(self, saved, model) -> bool:
    """Copies weights by position, as the grader does; False if they differ."""
    pairs = [(model.trainable_variables, saved.trainable_variables)]
    if self.request['copy_state']:
      pairs.append((model.non_trainable_variables,
                    saved.non_trainable_variables))
    for targets, sources in pairs:
      if ([tuple(target.shape) for target in targets]
          != [tuple(source.shape) for source in sources]):
        return False
      for target, source in zip(targets, sources):
        target.assign(source)
    return True

  def rank(self, model, graphs) -> None:
    """Scores every kernel; tells the caller of each by a line."""
    start = time.monotonic()
    scores, broken, unsteady = {}, [], []
    for graph in graphs:
      tile_id = graph.node_sets['g']['tile_id'][0].numpy().decode()
      try:
        of_kernel = _scores(model, graph)
        again = (_scores(model, graph) if len(scores) < REPEATED
                 else of_kernel)
      except Exception as error:
        self.fault(f'forward fails on the test kernel {tile_id}', error)
        return
      if not np.isfinite(of_kernel).all():
        broken.append(tile_id)
      elif not np.allclose(of_kernel, again, rtol=0,
                           atol=ROUNDING * np.abs(of_kernel).max()):
        unsteady.append(tile_id)
      scores[tile_id] = of_kernel
      print(RANKED, flush=True)
    self.answer.update(kernels=len(scores), seconds=time.monotonic() - start)
    self.judge(len(scores), broken, unsteady)
    np.savez(self.request['scores'], tile_ids=np.array(list(scores)),
             counts=np.array([len(s) for s in scores.values()], np.int64),
             scores=np.concatenate(list(scores.values())))

  def judge(self, number: int, broken: list[str],
            unsteady: list[str]) -> None:
    if broken:
      self.fault(
          f'the scores of {len(broken)} of {number} test kernels are NaN or '
          f'infinite ({_some(broken)}), of which the grader would write a CSV '
          'of meaningless rows', advice='train again, with a lower --lr')
    if unsteady:
      self.fault(
          'forward gives other scores when it is called again on the same '
          f'kernel ({_some(unsteady)}): dropout or noise is on',
          advice='turn it off unless call() is told that it trains')


def brief(kwargs_json: str) -> str:
  """The arguments of a model; feature statistics are pages of numbers."""
  if len(kwargs_json) <= LONGEST:
    return kwargs_json
  return f'{kwargs_json[:LONGEST]}... ({len(kwargs_json)} characters)'


def _scores(model, graph) -> np.ndarray:
  """float32 [configs], as `forward` gives them."""
  count = int(graph.node_sets['config'].sizes[0])
  return np.asarray(model.forward(graph, count), np.float32).reshape(-1)


def listed(variables) -> list:
  return [[variable.name, list(variable.shape)] for variable in variables]


def _some(names: list[str]) -> str:
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more


def main(steps_class: type = Steps) -> None:
  with open(sys.argv[1], encoding='utf-8') as file:
    request = json.load(file)
  steps = steps_class(request)
  with contextlib.suppress(OutOfMemory):
    steps.run()
  with open(request['answer'], 'w', encoding='utf-8') as file:
    json.dump(steps.answer, file)


if __name__ == '__main__':
  main()
