"""The verb `trace`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable

from tpu_graphs_ext.files import path_flag


def add_verbs(verbs, add_verb: Callable, add_switch: Callable) -> None:
  """Adds the verb by `add_verb(verbs, name, run, help)`."""
  parser = add_verb(verbs, 'trace', _trace,
                    'compare what operators took in a trace of PyTorch with '
                    'roofline times')
  parser.add_argument(
      'file', metavar='FILE', type=path_flag('FILE'),
      help="the profiler's trace, or an execution trace: .json or .json.gz")
  parser.add_argument('--step', type=_number, metavar='N',
                      help='of all steps (ProfilerStep#N) that one; not given: '
                           'all of them')
  parser.add_argument(
      '--hardware', default='', metavar='NAME|FILE.json',
      help='what to predict for: notebook-v100, v100, a100-40gb, a100-80gb, '
           'h100-pcie, h100-sxm, or a file; empty: the GPU that the trace '
           'names')
  parser.add_argument('--top', default=15, type=_number, metavar='N',
                      help='rows of each table')
  parser.add_argument('--csv', metavar='FILE', type=path_flag('--csv'),
                      help='file for one CSV row a call')
  parser.add_argument('--html', metavar='FILE', type=path_flag('--html'),
                      help='file for a page with tables and flame graphs')
  add_switch(parser, '--json', 'print JSON instead of tables')


def report(path: str, out: str) -> str:
  """Writes the page of a trace where `report` says; returns its path.

  Raises:
    UserError: it is no trace, or the page cannot be written.
  """
  from tpu_graphs_ext.traces import analysis, page
  file = dataclasses.replace(page.FILE, flag='--out')
  out = file.check(out)
  file.write(out, page.page(analysis.analyse(path)))
  return out


def _number(text: str) -> int:
  if not (text.isascii() and text.isdigit()):
    raise argparse.ArgumentTypeError(f'must be 0 or more; got {text!r}')
  return int(text)


def _trace(args: argparse.Namespace) -> int:
  from tpu_graphs_ext.traces import analysis, page, texts
  if args.csv:
    texts.CSV.check(args.csv)
  if args.html:
    page.FILE.check(args.html)
  found = analysis.analyse(args.file, args.step, args.hardware)
  if args.csv:
    texts.CSV.write(args.csv, texts.csv_text(found))
  if args.html:
    page.FILE.write(args.html, page.page(found, args.top))
  print(json.dumps(texts.to_json(found), indent=2) if args.json
        else texts.text(found, args.top))
  return 0
