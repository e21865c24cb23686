"""The verb `rank`: listed tiles, all legal ones, blocks, or many files."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Iterator

from tpu_graphs_ext.cli import flags
from tpu_graphs_ext.cli.flags import JSON, TASKS, flag, number, path, switch
from tpu_graphs_ext.engine.settings import TOP_CONFIGS, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import SHARD_FILES

_log = logging.getLogger(__name__)

# Files that list no tiles, and functions; what is ranked of them, and how.
_ANY_TILE = (
    path('files', nargs='*', help='rank all legal tiles of its kernels, timed '
         'or not: an .npz, tuning data, HLO as protobuf or text, or '
         'module:function of TensorFlow or JAX'),
    flag('--shapes', default='', metavar='SHAPES', help="of the function's "
         "arguments, such as 'f32[512,1024] bf16[1024]', or the name of a "
         'function in the same module that returns the arguments'),
    flag('--tpu', default='v3', metavar='GENERATION', help='compile for this '
         'generation: v2, v3, v4, v5e, v5p, v6e or v7x. Needs the extra [tpu]'),
    flag('--blocks', default='', metavar='BLOCKS', help='for a function that '
         'is one matrix product: rank the blocks of a Pallas kernel instead of '
         "tiles; bm x bk x bn in elements, such as '128x1024x512 256x512x512', "
         'or `usual` for those that a tuner would try'),
    flag('--jax_python', default='', metavar='PYTHON', help='Python of an '
         'environment with JAX, which lowers functions of JAX and reads HLO '
         'text; empty: this Python'),
    number('--most_tiles', 100_000, 'of a kernel with more legal tiles, rank '
           'an even sample of this size'))
# Flags of `rank` for which workers rank.
_WITH_WORKERS = (
    flag('--workers', type=flags.positive, metavar='N',
         help='rank any number of files with N processes, each on a core of '
         'its own, into --out. FILE and --data may then be folders, patterns '
         'such as "DIR/*.npz", and URLs (gs://, s3://, hdfs://); the same '
         'command continues after an interruption. Needs the extra [scale]'),
    flag('--scheduler', default='', metavar='ADDRESS',
         help='Dask scheduler whose workers rank, such as tcp://HOST:8786; '
         'without --workers all of them. Needs the extra [scale]'),
    path('--out', help='with --workers or --scheduler: the .jsonl or .parquet '
         'to write, one row per kernel; may be a URL'),
    number('--shard_files', SHARD_FILES, 'files that a worker ranks at a time'))


def _rank_flags(task: str) -> Iterator[flags.Flag]:
  yield flags.task_flag(task)
  yield flags.model_flag(task)
  if task == 'tile':
    yield from _ANY_TILE
  yield flags.data_flag(
      task, 'test', 'without FILE, choose from the tiles that these list: '
      if task == 'tile' else '')
  yield number('--top_k', TOP_CONFIGS, metavar='K', help='number of '
               f'{TASKS[task].configs} to list of each {TASKS[task].problem}')
  if task == 'tile':
    yield from _WITH_WORKERS
  yield from flags.of_settings(TASKS[task].loading)
  yield switch('--all', f'list all {TASKS[task].configs}')
  yield JSON
  if task == 'tile':
    yield flag('-v', '--verbose', action='store_true',
               help="with FILE: also print the model's score of each tile")


@flags.verb('list the tiles or layouts that a model predicts to be fastest',
            "my_model.py:step --shapes 'f32[512,1024] f32[1024]' --tpu=v3",
            '--dir latest --data DATA/valid --top_k=3', flags=_rank_flags)
def rank(args: Namespace) -> int:
  args.most = sys.maxsize if args.all else args.top_k
  if args.task == 'tile':
    if _ranks_many(args):
      return _rank_many(args, flags.loading(args))
    if args.blocks:
      return _rank_blocks(args)
    if args.files:
      return _rank_all_tiles(args)
    if args.shapes:
      raise UserError('--shapes goes with module:function; name one')
  from tpu_graphs_ext.engine import rank
  flags.few_threads(args)
  rankings = rank.rank(args.dir, args.data, loading=flags.loading(args),
                       top_k=args.most)
  if args.json:
    flags.print_json([ranking.to_json() for ranking in rankings])
  else:
    print('\n\n'.join(ranking.text() for ranking in rankings))
  return 0


def _rank_blocks(args: Namespace) -> int:
  if len(args.files) != 1:
    raise UserError('--blocks goes with one module:function; '
                    f'{len(args.files)} are named')
  from tpu_graphs_ext.serving import blocks
  ranking = blocks.rank_function(
      args.files[0], args.shapes, args.tpu, blocks.parsed_blocks(args.blocks),
      args.most, args.jax_python)
  if args.json:
    flags.print_json(ranking.to_json())
  else:
    print(ranking.text())
  return 0


def _rank_all_tiles(args: Namespace) -> int:
  _refuse_data_beside_files(args)
  _log.info('loading TensorFlow and the model, about ten seconds ...')
  from tpu_graphs_ext.engine import threads
  from tpu_graphs_ext.serving import tile_search
  threads.one_for_each_operation(threads.RANKING_CORES)
  advice = tile_search.advise(
      args.dir, args.files, shapes=args.shapes, tpu=args.tpu,
      jax_python=args.jax_python, most_tiles=args.most_tiles,
      top_k=None if args.all else args.top_k, loading=flags.loading(args))
  if args.json:
    flags.print_json([one.to_json() for one in advice])
  elif texts := [one.text(args.verbose) for one in advice
                 if one.kernels or one.notes]:
    print('\n\n'.join(texts))
  faults = [fault for one in advice for fault in one.faults]
  for fault in faults:
    print(f'error: {fault}', file=sys.stderr)
  return 1 if faults else 0


def _ranks_many(args: Namespace) -> bool:
  """Whether workers shall rank.

  Raises:
    UserError: a flag is there without the one that it needs.
  """
  if not args.workers and not args.scheduler:
    if args.out:
      raise UserError(
          f'--out={args.out}: goes with --workers, as in --workers 1')
    return False
  if not args.out:
    raise UserError('--workers needs --out; name the .jsonl or .parquet to '
                    'write')
  if args.json:
    raise UserError('--json changes what is printed; name a .jsonl as --out')
  for name in ('shapes', 'blocks', 'jax_python'):
    if getattr(args, name):
      raise UserError(
          f'--{name} goes with module:function; workers rank files')
  _refuse_data_beside_files(args)
  return True


def _refuse_data_beside_files(args: Namespace) -> None:
  """Raises a UserError where `rank` has both --data and FILE."""
  if args.files and args.data:
    raise UserError(
        f'--data={args.data}: ranks the tiles that files list, and '
        f'{args.files[0]} all legal ones; give one of the two')


def _rank_many(args: Namespace, loading: LoadSettings) -> int:
  """Ranks with workers; returns the exit code."""
  from tpu_graphs_ext.sweep import rank_many as ranking
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
