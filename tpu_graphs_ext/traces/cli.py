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
                    'compare the times in a PyTorch trace with predictions')
  parser.add_argument(
      'file', metavar='FILE', type=path_flag('FILE'),
      help="the profiler's trace, or an execution trace: .json or .json.gz")
  parser.add_argument('--step', type=_steps, metavar='N[-M]',
                      help='only these steps (ProfilerStep#N); default: all')
  parser.add_argument(
      '--hardware', default='', metavar='NAME|FILE.json',
      help='what to predict for: notebook-v100, v100, a100-40gb, a100-80gb, '
           'h100-pcie, h100-sxm, or a file, such as --calibrate writes; '
           'default: the GPU that the trace names')
  parser.add_argument(
      '--calibrate', metavar='FILE.json', type=path_flag('--calibrate'),
      help="learn the GPU's constants from this trace, for --hardware")
  parser.add_argument('--top', default=15, type=_number, metavar='N',
                      help='rows of each table')
  parser.add_argument('--csv', metavar='FILE', type=path_flag('--csv'),
                      help='file for one CSV row a call, or a kernel')
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
  from tpu_graphs_ext.traces import analysis, hardware, texts
  if args.calibrate:
    for flag in ('hardware', 'csv', 'json'):
      if getattr(args, flag):
        raise UserError(f'--calibrate and --{flag} exclude each other: first '
                        'calibrate, then predict with --hardware')
    hardware.FILE.check(args.calibrate)
    learned = analysis.calibrated(args.file, args.step)
    hardware.FILE.write(args.calibrate, hardware.to_json(learned))
    print(texts.calibration_text(learned, args.calibrate))
    return 0
  if args.csv:
    texts.CSV.check(args.csv)
  found = analysis.analyse(args.file, args.step, args.hardware)
  if args.csv:
    texts.CSV.write(args.csv, texts.csv_text(found))
  print(json.dumps(texts.to_json(found), indent=2) if args.json
        else texts.text(found, args.top))
  return 0
