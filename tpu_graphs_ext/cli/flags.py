"""Flags and verbs: what the modules beside this one are written in.

A verb is a function with the decorator `verb`, which names its flags. A field
of a settings dataclass becomes a flag by `of_settings`, with the field's name,
type, default, help and choices.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import glob
import json
import logging
import os
import pathlib
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Optional

from tpu_graphs_ext.data.schema import DEFAULT_TPU
from tpu_graphs_ext.engine.settings import Loading
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.files import TEMPORARY, full_path, path_flag
from tpu_graphs_ext.tasks import TASKS, TILE, ShippedTask

_log = logging.getLogger(__name__)
# Settings that must not be empty; other paths may be: it means no file.
_NEEDED_PATHS = ('data_root', 'out_dir')
# Names and options of `ArgumentParser.add_argument`.
Flag = tuple[list[str], dict[str, Any]]


class Verb(NamedTuple):
  """A verb; `flags` gives those for a task, `run` the exit code or None."""
  summary: str
  more: str
  examples: tuple[str, ...]
  flags: Callable[[ShippedTask], Iterable[Flag]]
  run: Callable[[argparse.Namespace], int | None]


VERBS: dict[str, Verb] = {}


def verb(summary: str, *examples: str, flags: Any = (),
         more: str = '') -> Callable:
  """Makes a function the verb of its name; `flags` may depend on the task."""
  def add(run):
    VERBS[run.__name__.replace('_', '-')] = Verb(
        summary, more, examples,
        flags if callable(flags) else lambda _: flags, run)
    return run

  return add


def boolean(text: str) -> bool:
  if text.lower() not in ('true', '1', 'false', '0'):
    raise argparse.ArgumentTypeError(f'must be true or false; got {text!r}')
  return text.lower() in ('true', '1')


def at_least(least: int) -> Callable[[str], int]:
  def whole(text: str) -> int:
    if not (text.isdecimal() and int(text) >= least):
      raise argparse.ArgumentTypeError(
          f'must be a whole number of at least {least}; got {text!r}')
    return int(text)

  return whole


not_negative, positive = at_least(0), at_least(1)


def model_dir(text: str, out_dir: str, label: str = '--dir') -> str:
  """Resolves a hash prefix or `latest` to a model folder, or several.

  `latest` alone looks in `out_dir`. Raises UserError, which begins with
  `label`, if there is no model or several have these digits.
  """
  if ',' in text:
    return ','.join(model_dir(part, out_dir) for part in text.split(','))
  folder, name = os.path.split(path_flag(label)(text))
  if latest := name == 'latest':
    folder, name = folder or out_dir, 'model_'
  start = os.path.expanduser(os.path.join(folder, name))
  if os.path.exists(start) or not name.startswith('model_'):
    return text
  folders = sorted(
      (folder for folder in glob.glob(glob.escape(start) + '*')
       if os.path.isdir(folder) and not folder.endswith(TEMPORARY)
       and (not latest or os.path.isfile(
           f'{start[:-len(name)]}run_{folder[len(start):]}.jsonz'))),
      key=os.path.getmtime)
  if latest and not folders:
    raise UserError(f'{label}={text}: there is no model_<hash> with its run '
                    f'file in {folder}')
  if len(folders) > 1 and not latest:
    raise UserError(f'{label}={text}: {len(folders)} folders begin like this: '
                    f'{shortened(sorted(folders))}; give more of the hash')
  return folders[-1] if folders else text


def flag(name: str, metavar: Optional[str], help: str, default: Any = None,
         **options: Any) -> Flag:
  """Any flag, or an argument without dashes; '--a --b' has two names."""
  if default not in (None, False, '', []):
    help = f'{help} (default: {default})'
  return name.split(), {
      'metavar': metavar, 'help': help, 'default': default, **options}


def switch(name: str, help: str, default: bool = False) -> Flag:
  """A flag that is on when named; also --flag=false, as absl reads it."""
  return flag(name, 'true|false', help, default, nargs='?', const=True,
              type=boolean)


def path(name: str, metavar: str, help: str, default: Any = None,
         **options: Any) -> Flag:
  """A file or folder; empty is refused, as an unset variable gives that."""
  label = name.split()[0] if name.startswith('-') else metavar
  return flag(name, metavar, help, default, type=path_flag(label), **options)


def model_flag(names: str = '--dir', task: ShippedTask = TILE, more: str = '',
               **options: Any) -> Flag:
  return flag(
      names, 'MODEL_DIR', 'folder model_<hash>, with its run file beside it. '
      'The first digits of the hash are enough; `latest` is the newest in its '
      'folder' + more, **options, type=lambda text: model_dir(
          text, task.training.out_dir, names.split()[0]))


def any_model_flag(task: ShippedTask, names: str = '--dir',
                   unless: str = '', **options: Any) -> Flag:
  """The same for verbs that use the package's model where none is named;
  `unless` says when they do not.
  """
  if not task.has_pretrained:
    return model_flag(names, task, required=not unless, **options)
  more = ("; `pretrained` is this package's, for a TPU v3, and "
          '`pretrained:v6e` that for another generation')
  if not unless:
    options['default'] = 'pretrained'
  return model_flag(names, task, more=f'{more}, the default{unless}' if unless
                    else more, **options)


def models_for(names: Iterable[str], tpu: str, data: str = '') -> list[str]:
  """The models, with `pretrained` as that of a generation `tpu`.

  If that is '', it is what sample data in the folder `data` say, else v3.
  """
  from tpu_graphs_ext.engine import pretrained
  from tpu_graphs_ext.hlo import libtpu
  tpu = libtpu.generation(tpu) if tpu else ''
  if not tpu and data:
    from tpu_graphs_ext.sample import write
    tpu = write.tpu_of(os.path.expanduser(data))
  return [pretrained.name_for(tpu) if name == pretrained.NAME else name
          for name in names]


def foreign_flags(task: ShippedTask) -> Iterable[Flag]:
  yield path('--scores', 'FILE.npz', 'scores of another model: an array '
             f'[configurations] for each {task.problem}, under its name; '
             'the lowest is the fastest', [], nargs='+', action='extend')
  yield path('--predictions', 'FILE.csv', 'rankings of another model: a CSV '
             f'of `predict`, `train` or the baseline of these '
             f'{task.problem}s', [], nargs='+', action='extend')


def foreign(args: argparse.Namespace) -> list[Callable]:
  """By `Loading`, each `ForeignRanker` that those flags name."""
  from tpu_graphs_ext.engine import evaluate
  return [functools.partial(read, path) for read, paths in (
      (evaluate.read_scores, args.scores),
      (evaluate.read_predictions, args.predictions)) for path in paths]


def data_flag(task: ShippedTask, split: str, before: str = '') -> Flag:
  folders = '/'.join(f'<{name}>' for name in (
      'data_root', *task.collection_args))
  return flag('--data', 'PATH', f'{before}{task.sources}; empty: '
              f'{folders}/{split}', '')


TASK = flag('--task', None, ' or '.join(
    task.about for task in TASKS.values()) + '; `--task layout --help` lists '
    'the flags of the latter', TILE.name, choices=tuple(TASKS))
JSON = switch('--json', 'print JSON instead of text')


def of_programs(tpu: str = 'compile for this generation', empty: str = ''
                ) -> list[Flag]:
  """Flags of verbs that compile; `empty` says what --tpu is by default."""
  return [
      flag('--shapes', 'SHAPES', "of the function's arguments, such as "
           "'f32[512,1024] bf16[1024]', or the name of a function in the same "
           'module that returns the arguments', ''),
      flag('--tpu', 'GENERATION', f'{tpu}: v2, v3, v4, v5e, v5p, v6e or v7x'
           f'{empty}. Needs the extra [tpu]', '' if empty else DEFAULT_TPU),
      flag('--jax_python', 'PYTHON', 'Python of an environment with JAX, which '
           'lowers functions of JAX and reads HLO text; empty: this Python',
           '')]


def of_settings(settings_class: type, *without: str) -> list[Flag]:
  """A flag for each field but some, which `given` leaves at their defaults."""
  types = typing.get_type_hints(settings_class)
  flags = []
  for field in dataclasses.fields(settings_class):
    if field.name in without:
      continue
    name, help = '--' + field.name, field.metadata['help']
    choices = field.metadata['choices']
    # int of Optional[int].
    of = (typing.get_args(types[field.name]) or [types[field.name]])[0]
    if of is bool:
      flags.append(switch(name, help, field.default))
    else:
      flags.append(flag(
          name, None if choices else field.name.upper(), help, field.default,
          type=path_flag(name) if field.name in _NEEDED_PATHS else of,
          choices=choices))
  return flags


def given(args: argparse.Namespace, settings_class: type) -> Any:
  """The settings that the flags of `of_settings` give."""
  return settings_class(**{
      field.name: getattr(args, field.name)
      for field in dataclasses.fields(settings_class)
      if hasattr(args, field.name)})


def task_of(args: argparse.Namespace) -> ShippedTask:
  return TASKS[args.task]


def loading(args: argparse.Namespace) -> Loading:
  """How to load the task's models; baseline runs do not name their data root.

  If the default is missing, it is the folder that --data is a split of.
  """
  task = task_of(args)
  settings = given(args, task.loading)
  data = getattr(args, 'data', '')
  split = pathlib.Path(full_path(data))
  if (data and settings.data_root == task.loading.data_root
      and not os.path.isdir(os.path.expanduser(settings.data_root))
      and (split.parent / 'train').is_dir()):
    settings = dataclasses.replace(settings, data_root=str(
        split.parents[len(task.collection_args)]))
  return settings


def say_loading() -> None:
  _log.info('loading TensorFlow and the model, about ten seconds ...')


def few_threads(args: argparse.Namespace) -> None:
  """One thread an operation, where they are small."""
  say_loading()
  from tpu_graphs_ext.engine import threads
  if task_of(args).has_small_steps:
    threads.one_for_each_operation(threads.RANKING_CORES)


@contextlib.contextmanager
def progress(tpu: str) -> Iterator[Callable[[float], None]]:
  """Says how long the compiler takes: on a terminal each second, else once."""
  from tqdm import tqdm
  bars = []

  def tick(seconds: float) -> None:
    if not bars:
      bars.append(tqdm(
          bar_format='{desc}', disable=None, leave=False,
          desc=f'compiling for {tpu} ...'))
      if bars[0].disable:
        _log.info('compiling for %s ...', tpu)
    bars[0].set_description_str(f'compiling for {tpu} ... {seconds:.0f} s')

  try:
    yield tick
  finally:
    for bar in bars:
      bar.close()


def show(args: argparse.Namespace, to_json: Callable[[], Any],
         text: Callable[[], str]) -> None:
  print(json.dumps(to_json(), indent=2) if args.json else text(),
        file=args.stdout)


def failed(faults: list[str]) -> int:
  for fault in faults:
    print(f'error: {fault}', file=sys.stderr)
  return 1 if faults else 0
