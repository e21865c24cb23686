"""Why a hand-in does not give what its run file says: trying what may be.

The model may have been trained on other data than it is graded with: with
other statistics to normalise by, on toy data, on other files. Each guess is
put to the test: the model is loaded again with it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_graphs_ext.course import agreement, process_limits
from tpu_graphs_ext.course.agreement import Agreement
from tpu_graphs_ext.course.sandbox import Answer, Features, Sandbox
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError, shortened

# Kernels that a guess is tried on.
TRIED_KERNELS = 50
GRADED, TRAINED, TOY, RUN = 'graded', 'trained', 'toy', 'run'
TOY_TEXT = (
    'the model was trained with --toy_data, the first '
    f'{read.TOY_FILES} files of each split, and cannot be graded on the whole '
    'data; train again without --toy_data')


@dataclasses.dataclass(frozen=True)
class Outcome:
  """An explanation, and whether it is a reason to fail."""
  text: str
  is_fault: bool
  toy_trained: bool = False


class Source:
  """The data of the grader, and what training may have seen of it."""

  def __init__(self, data_root: str, cache_dir: str, toy_data: bool,
               run_info: dict[str, Any] | None):
    self.data_root = data_root
    self.toy_data = toy_data
    self._cache_dir = cache_dir or None
    self.run_info = run_info or {}
    self._graded = None
    self._largest_split = 0

  def graded(self) -> Features:
    """As the grader's script has it: statistics of all train kernels.

    Raises:
      UserError: the data cannot be read.
    """
    if self._graded is None:
      self._graded = self._read(GRADED, -1, self.toy_data)
    return self._graded

  def others(self) -> Iterator[Features]:
    """What training may have used instead, each different from the rest."""
    seen = [self.graded()]
    for features in self._candidates():
      if not any(features.same_as(other) for other in seen):
        seen.append(features)
        yield features

  def looks_toy(self) -> bool:
    """True if the run file shows that training read a part of the data."""
    test = self.graded().test
    predicted = self.run_info.get('test_predictions') or {}
    return (
        self._largest_split > read.TOY_FILES
        and bool(self.run_info.get('settings', {}).get('toy_data'))
    ) or len(test) > len(predicted) == read.TOY_FILES

  def _candidates(self) -> Iterator[Features]:
    args = self.run_info.get('args', {})
    least = args.get('configs', -1)
    for name, toy in ((TRAINED, self.toy_data), (TOY, True)):
      try:
        yield self._read(name, least, toy)
      except UserError:  # No train kernel has so many configurations.
        continue
    if 'feature_stats' in self.run_info and 'num_ops' in self.run_info:
      yield Features(
          RUN, FeatureStats.from_json(self.run_info['feature_stats']),
          self.run_info['num_ops'], self.graded().test)

  def _read(self, name: str, least: int, toy: bool) -> Features:
    dataset = read.read_dataset(
        self.data_root, min_train_configs=least, cache_dir=self._cache_dir,
        toy_data=toy)
    self._largest_split = max(self._largest_split, *(
        len(split) for split in (dataset.train, dataset.valid, dataset.test)))
    return Features(name, FeatureStats.of_partition(dataset.train),
                    dataset.num_ops, dataset.test)


# --------------------------------------------------------------- variables


def variables_fault(place: Sandbox, source: Source, graded: Features,
                    args: dict[str, Any], answer: Answer) -> str:
  """Says which variables differ, and why where a guess fits."""
  lines = _unlike(answer.saved, answer.built)
  text = (f'the saved variables are not those of {args["model"]} built for '
          f'{graded.text()}: {"; ".join(lines[:3])}')
  if len(lines) > 3:
    text += f'; and {len(lines) - 3} more'
  for features in source.others():
    few = dataclasses.replace(features, test=_some(features.test, 1))
    if _fits(place, args, few):
      return f'{text}. {_why_it_fits(features)}'
  return (f'{text}. models.py or the class\'s arguments have changed since '
          'training, or the run file is of another model, or the data is')


def _fits(place: Sandbox, args: dict[str, Any], features: Features) -> bool:
  try:
    return place.take_steps(args, features).fits
  except process_limits.OverLimitError:
    raise
  except UserError:
    return False


def _why_it_fits(features: Features) -> str:
  if features.name == TOY:
    return f'They fit the toy data ({features.text()}): {TOY_TEXT}'
  if features.name == TRAINED:
    return ('They fit the train kernels that have at least --configs '
            f'configurations ({features.text()}); the grader takes all train '
            'kernels, so train with a smaller --configs')
  return ('They fit the data that the run file describes '
          f'({features.text()}): the model was trained on other data than '
          '--data_root; name that data, or train again')


def _unlike(saved: Sequence[Sequence[Any]],
            built: Sequence[Sequence[Any]]) -> list[str]:
  """One text for every variable that has no partner."""
  shapes = [[tuple(shape) for _, shape in listed] for listed in (saved, built)]
  lines = [f'{len(saved)} are saved, and the class has {len(built)}'
           ] if len(saved) != len(built) else []
  matcher = difflib.SequenceMatcher(None, *shapes, autojunk=False)
  for tag, a, b, c, d in matcher.get_opcodes():
    if tag == 'equal':
      continue
    pairs = min(b - a, d - c)
    lines += [f'{_named(saved[a + i])} is saved where the class has '
              f'{_named(built[c + i])}' for i in range(pairs)]
    lines += [f'{_named(one)} is saved and not in the class'
              for one in saved[a + pairs:b]]
    lines += [f'{_named(one)} is in the class and not saved'
              for one in built[c + pairs:d]]
  return lines


def _named(variable: Sequence[Any]) -> str:
  name, shape = variable
  return f'{name} {tuple(shape)}'


# ------------------------------------------------------------- predictions


def differences(place: Sandbox, source: Source, graded: Features,
                predicted: Mapping[str, Sequence[int]], answer: Answer,
                found: Agreement) -> Outcome:
  """Explains why the run file's predictions are not those of the model."""
  what = _summary(found)
  if found.missing and source.looks_toy():
    return Outcome(f'{what}: {TOY_TEXT}', True, toy_trained=True)
  if found.unknown or found.impossible:
    return Outcome(
        f'{what}: the run file was written with another test split than that '
        f'of {source.data_root}; name the data that the model was trained on',
        True)
  # A guess must explain the kernels that differ.
  told = {tile_id: predicted[tile_id]
          for tile_id in (found.different or found.same)}
  outcome = _guess(place, source, graded, told, answer, what)
  if outcome:
    return outcome
  if not found.different:  # Only missing.
    return Outcome(
        f'{what}: the run file was written with a part of the test split; the '
        'model ranks the rest too', False)
  return Outcome(
      f'{what}, and neither other statistics, nor toy data, nor variables '
      'that the grader does not copy explain it: the model folder and the run '
      'file are of different trainings, or models.py or the data has changed '
      f'since.{_reordered(answer)}', True)


def _guess(place: Sandbox, source: Source, graded: Features,
           predicted: Mapping[str, Sequence[int]], answer: Answer,
           what: str) -> Outcome | None:
  """Tries other statistics, then variables that the grader leaves out."""
  args = source.run_info['args']
  others = list(source.others())
  for features in others:
    if _explains(place, args, features, predicted):
      return _by_features(features, args, what)
  if answer.state and any(
      _explains(place, args, features, predicted, copy_state=True)
      for features in (graded, *others)):
    return Outcome(
        f'{what}: they follow when also the {answer.state} variables that are '
        'not trained are copied (moving averages, as of batch '
        'normalisation). The grader copies trained variables only; keep no '
        'other state, or the grade is that of the ranking found here', True)
  return None


def _by_features(features: Features, args: dict[str, Any],
                 what: str) -> Outcome:
  if features.name == TRAINED:
    return Outcome(
        f'{what}: training took the statistics that features are normalised '
        f'by from the train kernels of at least {args["configs"]} '
        'configurations, and the grader takes them from all. The baseline '
        'does so with every model, so it is no fault; `tpu-graphs-ext '
        'evaluate --stats all` tells what it costs', False)
  if features.name == TOY:
    return Outcome(f'{what}: {TOY_TEXT}', True, toy_trained=True)
  return Outcome(
      f'{what}: they follow from the statistics in the run file, which are '
      'not those of --data_root: the model was trained on other data', True)


def _explains(place: Sandbox, args: dict[str, Any], features: Features,
              predicted: Mapping[str, Sequence[int]],
              copy_state: bool = False) -> bool:
  """True if the model gives the predictions with these features."""
  test = _some(features.test.select(np.array(
      [tile_id in predicted for tile_id in features.test.tile_ids])),
               TRIED_KERNELS)
  if not len(test):
    return False
  try:
    scores = place.take_steps(args, dataclasses.replace(features, test=test),
                         copy_state=copy_state).scores
  except process_limits.OverLimitError:
    raise
  except UserError:
    return False
  chosen = {tile_id: predicted[tile_id] for tile_id in scores}
  return bool(scores) and agreement.compare(chosen, scores).complete


def _summary(found: Agreement) -> str:
  """How many kernels differ, and how."""
  kinds = (
      (found.different, 'have other configurations in the run file'),
      (found.impossible, 'have configurations in the run file that they lack'),
      (found.missing, 'are not in the run file'),
      (found.unknown, 'of the run file are not in the data'))
  return '; '.join(
      f'{len(names)} kernels {text} ({shortened(names, 1)})'
      for names, text in kinds if names)


def _reordered(answer: Answer) -> str:
  """Variables of one shape that have changed places are copied wrongly."""
  saved, built = ([_plain(name) for name, _ in listed]
                  for listed in (answer.saved, answer.built))
  if saved != built and sorted(saved) == sorted(built):
    first = next(i for i, (a, b) in enumerate(zip(saved, built)) if a != b)
    return (f' Variable {first} is {saved[first]} in the model folder and '
            f'{built[first]} in the class: they are copied by position, so '
            'the class must create its variables in the order of training')
  return ''


def _plain(name: str) -> str:
  """A variable's name without the numbers that Keras adds: dense_3 -> dense."""
  parts = name.split(':')[0].split('/')
  return '/'.join(part.rstrip('0123456789').rstrip('_') if '_' in part
                  else part for part in parts)


def _some(partition: Partition, most: int) -> Partition:
  """At most so many kernels, spread over the whole."""
  if len(partition) <= most:
    return partition
  return partition.select(
      np.linspace(0, len(partition) - 1, most).astype(np.int64))
