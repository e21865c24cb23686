"""The command line: `tpu-graphs-ext VERB`. Parses text and calls the verbs.

Results go to stdout, progress and warnings to stderr. Exit code 0: done; 1: a
fault in the input, told in one `error:` line; 2: wrong usage; 130: interrupted;
143: told to end by SIGTERM. TensorFlow is imported only when a verb runs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import glob
import json
import logging
import os
import signal
import sys
import threading
import typing
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import tpu_graphs_ext
from tpu_graphs_ext.course import cli
from tpu_graphs_ext.engine.settings import (
  CSV_NAME,
  TOP_CONFIGS,
  Loading,
  LoadSettings,
  StatsSettings,
  Training,
  TrainSettings,
)
from tpu_graphs_ext.errors import (
  UserError,
  did_you_mean,
  printable,
  shortened,
)
from tpu_graphs_ext.files import path_flag
from tpu_graphs_ext.report import cli as report_cli
from tpu_graphs_ext.stacks.quiet import NoTerminal
from tpu_graphs_ext.sweep import cli as sweep_cli
from tpu_graphs_ext.tasks import layout_settings as layout_settings
from tpu_graphs_ext.traces import cli as traces_cli

_log = logging.getLogger(__name__)

# Settings that are paths of which '' is none; of other paths it means no file.
_NEEDED_PATHS = ('data_root', 'out_dir')


class _Task(NamedTuple):
  """What flags of a task are made of; `host.task` has the rest."""
  training: type[Training]
  loading: type[Loading]
  problem: str
  configs: str
  top_k: str
  csv_name: str


_TASKS = {
    'tile': _Task(TrainSettings, LoadSettings, 'kernel', 'tiles', '1,5,10',
                  CSV_NAME),
    'layout': _Task(
        layout_settings.LayoutTrainSettings, layout_settings.LayoutLoadSettings,
        'program', 'configurations', '1,10,100', layout_settings.CSV_NAME)}


# Two commands for the end of each verb's help.
_EXAMPLES = {
    'train': ('--model=MyEarlyJoinSAGE --data_root=DATA --out_dir=out',
              '--model=MyEarlyJoinSAGE --recipe=best --resume'),
    'evaluate': ('--dir out/model_*',
                 '--dir latest --data kernels.pb --csv a.csv'),
    'predict': ('--dir latest --out predictions.csv',
                '--dir out/model_1a2b --data_root=DATA'),
    'rank': ("my_model.py:step --shapes 'f32[512,1024] f32[1024]' --tpu=v3",
             '--dir latest --data DATA/valid --top_k=3'),
    'export': ('--out saved_model', '--dir latest --out saved_model'),
    'check-data': ('DATA', 'DATA --json'),
    'featurize': ('tuning.pb --out kernels', 'tuning.pb --out kernels --quiet'),
    'sample-data': ('--out DATA', '--out DATA --kernels=all --tpu=v5e'),
    'stats': ('--data_root=DATA', '--data_root=DATA --configs=24'),
    'run': ('tiles_train.py --model=MLP --toy_data=True',
            'tiles_evaluate.py --dirs=out/model_1a2b'),
    'doctor': ('--root ~/tpu_graphs', '--data_root=DATA --json'),
    'install': ('--root ~/tpu_graphs', '--models_py my_models.py'),
    'uninstall': ('--root ~/tpu_graphs', '--task=layout'),
    'verify': ('--model_dir out/model_1a2b', '--package submission.zip'),
    'package': ('--model_dir out/model_1a2b',
                '--model_dir out/model_1a2b --out hand_in.zip'),
    'kaggle-csv': ('--tile predictions.csv --out kaggle.csv',
                   '--tile a.csv --layout b.csv --out kaggle.csv'),
    'report': ('out', 'out/model_1a2b out/model_3c4d --out compared.html'),
    'trace': ('a.json.gz --calibrate hardware.json',
              'b.json.gz --hardware hardware.json --csv kernels.csv'),
    'sweep': ('grid.json --out out/sweep --workers=2',
              'grid.json --out out/sweep --retry_failed'),
}


class _Parser(argparse.ArgumentParser):
  """Says in one line what is wrong with a command."""

  def error(self, message: str):
    self.exit(2, f'{self.prog}: error: {message}; see {self.prog} --help\n')


class _Formatter(argparse.HelpFormatter):
  """Adds the default to every flag that has one."""

  def _fill_text(self, text, width, indent):
    return text if '\n' in text else super()._fill_text(text, width, indent)

  def _get_help_string(self, action):
    if (action.default in (None, argparse.SUPPRESS) or action.required
        or not action.option_strings):
      return action.help
    default = repr(action.default) if action.default == '' else '%(default)s'
    return f'{action.help} (default: {default})'


def _parser(task: str = 'tile') -> argparse.ArgumentParser:
  """That of all verbs, with the flags of a task where those depend on it."""
  parser = _Parser(
      prog='tpu-graphs-ext', allow_abbrev=False,
      description='Train and use models that rank the tile sizes of TPU '
                  'kernels, or with --task layout the layouts of programs.',
      epilog='`tpu-graphs-ext VERB --help` lists the flags of a verb.')
  parser.add_argument('--version', action='version',
                      version=f'%(prog)s {tpu_graphs_ext.__version__}')
  verbs = parser.add_subparsers(dest='verb', metavar='VERB', required=True)
  for add in (_add_train, _add_evaluate, _add_predict, _add_rank):
    add(verbs, task)
  for add in (_add_export, _add_check_data, _add_featurize, _add_sample_data,
              _add_stats, _add_run):
    add(verbs)
  cli.add_verbs(verbs, _verb, _add_switch)
  report_cli.add_verbs(verbs, _verb, _add_settings, _given)
  traces_cli.add_verbs(verbs, _verb, _add_switch)
  sweep_cli.add_verbs(verbs, _verb, _add_switch)
  return parser


def _verb(verbs, name: str, run, help_text: str) -> argparse.ArgumentParser:
  parser = verbs.add_parser(
      name, help=help_text, description=help_text[0].upper() + help_text[1:]
      + '.', formatter_class=_Formatter, allow_abbrev=False,
      epilog='\n  '.join(['examples:', *(
          f'tpu-graphs-ext {name} {words}' for words in _EXAMPLES[name])]))
  parser.set_defaults(run=run)
  _add_switch(parser, '--quiet', 'no progress on stderr, only warnings, errors '
              'and the result')
  return parser


def _add_task(parser: argparse.ArgumentParser, task: str) -> None:
  """The flag that chooses the task."""
  parser.add_argument(
      '--task', default=task, choices=tuple(_TASKS),
      help='of TpuGraphs; each has flags of its own: `--task layout --help` '
           'lists those of the layout task')


def _add_train(verbs, task: str) -> None:
  parser = _verb(
      verbs, 'train', _train, 'train a model and predict the test split'
      if task == 'tile' else 'train a layout model and rank the test split')
  _add_task(parser, task)
  _add_settings(parser, _TASKS[task].training)


def _add_evaluate(verbs, task: str) -> None:
  of = _TASKS[task]
  parser = _verb(
      verbs, 'evaluate', _evaluate, 'measure a trained model on labelled '
      'kernels' if task == 'tile' else
      'measure trained layout models on labelled programs')
  _add_task(parser, task)
  _add_dir(parser, '--dirs', task=task, several=True,
           help_more='; several are compared')
  _add_data(parser, task, 'valid')
  parser.add_argument(
      '--top_k', default=of.top_k, metavar='K,K...', type=_several_positive,
      help=f'how many {of.configs} to try, separated by commas')
  parser.add_argument('--csv', metavar='FILE', type=path_flag('--csv'),
                      help=f'file for one CSV row a {of.problem} and model')
  _add_settings(parser, of.loading)
  if task == 'tile':
    _add_switch(parser, '--by_kernel', 'print every kernel too, the slowest '
                'choices first')
  _add_switch(parser, '--json', 'print JSON instead of tables')


def _add_predict(verbs, task: str) -> None:
  parser = _verb(
      verbs, 'predict', _predict,
      'rank the test split with a trained model and write a CSV'
      if task == 'tile' else
      'rank all configurations of the test split and write a CSV')
  _add_task(parser, task)
  _add_dir(parser, task=task)
  parser.add_argument('--out', default=_TASKS[task].csv_name, metavar='FILE',
                      type=path_flag('--out'), help='the CSV to write')
  if task == 'tile':
    parser.add_argument('--top_configs', default=TOP_CONFIGS,
                        type=_positive, metavar='N',
                        help='configurations of each kernel')
  _add_settings(parser, _TASKS[task].loading)


def _add_rank(verbs, task: str) -> None:
  parser = _verb(
      verbs, 'rank', _rank if task == 'layout' else _rank_tiles,
      'list the tiles that a trained model predicts to be fastest'
      if task == 'tile' else 'list the configurations that a trained layout '
      'model predicts to be fastest')
  _add_task(parser, task)
  _add_dir(parser, task=task)
  if task == 'tile':
    _add_rank_files(parser)
  _add_data(parser, task, 'test', 'without FILE: choose from the tiles that '
            'are listed in a ' if task == 'tile' else '')
  parser.add_argument('--top_k', default=TOP_CONFIGS,
                      type=_positive, metavar='K',
                      help=f'configurations of each {_TASKS[task].problem}')
  if task == 'tile':
    sweep_cli.add_rank_flags(parser, _positive)
  _add_settings(parser, _TASKS[task].loading)
  _add_switch(parser, '--all', f'list every {_TASKS[task].configs[:-1]}, not '
              'the first K')
  _add_switch(parser, '--json', 'print JSON instead of tables')
  if task == 'tile':
    parser.add_argument('-v', '--verbose', action='store_true',
                        help="with FILE: also the model's score of each tile")


def _add_data(parser: argparse.ArgumentParser, task: str, split: str,
              before: str = '') -> None:
  """The flag that names the problems."""
  parser.add_argument(
      '--data', default='', metavar='PATH',
      help=f'{before}folder of .npz files, one .npz or a .pb; empty: '
           f'<data_root>/{split}' if task == 'tile' else
           f'folder of .npz files, or one; empty: '
           f'<data_root>/<source>/<search>/{split}')


def _add_rank_files(parser: argparse.ArgumentParser) -> None:
  """What else than files of listed tiles can be ranked, and how."""
  parser.add_argument(
      'files', nargs='*', metavar='FILE', type=path_flag('FILE'),
      help='choose from all legal tiles of its kernels, timed or not: an .npz, '
           'tuning data, HLO as protobuf or text, or module:function of '
           'TensorFlow or JAX')
  parser.add_argument(
      '--shapes', default='', metavar='SHAPES',
      help="of a function's arguments, as in 'f32[512,1024] bf16[1024]', or "
           'the name of a function of the same module that returns them, '
           'nested as they are')
  parser.add_argument(
      '--tpu', default='v3', metavar='GENERATION',
      help='compile for this generation: v2, v3, v4, v5e, v5p, v6e or v7x. '
           'Needs the extra [tpu]')
  parser.add_argument(
      '--blocks', default='', metavar='BLOCKS',
      help='of a function that is one matrix product: rank the blocks of a '
           "Pallas kernel instead of tiles; bm x bk x bn in elements, as in "
           "'128x1024x512 256x512x512', or `usual` for those that a tuner "
           'would try')
  parser.add_argument(
      '--jax_python', default='', metavar='PYTHON',
      help='the Python of the environment that has JAX, to lower functions '
           'of JAX and to read HLO text with; empty: this one')
  parser.add_argument(
      '--most_tiles', default=100_000, type=_positive, metavar='N',
      help='of a kernel with more legal tiles, an even sample of so many is '
           'ranked')


def _add_export(verbs) -> None:
  parser = _verb(verbs, 'export', _export,
                 'write a trained model as a SavedModel that runs without this '
                 'package')
  _add_dir(parser)
  parser.add_argument('--out', required=True, type=path_flag('--out'),
                      metavar='DIR',
                      help='folder to write; replaces no more than an export')
  # Of repetitions the scores say what the model's own `forward` does.
  _add_settings(parser, LoadSettings, without='keep_repeats')


def _add_check_data(verbs) -> None:
  parser = _verb(verbs, 'check-data', _check_data,
                 'count kernels and list every fault of every file')
  parser.add_argument('folder', metavar='DIR', type=path_flag('DIR'),
                      help='data root with train, valid and test, or a folder '
                           'of .npz files')
  parser.add_argument('--task', default='tile', choices=('tile', 'layout'),
                      help='whose files they are')
  _add_switch(parser, '--json', 'print JSON instead of text')


def _add_featurize(verbs) -> None:
  parser = _verb(verbs, 'featurize', _featurize,
                 'turn tuning data into .npz files')
  parser.add_argument('file', metavar='FILE.pb', type=path_flag('FILE.pb'),
                      help='TuningData or ModuleTuningData, tile or layout')
  parser.add_argument('--out', required=True, metavar='DIR',
                      type=path_flag('--out'), help='folder for the .npz files')


def _add_sample_data(verbs) -> None:
  parser = _verb(verbs, 'sample-data', _sample_data,
                 "write a data root to try everything on: kernels of Google's "
                 'TPU compiler')
  parser.add_argument('--out', required=True, metavar='DIR',
                      type=path_flag('--out'), help='folder to write')
  parser.add_argument('--kernels', type=_kernel_count, metavar='N',
                      help='kernels of all splits together, or `all`; not '
                           'given: a size that trains in a few minutes')
  parser.add_argument('--tpu', choices=('v3', 'v5e'),
                      help='the machine that the kernels were compiled for; '
                           'not given: v3')
  _add_switch(parser, '--noise',
              'scatter the runtimes as those of repeated measurements do')
  parser.add_argument('--task', default='tile', choices=('tile', 'layout'),
                      help='kernels with tile sizes, or whole programs with '
                           'layouts')
  parser.add_argument('--programs', type=_positive, metavar='N',
                      help='of --task layout: programs of each source, all '
                           'splits together; not given: a size that takes two '
                           'minutes')
  parser.add_argument('--seed', default=0, type=int, metavar='SEED',
                      help='equal seeds give equal files')


def _add_run(verbs) -> None:
  parser = _verb(verbs, 'run', _run,
                 "run one of the baseline's scripts, unchanged")
  parser.add_argument(
      '--root', metavar='CHECKOUT', type=path_flag('--root'),
      help="the baseline's checkout; not given: the working folder, or what "
           'TPU_GRAPHS_ROOT names')
  parser.add_argument('script', metavar='SCRIPT', type=path_flag('SCRIPT'),
                      help='for example tiles_train.py')
  parser.add_argument('arguments', metavar='ARGS', nargs=argparse.REMAINDER,
                      help="the script's own flags")


def _add_stats(verbs) -> None:
  parser = _verb(verbs, 'stats', _stats,
                 'print what features are scaled with, as --model_kwargs_json '
                 'of a model that takes feature_stats')
  _add_settings(parser, StatsSettings)


def _model_dir(text: str) -> str:
  """A model's folder, of which the hash's first digits or `latest` may stand.

  Several folders may be separated by commas.
  """
  if ',' in text:
    return ','.join(map(_model_dir, text.split(',')))
  path = path_flag('--dir')(text)
  folder, name = os.path.split(path)
  if os.path.exists(os.path.expanduser(path)) or not (
      name == 'latest' or name.startswith('model_')):
    return path
  if name == 'latest':
    folder = folder or _TASKS['tile'].training.out_dir
    name = 'model_'
  found = [one for one in glob.glob(glob.escape(os.path.join(
      os.path.expanduser(folder), name)) + '*') if os.path.isdir(one)]
  if text.endswith('latest'):
    if not found:
      raise UserError(f'--dir={text}: there is no model_<hash> in {folder}')
    return max(found, key=os.path.getmtime)
  if len(found) > 1:
    raise UserError(f'--dir={text}: {len(found)} folders begin so: '
                    f'{shortened(sorted(found), 3)}; give more of the hash')
  return found[0] if found else path


def _add_dir(parser: argparse.ArgumentParser, *other_names: str,
             help_more: str = '', task: str = 'tile',
             several: bool = False) -> None:
  """The flag that names the trained model, of which the tile task has one."""
  has_own = {'default': 'pretrained'} if task == 'tile' else {'required': True}
  parser.add_argument(
      '--dir', *other_names, type=_model_dir, metavar='MODEL_DIR',
      nargs='+' if several else None,
      help='folder model_<hash>, its run file beside it; the first digits of '
           'the hash do, and `latest` in place of the name' + (
          ', or `pretrained`, the trained model in the package'
          if task == 'tile' else '') + help_more, **has_own)


def _add_settings(parser: argparse.ArgumentParser, settings_class: type,
                  without: str = '') -> None:
  """A flag for each field, with the field's type, default, help and choices.

  The field `without` has its default and no flag.
  """
  types = typing.get_type_hints(settings_class)
  for field in dataclasses.fields(settings_class):
    if field.name == without:
      parser.set_defaults(**{without: field.default})
      continue
    flag, help_text = '--' + field.name, field.metadata['help']
    choices = field.metadata['choices']
    if types[field.name] is bool:
      _add_switch(parser, flag, help_text, field.default)
    else:
      parser.add_argument(
          flag, default=field.default, help=help_text, choices=choices,
          type=(path_flag(flag) if field.name in _NEEDED_PATHS
                else _required(types[field.name])),
          metavar=None if choices else field.name.upper())


def _required(field_type: Any) -> Any:
  """int of Optional[int]; another type is left as it is."""
  return (typing.get_args(field_type) or [field_type])[0]


def _given(args: argparse.Namespace, settings_class: type) -> Any:
  """The settings that the flags of `_add_settings` give."""
  return settings_class(**{
      field.name: getattr(args, field.name)
      for field in dataclasses.fields(settings_class)})


def _add_switch(parser: argparse.ArgumentParser, flag: str, help_text: str,
                default: bool = False) -> None:
  """A flag that is on when named; also --flag=false, as absl reads it."""
  parser.add_argument(flag, nargs='?', const=True, default=default,
                      type=_boolean, metavar='true|false', help=help_text)


_BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}


def _boolean(text: str) -> bool:
  if text.lower() not in _BOOLEANS:
    raise argparse.ArgumentTypeError(f'must be true or false; got {text!r}')
  return _BOOLEANS[text.lower()]


def _positive(text: str) -> int:
  if not text.isdigit() or int(text) < 1:
    raise argparse.ArgumentTypeError(f'must be at least 1; got {text!r}')
  return int(text)


def _kernel_count(text: str) -> int | str:
  return text if text == 'all' else _positive(text)


def _several_positive(text: str) -> list[int]:
  """[1, 5] of '5,1'."""
  return sorted({_positive(part.strip()) for part in text.split(',')})


# ------------------------------------------------------------------ verbs


def _few_threads(args: argparse.Namespace) -> None:
  from tpu_graphs_ext.engine import threads
  if args.task == 'tile':  # The operations of the other are not so small.
    threads.one_for_each_operation(threads.RANKING_CORES)


def _loading(args: argparse.Namespace) -> Loading:
  return _given(args, _TASKS[args.task].loading)


def _train(args: argparse.Namespace) -> int:
  settings = _given(args, _TASKS[args.task].training)
  from tpu_graphs_ext.engine import threads, train
  if args.task == 'tile':
    threads.one_for_each_operation()
  print(train.train(settings).text())
  return 0


def _evaluate(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.engine import evaluate, results, task
  _few_threads(args)
  evaluation = task.find(args.task).evaluation
  given = [args.dir] if isinstance(args.dir, str) else args.dir
  dirs = [one for each in given for one in each.split(',')]
  if args.csv:
    evaluation.CSV.check(args.csv)
  evaluations = evaluate.evaluate_all(
      dirs, args.data, loading=_loading(args), ks=args.top_k)
  if args.csv:
    evaluation.CSV.write(args.csv, results.to_csv(evaluations))
  print(json.dumps(results.to_json(evaluations), indent=2) if args.json
        else evaluation.texts(evaluations, getattr(args, 'by_kernel', False)))
  return 0


def _predict(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.engine import predict
  _few_threads(args)
  print(predict.predict(
      args.dir, out=args.out, loading=_loading(args),
      top_configs=getattr(args, 'top_configs', None)))
  return 0


def _rank_tiles(args: argparse.Namespace) -> int:
  if sweep_cli.ranks_many(args):
    return sweep_cli.rank_many(args, _given(args, LoadSettings))
  if args.blocks:
    return _rank_blocks(args)
  if args.files:
    return _rank_all_tiles(args)
  if args.shapes:
    raise UserError('--shapes goes with module:function; name one')
  return _rank(args)


def _rank(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.engine import rank
  _few_threads(args)
  rankings = rank.rank(args.dir, args.data, loading=_loading(args),
                       top_k=sys.maxsize if args.all else args.top_k)
  if args.json:
    print(json.dumps([ranking.to_json() for ranking in rankings], indent=2))
  else:
    print('\n\n'.join(ranking.text() for ranking in rankings))
  return 0


def _rank_blocks(args: argparse.Namespace) -> int:
  if len(args.files) != 1:
    raise UserError('--blocks goes with one module:function; '
                    f'{len(args.files)} are named')
  from tpu_graphs_ext.serving import blocks
  ranking = blocks.rank_function(
      args.files[0], args.shapes, args.tpu, blocks.parsed_blocks(args.blocks),
      sys.maxsize if args.all else args.top_k, args.jax_python)
  print(json.dumps(ranking.to_json(), indent=2) if args.json
        else ranking.text())
  return 0


def _rank_all_tiles(args: argparse.Namespace) -> int:
  if args.data:
    raise UserError(f'--data={args.data}: ranks the tiles that files list, and '
                    f'{args.files[0]} all that are legal; give one of the two')
  _log.info('loading TensorFlow and the model, about ten seconds ...')
  from tpu_graphs_ext.engine import threads
  from tpu_graphs_ext.serving import tile_search
  threads.one_for_each_operation(threads.RANKING_CORES)
  advice = tile_search.advise(
      args.dir, args.files, shapes=args.shapes, tpu=args.tpu,
      jax_python=args.jax_python, most_tiles=args.most_tiles,
      top_k=None if args.all else args.top_k,
      loading=_given(args, LoadSettings))
  if args.json:
    print(json.dumps([one.to_json() for one in advice], indent=2))
  elif told := [one for one in advice if one.kernels or one.notes]:
    print('\n\n'.join(one.text(args.verbose) for one in told))
  faults = [fault for one in advice for fault in one.faults]
  for fault in faults:
    print(f'error: {fault}', file=sys.stderr)
  return 1 if faults else 0


def _export(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.serving import export
  print(export.export(args.dir, args.out, _given(args, LoadSettings)).text())
  return 0


def _check_data(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.data import check
  report = check.check_data(args.folder, args.task)
  print(json.dumps(report.to_json(), indent=2) if args.json else report.text())
  return 1 if report.faults else 0


def _featurize(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.hlo import tuning
  for path in tuning.featurize_file(args.file, args.out):
    print(path)
  return 0


def _sample_data(args: argparse.Namespace) -> int:
  if args.task == 'layout':
    return _layout_sample_data(args)
  from tpu_graphs_ext.sample import write
  if args.programs is not None:
    raise UserError('--programs is of the layout task; give --kernels, or '
                    '--task layout')
  chosen = {} if args.tpu is None else {'tpu': args.tpu}
  if args.kernels is not None:
    chosen['kernels'] = None if args.kernels == 'all' else args.kernels
  settings = write.SampleDataSettings(
      out=args.out, seed=args.seed, noise=args.noise, **chosen)
  print(write.write_sample_data(settings).text())
  return 0


def _layout_sample_data(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.sample import write_layouts
  for flag in ('kernels', 'tpu', 'noise'):
    if getattr(args, flag):
      raise UserError(f'--{flag} is of the tile task; leave it out')
  chosen = {} if args.programs is None else {'programs': args.programs}
  settings = write_layouts.LayoutSampleSettings(
      out=args.out, seed=args.seed, **chosen)
  print(write_layouts.write_layout_data(settings).text())
  return 0


def _run(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.course import checkout, run_script
  path, root = run_script.find_script(args.script, args.root)
  sys.stdout.flush()
  # From here on this process is the script, with its signals and exit code.
  command = checkout.script_command([path, *args.arguments], root)
  os.execv(command[0], command)


def _stats(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.tasks import feature_stats
  print(feature_stats.model_kwargs_json(_given(args, StatsSettings)))
  return 0


# ------------------------------------------------------------------- main





def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs one verb; returns the exit code."""
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = _parser(_task_of(argv))
  if argv[:1] == ['--quiet'] and len(argv) > 1:  # Before the verb, too.
    argv[:2] = argv[1], '--quiet=true'
  try:
    args, unknown = parser.parse_known_args(_spelled_out(parser, argv))
  except UserError as error:
    parser.error(str(error))
  if unknown:
    _refuse(parser, args.verb, unknown)
  _set_up_logging(args.quiet)
  # Its C++ start-up messages, even without a GPU, are at level 'error'; what
  # matters is raised as an exception. Read when TensorFlow is imported.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  try:
    with _ended_by_sigterm(), _progress(args.quiet):
      code = args.run(args)
    sys.stdout.flush()
    return code
  except UserError as error:
    print(f'error: {printable(str(error))}', file=sys.stderr)
  except KeyboardInterrupt as error:
    print('interrupted', file=sys.stderr)
    return 143 if isinstance(error, _Terminated) else 130
  except SystemExit as error:  # No verb does; a models.py may.
    print(f'error: models.py ended the program (exit code {error.code}); take '
          'the call out of it', file=sys.stderr)
  except BrokenPipeError:  # `| head`: nobody reads on.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except OSError as error:
    advice = '; free some space' if error.errno == errno.ENOSPC else ''
    print(f'error: {error}{advice}', file=sys.stderr)
  return 1


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[None]:
  """Messages go above progress bars; when quiet there are no bars."""
  from tqdm.contrib.logging import logging_redirect_tqdm
  if not quiet:
    with logging_redirect_tqdm():
      yield
    return
  with contextlib.redirect_stderr(NoTerminal(sys.stderr)):
    yield


class _Terminated(KeyboardInterrupt):
  """SIGTERM, as a queue sends it when the time is up."""


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
  """SIGTERM ends what runs as Ctrl-C does; so it is put in order first."""
  def end(unused_number, unused_frame):
    raise _Terminated

  if (threading.current_thread() is not threading.main_thread()
      or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL):
    yield
    return
  signal.signal(signal.SIGTERM, end)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _task_of(words: list[str]) -> str:
  """The task that a verb is told whose flags depend on it."""
  chosen = 'tile'
  if words and words[0] in ('train', 'evaluate', 'predict', 'rank'):
    for word, following in zip(words[1:], [*words[2:], '']):
      name, equals, value = word.partition('=')
      if name == '--task':
        chosen = value if equals else following
  return chosen


def _verbs_of(parser: argparse.ArgumentParser) -> dict:
  """Name -> parser of each verb."""
  return next(action for action in parser._actions
              if isinstance(action, argparse._SubParsersAction)).choices


def _spelled_out(parser: argparse.ArgumentParser,
                 words: list[str]) -> list[str]:
  """`--json FILE` as `--json=true FILE`, so that a switch takes no file."""
  verb = _verbs_of(parser).get(words[0]) if words else None
  if verb is None or words[0] == 'run':  # Whose flags are a script's.
    return words
  switches = {flag for action in verb._actions if action.type is _boolean
              for flag in action.option_strings}
  return [
      f'{word}=true' if word in switches and following.lower() not in _BOOLEANS
      else word for word, following in zip(words, [*words[1:], ''])]


def _refuse(parser: argparse.ArgumentParser, verb: str,
            unknown: list[str]) -> None:
  """Names the nearest flags of the verb, and exits with 2."""
  verb_parser = _verbs_of(parser)[verb]
  flags = [flag for action in verb_parser._actions
           for flag in action.option_strings]
  # Stricter than for names, as all flags have their dashes in common.
  hint = did_you_mean(unknown[0].split('=')[0], flags, cutoff=0.7)
  verb_parser.error(f'unrecognized arguments: {" ".join(unknown)}'
                    f'{"; " if hint else ""}{hint}')


def _set_up_logging(quiet: bool) -> None:
  """The package's messages to stderr; TensorFlow's only when they matter."""
  logging.basicConfig(format='%(message)s', stream=sys.stderr)
  for handler in logging.root.handlers:
    if type(handler) is logging.StreamHandler:  # The one that was just made.
      # Not the logger's level: the log of a run has what is not shown.
      handler.setLevel(logging.WARNING if quiet else logging.NOTSET)
  logging.getLogger('tpu_graphs_ext').setLevel(logging.INFO)
  for name in ('tensorflow', 'absl'):
    logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == '__main__':
  sys.exit(main())
