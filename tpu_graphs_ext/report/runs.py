"""Finds training runs, and groups those that differ only in their seed."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import pathlib
import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.engine.settings import parse_model_kwargs
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.files import TEMPORARY, full_path

if TYPE_CHECKING:
  import pandas

# Arguments that say where files are or tell repetitions apart: they do not
# change what is trained.
_NOT_TRAINED = ('model', 'model_kwargs_json', 'out_dir', 'results_csv',
                'run_id', 'test_mode')
_MODEL, _RUN, _RUN_END, _RESUME = 'model_', 'run_', '.jsonz', 'resume_'
# What the trainers of the baseline are called; their run files do not say it.
_BASELINE = {'tile': 'tiles_train.py', 'layout': 'layout_train.py'}


@dataclasses.dataclass(frozen=True)
class Run:
  """One training run.

  Attributes:
    run_path: its run file.
    info: content of that file.
    model_dir: its model folder; None if there is only the run file.
  """
  run_path: str
  info: dict[str, Any]
  model_dir: Optional[str]

  @property
  def name(self) -> str:
    """The name of its run file, without 'run_' and the ending."""
    name = os.path.basename(self.run_path)
    return name[len(_RUN) * name.startswith(_RUN):].split(_RUN_END)[0]

  @property
  def task(self) -> str:
    """'tile' or 'layout'."""
    return artifacts.task_of(self.info['args'])

  @property
  def model(self) -> str:
    return self.info['args']['model']

  @functools.cached_property
  def kwargs(self) -> dict[str, Any]:
    return parse_model_kwargs(self.info['args']['model_kwargs_json'])

  @property
  def settings(self) -> dict[str, Any]:
    """Of this package's `train`; empty for a run of the baseline's."""
    return self.info.get('settings', {})

  @property
  def flags(self) -> dict[str, Any]:
    """What it was trained with, besides the model and its arguments."""
    flags = {key: value for key, value in sorted(self.info['args'].items())
             if key not in _NOT_TRAINED}
    flags.update({key: self.settings[key] for key in ('data_root', 'toy_data')
                  if key in self.settings})
    flags['host'] = self.info.get('host', _BASELINE[self.task])
    return flags

  @functools.cached_property
  def curve(self) -> pandas.DataFrame:
    """train_loss, train_opa, val_loss and val_opa by epoch, from 1.

    Columns that the run file has only in part are left out.
    """
    import pandas
    stored = self.info.get('train_curve', {})
    epochs = stored.get('epoch') or []
    return pandas.DataFrame(
        {key: values for key, values in stored.items()
         if key != 'epoch' and isinstance(values, list)
         and len(values) == len(epochs) and all(
             type(value) in (int, float) for value in values)},
        pandas.RangeIndex(1, len(epochs) + 1, name='epoch'), dtype=float)

  @property
  def is_finished(self) -> bool:
    """Whether the trainer measured its best model, which it does at the end."""
    return bool(self.info.get('final_error'))

  def record(self, ks: Iterable[int]) -> dict[str, Any]:
    """What the run file says, a cell for each column of the tables of runs.

    Args:
      ks: numbers of configurations to try, of the slowdowns.
    """
    opa = self.curve.get('val_opa')
    seconds = self.info.get('seconds', {}).get('train')
    errors = self.info.get('final_error', {}).get('val', {})
    found = {f'final_{k}': errors.get(str(k)) if isinstance(errors, dict)
             else None for k in ks}
    return {
        'seed': self.info.get('seed'),
        'run_id': str(self.info['args'].get('run_id', '')),
        'epochs': len(self.curve),
        'best_epoch': None if opa is None or opa.empty else opa.idxmax(),
        'best_opa': None if opa is None else opa.max(),
        'minutes': seconds / 60 if type(seconds) in (int, float) else None,
        'tensorflow': shown(self.info.get('versions', {}).get(
            'tensorflow', '')),
        'written': time.strftime('%Y-%m-%d %H:%M', time.localtime(
            os.path.getmtime(self.run_path))),
        **{name: float(value) if type(value) in (int, float) else None
           for name, value in found.items()}}


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs that differ only in their seed.

  Attributes:
    name: the model, and how it differs from other groups of that model; no
      two groups have the same name.
    runs: at least one, by seed.
  """
  name: str
  runs: Sequence[Run]


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
    for candidate in _candidates(path, problems):
      try:
        read.append(_read(candidate, problems))
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


def _candidates(path: str, problems: list[str]) -> list[str]:
  """Model folders and run files that a path stands for."""
  full = pathlib.Path(full_path(path))
  if not full.exists():
    problems.append(f'{path}: no such file or folder; name a model folder, a '
                    'run file or a folder of them')
    return []
  if not full.is_dir() or _is_model(full.name):
    return [str(full)]
  found = []
  for parent, folders, names in os.walk(full):
    for name in folders:
      if name.startswith(_RESUME):
        problems.append(f'{parent}/{name}: left by a training that is not '
                        'finished; `train --resume` continues it')
      elif name.endswith(TEMPORARY):
        problems.append(f'{parent}/{name}: a folder that was never finished; '
                        'remove it')
    # A model whose run file is there is found by that file.
    models = {f'{_RUN}{name[len(_MODEL):]}{_RUN_END}': name
              for name in folders if _is_model(name)}
    runs = {name: name for name in names
            if name.startswith(_RUN) and name.endswith(_RUN_END)}
    found += [os.path.join(parent, name)
              for name in sorted({**models, **runs}.values())]
    folders[:] = sorted(name for name in folders if not _is_model(name)
                        and not name.startswith((_RESUME, '.')))
  if not found:
    there = sorted(os.listdir(full))
    has = f'it has {shortened(there, 5)}' if there else 'it is empty'
    problems.append(
        f'{path}: has no run, which is a folder model_<hash> and a file '
        f'run_<hash>.jsonz as `train` or tiles_train.py write them; {has}. '
        'Name the --out_dir of a training')
  return found


def _is_model(name: str) -> bool:
  return re.fullmatch(_MODEL + r'[^.]+', name) is not None


def _read(path: str, problems: list[str]) -> Run:
  """The run of a model folder or a run file.

  Raises:
    UserError: its run file is missing or damaged.
  """
  if os.path.isdir(path):
    run = Run(artifacts.run_path_of(path),
              artifacts.load_run(path, task='').info, path)
  else:
    info = artifacts.read_run_file(path)
    run = Run(path, info, _model_beside(path, info))
  _ = run.kwargs  # Raises if they are damaged.
  if run.model_dir is None:
    problems.append(f'{path}: its model folder is not beside it, so only what '
                    'the run file says is here; copy the folder there')
  if not run.is_finished:
    problems.append(f'{path}: the run is not finished; this is its state at '
                    f'epoch {len(run.curve)}. `train --resume` continues it')
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
    members[_text([run.model, run.kwargs, run.flags])].append(run)
  groups = [sorted(group, key=_by_seed) for group in members.values()]
  labels = _labels([group[0] for group in groups])
  # Long labels are cut, so two of them may be equal.
  return [Group(label if labels.count(label) == 1
                else f'{label} ({labels[:number].count(label) + 1})', group)
          for number, (group, label) in enumerate(zip(groups, labels))]


def _by_seed(run: Run) -> tuple:
  seed = run.info.get('seed')  # The baseline's trainer keeps none.
  return (seed is None, seed or 0, run.info['args'].get('run_id', ''),
          run.run_path)


def shown(value: Any, most: int = 48) -> str:
  """An argument as text; long ones are cut."""
  if isinstance(value, dict) and {'node', 'config'} <= set(value):
    return 'given'  # feature_stats: hundreds of numbers.
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= most else text[:most - 1] + '…'


def _text(value: Any) -> str:
  return json.dumps(value, sort_keys=True)


def _labels(runs: Sequence[Run]) -> list[str]:
  """Each run's model, with up to two arguments that differ, or its hash."""
  labels = []
  for run in runs:
    namesakes = [other for other in runs if other.model == run.model]
    parts = [
        f'{key}={shown(value, 24)}' for part in ('kwargs', 'flags')
        for key, value in sorted(getattr(run, part).items())
        if len({_text(getattr(other, part).get(key, ''))
                for other in namesakes}) > 1]
    labels.append(', '.join([run.model, *parts]) if len(parts) <= 2
                  else f'{run.model} {run.name[:8]}')
  return labels
