"""Prints the tables of README.md and docs/ from the rows in results/.

  python benchmarks/tables.py --write

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is one of
`VIEWS`. Without --write it lists pages that differ from their rows (exit code
1), and rows that an older version of their code made. The other scripts `put`
their results into results/numbers.csv, but `traces.py`, which has a file of its
own.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import dataclasses
import datetime
import io
import itertools
import os
import pathlib
import platform
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple, Union

import traces
from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import threads
from tpu_graphs_ext.sample import kernels
from tpu_graphs_ext.tasks import layout, tile

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parent
RESULTS = HERE / 'results'
COLUMNS = ('table', 'row', 'column', 'value', 'spread', 'runs', 'code', 'date',
           'machine', 'command')
BLOCK = re.compile(r'<!-- table: ([\w-]+) -->\n(.*?)<!-- end -->', re.DOTALL)


class Cell(NamedTuple):
  """A number of a table.

  Attributes:
    value: mean over runs.
    spread: sample standard deviation; NaN: one run.
    code: 'FILE:hash' of what made it.
    date: ISO.
  """
  value: float
  spread: float
  code: str
  date: str

  def __format__(self, spec: str) -> str:
    """'4.4 ± 0.1'; a number alone where there was one run."""
    mean = format(self.value, spec)
    return mean if self.spread != self.spread else (
        f'{mean} ± {format(self.spread, spec)}')


# Row -> column -> number.
Cells = Mapping[str, Mapping[str, Cell]]


# --- Rows ---------------------------------------------------------------------


def put(table: str, rows: Mapping[str, Mapping[str, Union[
    float, Sequence[float]]]], code: str, command: str,
        whole: bool = False) -> None:
  """Replaces rows of one table in results/numbers.csv; all if `whole`.

  Args:
    rows: row -> column -> a number, or one for each seed.
    code: the file that decides the numbers, from the project's folder.
  """
  # (table, row) -> its lines: pages list rows in the file's order.
  lines = collections.defaultdict(list)
  for line in _numbers():
    if not (whole and line[0] == table and line[1] not in rows):
      lines[line[0], line[1]].append(line)
  for row, columns in rows.items():
    lines[table, row] = []
    for column, value in columns.items():
      runs = list(value) if isinstance(value, Sequence) else [value]
      spread = f'{statistics.stdev(runs):.6g}' if len(runs) > 1 else ''
      lines[table, row].append((
          table, row, column, f'{statistics.fmean(runs):.6g}', spread,
          len(runs), f'{code}:{code_hash(code)}',
          datetime.date.today().isoformat(), machine(), shown(command)))
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(COLUMNS)
  writer.writerows(itertools.chain(*lines.values()))
  files.write_file(str(RESULTS / 'numbers.csv'), text.getvalue().encode())


def code_hash(name: str) -> str:
  return files.sha256(str(PROJECT / name))[:12]


def machine() -> str:
  """Processor, cores that may be used, memory, system and TensorFlow."""
  name = platform.processor() or platform.machine()
  with contextlib.suppress(OSError, StopIteration):
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      name = next(line.split(':')[1].strip() for line in file
                  if line.startswith('model name'))
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
  return (f'{name}, {threads.cores()} cores, {memory:.0f} GiB, '
          f'{platform.system()}, TensorFlow {metadata.version("tensorflow")}')


def shown(command: str) -> str:
  """A command without the folders of absolute paths, which others lack."""
  return re.sub(r'(?<![\w.])/[^\s,=\'"]*/(?=[^\s,=\'"])', '', command)


def _numbers() -> list[list[str]]:
  with open(RESULTS / 'numbers.csv', encoding='utf-8', newline='') as file:
    return [*csv.reader(file)][1:]


def of_numbers(table: str) -> Cells:
  """The rows of `put`."""
  cells = collections.defaultdict(dict)
  for of, row, column, value, spread, _, code, date, *_ in _numbers():
    if of == table:
      cells[row][column] = Cell(
          float(value), float(spread or 'nan'), code, date)
  return cells


# --- Tables -------------------------------------------------------------------


class View(NamedTuple):
  """How rows are shown.

  Attributes:
    heads: (head of a column, format string of the row's columns).
    cells: what gives the rows.
    rows: row -> its name in the page; empty: all, in the file's order.
  """
  heads: Sequence[tuple[str, str]]
  cells: Cells
  rows: Mapping[str, str]


def text_of(view: Union[View, str]) -> str:
  """The table in Markdown, and what made it."""
  if isinstance(view, str):
    return view
  shown = view.rows or {row: row for row in view.cells}
  lines = [['', *(head for head, _ in view.heads)],
           ['---'] + ['---:'] * len(view.heads)]
  used = []
  for row, title in shown.items():
    values = view.cells.get(row, {})
    cells = [_cell(template, values) for _, template in view.heads]
    if set(cells) - {'-'}:
      used += values.values()
      lines.append([title, *cells])
  return '\n'.join(['| ' + ' | '.join(line) + ' |' for line in lines]
                   + ['', _made(used)]) + '\n'


def _cell(template: str, values: Mapping[str, Cell]) -> str:
  """A dash without the number; of two numbers the first alone will do."""
  for part in template, template.split(' / ')[0]:
    with contextlib.suppress(KeyError):
      return part.format_map(values)
  return '-'


def _made(cells: Sequence[Cell]) -> str:
  """'Measured 25 November 2026 (models.py ff1cf5b).'"""
  dates, codes = sorted({cell.date for cell in cells}), {}
  if not dates:
    return '*Not measured yet.*'
  for cell in cells:
    name, start = cell.code.split(':')
    codes.setdefault(name.rpartition('/')[-1], set()).add(start[:7])
  days = ' to '.join(map(_day, dict.fromkeys([*dates[:1], *dates[-1:]])))
  days = re.sub(r'(\d+)( \w+ \d{4})( to \d+)\2', r'\1\3\2', days)
  made = '; '.join(f'{name} {", ".join(sorted(starts))}'
                   for name, starts in sorted(codes.items()))
  return f'*Measured {days} ({made}).*'


def _day(date: str) -> str:
  day = datetime.date.fromisoformat(date)
  return f'{day.day} {day:%B %Y}'


_MODELS = {
    'MyEarlyJoinSAGE': '`MyEarlyJoinSAGE`',
    'MyEarlyJoinSAGE:best': '`MyEarlyJoinSAGE`, `--recipe best`',
    'MyEarlyJoinSAGE:quick': '`MyEarlyJoinSAGE`, `--recipe quick`',
    'without feature_stats': '`MyEarlyJoinSAGE` without `feature_stats`',
    'AnalyticTileModel': '`AnalyticTileModel`, ten constants',
    'EarlyJoinSAGE': "`EarlyJoinSAGE`, the baseline's",
    'LightGBM': 'LightGBM on hand-made columns'}
_CHOICES = {'default': "the compiler's default tile",
            'random': 'a random choice'}
_SHIPPED = {'package': '**the model in the package**',
            'alike': 'it and two with other seeds',
            'analytic': 'the analytic time alone, ten constants',
            **{row: _MODELS[row] for row in ('EarlyJoinSAGE', 'LightGBM')},
            **_CHOICES}
_GENERATIONS = 'v3', 'v5e', 'v5p', 'v6e', 'v7x'  # Which have a model.
_LAYOUTS = {**{name: f'`{name}`' for name in (
    'MyLayoutSAGE', 'ResModel', 'LayoutGCN', 'LayoutGAT',
    'GRURuntimePredictor')}, 'random': 'a random choice'}


def _ranked(split: str, heads: Mapping[str, int],
            title: str = '') -> list[tuple[str, str]]:
  """Heads of measures with their digits; the first head says of what."""
  names = {'opa': 'OPA', 'kendall': 'tau', 'kernels': 'kernels'}
  return [((title if number == 0 else '') + names.get(
      measure, f'top-{measure[3:]} %'), f'{{{split}{measure}:.{digits}f}}')
          for number, (measure, digits) in enumerate(heads.items())]


def _side_by_side(parts: Mapping[str, Cells]) -> Cells:
  """The rows of several tables as one; columns begin with a part's name."""
  cells = collections.defaultdict(dict)
  for part, rows in parts.items():
    for row, columns in rows.items():
      cells[row].update({f'{part}_{name}': cell
                         for name, cell in columns.items()})
  return cells


def views() -> dict[str, Union[View, str]]:
  """Every table of a page, by name."""
  return {**_shipped_views(), **_accuracy_views(), **_speed_views(),
          **_rule_views(), 'traces': traces.table(),
          'sample-kernels': sample_kernels(),
          **{'settings-' + group.split()[-1].lower(): settings(group)
             for group in _SETTINGS}}


_SLOWDOWNS = {'top1': 1, 'top5': 1}


def _two_kinds(first: str, second: str) -> list[tuple[str, str]]:
  """Heads of test programs and of real kernels, titled so."""
  return [*_ranked('test_', {**_SLOWDOWNS, 'opa': 3}, first + ': '),
          *_ranked('real_', {**_SLOWDOWNS, 'kendall': 3}, second + ': ')]


def _shipped_views() -> dict[str, View]:
  """Of the models in the package: README, docs/pretrained.md."""
  shipped = _side_by_side({tpu: of_numbers(f'pretrained-{tpu}')
                           for tpu in _GENERATIONS})
  titles = {**{row: _SHIPPED[row] for row in ('package', 'alike')},
            'v3': "the package's model for a TPU v3", **_SHIPPED}
  return {
      'shipped': View(
          [(head, template.replace(':', '.value:'))  # Without spreads.
           for head, template in _two_kinds('test programs',
                                            'timed on a TPU')],
          of_numbers('pretrained-v3'), {
              row: title for row, title in _SHIPPED.items()
              if row not in ('alike', 'analytic')}),
      'pretrained': View(
          [(head, f'{{{split}_top1:.1f}} / {{{split}_top5:.1f}}')
           for head, split in (
               *((tpu, f'{tpu}_test') for tpu in _GENERATIONS),
               ('timed on a v3', 'v3_real'))], shipped, titles),
      'pretrained-kinds': View(
          [(tpu, f'{{{tpu}_kernels:.0f}}: {{{tpu}_top1:.1f}} / '
            f'{{{tpu}_top5:.1f}}') for tpu in _GENERATIONS],
          _side_by_side({tpu: of_numbers(f'pretrained-{tpu}-kinds')
                         for tpu in _GENERATIONS}), {})}


def _accuracy_views() -> dict[str, View]:
  """Of models that `accuracy.py` trains: docs/results.md, docs/layout.md."""
  layouts = {'kendall': 3, 'top1': 1, 'top10': 1}
  timed = {'top1': 1, 'top5': 2, 'opa': 3}
  return {
      'accuracy-compiled': View(
          [(head, template.replace(':.3f', '.value:.3f'))  # To be narrow.
           for head, template in _two_kinds('test programs', 'real kernels')],
          of_numbers('compiled_v3'), {**_MODELS, **_CHOICES}),
      'accuracy-timed': View(
          [*_ranked('cpu_valid_', timed, 'CPU: '),
           *_ranked('gpu_valid_', timed, 'GPU: ')],
          _side_by_side({'cpu': of_numbers('measured_tiles'),
                         'gpu': of_numbers('gpu_tiles')}),
          {**_MODELS, **_CHOICES, 'default': 'the default tile of the data'}),
      'layout': View(
          [*_ranked('random_test_', layouts, '`random`: '),
           *_ranked('default_test_', layouts, '`default`: ')],
          _side_by_side({search: of_numbers(f'layout-{search}')
                         for search in ('random', 'default')}), _LAYOUTS)}


def _speed_views() -> dict[str, View]:
  """Time and memory: docs/speed.md, serving.md, layout.md, assignment.md."""
  seconds = '{ranking_oneDNN %d, all kernels, s:.2f} s'
  times = '{ranking_oneDNN %d, all kernels, ratio:.0f}'
  peak = '{memory_150 nodes x %d configs, MiB:,.0f} MiB'
  rankers = {'baseline EarlyJoinSAGE': "the baseline's `EarlyJoinSAGE`",
             'EarlyJoinSAGE': 'the same model from this `models.py`',
             'MyEarlyJoinSAGE': '`MyEarlyJoinSAGE`'}
  return {
      'serving': View(
          [('16 tiles', '{16 tiles, ms:.1f} ms'),
           ('1,000 tiles', '{1000 tiles, ms:.1f} ms'),
           ('1,000 tiles, one thread per operation',
            '{1000 tiles, one thread, ms:.1f} ms')],
          of_numbers('speed-serving'), {name: f'`{name}`' for name in (
              'MyEarlyJoinSAGE', 'AnalyticTileModel', 'EarlyJoinSAGE')}),
      'speed-ranking': View(
          [('oneDNN off', seconds % 0), ('times as fast', times % 0),
           ('oneDNN on', seconds % 1), ('times as fast', times % 1),
           *((f'memory, {tiles:,} tiles', peak % tiles)
             for tiles in (1000, 10_000))],
          _side_by_side({part: of_numbers(f'speed-{part}')
                         for part in ('ranking', 'memory')}), rankers),
      'speed-training': View(
          [("baseline's `models.py`", '{baseline, ms:.1f} ms'),
           ("ours, in the baseline's script",
            '{ours, unchanged script, ms:.1f} ms'),
           ('ours, `tpu-graphs-ext train`', '{ours, own host, ms:.1f} ms')],
          of_numbers('speed-training'), {}),
      'speed-layout': View(
          [('baseline', '{baseline:.1f}'), ('ours', '{ours:.2f}'),
           ('baseline over ours', '{ratio:.0f}')],
          of_numbers('speed-layout'), {}),
      'assignment': View(
          [('most memory', '{memory_gb:.2g} GB'),
           ('time', '{minutes:.1f} min')],
          of_numbers('assignment'), {})}


def _rule_views() -> dict[str, View]:
  """Of rules and formulas: docs/ranking.md, docs/blocks.md."""
  legal = collections.defaultdict(dict)
  for row, cells in of_numbers('legal-tiles').items():
    place, kind = row.rsplit(', ', 1)
    legal[place][kind] = cells
  blocks, grouped = map(of_numbers, ('blocks', 'blocks-grouped'))
  return {
      'legal-tiles': View(
          [*((tpu, f'{{{tpu}, compiled_kernels:,.0f}}: {{{tpu}, compiled_recall'
              f':.3f}} / {{{tpu}, compiled_precision:.3f}}')
             for tpu in _GENERATIONS),
           ('timed on a v3',
            '{v3, measured_kernels:.0f}: {v3, measured_recall:.3f}')],
          _side_by_side(legal), {}),
      'blocks': View(
          [('candidates, median', '{candidates:.0f}'),
           ('five at random', '{random:.0f} %'),
           ('five largest', '{largest:.0f} %'),
           ('first five of `rank`', '{rank:.0f} %')],
          {**blocks, **{f'grouped, {row}': cells
                        for row, cells in grouped.items()}}, {})}


# Group of docs/settings.md -> settings of `train`.
_SETTINGS = {
    'Model and data': (
        'model', 'models_py', 'model_kwargs_json', 'recipe', 'members',
        'tiles', 'data_root', 'source', 'search', 'cache_dir', 'toy_data'),
    'Training': (
        'batch', 'configs', 'list_size', 'max_configs', 'keep_nodes', 'lr',
        'lr_schedule', 'clip_norm', 'losses', 'epochs', 'early_stop',
        'eval_every', 'validate_batches'),
    'Run and outputs': (
        'out_dir', 'results_csv', 'test_mode', 'tensorboard', 'seed', 'run_id',
        'resume')}


def settings(group: str) -> str:
  """The settings of a group, made from the data classes of both tasks."""
  tasks = [{field.name: (field, getattr(defaults, field.name))
            for field in dataclasses.fields(defaults)}
           for defaults in (tile.TrainSettings(), layout.LayoutTrainSettings())]
  lost = set(tasks[0]) | set(tasks[1])
  lost -= {name for names in _SETTINGS.values() for name in names}
  if lost:
    raise ValueError(f'_SETTINGS lacks {", ".join(sorted(lost))}')
  lines = ['| flag | type | tiles | layouts | meaning |',
           '| --- | --- | --- | --- | --- |']
  for name in _SETTINGS[group]:
    field = next(of[name][0] for of in tasks if name in of)
    kind = re.sub(r'Optional\[(\w+)\]', r'\1', str(field.type))
    rule = field.metadata.get('choices')
    meaning = field.metadata['help'] + (
        f' ({" or ".join(filter(None, rule))})' if rule else '')
    defaults = ['-' if name not in of else '' if of[name][1] in ('', None)
                else f'`{of[name][1]}`' for of in tasks]
    lines.append(f'| `--{name}` | {kind} | ' + ' | '.join(defaults)
                 + f' | {meaning.replace("<", "&lt;")} |')
  return '\n'.join(lines) + '\n'


def sample_kernels() -> str:
  """What the package's sample data hold for each generation."""
  lines = ['| generation | kernels | train | valid | test | programs | tiles '
           '| the default is best | cycles at |', '|' + ' ---: |' * 9]
  for tpu, clock_ghz in kernels.CLOCK_GHZ.items():
    splits = [kernels.split_kernels(tpu, split) for split in schema.SPLITS]
    of_all = [kernel for split in splits for kernel in split]
    best = [kernel.cycles[kernel.default] == kernel.cycles.min()
            for kernel in of_all]
    cells = [f'{len(of_all):,}', *(f'{len(split):,}' for split in splits),
             str(len({kernel.program for kernel in of_all})),
             f'{sum(len(kernel.cycles) for kernel in of_all):,}',
             f'{statistics.fmean(best):.1%}'.replace('%', ' %')]
    lines.append(f'| {tpu} | ' + ' | '.join(cells) + f' | {clock_ghz} GHz |')
  return '\n'.join(lines) + '\n'


def with_tables(text: str, shown: Mapping[str, Union[View, str]]) -> str:
  """The page with its tables made anew.

  Raises:
    KeyError: it names a table that there is not.
  """
  return BLOCK.sub(lambda block: f'<!-- table: {block[1]} -->\n\n'
                   f'{text_of(shown[block[1]])}\n<!-- end -->', text)


def pages() -> list[pathlib.Path]:
  return [PROJECT / 'README.md', HERE / 'README.md',
          *sorted((PROJECT / 'docs').glob('*.md'))]


def stale() -> list[str]:
  """Code whose rows were made by an older version, and the tour if that was."""
  older = {cell.code for view in views().values() if isinstance(view, View)
           for columns in view.cells.values() for cell in columns.values()}
  tour = files.read_json(str(PROJECT / 'docs' / 'tour.ipynb'))
  of_models = tour['metadata']['models_py'][:12] == code_hash('models.py')
  return sorted(code for code in older
                if code.split(':')[1] != code_hash(code.split(':')[0])
                ) + ['docs/tour.ipynb'] * (not of_models)


def main() -> int:
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument('--write', action='store_true', help='rewrite the pages')
  args = flags.parse_args()
  shown, differ = views(), False
  for page in pages():
    text = page.read_text(encoding='utf-8')
    new = with_tables(text, shown)
    if new != text:
      print(f'{page.relative_to(PROJECT)}: '
            + ('written' if args.write else 'differs from its rows'))
      differ = True
      if args.write:
        page.write_text(new, encoding='utf-8')
  for code in stale():
    print(f'older than its code: {code}')
  return int(differ and not args.write)


if __name__ == '__main__':
  sys.exit(main())
