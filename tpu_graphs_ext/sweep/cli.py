"""The verb `sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tpu_graphs_ext.files import full_path, path_flag


def add_verbs(verbs, add_verb: Callable, add_switch: Callable) -> None:
  """Adds the verb by `add_verb(verbs, name, run, help)`."""
  parser = add_verb(verbs, 'sweep', _sweep,
                    'train many models: all of a grid, or what a search draws')
  parser.add_argument('grid', metavar='GRID.json', type=path_flag('GRID.json'),
                      help='models, arguments, settings, seeds and data roots')
  parser.add_argument(
      '--out', required=True, metavar='DIR', type=path_flag('--out'),
      help='folder for runs and leaderboard; the same command goes on with '
           'what is in it')
  add_workers(parser)
  add_switch(parser, '--retry_failed', 'also do failed trials again')


def add_workers(parser: argparse.ArgumentParser) -> None:
  """The flags that say who works."""
  parser.add_argument(
      '--workers', default=0, type=_number, metavar='N',
      help='processes at a time, which share the cores; 0: one, or as many as '
           'the cluster has workers')
  parser.add_argument(
      '--scheduler', default='', metavar='ADDRESS',
      help='of a Dask cluster, as tcp://10.0.0.5:8786; empty: processes of '
           'this machine. Needs the extra [scale]')


def _number(text: str) -> int:
  if not (text.isascii() and text.isdigit()):
    raise argparse.ArgumentTypeError(f'must be 0 or more; got {text!r}')
  return int(text)


def _sweep(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.sweep import sweep
  board = sweep.sweep(args.grid, args.out, workers=args.workers,
                      scheduler=args.scheduler, retry_failed=args.retry_failed)
  print(sweep.text(board, full_path(args.out)))
  return 0 if board.best else 1
