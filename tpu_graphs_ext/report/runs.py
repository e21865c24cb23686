"""Finds training runs, and groups those that differ in their seed alone."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.engine.settings import parse_model_kwargs
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import TEMPORARY, full_path

# Arguments of a run that say where things lie or tell repetitions apart, and
# nothing of what was trained.
_NOT_TRAINED = ('model', 'model_kwargs_json', 'out_dir', 'results_csv',
                'run_id', 'test_mode')
_MODEL, _RUN, _RUN_END = 'model_', 'run_', '.jsonz'
_RESUME = 'resume_'


@dataclasses.dataclass(frozen=True)
class Run:
  """One training run.

  Attributes:
    run_path: its run file.
    info: content of that file.
    kwargs: what its model_kwargs_json says.
    model_dir: its model folder; None where only the run file is there.
  """
  run_path: str
  info: dict[str, Any]
  kwargs: dict[str, Any]
  model_dir: Optional[str]

  @property
  def name(self) -> str:
    """The name of its run file, without 'run_' and the ending."""
    name = os.path.basename(self.run_path)
    return name[len(_RUN) * name.startswith(_RUN):].split(_RUN_END)[0]

  @property
  def seed(self) -> Optional[int]:
    """None where the host keeps none, as the baseline's trainer."""
    return self.info.get('seed')

  @property
  def task(self) -> str:
    """'tile' or 'layout'."""
    return artifacts.task_of(self.info['args'])

  @property
  def model(self) -> str:
    return self.info['args']['model']

  @property
  def flags(self) -> dict[str, Any]:
    """What it was trained with, besides the model and its arguments."""
    flags = {key: value for key, value in sorted(self.info['args'].items())
             if key not in _NOT_TRAINED}
    settings = self.info.get('settings', {})
    for key in ('data_root', 'toy_data'):
      if key in settings:
        flags[key] = settings[key]
    flags['host'] = self.info.get('host', {
        'tile': 'tiles_train.py', 'layout': 'layout_train.py'}[self.task])
    return flags

  @property
  def curve(self) -> dict[str, list]:
    """train_loss, train_opa, val_loss and val_opa, a number an epoch each.

    Only what is there whole: one number for each of its `epoch`s.
    """
    stored = self.info.get('train_curve', {})
    epochs = stored.get('epoch')
    if not _are_numbers(epochs):
      return {}
    return {key: values for key, values in stored.items()
            if _are_numbers(values) and len(values) == len(epochs)}

  @property
  def best_epoch(self) -> Optional[int]:
    """Place of the highest validation OPA in the curve, from 0."""
    opa = self.curve.get('val_opa')
    return max(range(len(opa)), key=opa.__getitem__) if opa else None

  @property
  def is_finished(self) -> bool:
    """Whether the trainer measured its best model, which it does at the end."""
    return bool(self.info.get('final_error'))

  def final_error(self, k: int) -> Optional[float]:
    """Slowdown on the valid kernels that the run file tells, or None."""
    errors = self.info.get('final_error', {}).get('val', {})
    value = errors.get(str(k)) if isinstance(errors, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def _are_numbers(values: Any) -> bool:
  return isinstance(values, list) and bool(values) and all(
      type(value) in (int, float) for value in values)


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs that differ in their seed alone.

  Attributes:
    name: the model and what sets it apart from other groups of that model;
      no two groups have the same.
    runs: at least one, by seed.
  """
  name: str
  runs: Sequence[Run]

  def spread(self, values: Iterable[Optional[float]]) -> tuple[
      Optional[float], Optional[float]]:
    """Mean and standard deviation over the runs; None where undefined."""
    there = [value for value in values if value is not None]
    if not there:
      return None, None
    return (statistics.fmean(there),
            statistics.stdev(there) if len(there) > 1 else None)


# ------------------------------------------------------------------- finding


def find(paths: Sequence[str]) -> tuple[list[Run], list[str]]:
  """The runs that paths name, and what was wrong with others.

  Args:
    paths: model folders, run files, or folders of them, at any depth.

  Raises:
    UserError: there is not one run.
  """
  found, problems = {}, []
  for path in paths:
    read = []
    for candidate in _candidates(path, problems):
      try:
        read.append(_read(candidate, problems))
      except UserError as error:
        problems.append(str(error))
    # Names of runs are hashes, whose order says nothing.
    for run in sorted(read, key=lambda run: (run.model, run.name)):
      found.setdefault(os.path.realpath(run.run_path), run)
  if not found:
    raise UserError('there is no run to report:\n'
                    + '\n'.join(f'  {problem}' for problem in problems))
  return list(found.values()), list(dict.fromkeys(problems))


def of_one_task(found: Sequence[Run], task: str) -> tuple[list[Run], str]:
  """The runs of a task, and which.

  Args:
    found: at least one run.
    task: 'tile' or 'layout'; '': that of all of them.

  Raises:
    UserError: there is none of the task, or of both and none is named.
  """
  there = sorted({run.task for run in found})
  if not task and len(there) > 1:
    raise UserError('there are runs of the tile task and of the layout task, '
                    'which do not compare; choose by --task tile or --task '
                    'layout')
  task = task or there[0]
  chosen = [run for run in found if run.task == task]
  if not chosen:
    raise UserError(f'--task {task}: none of the {len(found)} runs is of the '
                    f'{task} task; all are of the {there[0]} task')
  return chosen, task


def _candidates(path: str, problems: list[str]) -> list[str]:
  """Model folders and run files that a path stands for."""
  full = full_path(path)
  if not os.path.exists(full):
    problems.append(f'{path}: no such file or folder; name a model folder, a '
                    'run file or a folder of them')
    return []
  if not os.path.isdir(full) or _is_model(full):
    return [full]
  found, halves = [], []
  for parent, folders, names in os.walk(full):
    halves += [os.path.join(parent, name) for name in folders
               if name.startswith(_RESUME) or name.endswith(TEMPORARY)]
    # A model whose run file is there is found by that one.
    found += [os.path.join(parent, name) for name in sorted(folders)
              if _is_model(name) and f'{_RUN}{name[len(_MODEL):]}{_RUN_END}'
              not in names]
    found += [os.path.join(parent, name) for name in sorted(names)
              if name.startswith(_RUN) and name.endswith(_RUN_END)]
    folders[:] = sorted(name for name in folders if not _is_model(name)
                        and not name.startswith((_RESUME, '.')))
  for half in halves:
    problems.append(
        f'{half}: left by a training that is not finished; `train --resume` '
        'goes on with it' if os.path.basename(half).startswith(_RESUME) else
        f'{half}: a folder that was never finished; remove it')
  if not found:
    problems.append(_nothing_in(path, full))
  return found


def _is_model(path: str) -> bool:
  return re.fullmatch(_MODEL + r'[^.]+', os.path.basename(path)) is not None


def _nothing_in(path: str, full: str) -> str:
  there = sorted(os.listdir(full))
  has = f'it has {", ".join(there[:5])}{", ..." * (len(there) > 5)}'
  return (f'{path}: has no run, which is a folder model_<hash> and a file '
          f'run_<hash>.jsonz as `train` or tiles_train.py write them; '
          f'{has if there else "it is empty"}. Name the --out_dir of a '
          'training')


def _read(path: str, problems: list[str]) -> Run:
  """The run of a model folder or a run file.

  Raises:
    UserError: its run file is missing or damaged.
  """
  if os.path.isdir(path):
    run_path = artifacts.run_path_of(path)
    info = artifacts.load_run(path, task='').info
  else:
    run_path, info = path, artifacts.read_run_file(path)
  run = Run(run_path, info,
            parse_model_kwargs(info['args']['model_kwargs_json']),
            path if os.path.isdir(path) else _model_beside(path, info))
  if run.model_dir is None:
    problems.append(f'{path}: its model folder is not beside it, so only what '
                    'the run file says is here; copy the folder there')
  if not run.is_finished:
    problems.append(
        f'{path}: the run is not finished; of it is here what it had done by '
        f'epoch {len(run.curve.get("epoch", []))}. `train --resume` goes on '
        'with it')
  return run


def _model_beside(path: str, info: dict[str, Any]) -> Optional[str]:
  """The model folder of a run file, or None."""
  name = os.path.basename(path)
  if not (name.startswith(_RUN) and name.endswith(_RUN_END)):
    return None
  artifacts.check_hash(path, info)
  model_dir = os.path.join(
      os.path.dirname(path), _MODEL + name[len(_RUN):-len(_RUN_END)])
  return model_dir if os.path.isdir(model_dir) else None


# ------------------------------------------------------------------ grouping


def grouped(runs: Iterable[Run]) -> list[Group]:
  """Groups in the order of their first run."""
  members = collections.defaultdict(list)
  for run in runs:
    key = json.dumps([run.model, run.kwargs, run.flags], sort_keys=True)
    members[key].append(run)
  groups = [sorted(group, key=_by_seed) for group in members.values()]
  labels = _labels([group[0] for group in groups])
  # Labels are cut where they are long, so two of them may be equal.
  return [Group(label if labels.count(label) == 1
                else f'{label} ({labels[:number].count(label) + 1})', group)
          for number, (group, label) in enumerate(zip(groups, labels))]


def _by_seed(run: Run) -> tuple:
  return (run.seed is None, run.seed or 0, run.info['args'].get('run_id', ''),
          run.run_path)


def shown(value: Any, most: int = 48) -> str:
  """An argument as text; long ones are cut."""
  if isinstance(value, dict) and {'node', 'config'} <= set(value):
    return 'given'  # feature_stats: hundreds of numbers.
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= most else text[:most - 1] + '…'


def _labels(runs: Sequence[Run]) -> list[str]:
  """The model of each, and in which arguments it is unlike its namesakes."""
  labels = []
  for run in runs:
    namesakes = [other for other in runs if other.model == run.model]
    parts = []
    for own, others in ((run.kwargs, [o.kwargs for o in namesakes]),
                        (run.flags, [o.flags for o in namesakes])):
      for key in sorted(set().union(*others)):
        if len({json.dumps(other.get(key, ''), sort_keys=True)
                for other in others}) > 1 and key in own:
          parts.append(f'{key}={shown(own[key], 24)}')
    labels.append(', '.join([run.model, *parts]))
  return labels
