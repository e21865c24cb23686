"""Does what the graders do with a hand-in, and names every reason it fails.

The graders swap models.py into the baseline, load the model folder, build the
class that the run file names, copy the weights by position and rank the test
split. So does `verify`, in a `sandbox`; with a checkout also through the
course's unchanged script. `grade_tiles` and `grade_layouts` hold what differs
between the tasks.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
import time
from typing import Any

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import (
  agreement,
  allowed_imports,
  checkout,
  grade_layouts,
  grade_tiles,
  process_limits,
  sandbox,
)
from tpu_graphs_ext.engine import artifacts, settings
from tpu_graphs_ext.errors import UserError, shortened

_log = logging.getLogger(__name__)

GRADERS = {'tile': grade_tiles.TileGrader,
           'layout': grade_layouts.LayoutGrader}
DATA_ROOTS = {'tile': settings.DATA_ROOT,
              'layout': '~/data/tpugraphs/npz/layout'}
# Without one of these a folder is not a saved Keras model.
_MODEL_FILES = ('saved_model.pb', 'keras_metadata.pb',
                os.path.join('variables', 'variables.index'),
                os.path.join('variables', 'variables.data-00000-of-00001'))


@dataclasses.dataclass
class Verdict:
  """What became of a hand-in.

  Attributes:
    model_dir: full path of the model folder.
    models_py: full path of the file that was swapped in.
    facts: what was done, title -> text.
    faults: every reason why it fails.
    notes: what is worth knowing but not a reason to fail.
    graded_by: the script that ranked, or this package.
    toy_trained: the model was trained on a part of the data.
    run_info: the run file's content, or None.
  """
  model_dir: str
  models_py: str
  facts: dict[str, str] = dataclasses.field(default_factory=dict)
  faults: list[str] = dataclasses.field(default_factory=list)
  notes: list[str] = dataclasses.field(default_factory=list)
  graded_by: str = 'tpu_graphs_ext'
  toy_trained: bool = False
  run_info: dict[str, Any] | None = None

  @property
  def ok(self) -> bool:
    return not self.faults

  def text(self) -> str:
    lines = [f'{title + ":":<11} {text}' for title, text in self.facts.items()]
    lines += [f'note: {note}' for note in self.notes]
    lines += [f'fault: {fault}' for fault in self.faults]
    number = len(self.faults)
    lines.append(
        f'{number} reason{"s" * (number > 1)} why this hand-in fails'
        if number else 'this hand-in works')
    return '\n'.join(lines)

  def to_json(self) -> dict[str, Any]:
    return {'ok': self.ok, **{
        name: getattr(self, name) for name in (
            'model_dir', 'models_py', 'facts', 'faults', 'notes',
            'graded_by', 'toy_trained')}}


def verify(model_dir: str, *, task: str = 'tile', models_py: str = '',
           root: str = '', data_root: str = '',
           cache_dir: str = settings.CACHE_DIR, toy_data: bool = False,
           time_limit: float = process_limits.DEFAULT_MINUTES) -> Verdict:
  """Grades a hand-in up to its CSV.

  Args:
    model_dir: folder model_<hash>, its run file beside it.
    task: 'tile' or 'layout'.
    models_py: the file to hand in; empty: the package's.
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names. The
      layout task needs one.
    data_root: where the data is; empty: the place in `DATA_ROOTS`.
    cache_dir: see `read.read_dataset`; of tiles only.
    toy_data: grade with the first files of each split only.
    time_limit: minutes that the code of the hand-in may take in all.

  Raises:
    UserError: --root is not a checkout, the time limit is not a positive
      number, or a path is empty. Everything else is a fault of the verdict.
  """
  files.require_path('--model_dir', model_dir)
  found = checkout.find(root)
  if task == 'layout' and not found:
    raise UserError(
        '--root names no checkout of the baseline, whose scripts verify a '
        f'layout hand-in; name one, or set {checkout.ROOT_VARIABLE}')
  models_path = files.full_path(models_py) if models_py else (
      load_models.models_path(task))
  verdict = Verdict(files.full_path(model_dir), models_path)
  verdict.run_info = _look_at_files(verdict)
  verdict.faults += allowed_imports.faults_of(models_path)
  if not found and allowed_imports.needs_baseline(models_path):
    verdict.faults.append(
        f'{models_path}: imports {allowed_imports.BASELINE_PACKAGE}, which '
        'only the checkout has; name it with --root to verify this file')
  grader = GRADERS[task](verdict.run_info, data_root or DATA_ROOTS[task],
                         cache_dir, toy_data)
  verdict.faults += grader.faults
  with tempfile.TemporaryDirectory(prefix='hand_in_') as folder:
    confinement = process_limits.Confinement(
        os.path.join(folder, 'home'), time_limit)
    if os.path.isfile(models_path):
      try:
        place = sandbox.Sandbox(folder, verdict.model_dir, models_path, found,
                                confinement, task)
        _grade(place, grader, verdict)
      except UserError as error:
        verdict.faults.append(str(error))
      except OSError as error:
        reason = ' '.join(str(error).split())[:300]
        verdict.faults.append(f'the hand-in could not be run: {reason}')
  return verdict


def _look_at_files(verdict: Verdict) -> dict[str, Any] | None:
  """Checks names and files; returns what the run file holds, if readable."""
  faults, path = verdict.faults, verdict.model_dir
  if not os.path.isdir(path):
    faults.append(f'{path}: there is no such model folder')
  else:
    faults += [f'{path}: {name} is missing or empty; copy the whole folder '
               'again from where it was trained' for name in _MODEL_FILES
               if not _has_content(os.path.join(path, name))]
  if '/model_' in os.path.dirname(path):
    verdict.notes.append(
        f'{os.path.dirname(path)}: the course\'s script replaces every '
        '"/model_" of a path, so it will not find the run file there; hand in '
        'from a folder whose path has none')
  run_info = None
  try:
    run_path = artifacts.run_path_of(path)
    if not os.path.exists(run_path):
      raise UserError(
          f'{path}: its run file {run_path} is missing; it says how the model '
          'is built, so copy it from where it was trained')
    run_info = artifacts.read_run_file(run_path)
    artifacts.check_hash(run_path, run_info)
  except UserError as error:
    faults.append(str(error))
  return run_info


def _has_content(path: str) -> bool:
  return os.path.isfile(path) and os.path.getsize(path) > 0


def _grade(place: sandbox.Sandbox, grader, verdict: Verdict) -> None:
  """Takes the grader's steps, and runs the script.

  Raises:
    UserError: a process was ended or spoilt its answer.
  """
  verdict.facts.update(_facts(place, grader, verdict))
  answer = grader.ask(place)
  verdict.faults += answer.faults
  if answer.built is not None and answer.saved is not None and not answer.fits:
    verdict.faults.append(
        f'the saved variables are not those of {grader.args["model"]} built '
        f'for {grader.data_text()}: {_first_difference(answer)}')
    verdict.faults[-1] += '. ' + grader.explain_variables(place)
  if answer.ranked:
    _compare_with_training(place, grader, answer, verdict)
    _run_script(place, grader, answer, verdict)
  if grader.toy_trained():
    verdict.toy_trained = True
    if not any('--toy_data' in fault for fault in verdict.faults):
      verdict.faults.append(grade_tiles.TOY_TEXT)


def _facts(place: sandbox.Sandbox, grader, verdict: Verdict) -> dict[str, str]:
  facts = {'models.py': verdict.models_py, 'model': verdict.model_dir}
  if verdict.run_info:
    args = verdict.run_info['args']
    facts['class'] = (
        f'{args["model"]} {sandbox.brief(args["model_kwargs_json"])}')
  if place.has(grader.script):
    facts['graded by'] = f'{grader.script} in a copy of {place.root}'
  else:
    why = ('no checkout of the baseline is named with --root'
           if place.root is None else
           f'the course\'s scripts are neither in {place.root} nor in a folder '
           f'{checkout.COURSE_FOLDER} beside it')
    facts['graded by'] = f'this package, in a process of its own ({why})'
  facts['confined'] = place.confinement.text()
  if grader.data_text():
    facts['data'] = grader.data_text()
  return facts


def _compare_with_training(place: sandbox.Sandbox, grader,
                           answer: sandbox.Answer, verdict: Verdict) -> None:
  """Compares the ranking with the one that training left."""
  scores = grader.scores_after_training(answer)
  verdict.facts['ranked'] = (f'{len(scores):,} test {grader.item}s in '
                             f'{answer.seconds:.1f} s')
  choices, where = grader.trained_choices()
  if not choices:
    verdict.notes.append(where)
    return
  found = agreement.compare(choices, scores)
  verdict.facts['agrees'] = (f'{len(found.same):,} of {len(scores):,} '
                             f'{grader.item}s are ranked as in {where}')
  if not found.complete:
    text, is_fault = grader.explain_choices(place, answer, found)
    (verdict.faults if is_fault else verdict.notes).append(text)


def _run_script(place: sandbox.Sandbox, grader, answer: sandbox.Answer,
                verdict: Verdict) -> None:
  """Runs what the graders run, and compares its ranking."""
  if not place.has(grader.script):
    return
  if grader.why_not_compared():
    verdict.notes.append(grader.why_not_compared())
    return
  _log.info('running %s', grader.script)
  start = time.monotonic()
  rows, odd = grader.run_script(place, answer)
  verdict.graded_by = grader.script
  verdict.facts['script'] = (
      f'{grader.script} ranked {rows:,} {grader.item}s in '
      f'{time.monotonic() - start:.1f} s, {rows - len(odd):,} of them as here')
  if odd:
    verdict.faults.append(
        f'{grader.script} ranks {len(odd)} {grader.item}s differently from '
        f'loading the model here ({shortened(odd)}); the model depends on '
        'more than its trained variables')


def _first_difference(answer: sandbox.Answer) -> str:
  """The numbers of variables, and the first two that differ in shape."""
  saved, built = answer.saved, answer.built
  text = f'{len(saved)} are saved, and the class has {len(built)}'
  for (name, shape), (other, wanted) in zip(saved, built):
    if shape != wanted:
      return (f'{text}; {name} {tuple(shape)} is saved where the class has '
              f'{other} {tuple(wanted)}')
  return text
