"""The verbs of the assignment: from a checkout to a file for Kaggle."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from typing import Any

from tpu_graphs_ext.cli import flags
from tpu_graphs_ext.cli.flags import JSON, flag, path
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TASKS, TILE

_RUNS_CODE = (
    'This runs the code of the hand-in, as you, for a limited time. The line '
    '"confined:" says whether it can reach your files, network and processes; '
    'it can forge the verdict. Give it only what you would run yourself, or '
    'use an account or container made for it.')
_TASK = flag('--task', None, 'whose models.py', TILE.name, choices=tuple(TASKS))
_MODELS_PY = flag('--models_py', 'FILE',
                  "the models.py to hand in; empty: the package's", '')
_ROOT = flag('--root', 'CHECKOUT', "the baseline's checkout; empty: what the "
             'variable TPU_GRAPHS_ROOT names', '')
_OF_TRAINING = {names[0]: (names, options) for names, options
                in flags.of_settings(TILE.training)}
_DATA_ROOT = _OF_TRAINING['--data_root']
# What it takes to grade.
_PLACE = (
    _MODELS_PY, _ROOT, _DATA_ROOT, _OF_TRAINING['--cache_dir'],
    flag('--time_limit', 'MINUTES', 'time that the code of the hand-in may '
         'take in all', checkout.TIME_LIMIT_MINUTES, type=float))


@flags.verb('check versions, checkout and data',
            '--root ~/tpu_graphs', '--data_root=DATA --json',
            flags=[_ROOT, _DATA_ROOT, JSON])
def doctor(args: Namespace) -> int:
  from tpu_graphs_ext.course import doctor
  diagnosis = doctor.doctor(args.root, args.data_root)
  flags.show(args, diagnosis.to_json, diagnosis.text)
  return 0 if diagnosis.ok else 1


@flags.verb('put models.py into a checkout of the baseline',
            '--root ~/tpu_graphs', '--models_py my_models.py',
            flags=[_TASK, _ROOT, _MODELS_PY])
def install(args: Namespace) -> None:
  from tpu_graphs_ext.course import swap
  print(swap.install(args.root, args.models_py, flags.task_of(args)))


@flags.verb("put the checkout's own models.py back", '--root ~/tpu_graphs',
            '--task=layout', flags=[_TASK, _ROOT])
def uninstall(args: Namespace) -> None:
  from tpu_graphs_ext.course import swap
  print(swap.uninstall(args.root, flags.task_of(args)))


@flags.verb(
    'do with a hand-in what the graders do, and name every reason why it fails',
    '--model_dir out/model_1a2b', '--package submission.zip', more=_RUNS_CODE,
    flags=[flags.model_flag('--model_dir --dir'),
           path('--package', 'FILE', 'or a .zip that `package` wrote'),
           *_PLACE, JSON])
def verify(args: Namespace) -> int:
  from tpu_graphs_ext.course import verify, zip_file
  place = _place(args)
  if bool(args.package) == bool(args.model_dir) or (
      args.package and args.models_py):
    raise UserError('name --model_dir, or --package, which has its own '
                    'models.py')
  with tempfile.TemporaryDirectory(prefix='package_') as folder:
    if args.package:
      args.model_dir, place['models_py'] = zip_file.unpack(args.package, folder)
    verdict = verify.verify(args.model_dir, **place)
  flags.show(args, verdict.to_json, verdict.text)
  return 0 if verdict.ok else 1


@flags.verb(
    'verify a hand-in and pack it into one zip file',
    '--model_dir out/model_1a2b',
    '--model_dir out/model_1a2b --out hand_in.zip', more=_RUNS_CODE,
    flags=[flags.model_flag('--model_dir --dir', required=True),
           path('--out', 'FILE', 'the .zip to write', 'submission.zip'),
           *_PLACE])
def package(args: Namespace) -> None:
  from tpu_graphs_ext.course import zip_file
  verdict = zip_file.package(args.model_dir, args.out, **_place(args))
  print(f'{verdict.text()}\n{args.out}')


def _place(args: Namespace) -> dict[str, Any]:
  return {name[2:]: getattr(args, name[2:]) for [name], _ in _PLACE}


@flags.verb(
    "write the competition's file of 894 rows",
    '--tile predictions.csv --sample sample_submission.csv --out kaggle.csv',
    '--tile a.csv --layout b.csv --sample sample_submission.csv --out k.csv',
    flags=[
        path('--tile', 'CSV', "a model's predictions", required=True),
        path('--layout', 'CSV', 'layout rows; several may be given; not given: '
             'those of the sample', [], nargs='+', action='extend'),
        path('--out', 'FILE', 'the CSV to write', required=True),
        path('--sample', 'CSV', "the course's sample_submission.csv, which "
             'names the rows', required=True)])
def kaggle_csv(args: Namespace) -> None:
  from tpu_graphs_ext.course import kaggle
  print(kaggle.kaggle_csv(
      args.tile, args.out, layout=args.layout, sample=args.sample))
