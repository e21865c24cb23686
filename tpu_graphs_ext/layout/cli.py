"""The verbs `train`, `evaluate`, `predict` and `rank` with `--task layout`.

They have flags of their own: those of the baseline's `layout_train.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from tpu_graphs_ext.files import path_flag
from tpu_graphs_ext.layout.settings import (
  CSV_NAME,
  TOP_CONFIGS,
  TOP_KS,
  LayoutLoadSettings,
  LayoutTrainSettings,
)

TASKS = ('tile', 'layout')
# Verbs whose flags depend on the task.
VERBS = ('train', 'evaluate', 'predict', 'rank')


def add_task(parser: argparse.ArgumentParser, task: str) -> None:
  """The flag that chooses the task."""
  parser.add_argument(
      '--task', default=task, choices=TASKS,
      help='of TpuGraphs; each has flags of its own: `--task layout --help` '
           'lists those of the layout task')


def add_verbs(verbs, add_verb: Callable, add_settings: Callable,
              given: Callable, types: dict[str, Callable]) -> None:
  """Adds the verbs by `add_verb(verbs, name, run, help)`.

  Args:
    verbs: of the parser.
    add_verb: see above.
    add_settings: called with a parser and a class of settings, adds flags.
    given: called with the arguments and that class, gives the settings.
    types: 'positive' and 'several_positive' of numbers, 'switch' adds one.
  """
  def verb(name: str, run: Callable, help_text: str, settings: type):
    def work(args: argparse.Namespace) -> int:
      return run(args, given(args, settings))

    parser = add_verb(verbs, name, work, help_text)
    add_task(parser, 'layout')
    return parser

  _add_train(verb, add_settings)
  _add_evaluate(verb, add_settings, types)
  _add_predict(verb, add_settings)
  _add_rank(verb, add_settings, types)


def _add_train(verb: Callable, add_settings: Callable) -> None:
  parser = verb('train', _train, 'train a layout model and rank the test split',
                LayoutTrainSettings)
  add_settings(parser, LayoutTrainSettings)


def _add_evaluate(verb: Callable, add_settings: Callable,
                  types: dict[str, Callable]) -> None:
  parser = verb('evaluate', _evaluate,
                'measure trained layout models on labelled programs',
                LayoutLoadSettings)
  parser.add_argument(
      '--dir', '--dirs', required=True, metavar='MODEL_DIR',
      type=path_flag('--dir'),
      help='folder model_<hash>, its run file beside it; several are '
           'separated by commas')
  parser.add_argument(
      '--data', default='', metavar='PATH',
      help='folder of .npz files, or one; empty: '
           '<data_root>/<source>/<search>/valid')
  parser.add_argument(
      '--top_k', default=','.join(map(str, TOP_KS)), metavar='K,K...',
      type=types['several_positive'],
      help='how many configurations to try, separated by commas')
  parser.add_argument('--csv', metavar='FILE', type=path_flag('--csv'),
                      help='file for one CSV row a program and model')
  add_settings(parser, LayoutLoadSettings)
  types['switch'](parser, '--json', 'print JSON instead of tables')


def _add_predict(verb: Callable, add_settings: Callable) -> None:
  parser = verb('predict', _predict,
                'rank all configurations of the test split and write a CSV',
                LayoutLoadSettings)
  _add_dir(parser)
  parser.add_argument('--out', default=CSV_NAME, metavar='FILE',
                      type=path_flag('--out'), help='the CSV to write')
  add_settings(parser, LayoutLoadSettings)


def _add_rank(verb: Callable, add_settings: Callable,
              types: dict[str, Callable]) -> None:
  parser = verb('rank', _rank, 'list the configurations that a trained layout '
                'model predicts to be fastest', LayoutLoadSettings)
  _add_dir(parser)
  parser.add_argument(
      '--data', default='', metavar='PATH',
      help='folder of .npz files, or one; empty: '
           '<data_root>/<source>/<search>/test')
  parser.add_argument('--top_k', default=TOP_CONFIGS, metavar='K',
                      type=types['positive'],
                      help='configurations of each program')
  add_settings(parser, LayoutLoadSettings)
  types['switch'](parser, '--all', 'list every configuration, not the first K')
  types['switch'](parser, '--json', 'print JSON instead of tables')


def _add_dir(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--dir', required=True, type=path_flag('--dir'),
                      metavar='MODEL_DIR',
                      help='folder model_<hash>, its run file beside it')


# ------------------------------------------------------------------ verbs


def _train(args: argparse.Namespace, settings: LayoutTrainSettings) -> int:
  from tpu_graphs_ext.layout import train
  print(train.train(settings).text())
  return 0


def _evaluate(args: argparse.Namespace, loading: LayoutLoadSettings) -> int:
  from tpu_graphs_ext.host import results
  from tpu_graphs_ext.layout import evaluate, evaluation_text
  if args.csv:
    evaluate.CSV.check(args.csv)
  evaluations = evaluate.evaluate_all(
      args.dir.split(','), args.data, loading=loading, ks=args.top_k)
  if args.csv:
    evaluate.CSV.write(args.csv, results.to_csv(evaluations))
  print(json.dumps(results.to_json(evaluations), indent=2) if args.json
        else evaluation_text.text(evaluations))
  return 0


def _predict(args: argparse.Namespace, loading: LayoutLoadSettings) -> int:
  from tpu_graphs_ext.layout import predict
  print(predict.predict(args.dir, out=args.out, loading=loading))
  return 0


def _rank(args: argparse.Namespace, loading: LayoutLoadSettings) -> int:
  from tpu_graphs_ext.layout import rank
  rankings = rank.rank(args.dir, args.data, loading=loading,
                       top_k=sys.maxsize if args.all else args.top_k)
  if args.json:
    print(json.dumps([ranking.to_json() for ranking in rankings], indent=2))
  else:
    print('\n\n'.join(ranking.text() for ranking in rankings))
  return 0
