"""The flags of `rank` that give its work to workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import path_flag
from tpu_graphs_ext.host.settings import LoadSettings
from tpu_graphs_ext.sweep import parts


def add_flags(parser: argparse.ArgumentParser,
              positive: Callable[[str], int]) -> None:
  """Adds them; `positive` reads a number of at least 1."""
  parser.add_argument(
      '--workers', type=positive, metavar='N',
      help='rank files in any number by so many processes, each on a core of '
           'its own, into --out. FILE and --data may then be folders, '
           'patterns as "DIR/*.npz", and URLs (gs://, s3://, hdfs://); what '
           'was broken off goes on by the same command')
  parser.add_argument(
      '--scheduler', default='', metavar='ADDRESS',
      help='of a Dask cluster that has the workers, as tcp://HOST:8786; '
           'without --workers all of them. Needs the extra [scale]')
  parser.add_argument(
      '--out', metavar='FILE', type=path_flag('--out'),
      help='with --workers or --scheduler: the .jsonl or .parquet to write, a '
           'row a kernel; also a URL')
  parser.add_argument(
      '--shard_files', default=parts.SHARD_FILES, type=positive,
      metavar='N', help='files that a worker ranks at a time')


def is_asked(args: argparse.Namespace) -> bool:
  """Whether workers shall rank.

  Raises:
    UserError: a flag is there without its other.
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


def rank(args: argparse.Namespace, loading: LoadSettings) -> int:
  """Ranks by workers; returns the exit code."""
  from tpu_graphs_ext.sweep import rank_many
  if args.files and args.data:
    raise UserError(f'--data={args.data}: ranks the tiles that files list, and '
                    f'{args.files[0]} all that are legal; give one of the two')
  summary = rank_many.rank_many(
      args.dir, args.files or [args.data or f'{loading.data_root}/test'],
      args.out, all_tiles=bool(args.files),
      top_k=None if args.all else args.top_k, most_tiles=args.most_tiles,
      tpu=args.tpu, workers=args.workers or 0, scheduler=args.scheduler,
      shard_files=args.shard_files, loading=loading)
  print(summary.text())
  told = summary.contents
  for message in told.messages:
    print(f'error: {message}', file=sys.stderr)
  if told.errors > len(told.messages):
    print(f'error: and {told.errors - len(told.messages):,} more, in the rows '
          f'of {args.out}', file=sys.stderr)
  return 1 if told.errors else 0
