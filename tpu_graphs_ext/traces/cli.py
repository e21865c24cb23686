"""The verb `trace`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import path_flag


def add_verbs(verbs, add_verb: Callable, add_switch: Callable) -> None:
  """Adds the verb by `add_verb(verbs, name, run, help)`."""
  parser = add_verb(verbs, 'trace', _trace,
                    'learn from a PyTorch trace how long kernels take, and '
                    'predict another')
  parser.add_argument(
      'file', metavar='FILE', type=path_flag('FILE'),
      help="the profiler's trace: .json or .json.gz")
  parser.add_argument('--step', type=_steps, metavar='N[-M]',
                      help='only these steps (ProfilerStep#N); default: all')
  parser.add_argument(
      '--calibrate', metavar='FILE.json', type=path_flag('--calibrate'),
      help="learn the GPU's constants from this trace, for --hardware")
  parser.add_argument(
      '--hardware', metavar='FILE.json', type=path_flag('--hardware'),
      help='predict with what --calibrate learned from another')
  parser.add_argument(
      '--ranks', metavar='FILE', nargs='+', default=(), type=path_flag(
          '--ranks'),
      help='traces of the ranks that it waits for; with --hardware')
  parser.add_argument('--top', default=15, type=_number, metavar='N',
                      help='how many kernel functions to show')
  parser.add_argument('--csv', metavar='FILE', type=path_flag('--csv'),
                      help='file for one CSV row a kernel')
  add_switch(parser, '--json', 'print JSON instead of tables')


def _number(text: str) -> int:
  if not (text.isascii() and text.isdigit() and len(text) < 19):
    raise argparse.ArgumentTypeError(f'must be 0 or more; got {text!r}')
  return int(text)


def _steps(text: str) -> range:
  first, _, last = text.partition('-')
  low, high = _number(first), _number(last or first)
  if not low <= high < low + 1_000_000:
    raise argparse.ArgumentTypeError(f'must be N or N-M, N first; got {text!r}')
  return range(low, high + 1)


def _trace(args: argparse.Namespace) -> int:
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
    return 0
  if args.csv:
    analysis.CSV.check(args.csv)
  found = analysis.compared(args.file, args.step, hardware.read(args.hardware),
                            args.ranks)
  if args.csv:
    analysis.CSV.write(args.csv, analysis.csv_of(found))
  print(json.dumps(analysis.to_json(found), indent=2) if args.json
        else analysis.text(found, args.top))
  return 0
