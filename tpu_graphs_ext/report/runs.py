"""Finds training runs, and groups those that differ only in their seed."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import pandas as pd

from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.engine.settings import parse_model_kwargs
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.files import full_path

# Arguments that name files or number repetitions; they do not change training.
_NOT_TRAINED = ('model', 'model_kwargs_json', 'out_dir', 'results_csv',
                'run_id', 'test_mode')
# Names of the baseline's trainers, which their run files lack.
_BASELINE = {'tile': 'tiles_train.py', 'layout': 'layout_train.py'}


class Run:
  """One training run.

  Attributes:
    run_path: its run file.
    info: content of that file.
    model_dir: its model folder; None if there is only the run file.
    name: of its run file, without 'run_' and the ending.
    task: 'tile' or 'layout'.
    model, kwargs: class and arguments.
    settings: of this package's `train`; empty for a run of the baseline's.
    flags: what it was trained with, besides the model and its arguments.
    curve: train_loss, train_opa, val_loss and val_opa by epoch, from 1;
      without the columns that the run file has only in part.

  Raises:
    UserError: its arguments are damaged.
  """

  def __init__(self, run_path: str, info: dict[str, Any],
               model_dir: Optional[str]):
    self.run_path, self.info, self.model_dir = run_path, info, model_dir
    name = os.path.basename(run_path)
    self.name = name.removeprefix('run_').split('.jsonz')[0]
    args, self.settings = info['args'], info.get('settings', {})
    self.task, self.model = artifacts.task_of(args), args['model']
    self.kwargs = parse_model_kwargs(args['model_kwargs_json'])
    self.flags = {
        **{key: value for key, value in sorted(args.items())
           if key not in _NOT_TRAINED},
        **{key: self.settings[key] for key in ('data_root', 'toy_data')
           if key in self.settings},
        'host': info.get('host', _BASELINE[self.task])}
    stored = info.get('train_curve', {})
    epochs = len(stored.get('epoch') or [])
    self.curve = pd.DataFrame(
        {key: values for key, values in stored.items()
         if key != 'epoch' and isinstance(values, list)
         and len(values) == epochs and all(map(_is_number, values))},
        pd.RangeIndex(1, epochs + 1, name='epoch'), dtype=float)

  def record(self, ks: Iterable[int]) -> dict[str, Any]:
    """What the run file says, a cell for each column of the tables of runs.

    `ks` are numbers of configurations to try, of the slowdowns `final_<k>`.
    """
    opa = self.curve.get('val_opa', pd.Series(dtype=float))
    seconds = self.info.get('seconds', {}).get('train')
    errors = self.info.get('final_error', {}).get('val')
    errors = errors if isinstance(errors, dict) else {}
    return {
        'seed': self.info.get('seed'),
        'run_id': str(self.info['args'].get('run_id', '')),
        'epochs': len(self.curve),
        'best_epoch': None if opa.empty else opa.idxmax(),
        'best_opa': None if opa.empty else opa.max(),
        'minutes': seconds / 60 if _is_number(seconds) else None,
        'tensorflow': shown(self.info.get('versions', {}).get(
            'tensorflow', '')),
        'written': time.strftime('%Y-%m-%d %H:%M', time.localtime(
            os.path.getmtime(self.run_path))),
        **{f'final_{k}': errors.get(str(k)) if _is_number(errors.get(str(k)))
           else None for k in ks}}


class Group(NamedTuple):
  """Runs that differ only in their seed.

  Attributes:
    name: the model, and how it differs from other groups of that model; no
      two groups have the same name.
    runs: at least one, by seed.
  """
  name: str
  runs: Sequence[Run]


def _is_number(value: Any) -> bool:
  return type(value) in (int, float)


# ------------------------------------------------------------------- finding


def find(paths: Sequence[str]) -> tuple[list[Run], list[str]]:
  """The runs that paths name, and what was wrong with others.

  Args:
    paths: model folders, run files, or folders of them, at any depth.

  Raises:
    UserError: there is not a single run.
  """
  found, problems = {}, []
  for path in paths:
    read = []
    for run_path in _run_paths(path, problems):
      try:
        read.append(_read(run_path, problems))
      except UserError as error:
        problems.append(str(error))
    # The names of runs are hashes, whose order means nothing.
    for run in sorted(read, key=lambda run: (run.model, run.name)):
      found.setdefault(os.path.realpath(run.run_path), run)
  if not found:
    raise UserError('there is no run to report:\n'
                    + '\n'.join(f'  {problem}' for problem in problems))
  return list(found.values()), list(dict.fromkeys(problems))


def of_one_task(found: Sequence[Run], task: str) -> list[Run]:
  """The runs of a task: 'tile', 'layout', or '' for the task of all of them.

  Raises:
    UserError: there is none, or there are both tasks and neither is named.
  """
  there = sorted({run.task for run in found})
  if not task and len(there) > 1:
    raise UserError('there are runs of the tile task and of the layout task, '
                    'which cannot be compared; choose --task tile or --task '
                    'layout')
  chosen = [run for run in found if run.task == (task or there[0])]
  if not chosen:
    raise UserError(f'--task {task}: all {len(found)} runs are of the '
                    f'{there[0]} task')
  return chosen


def _run_paths(path: str, problems: list[str]) -> list[str]:
  """Run files that a path stands for."""
  full = pathlib.Path(full_path(path))
  if not full.exists():
    problems.append(f'{path}: no such file or folder; name a model folder, a '
                    'run file or a folder of them')
    return []
  if full.name.startswith('model_'):
    return [artifacts.run_path_of(str(full))]
  if not full.is_dir():
    return [str(full)]
  found = [str(one) for one in sorted(full.rglob('run_*.jsonz'))
           if not any(part.startswith(('.', 'resume_', 'model_'))
                      for part in one.relative_to(full).parts)]
  if not found:
    there = sorted(os.listdir(full))
    has = f'it has {shortened(there, 5)}' if there else 'it is empty'
    problems.append(
        f'{path}: has no run, which is a folder model_<hash> and a file '
        f'run_<hash>.jsonz as `train` or tiles_train.py write them; {has}. '
        'Name the --out_dir of a training')
  return found


def _read(path: str, problems: list[str]) -> Run:
  """The run of a run file; raises UserError if it is missing or damaged."""
  info = artifacts.read_run_file(path)
  artifacts.check_hash(path, info)
  run = Run(path, info, None)
  model_dir = os.path.join(os.path.dirname(path), f'model_{run.name}')
  if os.path.isdir(model_dir):
    run.model_dir = model_dir
  else:
    problems.append(f'{path}: its model folder is not beside it, so only what '
                    'the run file says is here; copy the folder there')
  if not info.get('final_error'):  # Trainers measure their best model at last.
    problems.append(f'{path}: the run is not finished; this is its state at '
                    f'epoch {len(run.curve)}. `train --resume` continues it')
  return run


# ------------------------------------------------------------------ grouping


def grouped(runs: Iterable[Run]) -> list[Group]:
  """Groups in the order of their first run."""
  members = collections.defaultdict(list)
  for run in runs:
    members[_text([run.model, run.kwargs, run.flags])].append(run)
  groups = [sorted(group, key=_by_seed) for group in members.values()]
  labels = [_label(group[0], [other[0] for other in groups])
            for group in groups]
  # Long labels are cut, so two of them may be equal.
  return [Group(label if labels.count(label) == 1
                else f'{label} {group[0].name[:8]}', group)
          for group, label in zip(groups, labels)]


def _by_seed(run: Run) -> tuple:
  seed = run.info.get('seed')  # The baseline's trainer keeps none.
  return (seed is None, seed or 0, run.info['args'].get('run_id', ''),
          run.run_path)


def _label(run: Run, others: Sequence[Run]) -> str:
  """Its model, with up to two arguments that differ, or its hash."""
  namesakes = [other for other in others if other.model == run.model]
  parts = [
      f'{key}={shown(value, 24)}' for part in ('kwargs', 'flags')
      for key, value in sorted(getattr(run, part).items())
      if len({_text(getattr(other, part).get(key, ''))
              for other in namesakes}) > 1]
  return (', '.join([run.model, *parts]) if len(parts) <= 2
          else f'{run.model} {run.name[:8]}')


def shown(value: Any, most: int = 48) -> str:
  """An argument as text; long ones are cut."""
  if isinstance(value, dict) and {'node', 'config'} <= set(value):
    return 'given'  # feature_stats: hundreds of numbers.
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= most else text[:most - 1] + '…'


def _text(value: Any) -> str:
  return json.dumps(value, sort_keys=True)
