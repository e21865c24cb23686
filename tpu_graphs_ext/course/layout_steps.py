"""What the baseline's scripts do with a hand-in of the layout task.

  python -I without_package.py SETTINGS layout_steps.py REQUEST.json

As `grader_steps`, with the baseline's own reader: `layout_train.py` and
`layout_evaluate.py` read the same files in two ways, and both rank here.

Request: as there, without `graphs` and `num_ops`; `data`, the folder of one
collection; `toy_data`. Answer: as there. Scores are named 'train:' or
'evaluate:' and the program.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

import numpy as np
import tensorflow as tf
from absl import flags

sys.path.append(os.path.dirname(os.path.abspath(__file__)))
import grader_steps
from grader_steps import brief

sys.path.pop()

# As `layout_evaluate.py` reads; it takes no other.
_EVALUATE_CONFIGS = 1000
# Configurations at a time, as in layout_train.py.
_CHUNK = 500
CLASS = 'ResModel'
TOY = 'is of toy data'


class LayoutSteps(grader_steps.Steps):
  """The steps, and what they found."""

  def run(self) -> None:
    """Goes on after a fault as far as it can."""
    data = importlib.import_module('tpu_graphs.baselines.layout.data')
    self._as_in_evaluation()
    module = self.import_models()
    saved = self.load_keras()
    if saved is not None:
      self.look_at(saved)
    if module is None or not self.request['args']:
      return
    readings = self.read(data)
    if not readings:
      return
    model = self.build_for(module, readings['evaluate'])
    if model is None or not self.forward_all_ways(data, model, readings):
      return
    self.answer['built'] = grader_steps.listed(model.trainable_variables)
    if saved is None:
      return
    if self.copy(saved, model):
      self.rank_all(data, model, readings)
    elif not self.request['toy_data']:
      self.try_toy_data(data, module, saved)

  def _as_in_evaluation(self) -> None:
    """The flags of `layout_evaluate.py`, at which a models.py may look."""
    request = self.request
    for name in ('dirs', 'secret_path', 'data_root', 'cache_dir', 'source',
                 'search', 'model_kwargs_json'):
      flags.DEFINE_string(name, '', '')
    args = request['args'] or {}
    flags.FLAGS([
        'layout_evaluate.py', f'--dirs={request["model_dir"]}',
        f'--data_root={request["data_root"]}',
        f'--source={args.get("source", "")}',
        f'--search={args.get("search", "")}',
        *(['--toy_data'] if request['toy_data'] else [])])

  def read(self, data) -> dict:
    """The collection as both scripts read it; empty after a fault."""
    args = self.request['args']
    try:
      evaluated = data.get_npz_dataset(
          self.request['data'], max_train_configs=_EVALUATE_CONFIGS,
          max_valid_configs=-1)
      trained = data.get_npz_dataset(
          self.request['data'], min_train_configs=args['configs'],
          max_train_configs=args['max_configs'])
    except Exception as error:
      self.fault(f"the baseline's reader fails on {self.request['data']}",
                 error, 'look at it with `tpu-graphs-ext check-data DIR --task '
                 'layout`')
      return {}
    return {'evaluate': evaluated, 'train': trained}

  def build_for(self, module, dataset):
    """The model, made as the scripts make it: they know one name only."""
    args, cls = self.request['args'], getattr(module, CLASS, None)
    if cls is None:
      self.fault(f'models.py has no class {CLASS}, which is the one that '
                 'layout_train.py and layout_evaluate.py make')
      return None
    try:
      return cls(num_configs=args['configs'], num_ops=dataset.num_ops,
                 **json.loads(args['model_kwargs_json']))
    except Exception as error:
      self.fault(
          f'{CLASS} cannot be built for {args["model"]} with the arguments of '
          f'the run file, {brief(args["model_kwargs_json"])}', error,
          'models.py has changed since training, or the run file is of '
          'another model')
      return None

  def forward_all_ways(self, data, model, readings) -> bool:
    """Calls `forward` as each script does, which makes the variables."""
    graph = data.sub_configs(
        readings['evaluate'].test.get_item(0).to_graph_tensor(), slice(0, 3))
    count = graph.node_sets['g']['runtimes'].shape[-1]
    for script, more in (('layout_evaluate.py', {}),
                         ('layout_train.py', {'backprop': False})):
      said = ', '.join(['graph', 'num_configs', *(f'{name}={value}' for
                                                  name, value in more.items())])
      try:
        shape = tuple(model.forward(graph, num_configs=count, **more).shape)
      except Exception as error:
        self.fault(f'forward({said}), which {script} calls, fails on a test '
                   'program', error)
        return False
      if shape != (1, count):
        self.fault(f'forward({said}) gives scores of shape {shape} for a '
                   f'program of {count} configurations; it must be '
                   f'(1, {count})')
        return False
    return True

  def try_toy_data(self, data, module, saved) -> None:
    """Whether the saved variables are those of a model of toy data."""
    flags.FLAGS.toy_data = True
    toy = self.read(data).get('train')
    model = toy and self.build_for(module, toy)
    if model:
      graph = toy.test.get_item(0).to_graph_tensor(2)
      model.forward(graph, num_configs=2)
      if [v.shape for v in model.trainable_variables] == [
          v.shape for v in saved.trainable_variables]:
        self.fault(f'the model {TOY}: its variables are those of --toy_data, '
                   '5 files of each split; train again without it')

  def rank_all(self, data, model, readings) -> None:
    """Scores the test programs, read in both ways."""
    start = time.monotonic()
    scores, broken, unsteady = {}, [], []
    for reading, dataset in readings.items():
      for graph in dataset.test.iter_graph_tensors():
        name = graph.node_sets['g']['graph_id'][0].numpy().decode()
        try:
          of_program = _scores(data, model, graph)
          again = (of_program if len(scores) >= grader_steps.REPEATED
                   else _scores(data, model, graph))
        except Exception as error:
          self.fault(f'forward fails on the test program {name}', error)
          return
        if not np.isfinite(of_program).all():
          broken.append(name)
        elif not np.allclose(of_program, again, rtol=0, atol=(
            grader_steps.ROUNDING * np.abs(of_program).max())):
          unsteady.append(name)
        scores[f'{reading}:{name}'] = of_program
        print(grader_steps.RANKED, flush=True)
    self.answer.update(kernels=len(scores), seconds=time.monotonic() - start)
    self.judge(len(scores), broken, unsteady)
    np.savez(self.request['scores'], tile_ids=np.array(list(scores)),
             counts=np.array([len(s) for s in scores.values()], np.int64),
             scores=np.concatenate(list(scores.values())))


def _scores(data, model, graph) -> np.ndarray:
  """float32 [configs], in chunks as layout_train.py takes them."""
  count = graph.node_sets['g']['runtimes'].shape[-1]
  parts = []
  for start in range(0, count, _CHUNK):
    end = min(start + _CHUNK, count)
    parts.append(model.forward(
        data.sub_configs(graph, slice(start, end)), num_configs=end - start,
        backprop=False)[0])
  return np.asarray(tf.concat(parts, 0), np.float32)


if __name__ == '__main__':
  grader_steps.main(LayoutSteps)
