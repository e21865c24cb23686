"""Does with a hand-in what the graders do, out of this package's reach.

Everything happens in a folder that the caller throws away: a copy of the
model folder and its run file, and either a copy of the baseline's checkout
with models.py swapped, or models.py alone. What runs there runs in a process
that cannot import this package (see `without_package`), within the bounds of
`confine`. What it answers is anybody's and is checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout, grader_steps, process_limits
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import artifacts, predictions_csv, settings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches

_HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = checkout.COURSE_FILES[0]


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
               root: str | None,
               minutes: float = process_limits.DEFAULT_MINUTES,
               task: str = 'tile'):
    """Copies what is handed in.

    Args:
      folder: an empty folder.
      model_dir: the model folder, with or without its run file beside it.
      models_py: the file to swap in.
      root: the baseline's checkout, or None.
      minutes: time for all that is run here.
      task: of `checkout.TASKS`, whose file models_py replaces.

    Raises:
      UserError: it cannot be copied.
    """
    self._folder = folder
    self.confinement = process_limits.Confinement(
        os.path.join(folder, 'home'), minutes)
    self._runs = 0
    self.root = root
    self.model_dir = _copy_model(model_dir, os.path.join(folder, 'handed_in'))
    self.place = os.path.join(folder, 'place')
    self._module = os.path.splitext(checkout.TASKS[task])[0].replace(
        os.sep, '.') if root else 'models'
    with _copying(root or models_py):
      if root:
        checkout.working_copy(root, self.place, models_py, task)
      else:
        os.makedirs(self.place)
        shutil.copyfile(models_py, os.path.join(self.place, 'models.py'))

  def take_steps(self, args: dict[str, Any] | None,
                 features: Features | None, *, num_ops: int | None = None,
                 copy_state: bool = False) -> Answer:
    """Loads, rebuilds and ranks, step by step.

    Args:
      args: `args` of the run file, or None to leave out what needs them.
      features: what to rank with, or None to leave out what needs kernels.
      num_ops: opcodes to build the class for where there are no features;
        without both it is only looked up.
      copy_state: copy variables that are not trained, too.

    Raises:
      UserError: the process died.
    """
    folder = self.new_folder()
    request = {
        'args': args, 'graphs': None, 'copy_state': copy_state,
        'num_ops': features.num_ops if features else num_ops}
    if features:
      request['graphs'] = f'{folder}/graphs'
      with artifacts.quiet_keras():
        tile_batches.kernel_graphs(features.test, features.stats).save(
            request['graphs'])
    return self.ask('grader_steps.py', folder, request,
                    len(features.test) if features else None)

  def new_folder(self) -> str:
    """An empty folder for what is asked and answered."""
    self._runs += 1
    folder = os.path.join(self._folder, f'steps_{self._runs}')
    os.makedirs(folder)
    return folder

  def ask(self, script: str, folder: str, request: dict[str, Any],
          total: int | None, unit: str = 'kernel') -> Answer:
    """Has a script of this wing take steps with the hand-in.

    Args:
      script: its name.
      folder: of `new_folder`.
      request: what the script needs besides the hand-in; see there.
      total: how many of `unit` it will rank, for the bar.
      unit: what it ranks.

    Raises:
      UserError: the process died.
    """
    request = {
        **request, 'module': self._module, 'model_dir': self.model_dir,
        'memory_advice': self._memory_advice(),
        'answer': f'{folder}/answer.json', 'scores': f'{folder}/scores.npz'}
    with open(f'{folder}/request.json', 'w', encoding='utf-8') as file:
      json.dump(request, file)
    with tqdm(total=total, unit=unit, desc='rank as graded', disable=None,
              leave=False) as bar:
      self._run([os.path.join(_HERE, script), f'{folder}/request.json'],
                lambda line: bar.update(line.strip() == grader_steps.RANKED))
    return _answer(request['answer'], request['scores'])

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

  def run(self, arguments: list[str]) -> None:
    """Runs a script without this package, its working folder the place.

    Raises:
      UserError: it breaks off.
    """
    self._run(arguments)

  def _run(self, arguments: list[str], on_line=None) -> None:
    # -I drops PYTHONPATH and the user's own packages; TensorFlow may be there.
    packages = [folder for folder in sys.path if os.path.basename(folder) in (
        'site-packages', 'dist-packages')]
    log = os.path.join(self._folder, 'output.log')
    settings_json = json.dumps({'folders': packages,
                                'memory': self.confinement.memory})
    try:
      self.confinement.run(
          [sys.executable, '-I', os.path.join(_HERE, 'without_package.py'),
           settings_json, *arguments], self.place, log, on_line)
    except process_limits.EndedError as error:
      # The log goes with the folder, so its end must do.
      end = _end_of(log)
      # A library without memory has no better way to say so.
      spent = any(word in end for word in ('MemoryError', 'bad_alloc'))
      raise UserError(
          f'{os.path.basename(arguments[0])} breaks off {error}: {end}'
          + (f'; {self._memory_advice()}' if spent else '')) from error

  def _memory_advice(self) -> str:
    return (f'a hand-in may take {self.confinement.memory / (1 << 30):.0f} GiB '
            'of memory; take less in models.py')


def _copy_model(model_dir: str, folder: str) -> str:
  """Copies a model folder, and its run file if there is one."""
  os.makedirs(folder)
  name = os.path.basename(model_dir)
  copy = os.path.join(folder, name)
  with _copying(model_dir):
    if os.path.isdir(model_dir):
      shutil.copytree(model_dir, copy)
  run_path = os.path.join(os.path.dirname(model_dir),
                          name.replace('model_', 'run_', 1) + '.jsonz')
  with _copying(run_path):
    if os.path.isfile(run_path):
      shutil.copy(run_path, folder)
  return copy


@contextlib.contextmanager
def _copying(path: str) -> Iterator[None]:
  """What cannot be copied, a special file for one, is a UserError."""
  try:
    yield
  except OSError as error:
    reason = ' '.join(str(error).split())[:200]
    raise UserError(f'{path}: cannot be copied ({reason})') from error


def _end_of(log: str) -> str:
  """The last lines that were printed, on one line that is not too long."""
  with open(log, 'rb') as file:
    file.seek(max(0, os.path.getsize(log) - 4000))
    lines = file.read().decode(errors='replace').strip().splitlines()[-3:]
  return ' | '.join(lines)[-600:] or 'it printed nothing'


def _answer(path: str, scores_path: str) -> Answer:
  """Reads what the steps answered.

  Raises:
    UserError: there is no answer, or one that the steps do not give.
  """
  try:
    with files.open_ordinary(path) as file:
      content = files.parse_json(file.read(), path)
    scores = _read_scores(scores_path)
    kinds = {'faults': list, 'saved': (list, type(None)),
             'built': (list, type(None)), 'state': int,
             'seconds': (int, float)}
    if not all(isinstance(content[name], kind)
               for name, kind in kinds.items()):
      raise TypeError(f'{content}')
    variables = [(name, tuple(shape)) for listed in ('saved', 'built')
                 for name, shape in content[listed] or ()]
    known = all(isinstance(size, int) for _, shape in variables
                for size in shape)
    faults = [str(fault) for fault in content['faults']]
  except FileNotFoundError as error:
    raise UserError('the code of models.py ends Python before the steps of '
                    'the grader are done; take its exit out') from error
  except Exception as error:  # Whatever can be wrong with it.
    known, reason = False, ' '.join(str(error).split())[:200]
  else:
    reason = 'shapes are not numbers'
  if not known:
    raise UserError('the code of models.py has spoilt the answer of the '
                    f'grader\'s steps ({reason}); it must write no files')
  return Answer(faults=faults, scores=scores, **{
      name: content[name] for name in ('saved', 'built', 'state', 'seconds')})


def _read_scores(path: str) -> dict[str, np.ndarray]:
  if not os.path.exists(path):
    return {}
  with files.open_ordinary(path) as file, np.load(
      file, allow_pickle=False) as stored:
    ends = np.cumsum(stored['counts'])
    parts = np.split(np.asarray(stored['scores'], np.float32), ends[:-1])
    return dict(zip(stored['tile_ids'].tolist(), parts))
