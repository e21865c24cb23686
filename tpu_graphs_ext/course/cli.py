"""The verbs of the assignment: from a checkout to a file for Kaggle."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from tpu_graphs_ext.course import process_limits
from tpu_graphs_ext.engine import settings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import path_flag

_ROOT_HELP = ("the baseline's checkout; empty: what the variable "
              'TPU_GRAPHS_ROOT names')

_RUNS_CODE = (
    'This runs the code of the hand-in, as you: it can read and write your '
    'files, and on Linux the environment variables of your other processes '
    '(/proc). It has no network where the system can take it away, and has '
    'limits of time and memory. Give it only what you would run yourself, or '
    'use an account or container made for it.')


def add_verbs(verbs, add_verb: Callable, add_switch: Callable) -> None:
  """Adds the verbs, each by `add_verb(verbs, name, run, help)`."""
  parser = add_verb(verbs, 'doctor', _doctor,
                    'look over versions, checkout, data, disk and memory')
  _add_root(parser)
  _add_as_in_training(parser, 'data_root')
  add_switch(parser, '--json', 'print JSON instead of text')
  parser = add_verb(verbs, 'install', _install,
                    'put models.py into a checkout of the baseline')
  _add_task(parser)
  _add_root(parser)
  _add_models_py(parser)
  parser = add_verb(verbs, 'uninstall', _uninstall,
                    "put the checkout's own models.py back")
  _add_task(parser)
  _add_root(parser)
  _add_verify(verbs, add_verb, add_switch)
  _add_package(verbs, add_verb, add_switch)
  _add_kaggle_csv(verbs, add_verb)


def _add_verify(verbs, add_verb: Callable, add_switch: Callable) -> None:
  parser = add_verb(verbs, 'verify', _verify,
                    'do with a hand-in what the graders do, and name every '
                    'reason why it fails')
  parser.description += ' ' + _RUNS_CODE
  _add_task(parser)
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument('--model_dir', '--dir', metavar='MODEL_DIR',
                    type=path_flag('--model_dir'),
                    help='folder model_<hash>, its run file beside it')
  what.add_argument('--package', metavar='FILE', type=path_flag('--package'),
                    help='a .zip that `package` wrote')
  _add_place(parser)
  add_switch(parser, '--toy_data', 'grade with the first 100 files of each '
             'split only; of layouts with 5')
  add_switch(parser, '--json', 'print JSON instead of text')


def _add_package(verbs, add_verb: Callable, add_switch: Callable) -> None:
  parser = add_verb(verbs, 'package', _package,
                    'verify a hand-in and pack it into one zip file')
  parser.description += ' ' + _RUNS_CODE
  _add_task(parser)
  parser.add_argument('--model_dir', '--dir', required=True,
                      metavar='MODEL_DIR', type=path_flag('--model_dir'),
                      help='folder model_<hash>, its run file beside it')
  parser.add_argument('--out', default='submission.zip', metavar='FILE',
                      type=path_flag('--out'), help='the .zip to write')
  _add_place(parser)
  add_switch(parser, '--force', 'pack a model that was trained on toy data')


def _add_kaggle_csv(verbs, add_verb: Callable) -> None:
  parser = add_verb(verbs, 'kaggle-csv', _kaggle_csv,
                    "write the competition's file of 894 rows")
  parser.add_argument('--tile', required=True, metavar='CSV',
                      type=path_flag('--tile'), help="a model's predictions")
  parser.add_argument('--layout', action='append', metavar='CSV',
                      type=path_flag('--layout'),
                      help='layout rows; may be given several times; not '
                           "given: those of the sample or the files' order")
  parser.add_argument('--out', required=True, metavar='FILE',
                      type=path_flag('--out'), help='the CSV to write')
  parser.add_argument(
      '--sample', default='', metavar='CSV',
      help="the course's sample_submission.csv, which names the rows; empty: "
           'they follow from the data')
  parser.add_argument(
      '--data_root', default='', metavar='DATA_ROOT',
      help='folder with the split test, to check indices against; empty: '
           f'unchecked with a sample, else {settings.DATA_ROOT}')
  parser.add_argument(
      '--layout_root', default='', metavar='DIR',
      help='the same for the layout collection; empty: unchecked with a '
           'sample, else ~/data/tpugraphs/npz/layout')


def _add_place(parser: argparse.ArgumentParser) -> None:
  """Flags of what it takes to grade."""
  _add_models_py(parser)
  _add_root(parser)
  _add_as_in_training(parser, 'data_root')
  _add_as_in_training(parser, 'cache_dir')
  parser.add_argument('--time_limit', type=float, metavar='MINUTES',
                      default=process_limits.DEFAULT_MINUTES,
                      help='time that the code of the hand-in may take in all')


def _add_task(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--task', default='tile', choices=('tile', 'layout'),
                      help='whose models: those of tiles_train.py, or of '
                      'layout_train.py')


def _add_models_py(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--models_py', default='', metavar='FILE',
                      help="the models.py to hand in; empty: the package's")


def _add_root(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--root', default='', metavar='CHECKOUT',
                      help=_ROOT_HELP)


def _add_as_in_training(parser: argparse.ArgumentParser, name: str) -> None:
  """A flag of `train`, of a path, with the same default and help."""
  field = settings.training_field(name)
  parser.add_argument('--' + name, default=field.default,
                      type=path_flag('--data_root') if name == 'data_root'
                      else str, metavar=name.upper(),
                      help=field.metadata['help'])


# ------------------------------------------------------------------ verbs


def _doctor(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.course import doctor
  diagnosis = doctor.doctor(args.root, args.data_root)
  return _report(diagnosis, args.json)


def _install(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.course import swap
  print(swap.install(args.root, args.models_py, args.task))
  return 0


def _uninstall(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.course import swap
  print(swap.uninstall(args.root, args.task))
  return 0


def _verify(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.course import verify, verify_layout, zip_file
  check = {'tile': verify.verify,
           'layout': verify_layout.verify_layout}[args.task]
  if args.package is None:
    return _report(check(
        args.model_dir, **_place(args), toy_data=args.toy_data), args.json)
  if args.models_py:
    raise UserError('--models_py: a package has its own; leave one of '
                    '--package and --models_py out')
  with tempfile.TemporaryDirectory(prefix='package_') as folder:
    model_dir, models_py = zip_file.unpack(args.package, folder)
    place = {**_place(args), 'models_py': models_py}
    return _report(check(
        model_dir, **place, toy_data=args.toy_data), args.json)


def _package(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.course import zip_file
  verdict = zip_file.package(args.model_dir, args.out, **_place(args),
                            force=args.force, task=args.task)
  print(verdict.text())
  print(args.out)
  return 0


def _place(args: argparse.Namespace) -> dict[str, Any]:
  place = {name: getattr(args, name)
           for name in ('models_py', 'root', 'data_root', 'cache_dir',
                        'time_limit')}
  if args.task == 'layout':  # Read by the baseline alone, without its cache.
    from tpu_graphs_ext.course import verify_layout
    del place['cache_dir']
    if place['data_root'] == settings.DATA_ROOT:
      place['data_root'] = verify_layout.DATA_ROOT
  return place


def _kaggle_csv(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.course import kaggle
  print(kaggle.kaggle_csv(
      args.tile, args.out, layout=args.layout or (), sample=args.sample,
      data_root=args.data_root, layout_root=args.layout_root).text())
  return 0


def _report(result, as_json: bool) -> int:
  """Prints; 1 if something is broken."""
  text = (json.dumps(result.to_json(), indent=2, ensure_ascii=False)
          if as_json else result.text())
  encoding = sys.stdout.encoding or 'ascii'
  print(text.encode(encoding, 'replace').decode(encoding))
  return 0 if result.ok else 1
