"""Does with a hand-in what the graders do, out of this package's reach.

Everything happens in a folder that the caller throws away: a copy of the
model folder and its run file, and either a copy of the baseline's checkout
with models.py swapped, or models.py alone. What runs there runs in a process
that cannot import this package (see `without_package`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import time
from typing import Any

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.baseline import checkout
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.handin import grader_steps
from tpu_graphs_ext.host import artifacts, batches, predictions_csv, settings

_HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = checkout.COURSE_FILES[0]
_BASELINE_MODULE = os.path.splitext(
    checkout.MODELS_PY)[0].replace(os.sep, '.')


@dataclasses.dataclass(frozen=True)
class Features:
  """What a model is given besides a kernel's own arrays.

  Attributes:
    name: where the numbers come from, for messages.
    stats: how features are normalised.
    num_ops: opcodes that the model is built for.
    test: the kernels to rank.
  """
  name: str
  stats: FeatureStats
  num_ops: int
  test: Partition

  def text(self) -> str:
    return (f'{self.stats.node.num_used} node and '
            f'{self.stats.config.num_used} config columns, '
            f'num_ops={self.num_ops}')

  def same_as(self, other: Features) -> bool:
    """True where every feature gets the same value."""
    return self.num_ops == other.num_ops and (
        self.stats.to_json() == other.stats.to_json())


@dataclasses.dataclass(frozen=True)
class Answer:
  """What `grader_steps` answered; see its docstring.

  Attributes:
    faults: reasons why the hand-in fails.
    saved: [name, shape] of each trained variable of the model folder.
    built: the same of the class; None where it could not be built.
    state: variables of the model folder that are not trained.
    scores: tile id -> float32 [configs]; empty if nothing could be ranked.
    seconds: time of ranking.
  """
  faults: list[str]
  saved: list[list[Any]] | None
  built: list[list[Any]] | None
  state: int
  scores: dict[str, np.ndarray]
  seconds: float

  @property
  def ranked(self) -> bool:
    """There are scores, and they order the configurations."""
    return bool(self.scores) and all(
        np.isfinite(of_kernel).all() for of_kernel in self.scores.values())

  @property
  def fits(self) -> bool:
    """The saved variables have the shapes of the class's."""
    return (self.saved is not None and self.built is not None
            and [shape for _, shape in self.saved]
            == [shape for _, shape in self.built])


class Sandbox:
  """The graders' place: a folder with the baseline, or without."""

  def __init__(self, folder: str, model_dir: str, models_py: str,
               root: str | None):
    """Copies what is handed in.

    Args:
      folder: an empty folder.
      model_dir: the model folder, with or without its run file beside it.
      models_py: the file to swap in.
      root: the baseline's checkout, or None.
    """
    self._folder = folder
    self._runs = 0
    self.root = root
    self.model_dir = _copy_model(model_dir, os.path.join(folder, 'handed_in'))
    self.place = os.path.join(folder, 'place')
    if root:
      checkout.working_copy(root, self.place, models_py)
      self._module = _BASELINE_MODULE
    else:
      os.makedirs(self.place)
      shutil.copyfile(models_py, os.path.join(self.place, 'models.py'))
      self._module = 'models'

  def take_steps(self, args: dict[str, Any] | None,
                 features: Features | None, *,
                 copy_state: bool = False) -> Answer:
    """Loads, rebuilds and ranks, step by step.

    Args:
      args: `args` of the run file, or None to leave out what needs them.
      features: what to rank with, or None to leave out what needs kernels.
      copy_state: copy variables that are not trained, too.

    Raises:
      UserError: the process died.
    """
    self._runs += 1
    folder = os.path.join(self._folder, f'steps_{self._runs}')
    os.makedirs(folder)
    request = {
        'module': self._module, 'model_dir': self.model_dir, 'args': args,
        'num_ops': features.num_ops if features else None, 'graphs': None,
        'copy_state': copy_state, 'answer': f'{folder}/answer.json',
        'scores': f'{folder}/scores.npz'}
    if features:
      request['graphs'] = f'{folder}/graphs'
      with artifacts.quiet_keras():
        batches.kernel_graphs(features.test, features.stats).save(
            request['graphs'])
    with open(f'{folder}/request.json', 'w', encoding='utf-8') as file:
      json.dump(request, file)
    with tqdm(total=len(features.test) if features else None, unit='kernel',
              desc='rank as graded', disable=None, leave=False) as bar:
      self._run([os.path.join(_HERE, 'grader_steps.py'),
                 f'{folder}/request.json'],
                lambda line: bar.update(line.strip() == grader_steps.RANKED))
    with open(request['answer'], encoding='utf-8') as file:
      content = json.load(file)
    content.pop('kernels')
    return Answer(scores=_read_scores(request['scores']), **content)

  def run_script(self, data_root: str,
                 toy_data: bool) -> tuple[dict[str, list[int]], float]:
    """Runs the course's script; returns its rows by tile id, and seconds.

    Raises:
      UserError: the script failed, or its CSV cannot be read.
    """
    start = time.monotonic()
    # An empty cache folder: a cache of the baseline does not notice that the
    # data behind it has changed.
    flags = [f'--dir={self.model_dir}', '--cache_dir=',
             f'--data_root={files.full_path(data_root)}']
    self._run([SCRIPT, *flags, *(['--toy_data'] if toy_data else [])])
    seconds = time.monotonic() - start
    rows = predictions_csv.read(os.path.join(self.place, settings.CSV_NAME))
    return {name.rsplit(':', 1)[1]: indices
            for name, indices in rows.items()}, seconds

  def has_script(self) -> bool:
    return os.path.isfile(os.path.join(self.place, SCRIPT))

  def _run(self, arguments: list[str], on_line=None) -> None:
    # -I drops PYTHONPATH and the user's own packages; TensorFlow may be there.
    packages = [folder for folder in sys.path if os.path.basename(folder) in (
        'site-packages', 'dist-packages')]
    log = os.path.join(self._folder, 'output.log')
    try:
      checkout.run_script(
          self.place, arguments, log, on_line,
          launcher=['-I', os.path.join(_HERE, 'without_package.py'),
                    json.dumps(packages)])
    except UserError as error:
      # The log goes with the folder, so its end must do.
      with open(log, encoding='utf-8') as output:
        last_lines = output.read().strip().splitlines()[-3:]
      raise UserError(
          f'{os.path.basename(arguments[0])} breaks off: '
          f'{" | ".join(last_lines)}') from error


def _copy_model(model_dir: str, folder: str) -> str:
  """Copies a model folder, and its run file if there is one."""
  os.makedirs(folder)
  name = os.path.basename(model_dir)
  copy = os.path.join(folder, name)
  if os.path.isdir(model_dir):
    shutil.copytree(model_dir, copy)
  run_path = os.path.join(os.path.dirname(model_dir),
                          name.replace('model_', 'run_', 1) + '.jsonz')
  if os.path.isfile(run_path):
    shutil.copy(run_path, folder)
  return copy


def _read_scores(path: str) -> dict[str, np.ndarray]:
  if not os.path.exists(path):
    return {}
  with np.load(path, allow_pickle=False) as stored:
    ends = np.cumsum(stored['counts'])
    parts = np.split(stored['scores'], ends[:-1])
    return dict(zip(stored['tile_ids'].tolist(), parts))
