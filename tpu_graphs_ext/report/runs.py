"""Finds training runs, and groups those that differ only in their seed."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import pathlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd

from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.engine.settings import parse_model_kwargs
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import full_path
from tpu_graphs_ext.tasks import of_run

# Arguments that name files or number repetitions; they do not change training.
_NOT_TRAINED = ('model', 'model_kwargs_json', 'out_dir', 'results_csv',
                'run_id', 'test_mode')


class Run:
  """One training run; UserError if its arguments are damaged.

  Attributes:
    name: of its run file, without 'run_' and the ending.
    model, kwargs, flags: class, arguments, and what else it was trained with.
    settings: of this package's `train`; empty for a run of the baseline's.
    curve: train_loss, train_opa, val_loss and val_opa by epoch, from 1; empty
      if the run file has them only in part. NaN where not finite in float32.
  """

  def __init__(self, run_path: str, info: dict[str, Any],
               model_dir: Optional[str]):
    self.run_path, self.info = run_path, info
    self.model_dir = model_dir  # None if there is only the run file.
    name = os.path.basename(run_path)
    self.name = name.removeprefix('run_').split('.jsonz')[0]
    args, self.settings = info['args'], info.get('settings', {})
    self.task, self.model = of_run(info, run_path), args['model']
    self.kwargs = parse_model_kwargs(args['model_kwargs_json'])
    self.flags = {
        **{key: value for key, value in sorted(args.items())
           if key not in _NOT_TRAINED},
        **{key: self.settings[key] for key in (
            'data_root', 'toy_data', 'lr_schedule', 'list_size')
           if key in self.settings},
        **{name: str(of.get(key))[:8] for name, of, key in (
            ('models.py', info.get('models_py', {}), 'sha256'),
            ('train files', info.get('data', {}), 'train')) if key in of},
        'host': info.get('host', "the baseline's script")}
    self.models_py = ''  # The file to load its class from, if one is named.
    self.written = 0.0  # Time of its run file, which may be gone by now.
    try:
      curve = pd.DataFrame(info.get('train_curve', {}), dtype=float)
    except (ValueError, TypeError):
      curve = pd.DataFrame()
    self.curve = curve.drop(columns='epoch', errors='ignore').set_axis(
        pd.RangeIndex(1, len(curve) + 1, name='epoch'))
    self.curve = self.curve.where(self.curve.abs() <= np.finfo(np.float32).max)

  def record(self, ks: Iterable[int]) -> dict[str, Any]:
    """What the run file says, a cell for each column of the tables of runs.

    `ks` are numbers of configurations to try, of the slowdowns `final_<k>`.
    """
    opa = self.curve.get('val_opa', pd.Series(dtype=float)).dropna()
    seconds = self.info.get('seconds', {}).get('train')
    errors = self.info.get('final_error', {}).get('val', {})
    return {
        'seed': self.info.get('seed'), 'epochs': len(self.curve),
        'best_epoch': None if opa.empty else opa.idxmax(),
        'best_opa': opa.max(), 'minutes': seconds and seconds / 60,
        'written': time.strftime(
            '%Y-%m-%d %H:%M', time.localtime(self.written)),
        **{f'final_{k}': errors.get(str(k)) for k in ks}}


class Group(NamedTuple):
  """Runs that differ only in their seed, by seed, and their unique name."""
  name: str
  runs: Sequence[Run]


def find(paths: Sequence[str], models_py: Sequence[str] = ()
         ) -> tuple[list[Run], list[str]]:
  """The runs that paths name, and what was wrong with others.

  Paths are model folders, run files, or folders of them, at any depth; each may
  have a file with the classes of its runs. Raises UserError without a single
  run, or with runs of both tasks.
  """
  runs, problems = {}, []
  for path, file in itertools.zip_longest(paths, models_py, fillvalue=''):
    read, run_paths = [], _run_paths(path)
    if not run_paths:
      problems.append(f'{path}: has no file run_<hash>.jsonz')
    for run_path in run_paths:
      try:
        read.append(_read(run_path, problems))
      except UserError as error:
        problems.append(str(error))
    # The names of runs are hashes, whose order means nothing.
    for run in sorted(read, key=lambda run: (run.model, run.name)):
      run.models_py = file
      runs.setdefault(os.path.realpath(run.run_path), run)
  if not runs:
    raise UserError('\n  '.join(
        ['there is no run to report; name the --out_dir of a training:',
         *problems]))
  if len(names := sorted({run.task.name for run in runs.values()})) > 1:
    raise UserError(f'the runs are of two tasks, {" and ".join(names)}; name '
                    'folders or runs of one')
  return list(runs.values()), list(dict.fromkeys(problems))


def _run_paths(path: str) -> list[str]:
  full = pathlib.Path(full_path(path))
  if full.name.startswith('model_'):
    return [artifacts.run_path_of(str(full))]
  if not full.is_dir():
    return [str(full)]
  of_models = {  # One that is missing is named.
      pathlib.Path(artifacts.run_path_of(str(saved.parent)))
      for saved in full.rglob('model_*/saved_model.pb')
      if '.' not in saved.parent.name}
  return [str(run_path)
          for run_path in sorted({*full.rglob('run_*.jsonz'), *of_models})
          if not any(part.startswith(('.', 'resume_', 'model_'))
                     for part in run_path.relative_to(full).parts)]


def _read(path: str, problems: list[str]) -> Run:
  """The run of a run file; raises UserError if it is missing or damaged."""
  info = artifacts.read_run_file(path)
  run = Run(path, info, None)
  with contextlib.suppress(OSError):
    run.written = os.path.getmtime(path)
  artifacts.check_run(path, info, run.task)
  model_dir = os.path.join(os.path.dirname(path), f'model_{run.name}')
  if os.path.isdir(model_dir):
    run.model_dir = model_dir
  else:
    problems.append(f'{path}: its model folder is not beside it, so only what '
                    'the run file says is here; copy the folder there')
  if nothing := [key for key in run.curve if run.curve[key].isna().all()]:
    problems.append(f'{path}: its {" and ".join(nothing)} have no finite value,'
                    ' so they are not drawn')
  if not info.get('final_error'):  # Trainers measure their best model at last.
    problems.append(f'{path}: the run is not finished; this is its state at '
                    f'epoch {len(run.curve)}' + (
                        '. `train --resume` continues it' if run.settings else
                        "; the baseline's trainer cannot continue one, only "
                        'train again'))
  return run


def grouped(runs: Iterable[Run]) -> list[Group]:
  """Groups in the order of their first run."""
  members = collections.defaultdict(list)
  for run in runs:
    members[_text([run.model, run.kwargs, run.flags])].append(run)
  # The baseline's trainer keeps no seed.
  groups = [sorted(group, key=lambda run: (
      str(run.info.get('seed')).zfill(10), run.name))
            for group in members.values()]
  labels = [_label(group[0], [other[0] for other in groups])
            for group in groups]
  names = short_names([run for group in groups for run in group])
  return [Group(label if labels.count(label) == 1 and len(label) <= 60
                else f'{group[0].model} {names[group[0]]}', group)
          for group, label in zip(groups, labels)]


def short_names(runs: Sequence[Run]) -> dict[Run, str]:
  """The first 8 characters of each name; the whole name where these are not
  unique, and where that is not, the run file's path."""
  ways = [(run.name[:8], run.name, run.run_path) for run in runs]
  counts = collections.Counter(name for way in ways for name in {*way})
  return {run: next((name for name in way if counts[name] == 1), way[-1])
          for run, way in zip(runs, ways)}


def _label(run: Run, others: Sequence[Run]) -> str:
  """Its model, with the arguments that differ from others of that model."""
  namesakes = [other for other in others if other.model == run.model]
  return ', '.join([run.model, *(
      f'{key}={shown(value)}' for part in ('kwargs', 'flags')
      for key, value in sorted(getattr(run, part).items())
      if len({_text(getattr(other, part).get(key, ''))
              for other in namesakes}) > 1)])


def shown(value: Any) -> str:
  """An argument as text."""
  if isinstance(value, dict) and {'node', 'config'} <= set(value):
    return 'given'  # feature_stats: hundreds of numbers.
  return value if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
  return json.dumps(value, sort_keys=True)
