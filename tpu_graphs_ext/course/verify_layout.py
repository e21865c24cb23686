"""Does what the baseline's scripts do with a hand-in of the layout task.

The course has no script that grades layouts, so the baseline's own do:
`layout_train.py` writes the test predictions right after training, and
`layout_evaluate.py` loads a saved model. Both make the class `ResModel` of the
swapped file and call `forward`, each in its way; so does this, on the test
split, in a process that cannot import this package. Then

  * the ranking must be that of the CSV that training left, if it is there;
  * the unchanged `layout_evaluate.py` must come to the same ranking. It tells
    no more than Kendall's tau and slowdowns, over hidden runtimes (its flag
    `--test`), so it is given runtimes in the order of the ranking found here.
"""

from __future__ import annotations

import csv
import logging
import os
import tempfile
import time
from typing import Any

import numpy as np

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import (
  agreement,
  allowed_imports,
  checkout,
  grader_steps,
  process_limits,
  verify,
)
from tpu_graphs_ext.course.sandbox import Answer, Sandbox
from tpu_graphs_ext.course.verify import Verdict
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import artifacts, predictions_csv
from tpu_graphs_ext.errors import UserError, shortened

SCRIPT = 'layout_evaluate.py'
DATA_ROOT = '~/data/tpugraphs/npz/layout'
_NEEDED = ('source', 'search', 'max_configs', 'keep_nodes')
# The order found here is taken for the script's from this tau on: scores that
# are equal but for rounding may change places.
_LEAST_TAU = 0.99
# How `layout_steps` says that a model was trained on a part of the data.
_TOY = 'is of toy data'
_log = logging.getLogger(__name__)


def verify_layout(model_dir: str, *, models_py: str = '', root: str = '',
                  data_root: str = DATA_ROOT, toy_data: bool = False,
                  time_limit: float = process_limits.DEFAULT_MINUTES
                  ) -> Verdict:
  """Does what the scripts do with a hand-in, up to a ranking.

  Args:
    model_dir: folder model_<hash>, its run file beside it.
    models_py: the file to hand in; empty: the package's.
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names.
    data_root: folder with <source>/<search>/train, valid and test.
    toy_data: read 5 files of each split only, as the baseline's flag does.
    time_limit: minutes that the code of the hand-in may take in all.

  Raises:
    UserError: there is no checkout, the time limit is none, or a path is
      empty. All else is a fault of the verdict.
  """
  process_limits.check_minutes(time_limit)
  for flag, path in (('--model_dir', model_dir), ('--data_root', data_root)):
    files.require_path(flag, path)
  found = checkout.find(root)
  if not found:
    raise UserError(
        '--root names no checkout of the baseline, whose scripts verify a '
        f'layout hand-in; name one, or set {checkout.ROOT_VARIABLE}')
  models_path = files.full_path(models_py) if models_py else (
      load_models.models_path('layout'))
  verdict = Verdict(files.full_path(model_dir), models_path)
  verdict.graded_by = SCRIPT
  verdict.run_info = verify.look_at_files(verdict)
  if verdict.run_info:
    verdict.faults += _unlike_layout(verdict)
  verdict.faults += allowed_imports.faults_of(models_path)
  if not os.path.isfile(models_path) or verdict.faults:
    return verdict  # What follows would say the same less clearly.
  with tempfile.TemporaryDirectory(prefix='hand_in_') as folder:
    try:
      place = Sandbox(folder, verdict.model_dir, models_path, found,
                      time_limit, 'layout')
      _grade(place, files.full_path(data_root), toy_data, verdict)
    except (UserError, process_limits.OverLimitError) as error:
      verdict.faults.append(str(error))
  return verdict


def _unlike_layout(verdict: Verdict) -> list[str]:
  """Why a run file is not of the layout task."""
  args = verdict.run_info['args']
  if artifacts.task_of(args) != 'layout':
    return [f'{verdict.model_dir}: is a model of the tile task; leave --task '
            'layout out']
  missing = [name for name in _NEEDED if name not in args]
  if missing:
    return [f'{verdict.model_dir}: the args of its run file lack '
            f'{", ".join(missing)}, which layout_train.py writes']
  return []


def _grade(place: Sandbox, data_root: str, toy_data: bool,
           verdict: Verdict) -> None:
  """Takes the scripts' steps, and runs the script."""
  args = verdict.run_info['args']
  collection = os.path.join(data_root, args['source'], args['search'])
  verdict.facts.update({
      'models.py': verdict.models_py, 'model': verdict.model_dir,
      'class': f'{args["model"]} '
               + grader_steps.brief(args['model_kwargs_json']),
      'graded by': f'{SCRIPT} in a copy of {place.root}',
      'confined': place.confinement.text(), 'data': collection})
  missing = [split for split in schema.SPLITS
             if not os.path.isdir(os.path.join(collection, split))]
  if missing:
    verdict.faults.append(
        f'nothing could be ranked: {collection} has no folder '
        f'{", ".join(missing)}; name the data that the model was trained on')
    return
  answer = place.ask('layout_steps.py', place.new_folder(), {
      'args': args, 'data': collection, 'data_root': data_root,
      'toy_data': toy_data, 'copy_state': False}, None, 'program')
  verdict.faults += answer.faults
  verdict.toy_trained = any(_TOY in fault for fault in answer.faults)
  if answer.built is not None and answer.saved is not None and (
      not answer.fits and not verdict.toy_trained):
    verdict.faults.append(
        f'the {len(answer.saved)} saved variables are not the '
        f'{len(answer.built)} of {args["model"]} built for {collection}: '
        'models.py, the arguments or the data have changed since training, or '
        'the run file is of another model')
  if answer.ranked:
    _compare(place, data_root, toy_data, answer, verdict)


def _of_reading(answer: Answer, reading: str) -> dict[str, np.ndarray]:
  """Program -> scores, of one of the readings of `layout_steps`."""
  start = reading + ':'
  return {name[len(start):]: scores for name, scores in answer.scores.items()
          if name.startswith(start)}


def _compare(place: Sandbox, data_root: str, toy_data: bool, answer: Answer,
             verdict: Verdict) -> None:
  """Compares the ranking with the CSV of training, and with the script's."""
  trained = _of_reading(answer, 'train')
  verdict.facts['ranked'] = (
      f'{len(trained):,} test programs in {answer.seconds:.1f} s, as both '
      'scripts read them')
  _compare_with_csv(trained, verdict)
  args = verdict.run_info['args']
  if '"dropout": "dropout"' in args['model_kwargs_json']:
    verdict.notes.append(
        f'{SCRIPT} ranks by segments drawn at random where the model has '
        'dropout="dropout", so there is no one ranking to compare with')
    return
  _log.info('running %s', SCRIPT)
  start = time.monotonic()
  of_script = _run_script(
      place, data_root, toy_data, args, _of_reading(answer, 'evaluate'))
  odd = [name for name, (tau, slowdown) in of_script.items()
         if not tau >= _LEAST_TAU or slowdown > 0]
  verdict.facts['script'] = (
      f'{SCRIPT} ranked {len(of_script):,} programs in '
      f'{time.monotonic() - start:.1f} s, '
      f'{len(of_script) - len(odd):,} of them as here')
  if odd:
    verdict.faults.append(
        f'{SCRIPT} ranks {len(odd)} programs otherwise than loading the model '
        f'here ({shortened(odd)}); the model depends on more than its trained '
        'variables')


def _compare_with_csv(scores: dict[str, np.ndarray],
                      verdict: Verdict) -> None:
  """Compares with what was written after training."""
  args = verdict.run_info['args']
  path = os.path.expanduser(args.get('results_csv') or '')
  if not os.path.isfile(path):
    verdict.notes.append(
        f'the predictions that training wrote are not there to compare with '
        f'({path or "no results_csv in the run file"})')
    return
  start = f'layout:{args["source"]}:{args["search"]}:'
  chosen = {name[len(start):] if name.startswith(start) else name: order
            for name, order in predictions_csv.read(path).items()}
  found = agreement.compare(chosen, scores)
  verdict.facts['agrees'] = (
      f'{len(found.same):,} of {len(scores):,} programs are ranked as in '
      f'{path}')
  if not found.complete:
    odd = found.different + found.impossible + found.unknown + found.missing
    verdict.faults.append(
        f'{path} ranks {len(odd)} programs otherwise than the saved model '
        f'({shortened(odd)}): the model folder and the CSV are of different '
        'trainings, or models.py or the data has changed since')


def _run_script(place: Sandbox, data_root: str, toy_data: bool,
                args: dict[str, Any], scores: dict[str, np.ndarray]
                ) -> dict[str, tuple[float, float]]:
  """Program -> (tau, slowdown of the first) with the ranking found here.

  Raises:
    UserError: the script failed, or its CSV is not what it writes.
  """
  hidden = os.path.join(place.new_folder(), 'hidden')
  folder = os.path.join(hidden, args['source'], args['search'], 'test_export',
                        'secret')
  os.makedirs(folder)
  for name, of_program in scores.items():
    np.savez(os.path.join(folder, name + '.npz'), input_file=f'{name}.npz',
             config_runtime=as_runtimes(of_program))
  # An empty cache folder: a cache of the baseline does not notice that the
  # data behind it has changed.
  place.run([SCRIPT, f'--dirs={place.model_dir}', f'--data_root={data_root}',
             '--cache_dir=', '--test', f'--secret_path={hidden}',
             *(['--toy_data'] if toy_data else [])])
  path = place.model_dir.replace('/model_', '/test_results_') + '_sample.csv'
  try:
    with files.open_ordinary(path) as file:
      _, *rows = csv.reader(file.read().decode().splitlines())
    # Program, tau, slowdown of the first, of the best of 10, of 100.
    return {row[0]: (float(row[1]), float(row[2])) for row in rows}
  except (OSError, ValueError, IndexError) as error:
    raise UserError(f'{SCRIPT} left no CSV of its results ({error!r})'
                    ) from error


def as_runtimes(scores: np.ndarray) -> np.ndarray:
  """int64 [configs]: runtimes in the order of scores, equal where those are.

  Each next one is a thousandth slower than the fastest. Scores that differ by
  rounding alone are equal.
  """
  order = np.argsort(scores, kind='stable')
  apart = np.diff(scores[order]) > agreement.ROUNDING * np.abs(scores).max()
  ranks = np.zeros(len(scores), np.int64)
  ranks[order[1:]] = np.cumsum(apart)
  return 1_000_000 + 1_000 * ranks
