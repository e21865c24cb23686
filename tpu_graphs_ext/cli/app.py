"""Runs one command: words in; exit code, stdout and stderr out.

Results go to stdout, progress and warnings to stderr. Exit code 0: done; 1: a
fault in the input, named in one `error:` line; 2: wrong usage; 130: Ctrl-C;
143: SIGTERM. TensorFlow is imported only when a verb runs.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import json
import logging
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Iterable, Sequence
from typing import NoReturn, Optional

import tpu_graphs_ext
from tpu_graphs_ext.cli import assignment, flags, rank, verbs  # noqa: F401
from tpu_graphs_ext.errors import UserError, printable
from tpu_graphs_ext.files import read_json
from tpu_graphs_ext.stacks import imports
from tpu_graphs_ext.tasks import TASKS, TILE, ShippedTask

# The order of --help; the imports above add the verbs.
_ORDER = (
    'train', 'evaluate', 'predict', 'rank', 'kernels', 'report', 'export',
    'sweep', 'check-data', 'featurize', 'sample-data', 'stats', 'doctor',
    'install', 'uninstall', 'verify', 'package', 'kaggle-csv', 'run', 'trace')

_EVERY_VERB = (
    flags.path('--config', 'FILE', 'JSON object of flags, such as '
               '{"epochs": 5}; flags of the command line win'),
    flags.switch('--quiet', 'print no progress, only warnings, errors and the '
                 'result'),
    flags.switch('-v --verbose', 'print more: each feature outside the '
                 'training data, and with `rank FILE` the scores'))


class _Parser(argparse.ArgumentParser):
  """Says in one line what is wrong with a command."""
  where = ''  # Names the --config file, whose flag may be the wrong one.

  def error(self, message: str) -> NoReturn:
    self.exit(2, f'{self.prog}: error: {message}{self.where}; see {self.prog} '
              '--help\n')


class _Completion(argparse.Action):
  def __call__(self, parser, namespace, values, option_string=None):
    import shtab  # Takes longer than all of --help.
    every = make_parser(flags.VERBS)
    for verb in every.verbs.values():
      for action in verb._actions:
        if action.metavar and action.type not in (int, float, flags.boolean):
          action.complete = shtab.FILE
    print(shtab.complete(every, values))
    parser.exit()


def make_parser(whole: Iterable[str], task: ShippedTask = TILE) -> _Parser:
  """The parser of all verbs; `verbs` of it are their own parsers.

  Those in `whole` have their flags, of the task.
  """
  parser = _Parser(
      prog='tpu-graphs-ext', allow_abbrev=False, usage='%(prog)s VERB [FLAGS]',
      description='Train and use models that rank the tile sizes of TPU '
                  'kernels, or with --task layout the layouts of programs.',
      epilog='`tpu-graphs-ext VERB --help` lists the flags of a verb. Flags '
             'may be written with dashes (--data-root), and switches take a '
             'value (--quiet=false).')
  parser.add_argument('--version', action='version',
                      version=f'%(prog)s {tpu_graphs_ext.__version__}')
  parser.add_argument('--print-completion', action=_Completion,
                      choices=('bash', 'zsh'),
                      help='print what makes the Tab key complete verbs and '
                           'flags; see docs/commands.md')
  subparsers = parser.add_subparsers(
      dest='verb', metavar='VERB', required=True, prog=parser.prog,
      title='verbs')
  for name in _ORDER:
    verb = flags.VERBS[name]
    summary = verb.summary
    verb_parser = subparsers.add_parser(
        name, help=summary, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=textwrap.fill(
            f'{summary[0].upper()}{summary[1:]}. {verb.more}', 78),
        epilog='\n  '.join(['examples:', *(
            f'tpu-graphs-ext {name} {words}' for words in verb.examples)]))
    if name in whole:
      _add_flags(verb_parser, [*_EVERY_VERB, *verb.flags(task)])
  parser.verbs = subparsers.choices
  return parser


def _add_flags(parser: argparse.ArgumentParser,
               added: Sequence[flags.Flag]) -> None:
  usage = []
  for names, options in added:
    action = parser.add_argument(*names, **options)
    if action.required:
      usage.append(' '.join([*action.option_strings[:1], action.metavar]))
  parser.usage = ' '.join(['%(prog)s', *usage, '[FLAGS]'])


def parse(argv: Sequence[str]) -> argparse.Namespace:
  """Reads a command, or exits with 2 and one line about what is wrong."""
  words = list(argv)
  name = words[0] if words else ''
  if name not in flags.VERBS:
    return make_parser(()).parse_args(words)
  try:
    if name == 'run':  # The rest of its words are a script's.
      return make_parser([name]).parse_args(words)
    words = list(map(_underscored, words))
    early = _Parser(prog=f'tpu-graphs-ext {name}', add_help=False,
                    allow_abbrev=False)
    early.add_argument('--config')
    early.add_argument('--task')
    if config := early.parse_known_args(words)[0].config:
      # The last word ends a list before what is no flag, as in `report RUN`.
      words[1:1] = [*_read_config(config), f'--config={config}']
    task = early.parse_known_args(words)[0].task
    verb = make_parser([name], TASKS.get(task, TILE)).verbs[name]
    verb.where = f' (on the command line or in {config})' if config else ''
    switches = {flag for action in verb._actions if action.type is flags.boolean
                for flag in action.option_strings}
    # --json FILE as --json=true FILE, so that a switch takes no file.
    return verb.parse_args(
        [f'{word}=true' if word in switches else word for word in words[1:]],
        argparse.Namespace(verb=name))
  except UserError as error:
    make_parser(()).error(str(error))


def _underscored(word: str) -> str:
  """--data_root=a-b of --data-root=a-b."""
  name, equals, value = word.partition('=')
  return (name.replace('-', '_').replace('__', '--', 1) + equals + value
          if name.startswith('--') else word)


def _read_config(path: str) -> list[str]:
  """The words that a JSON file of flags stands for."""
  content = read_json(os.path.expanduser(path))
  if not isinstance(content, dict):
    raise UserError(f'{path}: must be a JSON object of flags, such as '
                    f'{{"epochs": 5}}; got a {type(content).__name__}')
  words = []
  for name, value in content.items():
    name = name.replace('-', '_')
    if isinstance(value, list):
      words += [f'--{name}', *map(str, value)]
    elif value is not None:
      words.append(f'--{name}=' + (
          value if isinstance(value, str) else json.dumps(value)))
  return words


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs one verb; returns the exit code.

  Without `argv` this is the process's command: SIGTERM ends it as Ctrl-C does,
  and it does not unload TensorFlow, which takes a second or more.
  """
  if argv is not None:
    return _run(argv)
  for name in ('stdout', 'stderr'):
    if getattr(sys, name) is None:  # Closed. Else a pipe gets its number.
      setattr(sys, name, open(os.devnull, 'w', encoding='utf-8'))
  codes = []
  atexit.register(_leave, codes)  # The first to be registered is the last run.
  sys.stdout.reconfigure(errors='replace')  # Letters that a terminal lacks.
  for number, default in ((signal.SIGTERM, signal.SIG_DFL),
                          (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is default:
      signal.signal(number, _interrupt)
  codes.append(_run(sys.argv[1:]))
  return codes[0]


def _leave(codes: Sequence[int]) -> None:
  """Ends the process at once, if the verb ended with a code."""
  if codes:
    with contextlib.suppress(OSError):
      sys.stdout.flush()
      sys.stderr.flush()
    os._exit(codes[0])


class _Terminated(KeyboardInterrupt):
  """SIGTERM, as a queue sends it when the time is up."""


def _interrupt(number, unused_frame) -> NoReturn:
  """Raises, which TensorFlow may swallow; verbs that save nothing must end."""
  if sys.argv[1:2] in (['rank'], ['kernels']):  # Nothing but finished rows.
    thread = threading.Timer(1.5, _end_at_once, [128 + number])
    thread.daemon = True
    thread.start()
  raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _end_at_once(code: int) -> NoReturn:
  if 'tpu_graphs_ext.hlo.subprocesses' in sys.modules:
    sys.modules['tpu_graphs_ext.hlo.subprocesses'].end_all()
  os._exit(code)


def _run(argv: Sequence[str]) -> int:
  args = parse(argv)
  imports.quieten()
  _set_up_logging(args.quiet, args.verbose)
  args.stdout = sys.stdout
  # What a models.py prints may not get into the JSON.
  others = sys.stderr if getattr(args, 'json', False) else sys.stdout
  try:
    with _progress(args.quiet), contextlib.redirect_stdout(others):
      code = flags.VERBS[args.verb].run(args)
    sys.stdout.flush()
    return code or 0
  except UserError as error:
    print(f'error: {printable(str(error))}', file=sys.stderr)
  except SystemExit:
    print('error: the code of a model has called exit()', file=sys.stderr)
  except KeyboardInterrupt as error:
    print('interrupted', file=sys.stderr)
    return 143 if isinstance(error, _Terminated) else 130
  except BrokenPipeError:  # `| head`: nobody reads on.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except MemoryError:
    print('error: there is not enough memory; give this process more (ulimit '
          '-v), or free some', file=sys.stderr)
  except OSError as error:
    advice = '; free some space' if error.errno == errno.ENOSPC else ''
    print(f'error: {error}{advice}', file=sys.stderr)
  return 1


def _progress(quiet: bool) -> contextlib.AbstractContextManager:
  """Messages go above progress bars; when quiet there are no bars."""
  from tqdm.contrib.logging import logging_redirect_tqdm
  from tqdm.utils import ObjectWrapper

  class NoTerminal(ObjectWrapper):  # So no bars are drawn on it.
    def isatty(self) -> bool:
      return False

  return (contextlib.redirect_stderr(NoTerminal(sys.stderr)) if quiet
          else logging_redirect_tqdm())


def _set_up_logging(quiet: bool, verbose: bool) -> None:
  """The package's messages to stderr; TensorFlow's only when they matter."""
  logging.basicConfig(format='%(message)s', stream=sys.stderr)
  logging.getLogger('tpu_graphs_ext').setLevel(
      logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
  for name in ('tensorflow', 'absl'):
    logging.getLogger(name).setLevel(logging.ERROR)
