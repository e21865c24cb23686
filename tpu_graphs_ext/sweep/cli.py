"""The verb `sweep`, and the flags of `rank` that name workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import full_path, path_flag
from tpu_graphs_ext.sweep import SHARD_FILES


def add_verbs(verbs, add_verb: Callable, add_switch: Callable) -> None:
  """Adds the verb by `add_verb(verbs, name, run, help)`."""
  parser = add_verb(verbs, 'sweep', _sweep,
                    'train many models: a whole grid, or what a search draws')
  parser.add_argument('grid', metavar='GRID.json', type=path_flag('GRID.json'),
                      help='models, arguments, settings, seeds and data roots')
  parser.add_argument(
      '--out', required=True, metavar='DIR', type=path_flag('--out'),
      help='folder for runs and leaderboard; the same command continues what '
           'is in it')
  parser.add_argument(
      '--workers', default=0, type=_number, metavar='N',
      help='number of processes, which share the cores; 0: one, or as many as '
           'the cluster has workers')
  parser.add_argument(
      '--scheduler', default='', metavar='ADDRESS',
      help='Dask scheduler, as tcp://10.0.0.5:8786; empty: processes of this '
           'machine')
  add_switch(parser, '--retry_failed', 'also repeat failed trials')


def add_rank_flags(parser: argparse.ArgumentParser,
                   positive: Callable[[str], int]) -> None:
  """Adds flags to `rank`; `positive` reads a number of at least 1."""
  parser.add_argument(
      '--workers', type=positive, metavar='N',
      help='rank any number of files by N processes, each on a core of its '
           'own, into --out. FILE and --data may then be folders, patterns '
           'such as "DIR/*.npz", and URLs (gs://, s3://, hdfs://); the same '
           'command continues an interrupted one. Needs the extra [scale]')
  parser.add_argument(
      '--scheduler', default='', metavar='ADDRESS',
      help='Dask scheduler whose workers rank, as tcp://HOST:8786; without '
           '--workers all of them. Needs the extra [scale]')
  parser.add_argument(
      '--out', metavar='FILE', type=path_flag('--out'),
      help='with --workers or --scheduler: the .jsonl or .parquet to write, '
           'one row per kernel; also a URL')
  parser.add_argument(
      '--shard_files', default=SHARD_FILES, type=positive, metavar='N',
      help='files that a worker ranks at a time')


def _number(text: str) -> int:
  if not (text.isascii() and text.isdigit()):
    raise argparse.ArgumentTypeError(f'must be 0 or more; got {text!r}')
  return int(text)


def _sweep(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.sweep import sweep
  board = sweep.sweep(args.grid, args.out, workers=args.workers,
                      scheduler=args.scheduler, retry_failed=args.retry_failed)
  print(board.text(full_path(args.out)))
  return 0 if board.best else 1


def ranks_many(args: argparse.Namespace) -> bool:
  """Whether workers shall rank.

  Raises:
    UserError: a flag is there without the one that it needs.
  """
  asked = bool(args.workers or args.scheduler)
  if args.out and not asked:
    raise UserError(f'--out={args.out}: goes with --workers, as in --workers 1')
  if not asked:
    return False
  if not args.out:
    raise UserError('--workers needs --out; name the .jsonl or .parquet to '
                    'write')
  if args.json:
    raise UserError('--json is of what is printed; name a .jsonl as --out')
  for flag in ('shapes', 'blocks', 'jax_python'):
    if getattr(args, flag):
      raise UserError(
          f'--{flag} goes with module:function; workers rank files')
  return True


def rank_many(args: argparse.Namespace, loading: LoadSettings) -> int:
  """Ranks by workers; returns the exit code."""
  from tpu_graphs_ext.sweep import rank_many as ranking
  if args.files and args.data:
    raise UserError(f'--data={args.data}: ranks the tiles that files list, and '
                    f'{args.files[0]} all that are legal; give one of the two')
  summary = ranking.rank_many(
      args.dir, args.files or [args.data or f'{loading.data_root}/test'],
      args.out, all_tiles=bool(args.files),
      top_k=None if args.all else args.top_k, most_tiles=args.most_tiles,
      tpu=args.tpu, workers=args.workers or 0, scheduler=args.scheduler,
      shard_files=args.shard_files, loading=loading)
  print(summary.text())
  for message in summary.messages:
    print(f'error: {message}', file=sys.stderr)
  if summary.errors > len(summary.messages):
    print(f'error: and {summary.errors - len(summary.messages):,} more, in the '
          f'rows of {args.out}', file=sys.stderr)
  return 1 if summary.errors else 0
