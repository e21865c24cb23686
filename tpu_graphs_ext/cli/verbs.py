"""Training, evaluation, data, reports, sweeps and traces."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Iterator

from tpu_graphs_ext.cli import flags
from tpu_graphs_ext.cli.flags import JSON, TASK, flag, path, positive, switch
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import full_path
from tpu_graphs_ext.report import KERNELS
from tpu_graphs_ext.tasks import TILE, ShippedTask
from tpu_graphs_ext.tasks.tile import LoadSettings, StatsSettings


@flags.verb(
    'train a model and predict the test split',
    '--model=MyEarlyJoinSAGE --data_root=DATA --out_dir=out',
    '--model=MyEarlyJoinSAGE --recipe=best --resume', flags=lambda task: [
        TASK, *flags.of_settings(task.training)])
def train(args: Namespace) -> None:
  task = flags.task_of(args)
  settings = flags.given(args, task.training)
  flags.say_loading()
  from tpu_graphs_ext.engine import threads, train
  if task.has_small_steps:
    threads.one_for_each_operation()
  print(train.train(settings).text())


def _evaluate_flags(task: ShippedTask) -> Iterator[flags.Flag]:
  yield TASK
  yield flags.any_model_flag(
      task, '--dir --dirs', ' if --scores and --predictions are not given',
      nargs='+', action='extend')
  yield from flags.foreign_flags(task)
  yield flags.data_flag(task, 'valid')
  yield flag('--top_k', 'K,K...', 'numbers of configurations to try',
             ','.join(map(str, task.top_ks)), type=lambda text: sorted(
                 {positive(part.strip()) for part in text.split(',')}))
  yield path('--csv', 'FILE', 'file for one CSV row for each kernel or program '
             'and model')
  yield from flags.of_settings(task.loading)
  if task.has_pretrained:
    yield flag('--tpu', 'GENERATION', 'generation of the kernels, which '
               'chooses the pretrained model; empty: as sample data say, else '
               'v3', '')
  if task.has_groups:
    yield switch('--by_kernel', 'also print every kernel, the slowest choices '
                 'first')
  yield JSON


@flags.verb('measure trained models on labelled kernels or programs',
            '--dir out/model_*',
            '--scores mine.npz --dir pretrained --data DATA/valid',
            flags=_evaluate_flags)
def evaluate(args: Namespace) -> None:
  task = flags.task_of(args)
  if not (args.dir or args.scores or args.predictions or task.has_pretrained):
    raise UserError('--dir: name a model, or the scores of another with '
                    '--scores or --predictions')
  flags.few_threads(args)
  from tpu_graphs_ext.engine import results
  from tpu_graphs_ext.tasks import api
  if args.csv:
    task.evaluation.CSV.check(args.csv)
  loading = flags.loading(args)
  rankers = [read(loading) for read in flags.foreign(args)]
  named = ','.join(args.dir or ([] if rankers else ['pretrained']))
  evaluations = api.evaluate_all(
      flags.models_for(filter(None, named.split(',')), getattr(args, 'tpu', ''),
                       args.data or loading.data_root),
      args.data, loading=loading, ks=args.top_k, foreign=rankers)
  if args.csv:
    task.evaluation.CSV.write(args.csv, results.to_csv(evaluations))
  flags.show(args, lambda: results.to_json(evaluations), lambda: (
      task.evaluation.texts(evaluations, getattr(args, 'by_kernel', False))))


def _predict_flags(task: ShippedTask) -> Iterator[flags.Flag]:
  yield TASK
  yield flags.any_model_flag(task)
  yield path('--out', 'FILE', 'the CSV to write', task.csv_name)
  if task.csv_configs:
    yield flag('--top_configs', 'N', f'configurations of each {task.problem}',
               task.csv_configs, type=positive)
  yield from flags.of_settings(task.loading)


@flags.verb('rank the test split with a trained model and write a CSV',
            '--dir latest --out predictions.csv',
            '--dir out/model_1a2b --data_root=DATA', flags=_predict_flags)
def predict(args: Namespace) -> None:
  flags.few_threads(args)
  from tpu_graphs_ext.tasks import api
  loading = flags.loading(args)
  [model_dir] = flags.models_for([args.dir], '', loading.data_root)
  print(api.predict(model_dir, out=args.out, loading=loading,
                    top_configs=getattr(args, 'top_configs', None)))


@flags.verb(
    'write a trained model as a SavedModel that runs without this package',
    '--out saved_model', '--dir latest --out saved_model', flags=[
        flags.any_model_flag(TILE),
        path('--out', 'DIR', 'folder to write; replaces only an older export',
             required=True),
        # The model's own `forward` decides where duplicates stand.
        *flags.of_settings(LoadSettings, 'keep_repeats')])
def export(args: Namespace) -> None:
  flags.say_loading()
  from tpu_graphs_ext.serving import export
  print(export.export(
      args.dir, args.out, flags.given(args, LoadSettings)).text())


@flags.verb('count kernels and list every fault of every file', 'DATA',
            'DATA --json', flags=[
                path('folder', 'DIR', 'data root with train, valid and test, '
                     'or a folder of .npz files'), TASK, JSON])
def check_data(args: Namespace) -> int:
  from tpu_graphs_ext.data import check
  report = check.check_data(args.folder, flags.task_of(args).rules)
  flags.show(args, report.to_json, report.text)
  return 1 if report.faults else 0


@flags.verb('turn tuning data, programs or measured times into .npz files',
            'tuning.pb --out kernels', 'dump.hlo.pb --tpu v5e --out kernels',
            flags=[
                path('files', 'FILE', 'TuningData or ModuleTuningData, tile or '
                     'layout; a program as `rank` takes it, whose kernels get '
                     "the compiler's tile and no time; or the CSV of "
                     'run_scripts/time_modules.py', nargs='+'),
                path('--out', 'DIR', 'folder for the .npz files',
                     required=True), *flags.of_programs()])
def featurize(args: Namespace) -> int:
  from tpu_graphs_ext.hlo import featurize
  written, faults = featurize.featurize(
      args.files, args.out, args.tpu, args.jax_python, args.shapes)
  for file in written:
    print(file)
  return flags.failed(faults)


_OF_SAMPLE = {
    'kernels': flag(
        '--kernels', 'N', 'kernels of all splits together, or `all`', 700,
        type=lambda text: None if text == 'all' else positive(text)),
    'tpu': flag('--tpu', None, 'generation that the kernels were compiled for',
                'v3', choices=('v3', 'v5e', 'v5p', 'v6e', 'v7x')),
    'seed': flag('--seed', 'SEED', 'equal seeds give equal files', 0, type=int)}


def _sample_flags(task: ShippedTask) -> Iterator[flags.Flag]:
  yield TASK
  yield path('--out', 'DIR', 'folder to write', required=True)
  yield from (_OF_SAMPLE[name] for name in task.sample_flags)


@flags.verb(
    "write a data root to try everything on: kernels of Google's TPU compiler",
    '--out DATA', '--out DATA --kernels=all --tpu=v5e', flags=_sample_flags)
def sample_data(args: Namespace) -> None:
  task = flags.task_of(args)
  print(task.write_sample(args.out, **{
      name: getattr(args, name) for name in task.sample_flags}).text())


@flags.verb('print feature statistics as a --model_kwargs_json value',
            '--data_root=DATA', '--data_root=DATA --configs=24',
            flags=flags.of_settings(StatsSettings))
def stats(args: Namespace) -> None:
  from tpu_graphs_ext.tasks import feature_stats
  print(feature_stats.model_kwargs_json(flags.given(args, StatsSettings)))


@flags.verb(
    'write a page that compares training runs and shows where they err', 'out',
    'out/model_1a2b out/model_3c4d --out compared.html', flags=[
        path('runs', 'RUN', 'model folder, run file, or a folder of them',
             nargs='+'),
        path('--out', 'FILE', 'the .html to write', 'report.html'),
        flag('--data', 'PATH', 'labelled kernels: a folder of .npz files, one '
             '.npz or a .pb; empty: the split valid of --data_root, or without '
             'that flag of the data root that the runs were trained on', ''),
        flag('--kernels', 'N', 'number of the worst and of the best kernels of '
             'each group of runs to show one by one', KERNELS,
             type=flags.not_negative),
        *flags.foreign_flags(TILE),
        *flags.of_settings(LoadSettings)])
def report(args: Namespace) -> None:
  flags.say_loading()
  from tpu_graphs_ext.report import report
  print(report.report(
      args.runs, out=args.out, data=args.data, num_kernels=args.kernels,
      loading=flags.given(args, LoadSettings), foreign=flags.foreign(args)))


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
             type=flags.not_negative),
        flag('--scheduler', 'ADDRESS', 'Dask scheduler, such as '
             'tcp://10.0.0.5:8786; empty: processes of this machine', ''),
        switch('--retry_failed', 'also repeat failed trials')])
def sweep(args: Namespace) -> int:
  from tpu_graphs_ext.sweep import sweep
  board = sweep.sweep(args.grid, args.out, workers=args.workers,
                      scheduler=args.scheduler, retry_failed=args.retry_failed)
  print(board.text(full_path(args.out)))
  return 0 if board.best else 1


def _state(path: str) -> tuple[int, int]:
  """(bytes, time of the last change in ns) of a file; 0 if it is not there."""
  stat = os.stat(path) if os.path.exists(path) else None
  return (stat.st_size, stat.st_mtime_ns) if stat else (0, 0)


def _steps(text: str) -> range:
  first, _, last = text.partition('-')
  low, high = flags.not_negative(first), flags.not_negative(last or first)
  if not low <= high < low + 1_000_000:
    raise argparse.ArgumentTypeError(f'must be N or N-M, N first; got {text!r}')
  return range(low, high + 1)


@flags.verb(
    'learn from PyTorch traces how long kernels take, and predict others',
    'sweep.json.gz a.json.gz --calibrate hardware.json',
    'b.json.gz --hardware hardware.json', flags=[
        path('file', 'FILE', "the profiler's traces: .json or .json.gz",
             nargs='+'),
        path('--calibrate', 'FILE.json', "learn the GPU's constants from these "
             'traces, for --hardware; adds to the file if it exists'),
        path('--hardware', 'FILE.json', 'predict with what --calibrate learned '
             'from other traces'),
        flag('--step', 'N[-M]', 'only these steps (ProfilerStep#N); not given: '
             'all', type=_steps),
        JSON])
def trace(args: Namespace) -> None:
  if bool(args.calibrate) == bool(args.hardware):
    raise UserError('name one of --calibrate FILE.json, which learns from the '
                    'traces, and --hardware FILE.json, which predicts one with '
                    'what was learned from others')
  from tpu_graphs_ext.traces import analysis, calibrate
  if args.calibrate:
    if args.json:
      raise UserError('--json goes with --hardware: first calibrate, then '
                      'predict')
    path = calibrate.FILE.check(args.calibrate)
    before = _state(path)
    learned = analysis.calibrated(args.file, args.step, calibrate.read(
        path, '--calibrate') if before[0] else None)
    if before != _state(path):
      raise UserError(f'{path}: another command has changed it; run this again')
    calibrate.FILE.write(args.calibrate, calibrate.to_json(learned))
    print(f'{args.calibrate}: {"; ".join(learned.sources)} kernels; '
          f'{len(learned.launches):,} functions')
    return
  if len(args.file) > 1:
    raise UserError('--hardware predicts one trace at a time; got '
                    f'{len(args.file)}')
  result = analysis.compared(
      args.file[0], args.step, calibrate.read(args.hardware))
  flags.show(args, lambda: analysis.to_json(result),
             lambda: analysis.text(result))


@flags.verb(
    "run one of the baseline's scripts, unchanged",
    'tiles_train.py --model=MLP --toy_data=True',
    'tiles_evaluate.py --dirs=out/model_1a2b', flags=[
        path('--root', 'CHECKOUT', "the baseline's checkout; not given: the "
             'working folder, or what TPU_GRAPHS_ROOT names'),
        path('script', 'SCRIPT', 'for example tiles_train.py'),
        flag('arguments', 'ARGS', "the script's own flags", nargs='...')])
def run(args: Namespace) -> None:
  from tpu_graphs_ext.course import checkout
  script, root = checkout.find_script(args.script, args.root)
  sys.stdout.flush()
  # From here on this process is the script, with its signals and exit code.
  command = checkout.script_command([script, *args.arguments], root)
  os.execv(command[0], command)
