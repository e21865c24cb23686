"""The graders' place: a temporary folder where a hand-in is run.

It holds a copy of the model folder and its run file, and a copy of the
baseline's checkout with models.py swapped, or models.py alone. What runs there
runs in another process, without this package (`without_package`), within
`process_limits`. Its answer is checked: it may be anybody's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from typing import Any

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout, process_limits
from tpu_graphs_ext.errors import UserError

_HERE = os.path.dirname(os.path.abspath(__file__))
# What `steps` prints for each kernel.
_RANKED = b'ranked a kernel\n'
# Characters of a model's arguments that are shown.
_MOST_SHOWN = 200


@dataclasses.dataclass(frozen=True)
class Answer:
  """What `steps` answered; see its docstring.

  Attributes:
    faults: reasons why the hand-in fails.
    saved: [name, shape] of each trained variable of the model folder.
    built: the same of the class; None if it could not be built.
    state: number of variables in the model folder that are not trained.
    seconds: time of ranking.
    scores: kernel or program -> float32 [configs]; empty if none was ranked.
  """
  faults: list[str]
  saved: list[list[Any]] | None
  built: list[list[Any]] | None
  state: int
  seconds: float
  scores: dict[str, np.ndarray]

  @property
  def ranked(self) -> bool:
    """There are scores, and all are finite."""
    return bool(self.scores) and all(
        np.isfinite(scores).all() for scores in self.scores.values())

  @property
  def fits(self) -> bool:
    """The saved variables have the shapes of the class's variables."""
    return (self.saved is not None and self.built is not None
            and [shape for _, shape in self.saved]
            == [shape for _, shape in self.built])


class Sandbox:
  """A temporary folder with the hand-in, and what is run there."""

  def __init__(self, folder: str, model_dir: str, models_py: str,
               root: str | None, confinement: process_limits.Confinement,
               task: str = 'tile'):
    """Copies what is handed in.

    Args:
      folder: a folder that the caller throws away.
      model_dir: the model folder; its run file beside it may be missing.
      models_py: the file to swap in.
      root: the baseline's checkout, or None.
      confinement: runs the programs.
      task: whose models.py that is, of `checkout.TASKS`.

    Raises:
      OSError: something cannot be copied, such as a special file.
    """
    self._folder, self._requests, self._task = folder, 0, task
    self.confinement, self.root = confinement, root
    self.model_dir = _copy_model(model_dir, os.path.join(folder, 'handed_in'))
    self.place = os.path.join(folder, 'place')
    self._module = os.path.splitext(checkout.TASKS[task])[0].replace(
        os.sep, '.') if root else 'models'
    if root:
      checkout.working_copy(root, self.place, models_py, task)
    else:
      os.makedirs(self.place)
      shutil.copyfile(models_py, os.path.join(self.place, 'models.py'))

  def new_folder(self) -> str:
    """An empty folder."""
    self._requests += 1
    folder = os.path.join(self._folder, f'request_{self._requests}')
    os.makedirs(folder)
    return folder

  def ask(self, request: dict[str, Any], total: int | None = None) -> Answer:
    """Runs `steps` with the hand-in.

    Args:
      request: what it needs besides the hand-in; see there.
      total: number of kernels to rank, for the progress bar.

    Raises:
      UserError: the process died, or spoilt its answer.
      OutOfTimeError: the time limit has passed.
    """
    folder = self.new_folder()
    request = {
        **request, 'task': self._task, 'module': self._module,
        'model_dir': self.model_dir, 'answer': f'{folder}/answer.json',
        'scores': f'{folder}/scores.npz',
        'shown': request['args'] and brief(
            request['args']['model_kwargs_json'])}
    with open(f'{folder}/request.json', 'w', encoding='utf-8') as file:
      json.dump(request, file)
    with tqdm(total=total, unit='kernel', desc='rank as graded', disable=None,
              leave=False) as bar:
      self.run([os.path.join(_HERE, 'steps.py'), f'{folder}/request.json'],
               lambda output: bar.update(output.count(_RANKED)))
    return _answer(request['answer'], request['scores'])

  def has(self, script: str) -> bool:
    """Whether the checkout, or the folder beside it, has a script."""
    return os.path.isfile(os.path.join(self.place, script))

  def run(self, arguments: list[str], on_output=lambda unused: None) -> None:
    """Runs a script in the place.

    Raises:
      UserError: it failed; shows its last lines.
      OutOfTimeError: the time limit has passed.
    """
    # -I drops PYTHONPATH and the user's own packages; TensorFlow may be there.
    packages = [folder for folder in sys.path if os.path.basename(folder) in (
        'site-packages', 'dist-packages')]
    log = os.path.join(self._folder, 'output.log')
    failure = self.confinement.run(
        [sys.executable, '-I', os.path.join(_HERE, 'without_package.py'),
         os.pathsep.join(packages), *arguments], self.place, log, on_output)
    if failure:
      raise UserError(f'{os.path.basename(arguments[0])} breaks off {failure}: '
                      f'{_end_of(log)}')


def brief(kwargs_json: str) -> str:
  """The arguments of a model; feature statistics are pages of numbers."""
  if len(kwargs_json) <= _MOST_SHOWN:
    return kwargs_json
  return f'{kwargs_json[:_MOST_SHOWN]}... ({len(kwargs_json)} characters)'


def _copy_model(model_dir: str, folder: str) -> str:
  """Copies a model folder, and its run file if there is one."""
  os.makedirs(folder)
  parent, name = os.path.split(model_dir)
  run_path = os.path.join(parent, name.replace('model_', 'run_', 1) + '.jsonz')
  copy = os.path.join(folder, name)
  if os.path.isdir(model_dir):
    shutil.copytree(model_dir, copy)
  if os.path.isfile(run_path):
    shutil.copy(run_path, folder)
  return copy


def _end_of(log: str) -> str:
  """The last lines that were printed, on one line that is not too long."""
  with open(log, 'rb') as file:
    file.seek(max(0, os.path.getsize(log) - 4000))
    lines = file.read().decode(errors='replace').strip().splitlines()[-3:]
  return ' | '.join(lines)[-600:] or 'it printed nothing'


def _answer(path: str, scores_path: str) -> Answer:
  """Reads the answer of `steps`.

  Raises:
    UserError: there is no answer, or the hand-in has changed it.
  """
  try:
    with files.open_ordinary(path) as file:
      content = files.parse_json(file.read(), path)
    return Answer(
        faults=[str(fault) for fault in content['faults']],
        saved=_variables(content['saved']), built=_variables(content['built']),
        state=int(content['state']), seconds=float(content['seconds']),
        scores=_read_scores(scores_path))
  except FileNotFoundError as error:
    raise UserError('the code of models.py ends Python before the steps of '
                    'the grader are done; take its exit out') from error
  except Exception as error:  # The code may have written anything.
    reason = ' '.join(str(error).split())[:200]
    raise UserError('the code of models.py has spoilt the answer of the '
                    f'grader\'s steps ({reason}); it must write no files'
                    ) from error


def _variables(listed: Any) -> list[list[Any]] | None:
  return None if listed is None else [
      [str(name), [int(size) for size in shape]] for name, shape in listed]


def _read_scores(path: str) -> dict[str, np.ndarray]:
  if not os.path.exists(path):
    return {}
  with files.open_ordinary(path) as file, np.load(
      file, allow_pickle=False) as stored:
    ends = np.cumsum(stored['counts'])
    parts = np.split(np.asarray(stored['scores'], np.float32), ends[:-1])
    return dict(zip(stored['names'].tolist(), parts))
