"""Runs compared, many trainings, traces of a GPU."""

from __future__ import annotations

import argparse
from argparse import Namespace

from tpu_graphs_ext.cli import flags
from tpu_graphs_ext.cli.flags import JSON, flag, not_negative, path, switch
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import full_path
from tpu_graphs_ext.report import KERNELS


@flags.verb(
    'write a page that compares training runs and shows where they err', 'out',
    'out/model_1a2b out/model_3c4d --out compared.html', flags=[
        path('runs', 'RUN', 'model folder, run file, or a folder of them',
             nargs='+'),
        path('--out', 'FILE', 'the .html to write', 'report.html'),
        flag('--data', 'PATH', 'labelled kernels: a folder of .npz files, one '
             '.npz or a .pb; empty: the split valid of --data_root, or without '
             'that flag of the data root that the runs were trained on', ''),
        flags.choice('--task', ('', *flags.TASKS), 'whose runs to report; '
                     'empty: all, if they are of one task', ''),
        flag('--kernels', 'N', 'number of the worst and of the best kernels of '
             'each group of runs to show one by one', KERNELS,
             type=not_negative),
        *flags.of_settings(LoadSettings)])
def report(args: Namespace) -> None:
  flags.say_loading()
  from tpu_graphs_ext.report import report
  print(report.report(
      args.runs, out=args.out, data=args.data, num_kernels=args.kernels,
      task=args.task, loading=flags.given(args, LoadSettings)))


@flags.verb(
    'train many models: a whole grid, or what a search draws',
    'grid.json --out out/sweep --workers=2',
    'grid.json --out out/sweep --retry_failed', flags=[
        path('grid', 'GRID.json',
             'models, arguments, settings and seeds'),
        path('--out', 'DIR', 'folder for runs and leaderboard; the same '
             'command continues what is in it', required=True),
        flag('--workers', 'N', 'number of processes, which share the cores; 0: '
             'one, or as many as the cluster has workers', 0,
             type=not_negative),
        flag('--scheduler', 'ADDRESS', 'Dask scheduler, such as '
             'tcp://10.0.0.5:8786; empty: processes of this machine', ''),
        switch('--retry_failed', 'also repeat failed trials')])
def sweep(args: Namespace) -> int:
  from tpu_graphs_ext.sweep import sweep
  board = sweep.sweep(args.grid, args.out, workers=args.workers,
                      scheduler=args.scheduler, retry_failed=args.retry_failed)
  print(board.text(full_path(args.out)))
  return 0 if board.best else 1


def _steps(text: str) -> range:
  first, _, last = text.partition('-')
  low, high = not_negative(first), not_negative(last or first)
  if not low <= high < low + 1_000_000:
    raise argparse.ArgumentTypeError(f'must be N or N-M, N first; got {text!r}')
  return range(low, high + 1)


@flags.verb(
    'learn from a PyTorch trace how long kernels take, and predict another',
    'a.json.gz --calibrate hardware.json',
    'b.json.gz --hardware hardware.json --csv kernels.csv', flags=[
        path('file', 'FILE', "the profiler's trace: .json or .json.gz"),
        path('--calibrate', 'FILE.json', "learn the GPU's constants from this "
             'trace, for --hardware'),
        path('--hardware', 'FILE.json', 'predict with what --calibrate learned '
             'from another trace'),
        flag('--step', 'N[-M]', 'only these steps (ProfilerStep#N); not given: '
             'all', type=_steps),
        path('--ranks', 'FILE', 'with --hardware: traces of the other ranks '
             'that this one waits for', (), nargs='+'),
        flag('--top', 'N', 'number of kernel functions to show', 15,
             type=not_negative),
        path('--csv', 'FILE', 'file for one CSV row for each kernel'), JSON])
def trace(args: Namespace) -> None:
  if bool(args.calibrate) == bool(args.hardware):
    raise UserError('name one of --calibrate FILE.json, which learns from the '
                    'trace, and --hardware FILE.json, which predicts it with '
                    'what was learned from another')
  from tpu_graphs_ext.traces import analysis, hardware
  if args.calibrate:
    if args.csv or args.json or args.ranks:
      raise UserError('--csv, --json and --ranks go with --hardware: first '
                      'calibrate, then predict')
    hardware.FILE.check(args.calibrate)
    learned = analysis.calibrated(args.file, args.step)
    hardware.FILE.write(args.calibrate, hardware.to_json(learned))
    print(analysis.calibration_text(learned, args.calibrate))
    return
  if args.csv:
    analysis.CSV.check(args.csv)
  found = analysis.compared(args.file, args.step, hardware.read(args.hardware),
                            args.ranks)
  if args.csv:
    analysis.CSV.write(args.csv, analysis.csv_of(found))
  flags.show(args, lambda: analysis.to_json(found),
             lambda: analysis.text(found, args.top))
