"""The verb `rank`: listed tiles, all legal ones, blocks, or many files."""

from __future__ import annotations

import json
import logging
import os
from argparse import Namespace
from collections.abc import Iterator

from tpu_graphs_ext.cli import flags
from tpu_graphs_ext.cli.flags import JSON, flag, path, positive, switch
from tpu_graphs_ext.data.schema import DEFAULT_TPU
from tpu_graphs_ext.engine import pretrained, threads
from tpu_graphs_ext.engine.settings import TOP_CONFIGS
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import check_folder, full_path, require_new
from tpu_graphs_ext.hlo import libtpu
from tpu_graphs_ext.tasks import ShippedTask

_log = logging.getLogger(__name__)
_OF_TILES = (
    path('files', 'FILE', 'rank all legal tiles of its kernels, timed or not: '
         'an .npz, tuning data, HLO as protobuf or text, a SavedModel, or '
         'module:function of TensorFlow or JAX', nargs='*'),
    *flags.of_programs(
        'compile and rank for this generation',
        "; empty: that of the pretrained model, which without FILE is sample "
        "data's, else v3"),
    flag('--blocks', 'BLOCKS', 'for a function that is one matrix product: '
         'rank the blocks of a Pallas kernel instead of tiles; bm x bk x bn in '
         "elements, such as '128x1024x512 256x512x512', or `usual` for those "
         'that a tuner would try', ''),
    flag('--vmem_limit', 'MIB', 'with --blocks: on-chip memory that they may '
         'take; without it what the compiler gives a kernel that asks for '
         'nothing, 16 or 32 MiB', type=float),
    switch('--check', 'with --blocks: compile the listed ones, each in a '
           'Pallas kernel of ours. Needs JAX and the extra [tpu]'),
    flag('--workers', 'N', 'rank any number of files with N processes, each on '
         'a core of its own, into --out. FILE and --data may then be folders, '
         'patterns such as "DIR/*.npz", and URLs (gs://, s3://, hdfs://); the '
         'same command continues after an interruption. Needs the extra '
         '[scale]', type=positive),
    flag('--scheduler', 'ADDRESS', 'Dask scheduler whose workers rank, such as '
         'tcp://HOST:8786; without --workers all of them. Needs the extra '
         '[scale]', ''),
    path('--modules', 'DIR', 'also write each listed tile, and the default, as '
         'an HLO module of the kernel alone, to be timed on a TPU; see '
         'docs/ranking.md'),
    path('--out', 'FILE', 'with --workers or --scheduler: the .jsonl to write, '
         'one row per kernel'))


def _flags(task: ShippedTask) -> Iterator[flags.Flag]:
  yield flags.TASK
  yield flags.any_model_flag(task)
  yield flags.data_flag(
      task, 'test', 'without FILE, choose from the tiles that these list: '
      if task.has_geometry else '')
  yield flag('--top_k', 'K', 'number of tiles or layouts to list of each '
             'kernel or program', TOP_CONFIGS, type=positive)
  yield switch('--all', 'list all of them')
  yield JSON
  if task.has_geometry:
    yield from _OF_TILES
  yield from flags.of_settings(task.loading)


@flags.verb('list the tiles or layouts that a model predicts to be fastest',
            "my_model.py:step --shapes 'f32[512,1024] f32[1024]' --tpu=v3",
            '--dir latest --data DATA/valid --top_k=3', flags=_flags)
def rank(args: Namespace) -> int | None:
  args.top_k = None if args.all else args.top_k
  if flags.task_of(args).has_geometry:
    _check(args)
    [args.dir] = flags.models_for([args.dir], args.tpu, '' if args.files else (
        args.data or flags.loading(args).data_root))
    args.tpu = libtpu.generation(
        args.tpu or pretrained.tpu_of(args.dir) or DEFAULT_TPU)
    if args.out:
      return _with_workers(args)
    if args.blocks:
      return _blocks(args)
    if args.files:
      return _all_tiles(args)
  flags.few_threads(args)
  from tpu_graphs_ext.tasks import api
  rankings = api.rank(args.dir, args.data, loading=flags.loading(args),
                      top_k=args.top_k)
  flags.show(args, lambda: [ranking.to_json() for ranking in rankings],
             lambda: '\n\n'.join(ranking.text() for ranking in rankings))


def _check(args: Namespace) -> None:
  """Raises a UserError for flags that do not go together."""
  many = bool(args.workers or args.scheduler)
  for is_wrong, rule in (
      (args.files and args.data,
       f'--data={args.data}: ranks the tiles that files list, FILE all legal '
       'ones; give one of the two'),
      (many != bool(args.out), '--workers needs --out, and --out goes with '
       '--workers: name the .jsonl to write'),
      (many and (args.json or args.shapes or args.blocks),
       'workers rank files into --out: leave out --json, --shapes, --blocks'),
      (args.blocks and len(args.files) != 1,
       '--blocks goes with one module:function'),
      ((args.check or args.vmem_limit is not None) and not args.blocks,
       '--check and --vmem_limit go with --blocks'),
      (args.shapes and not args.files, '--shapes goes with module:function'),
      (args.modules and (not args.files or many or args.blocks),
       '--modules goes with FILE')):
    if is_wrong:
      raise UserError(rule)
  if args.modules:
    require_new('--modules', args.modules)
    check_folder('--modules', os.path.dirname(full_path(args.modules)))


def _blocks(args: Namespace) -> None:
  from tpu_graphs_ext.serving import blocks
  ranking = blocks.rank_function(
      args.files[0], args.shapes, args.tpu, args.blocks, args.top_k,
      args.jax_python, args.vmem_limit, args.check)
  flags.show(args, ranking.to_json, ranking.text)


def _all_tiles(args: Namespace) -> int:
  from tpu_graphs_ext.hlo import kernel_sources
  pretrained.require_folder(args.dir)  # Before TensorFlow loads.
  opened = kernel_sources.open_all(
      args.files, args.shapes, args.tpu, args.jax_python)
  failed = [source for source in opened if source.faults]
  if len(failed) == len(opened):  # Nothing to load TensorFlow for.
    if args.json:
      print(json.dumps([{
          'source': source.name, 'notes': [], 'faults': source.faults,
          'kernels': [], 'report': []} for source in failed], indent=2),
            file=args.stdout)
    return flags.failed([fault for source in failed for fault in source.faults])
  with flags.progress(args.tpu) as progress, kernel_sources.compiling(
      opened, progress) as sources:
    flags.few_threads(args)
    from tpu_graphs_ext.serving import tile_search
    rankings = tile_search.rank_sources(
        args.dir, sources, top_k=args.top_k, loading=flags.loading(args),
        alone=bool(args.modules))
    compiled = [source.result() for source in sources]
  faults = [fault for ranking in rankings for fault in ranking.faults]
  shown = [ranking for ranking in rankings if ranking.kernels or ranking.notes]
  try:
    if args.json or shown:
      flags.show(args, lambda: [ranking.to_json() for ranking in rankings],
                 lambda: '\n\n'.join(ranking.text(args.verbose)
                                     for ranking in shown))
  except OSError:  # Nobody reads the list to its end, as with `| head`.
    if not args.modules:
      raise
  if args.modules:
    faults += _modules(args, compiled, rankings)
  return flags.failed(faults)


def _modules(args: Namespace, compiled: list, rankings: list) -> list[str]:
  """Writes --modules; a message for each that is not written."""
  from tpu_graphs_ext.hlo import kernel_modules
  _log.info('%s: compiling each tile ...', args.modules)
  try:
    count, faults = kernel_modules.write(
        args.modules, compiled, rankings, args.tpu, threads.cores())
  except UserError as error:
    return [str(error)]
  _log.info('%s: %d modules, each with its tile read back', args.modules, count)
  return faults


@flags.verb(
    "list a program's kernels as the TPU compiler reports them: time, tile, "
    'FLOPs, bytes',
    "my_model.py:step --shapes 'f32[512,1024] f32[1024]' --tpu=v5e",
    'dump.hlo.pb --tpu=v6e --csv', flags=[
        path('files', 'PROGRAM', 'HLO as protobuf or text, StableHLO, a '
             'SavedModel, or module:function of TensorFlow or JAX', nargs='+'),
        *flags.of_programs(), JSON,
        switch('--csv', 'print CSV instead of text')])
def kernels(args: Namespace) -> int:
  from tpu_graphs_ext.hlo import kernel_sources
  from tpu_graphs_ext.serving import compiler_report
  reports, faults = [], []
  with flags.progress(args.tpu) as progress:
    for opened in kernel_sources.open_all(
        args.files, args.shapes, args.tpu, args.jax_python):
      source = kernel_sources.tried(
          opened.name, lambda opened=opened: compiler_report.with_program(
              kernel_sources.compiled(opened, progress)))
      faults += source.faults if not source.kernels else []
      reports.append(compiler_report.report_of(source))
  reports = [report for report in reports if report.kernels or report.notes]
  if args.csv:
    print(compiler_report.to_csv(reports), end='')
  elif args.json or reports:
    flags.show(args, lambda: [report.to_json() for report in reports],
               lambda: '\n\n'.join(report.text() for report in reports))
  return flags.failed(faults)


def _with_workers(args: Namespace) -> int:
  from tpu_graphs_ext.sweep import rank_many
  loading = flags.loading(args)
  summary = rank_many.rank_many(
      args.dir, args.files or [args.data or f'{loading.data_root}/test'],
      args.out, all_tiles=bool(args.files),
      top_k=args.top_k, tpu=args.tpu, workers=args.workers or 0,
      scheduler=args.scheduler, jax_python=args.jax_python, loading=loading)
  print(summary.text)
  return flags.failed(summary.errors)
