"""Does what the graders do with a hand-in, and names every reason it fails.

The graders swap models.py into the baseline, load the model folder, build the
class that the run file names, copy the weights by position and rank the test
split. So does `verify`, in a temporary folder, in a process that cannot import
this package; with a checkout through the course's unchanged script, else
through this package's own host.

That runs the code of models.py, with the caller's rights: `confine` says what
it is kept from, and what not.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from typing import Any

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import (
  agreement,
  allowed_imports,
  checkout,
  diagnose,
  grader_steps,
  process_limits,
  sandbox,
)
from tpu_graphs_ext.course.sandbox import Answer, Features, Sandbox
from tpu_graphs_ext.engine import artifacts, settings
from tpu_graphs_ext.errors import UserError, shortened

_log = logging.getLogger(__name__)

# Files without which a folder is no saved Keras model.
MODEL_FILES = ('saved_model.pb', 'keras_metadata.pb',
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
    notes: what is worth knowing, but no reason.
    graded_by: the script or host that ranked.
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


def verify(model_dir: str, *, models_py: str = '', root: str = '',
           data_root: str = settings.DATA_ROOT,
           cache_dir: str = settings.CACHE_DIR,
           toy_data: bool = False,
           time_limit: float = process_limits.DEFAULT_MINUTES) -> Verdict:
  """Grades a hand-in up to its CSV.

  Args:
    model_dir: folder model_<hash>, its run file beside it.
    models_py: the file to hand in; empty: the package's.
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names, if any.
    data_root: folder of the splits train, valid and test.
    cache_dir: see `read.read_dataset`.
    toy_data: grade with the first 100 files of each split only.
    time_limit: minutes that the code of the hand-in may take in all.

  Raises:
    UserError: --root is no checkout, the time limit is none, or a path is
      empty. All else is a fault of the verdict.
  """
  process_limits.check_minutes(time_limit)
  for flag, path in (('--model_dir', model_dir), ('--data_root', data_root)):
    files.require_path(flag, path)
  root = checkout.find(root)
  models_path = files.full_path(models_py) if models_py else (
      load_models.models_path())
  verdict = Verdict(files.full_path(model_dir), models_path)
  verdict.run_info = look_at_files(verdict)
  verdict.faults += allowed_imports.faults_of(models_path)
  if not root and allowed_imports.needs_baseline(models_path):
    verdict.faults.append(
        f'{models_path}: imports {allowed_imports.BASELINE_PACKAGE}, which '
        'only the checkout has; name it with --root to verify this file')
  source = diagnose.Source(data_root, cache_dir, toy_data, verdict.run_info)
  features = _features(source, verdict)
  if os.path.isfile(models_path):
    with tempfile.TemporaryDirectory(prefix='hand_in_') as folder:
      place = _place(folder, models_path, root, time_limit, verdict)
      try:
        if place:
          _grade(place, features, source, verdict)
      except process_limits.OverLimitError as error:
        verdict.faults.append(str(error))
  else:
    verdict.facts['models.py'] = f'{models_path}, missing'
  return verdict


def _place(folder: str, models_path: str, root: str | None,
           time_limit: float, verdict: Verdict) -> Sandbox | None:
  """The graders' place, or None with a fault."""
  try:
    return Sandbox(folder, verdict.model_dir, models_path, root, time_limit)
  except UserError as error:
    verdict.faults.append(str(error))
    return None


def look_at_files(verdict: Verdict) -> dict[str, Any] | None:
  """Checks names and files; returns what the run file holds, if readable."""
  faults, path = verdict.faults, verdict.model_dir
  if not os.path.isdir(path):
    faults.append(f'{path}: there is no such model folder')
  else:
    faults += [f'{path}: {name} is missing or empty; copy the whole folder '
               'again from where it was trained' for name in MODEL_FILES
               if not _has_content(os.path.join(path, name))]
  if '/model_' in os.path.dirname(path):
    verdict.notes.append(
        f'{os.path.dirname(path)}: the course\'s script replaces every '
        '"/model_" of a path, so it will not find the run file there; hand in '
        'from a folder whose path has none')
  try:
    run_path = artifacts.run_path_of(path)
  except UserError as error:
    faults.append(str(error))
    return None
  if not os.path.exists(run_path):
    faults.append(f'{path}: its run file {run_path} is missing; it says how '
                  'the model is built, so copy it from where it was trained')
    return None
  try:
    run_info = artifacts.read_run_file(run_path)
  except UserError as error:
    faults.append(str(error))
    return None
  try:
    artifacts.check_hash(run_path, run_info)
  except UserError as error:
    faults.append(str(error))
  return run_info


def _features(source: diagnose.Source, verdict: Verdict) -> Features | None:
  """What the grader's data gives, or None with a fault."""
  try:
    return source.graded()
  except UserError as error:
    verdict.faults.append(
        f'nothing could be ranked: {error}')
    return None


def _grade(place: Sandbox, features: Features | None, source: diagnose.Source,
           verdict: Verdict) -> None:
  """Takes the grader's steps, and runs the course's script."""
  args = verdict.run_info['args'] if verdict.run_info else None
  verdict.facts.update(_facts(place, args, features, verdict))
  try:
    # Without data the class is built for as many opcodes as in training.
    answer = place.take_steps(
        args, features, num_ops=(verdict.run_info or {}).get('num_ops'))
  except UserError as error:
    verdict.faults.append(str(error))
    return
  verdict.faults += answer.faults
  if answer.built is not None and answer.saved is not None and not answer.fits:
    verdict.faults.append(diagnose.variables_fault(
        place, source, features, args, answer))
  if answer.scores:
    verdict.facts['ranked'] = (
        f'{len(answer.scores):,} test kernels in {answer.seconds:.1f} s')
  if answer.ranked:
    _compare_with_run(place, source, features, answer, verdict)
  if features and source.looks_toy() and not source.toy_data:
    verdict.toy_trained = True
    if not any(diagnose.TOY_TEXT in fault for fault in verdict.faults):
      verdict.faults.append(diagnose.TOY_TEXT)
  if features and args:
    _run_course_script(place, source, answer, verdict)


def _facts(place: Sandbox, args: dict[str, Any] | None,
           features: Features | None, verdict: Verdict) -> dict[str, str]:
  host = (f'{sandbox.SCRIPT} in a copy of {place.root}' if place.has_script()
          else "this package's own host, in a process of its own")
  if place.root is None:
    host += ' (no checkout of the baseline is named with --root)'
  elif not place.has_script():
    host += (f' (the course\'s scripts are neither in {place.root} nor in a '
             f'folder {checkout.COURSE_FOLDER} beside it)')
  facts = {'models.py': verdict.models_py, 'model': verdict.model_dir}
  if args:
    kwargs = grader_steps.brief(args['model_kwargs_json'])
    facts['class'] = f'{args["model"]} {kwargs}'
  facts['graded by'] = host
  facts['confined'] = place.confinement.text()
  if features:
    facts['data'] = features.text()
  return facts


def _compare_with_run(place: Sandbox, source: diagnose.Source,
                      features: Features, answer: Answer,
                      verdict: Verdict) -> None:
  """Compares the ranking with the run file's."""
  predicted = verdict.run_info.get('test_predictions')
  if not predicted:
    verdict.notes.append(
        'the run file has no test_predictions to compare with (training was '
        'interrupted, or had --test_mode=metrics)')
    return
  found = agreement.compare(predicted, answer.scores)
  verdict.facts['agrees'] = (
      f'{len(found.same):,} of {len(answer.scores):,} kernels have the '
      'configurations of the run file')
  if not found.complete:
    outcome = diagnose.differences(
        place, source, features, predicted, answer, found)
    (verdict.faults if outcome.is_fault else verdict.notes).append(
        outcome.text)
    verdict.toy_trained |= outcome.toy_trained


def _run_course_script(place: Sandbox, source: diagnose.Source, answer: Answer,
                       verdict: Verdict) -> None:
  """Runs what the graders run, and compares its CSV with the scores."""
  if not place.has_script():
    return
  _log.info('running %s', sandbox.SCRIPT)
  try:
    rows, seconds = place.run_script(source.data_root, source.toy_data)
  except process_limits.OverLimitError:
    raise
  except UserError as error:
    # Often a consequence of what has been found, and still good to know.
    (verdict.notes if verdict.faults else verdict.faults).append(str(error))
    return
  verdict.graded_by = sandbox.SCRIPT
  verdict.facts['script'] = (
      f'{sandbox.SCRIPT} wrote {len(rows):,} rows in {seconds:.1f} s')
  if not answer.ranked:
    return
  found = agreement.compare(rows, answer.scores)
  if not found.complete:
    odd = (found.different + found.impossible + found.unknown + found.missing)
    verdict.faults.append(
        f'{sandbox.SCRIPT} gives {len(odd)} kernels other configurations than '
        f'loading the model here ({shortened(odd)}); the model '
        'depends on more than its trained variables')


def _has_content(path: str) -> bool:
  return os.path.isfile(path) and os.path.getsize(path) > 0
