"""The verb `report`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.files import path_flag
from tpu_graphs_ext.report import KERNELS


def add_verbs(verbs, add_verb: Callable, add_settings: Callable,
              given: Callable) -> None:
  """Adds the verb by `add_verb(verbs, name, run, help)`.

  Args:
    verbs: of the parser.
    add_verb: see above.
    add_settings: called with a parser and a class of settings, adds flags.
    given: called with the arguments and that class, gives the settings.
  """
  def run(args: argparse.Namespace) -> int:
    return _report(args, given(args, LoadSettings))

  parser = add_verb(verbs, 'report', run,
                    'write a page that compares training runs and shows where '
                    'they err')
  parser.add_argument(
      'runs', nargs='+', metavar='RUN', type=path_flag('RUN'),
      help='model folder, run file, or a folder of them')
  parser.add_argument('--out', default='report.html', metavar='FILE',
                      type=path_flag('--out'), help='the .html to write')
  parser.add_argument(
      '--data', default='', metavar='PATH',
      help='labelled kernels: a folder of .npz files, one .npz or a .pb; '
           'empty: valid of --data_root, or without that flag of the data '
           'root that the runs were trained on')
  parser.add_argument(
      '--task', default='', choices=('', 'tile', 'layout'),
      help='whose runs are reported; empty: those that are there, if they are '
           'of one task')
  parser.add_argument(
      '--kernels', default=KERNELS, metavar='N', type=_number,
      help='how many of the worst and of the best kernels of each group of '
           'runs are shown one by one; 0: none')
  add_settings(parser, LoadSettings)


def _number(text: str) -> int:
  if not (text.isascii() and text.isdigit()):
    raise argparse.ArgumentTypeError(f'must be 0 or more; got {text!r}')
  return int(text)


def _report(args: argparse.Namespace, loading: LoadSettings) -> int:
  from tpu_graphs_ext.report import report
  print(report.report(args.runs, out=args.out, data=args.data,
                      num_kernels=args.kernels, task=args.task,
                      loading=loading))
  return 0
