"""What the graders' scripts do with a hand-in, step by step.

  python -I without_package.py FOLDERS steps.py REQUEST.json

Runs in a process of its own, started by `sandbox`, and imports nothing of the
package. Goes on after a fault as far as it can, so that one run finds all.

Request: `task`; `module` to import the class from; `model_dir`; `args` of the
run file or null; `shown`, the model's arguments for messages; `answer` and
`scores`, the files to write. For tiles `num_ops` and `graphs`, a saved dataset
of GraphTensors, each or null; for layouts `data`, the folder of one collection,
`data_root` and `toy_data`. Answer: see `sandbox.Answer`. Scores: an .npz of
`names`, `counts` and all scores one after another.
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
from absl import flags

# Saved graphs and models are made of their classes.
_NEEDED = (tfgnn, tfr)
# Kernels that are scored twice.
_REPEATED = 3
# Two calls of one model on one kernel differ by less than this, relatively.
_ROUNDING = 1e-5


class CombinedLoss(tf.keras.losses.Loss):
  """Stands in for the baseline's loss: loading needs only its name."""

  def __init__(self, *unused_args, **unused_kwargs):
    super().__init__()

  def call(self, y_true, y_pred):
    return tf.reduce_mean(y_pred)


class Tiles:
  """The steps of tiles_gen_predictions_csv.py."""

  item = 'kernel'
  # (script, the arguments that it gives to `forward` besides the usual two).
  calls = (('tiles_gen_predictions_csv.py', {}),)

  def __init__(self, request: dict):
    self.request, self.args = request, request['args']
    self.answer = {'faults': [], 'saved': None, 'built': None, 'state': 0,
                   'seconds': 0.0}

  def fault(self, text: str, error: BaseException | None = None,
            advice: str = '') -> None:
    if error is not None:
      # Some messages of TensorFlow are pages long.
      message = ' '.join(str(error).split())[:300]
      text = f'{text} ({type(error).__name__}: {message})'
    self.answer['faults'].append(f'{text}; {advice}' if advice else text)

  def run(self) -> None:
    self.prepare()
    module = self.import_models()
    saved = self.load_keras()
    if saved is not None:
      self.look_at(saved)
    cls = module and self.args and self.find_class(module)
    if not cls:
      return
    readings, num_ops = self.read()
    model = num_ops and self.build(cls, num_ops)
    if not (model and readings and self.forward_once(model, readings)):
      return
    self.answer['built'] = _listed(model.trainable_variables)
    if saved is not None and self.copy(saved, model):
      self.rank(model, readings)

  # ------------------------------------------- what differs between the tasks

  def prepare(self) -> None:
    """Does what the script does before it imports models.py."""

  def class_name(self) -> str:
    return self.args['model']

  def read(self) -> tuple[dict, int | None]:
    """Reading -> a function that iterates over its graphs; and num_ops."""
    path = self.request['graphs']
    graphs = tf.data.Dataset.load(path) if path else None
    return {'': graphs.__iter__} if path else {}, self.request['num_ops']

  def name(self, graph) -> str:
    return graph.node_sets['g']['tile_id'][0].numpy().decode()

  def count(self, graph) -> int:
    return int(graph.node_sets['config'].sizes[0])

  def some(self, graph, start: int, end: int):
    """The graph with some of its configurations."""
    return graph  # All: its scores are computed in one call.

  def scores(self, model, graph) -> np.ndarray:
    """float32 [configs]."""
    return np.asarray(model.forward(graph, self.count(graph)),
                      np.float32).reshape(-1)

  # ------------------------------------------------------------------- steps

  def import_models(self):
    try:
      return importlib.import_module(self.request['module'])
    except (Exception, SystemExit) as error:
      lines = [frame.lineno for frame in traceback.extract_tb(
          error.__traceback__)
               if os.path.basename(frame.filename) == 'models.py']
      where = f' at line {lines[-1]}' if lines else ''
      self.fault(f'models.py cannot be imported{where}', error)
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
      with contextlib.suppress(Exception):
        loaded = load(compile=False)
        self.fault(
            'the model folder cannot be loaded with its loss, metrics and '
            'optimizer, as the grader loads it', error,
            'register your classes in models.py with '
            '@tf.keras.utils.register_keras_serializable()')
        return loaded
      self.fault('the model folder cannot be loaded by Keras', error,
                 'copy the whole folder again from where it was trained')
      return None

  def look_at(self, saved) -> None:
    """Lists the saved variables and looks for NaN in them."""
    self.answer['saved'] = _listed(saved.trainable_variables)
    self.answer['state'] = len(saved.non_trainable_variables)
    bad = [variable.name for variable in saved.trainable_variables
           if not np.isfinite(variable.numpy()).all()]
    if bad:
      self.fault(
          f'{len(bad)} of the {len(saved.trainable_variables)} saved variables '
          f'hold NaN or infinity ({_some(bad)}): training has diverged; train '
          'again, with a lower --lr')

  def find_class(self, module):
    cls = getattr(module, self.class_name(), None)
    if cls is None:
      names = [name for name, value in vars(module).items()
               if inspect.isclass(value) and issubclass(value, tf.keras.Model)
               and not name.startswith('_')]
      nearest = difflib.get_close_matches(self.class_name(), names, 1, 0.4)
      hint = f'did you mean {nearest[0]}? ' if nearest else ''
      self.fault(f'the grader makes the class {self.class_name()}, which '
                 f'models.py does not have; {hint}it has {", ".join(names)}')
    return cls

  def build(self, cls, num_ops: int):
    try:
      return cls(num_configs=self.args['configs'], num_ops=num_ops,
                 **json.loads(self.args['model_kwargs_json']))
    except Exception as error:
      self.fault(
          f'{self.class_name()} cannot be built with the arguments of the run '
          f'file, {self.request["shown"]}', error, 'models.py has changed '
          'since training, or the run file belongs to another model')
      return None

  def forward_once(self, model, readings) -> bool:
    """Calls `forward` as the scripts do, which makes the variables."""
    graph = self.some(next(list(readings.values())[-1]()), 0, 3)
    count = self.count(graph)
    for script, more in self.calls:
      call = ', '.join(['forward(graph, num_configs',
                        *(f'{name}={value}' for name, value in more.items())])
      try:
        shape = tuple(model.forward(graph, count, **more).shape)
      except Exception as error:
        self.fault(f'{call}), which {script} calls, fails on a test '
                   f'{self.item}', error)
        return False
      if shape != (1, count):
        self.fault(f'{call}) gives scores of shape {shape} for a {self.item} '
                   f'with {count} configurations; it must be (1, {count})')
        return False
    return True

  def copy(self, saved, model) -> bool:
    """Copies weights by position, as the grader does; False if they differ."""
    targets, sources = model.trainable_variables, saved.trainable_variables
    if ([tuple(target.shape) for target in targets]
        != [tuple(source.shape) for source in sources]):
      return False
    for target, source in zip(targets, sources):
      target.assign(source)
    return True

  def rank(self, model, readings) -> None:
    """Scores everything; prints a line for each."""
    start = time.monotonic()
    scores, broken, unsteady = {}, [], []
    for reading, graphs in readings.items():
      for graph in graphs():
        name = self.name(graph)
        try:
          once = self.scores(model, graph)
          again = (self.scores(model, graph) if len(scores) < _REPEATED
                   else once)
        except Exception as error:
          self.fault(f'forward fails on the test {self.item} {name}', error)
          return
        if not np.isfinite(once).all():
          broken.append(name)
        elif not np.allclose(once, again, rtol=0,
                             atol=_ROUNDING * np.abs(once).max()):
          unsteady.append(name)
        scores[reading + name] = once
        print('ranked a kernel', flush=True)
    self.answer['seconds'] = time.monotonic() - start
    if broken:
      self.fault(
          f'the scores of {len(broken)} of {len(scores)} test {self.item}s are '
          f'NaN or infinite ({_some(broken)}), of which the grader would write '
          'meaningless rows', advice='train again, with a lower --lr')
    if unsteady:
      self.fault(
          'forward gives other scores when it is called again on the same '
          f'{self.item} ({_some(unsteady)}): dropout or noise is on',
          advice='turn it off unless call() is told that it trains')
    np.savez(self.request['scores'], names=np.array(list(scores)),
             counts=np.array([len(s) for s in scores.values()], np.int64),
             scores=np.concatenate(list(scores.values())))


class Layouts(Tiles):
  """The steps of layout_train.py and of layout_evaluate.py.

  The two read the same files differently, so both readings are ranked; the
  names of their scores begin with 'train:' and 'evaluate:'.
  """

  item = 'program'
  calls = (('layout_evaluate.py', {}), ('layout_train.py', {'backprop': False}))
  # Configurations of a train program that layout_evaluate.py reads, and
  # configurations in one call of `forward` in layout_train.py.
  evaluated, chunk = 1000, 500

  def prepare(self) -> None:
    """Sets the flags of layout_evaluate.py, which a models.py may read."""
    self.data = importlib.import_module('tpu_graphs.baselines.layout.data')
    request, args = self.request, self.args or {}
    for name in ('dirs', 'secret_path', 'data_root', 'cache_dir', 'source',
                 'search', 'model_kwargs_json'):
      flags.DEFINE_string(name, '', '')
    flags.FLAGS([
        'layout_evaluate.py', f'--dirs={request["model_dir"]}',
        f'--data_root={request["data_root"]}',
        f'--source={args.get("source", "")}',
        f'--search={args.get("search", "")}',
        *(['--toy_data'] if request['toy_data'] else [])])

  def class_name(self) -> str:
    return 'ResModel'  # The only one that the two scripts make.

  def read(self) -> tuple[dict, int | None]:
    folder = self.request['data']
    try:
      train = self.data.get_npz_dataset(
          folder, min_train_configs=self.args['configs'],
          max_train_configs=self.args['max_configs'])
      evaluate = self.data.get_npz_dataset(
          folder, max_train_configs=self.evaluated, max_valid_configs=-1)
    except Exception as error:
      self.fault(f"the baseline's reader fails on {folder}", error,
                 'run `tpu-graphs-ext check-data DIR --task layout`')
      return {}, None
    return {'train:': train.test.iter_graph_tensors,
            'evaluate:': evaluate.test.iter_graph_tensors}, evaluate.num_ops

  def name(self, graph) -> str:
    return graph.node_sets['g']['graph_id'][0].numpy().decode()

  def count(self, graph) -> int:
    return int(graph.node_sets['g']['runtimes'].shape[-1])

  def some(self, graph, start: int, end: int):
    return self.data.sub_configs(graph, slice(start, end))

  def scores(self, model, graph) -> np.ndarray:
    count, parts = self.count(graph), []
    for start in range(0, count, self.chunk):
      end = min(start + self.chunk, count)
      parts.append(model.forward(self.some(graph, start, end),
                                 num_configs=end - start, backprop=False)[0])
    return np.asarray(tf.concat(parts, 0), np.float32)


def _listed(variables) -> list:
  return [[variable.name, list(variable.shape)] for variable in variables]


def _some(names: list[str]) -> str:
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more


def main() -> None:
  with open(sys.argv[1], encoding='utf-8') as file:
    request = json.load(file)
  steps = {'tile': Tiles, 'layout': Layouts}[request['task']](request)
  steps.run()
  with open(request['answer'], 'w', encoding='utf-8') as file:
    json.dump(steps.answer, file)


if __name__ == '__main__':
  main()
