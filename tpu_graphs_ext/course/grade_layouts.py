"""Grading of layout models, by the baseline's own scripts.

The course has no script that grades layouts: `layout_train.py` writes the test
predictions right after training, and `layout_evaluate.py` measures a saved
model. Both make the class `ResModel` and call `forward`, each in its way; so
does `steps`. Then the ranking must be the one in the CSV that training left,
and the unchanged `layout_evaluate.py` must come to the same ranking. It prints
only Kendall's tau and slowdowns over hidden runtimes (its flag `--test`), so it
is given runtimes in the order of the ranking found here.
"""

from __future__ import annotations

import csv
import os
from typing import Any

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.course import agreement
from tpu_graphs_ext.course.agreement import Agreement
from tpu_graphs_ext.course.sandbox import Answer, Sandbox
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import artifacts, predictions_csv
from tpu_graphs_ext.errors import UserError, shortened

_NEEDED_ARGS = ('source', 'search', 'max_configs', 'keep_nodes')
# From this tau on the script's order counts as the same: scores that are equal
# but for rounding may change places.
_LEAST_TAU = 0.99


class LayoutGrader:
  """What grading needs to know about the layout task."""

  script, item = 'layout_evaluate.py', 'program'

  def __init__(self, run_info: dict[str, Any] | None, data_root: str,
               unused_cache_dir: str, toy_data: bool):
    """Checks the run file and looks for the collection that it names.

    Args:
      run_info: content of the run file, or None.
      data_root: folder with <source>/<search>/train, valid and test.
      toy_data: read 5 files of each split only, as the baseline's flag does.
    """
    self._data_root, self._toy_data = files.full_path(data_root), toy_data
    self._toy_trained, self.faults, self.args = False, [], None
    self._folder = ''
    args = run_info['args'] if run_info else {}
    missing = [name for name in _NEEDED_ARGS if name not in args]
    if run_info and artifacts.task_of(args) != 'layout':
      self.faults.append('the run file belongs to a model of the tile task; '
                         'leave --task layout out')
    elif run_info and missing:
      self.faults.append(f'the args of the run file lack {", ".join(missing)}, '
                         'which layout_train.py writes')
    elif run_info:
      self._folder = os.path.join(self._data_root, args['source'],
                                  args['search'])
      absent = [split for split in schema.SPLITS
                if not os.path.isdir(os.path.join(self._folder, split))]
      if absent:
        self.faults.append(
            f'nothing could be ranked: {self._folder} has no folder '
            f'{", ".join(absent)}; name the data that the model was trained on')
      else:
        self.args = args

  def data_text(self) -> str:
    return self._folder

  def ask(self, place: Sandbox) -> Answer:
    """Takes the steps of both scripts."""
    return self._ask(place, self._toy_data)

  def toy_trained(self) -> bool:
    """True if `explain_variables` found that training read toy data."""
    return self._toy_trained

  def explain_variables(self, place: Sandbox) -> str:
    """Why the saved variables are not those of the class, as a sentence."""
    self._toy_trained = not self._toy_data and self._ask(place, True).fits
    if self._toy_trained:
      return ('They fit toy data: the model was trained with --toy_data, 5 '
              'files of each split; train again without it')
    return ('models.py, the arguments or the data have changed since training, '
            'or the run file belongs to another model')

  def scores_after_training(self, answer: Answer) -> dict[str, np.ndarray]:
    """Program -> scores, read as layout_train.py reads."""
    return _of_reading(answer, 'train:')

  def trained_choices(self) -> tuple[dict[str, list[int]], str]:
    """Program -> order after training; what has them, or why there are none.

    Raises:
      UserError: the CSV of training cannot be read.
    """
    path = os.path.expanduser(self.args.get('results_csv') or '')
    if not os.path.isfile(path):
      return {}, ('the predictions that training wrote are missing, so they '
                  'were not compared '
                  f'({path or "no results_csv in the run file"})')
    start = f'layout:{self.args["source"]}:{self.args["search"]}:'
    return {name.removeprefix(start): order
            for name, order in predictions_csv.read(path).items()}, path

  def explain_choices(self, unused_place: Sandbox, unused_answer: Answer,
                      found: Agreement) -> tuple[str, bool]:
    """Why the CSV does not follow from the scores; always a reason to fail."""
    return (f'{self.args["results_csv"]} ranks {len(found.odd)} programs '
            f'differently from the saved model ({shortened(found.odd)}): the '
            'model folder and the CSV are from different trainings, or '
            'models.py or the data has changed since'), True

  def run_script(self, place: Sandbox, answer: Answer) -> tuple[int, list[str]]:
    """Runs the script; returns its rows, and programs that differ.

    Raises:
      UserError: the script failed, or its CSV is not what it writes.
    """
    hidden = os.path.join(place.new_folder(), 'hidden')
    folder = os.path.join(hidden, self.args['source'], self.args['search'],
                          'test_export', 'secret')
    os.makedirs(folder)
    for name, scores in _of_reading(answer, 'evaluate:').items():
      np.savez(os.path.join(folder, name + '.npz'), input_file=f'{name}.npz',
               config_runtime=as_runtimes(scores))
    # An empty cache folder: a cache of the baseline does not notice that the
    # data behind it has changed.
    place.run([self.script, f'--dirs={place.model_dir}', '--cache_dir=',
               f'--data_root={self._data_root}', '--test',
               f'--secret_path={hidden}',
               *(['--toy_data'] if self._toy_data else [])])
    path = place.model_dir.replace('/model_', '/test_results_') + '_sample.csv'
    try:
      with files.open_ordinary(path) as file:
        _, *rows = csv.reader(file.read().decode().splitlines())
      # Program, tau, slowdown of the first, of the best of 10, of 100.
      odd = [name for name, tau, slowdown, *_ in rows
             if not float(tau) >= _LEAST_TAU or float(slowdown) > 0]
    except (OSError, ValueError) as error:
      raise UserError(f'{self.script} left no CSV of its results ({error!r})'
                      ) from error
    return len(rows), odd

  def why_not_compared(self) -> str:
    """Why the script's ranking cannot be compared; '' if it can."""
    if '"dropout": "dropout"' in self.args['model_kwargs_json']:
      return (f'{self.script} ranks by segments drawn at random if the model '
              'has dropout="dropout", so there is no one ranking to compare')
    return ''

  def _ask(self, place: Sandbox, toy_data: bool) -> Answer:
    return place.ask({
        'args': self.args, 'data': self._folder, 'data_root': self._data_root,
        'toy_data': toy_data})


def _of_reading(answer: Answer, start: str) -> dict[str, np.ndarray]:
  return {name[len(start):]: scores for name, scores in answer.scores.items()
          if name.startswith(start)}


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
