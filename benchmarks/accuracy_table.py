"""The results of the accuracy benchmark: a CSV, and Markdown tables of it."""

from __future__ import annotations

import collections
import io
import math
import os
import statistics
from collections.abc import Callable, Iterable
from typing import Optional

import pandas

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

# What a run is: two rows never agree in all of these.
KEY = ('data', 'model', 'kwargs', 'seed', 'epochs')
SPLITS = ('valid', 'test', 'real')
MEASURES = ('top1', 'top5', 'top10', 'opa', 'kendall')
# Slowdowns of choices without a model: the compiler's default tile, which is
# one, and what k tiles drawn at random are to be expected to give.
CHOICES = ('default', 'random1', 'random5', 'random10')
TRAINING = ('parameters', 'seconds_an_epoch', 'epochs_done', 'best_epoch')
COLUMNS = (
    *KEY, 'name', 'status', 'error', *TRAINING,
    *(f'{split}_{column}' for split in SPLITS for column in (
        'kernels', *(f'micro_{measure}' for measure in MEASURES), *CHOICES)),
    'threads', 'models_py', 'content', 'recipe', 'protocol', 'date', 'machine',
    'versions', 'command')

_TITLES = {'valid': 'Validation split', 'test': 'Labelled test split',
           'real': 'Real TPU kernels'}
_DEFAULT, _RANDOM = "the compiler's default tile", 'a random choice'
_HEADS = {'top1': 'top-1 %', 'top5': 'top-5 %', 'top10': 'top-10 %',
          'opa': 'OPA', 'kendall': 'tau'}

Row = dict[str, str]


# --- The CSV -----------------------------------------------------------------


class Results:
  """A CSV with a row a run; each change replaces the file as a whole."""

  def __init__(self, path: str, columns: tuple[str, ...] = COLUMNS,
               tables: Optional[Callable[[list[Row]], str]] = None):
    """Of the tile task, unless other columns and tables are given."""
    self.path, self._columns = path, columns
    self.tables = tables or markdown

  def rows(self) -> list[Row]:
    """All rows, as text.

    Raises:
      UserError: the file has other columns.
    """
    if not os.path.exists(self.path):
      return []
    frame = pandas.read_csv(self.path, dtype=str, keep_default_na=False)
    if tuple(frame.columns) != self._columns:
      raise UserError(
          f'{self.path}: its columns are not those of this benchmark; move '
          'it away, or name another --results')
    return frame.to_dict('records')

  def put(self, row: dict[str, object]) -> None:
    """Adds a row, or replaces the one of the same run."""
    new = {column: text_of(row.get(column)) for column in self._columns}
    rows = {key_of(each): each for each in [*self.rows(), new]}
    text = io.StringIO()
    pandas.DataFrame(rows.values()).to_csv(text, index=False)
    files.write_file(self.path, text.getvalue().encode())


def key_of(row: dict[str, object]) -> tuple[str, ...]:
  return tuple(text_of(row[column]) for column in KEY)


def text_of(value: object) -> str:
  if value is None:
    return ''
  return f'{value:.6g}' if isinstance(value, float) else str(value)


# --- Markdown ----------------------------------------------------------------


def markdown(rows: list[Row]) -> str:
  """The tables: a summary, then a section for each data set."""
  lines = ['# Accuracy of the models', '', *_header(rows), '']
  sets = collections.defaultdict(list)
  for row in rows:
    if row['status'] == 'ok':
      sets[row['data'], row['content'], row['epochs']].append(row)
  lines += _summary(sets)
  for (data, _, epochs), members in sets.items():
    lines += [f'## {data}, {epochs} epochs at most', '',
              *_data_set(members, rows)]
  return '\n'.join(lines + failed_runs(rows)).rstrip() + '\n'


def failed_runs(rows: list[Row]) -> list[str]:
  """A section of the runs that failed, if there are any."""
  failed = [row for row in rows if row['status'] != 'ok']
  return failed and ['## Failed runs', '', *table(
      ['run', 'data', 'seed', 'epochs', 'error'],
      [[row['name'], row['data'], row['seed'], row['epochs'],
        row['error'].replace('|', '\\|')] for row in failed])]


def _header(rows: list[Row]) -> list[str]:
  """What the numbers mean and where they come from."""
  return [
      'Mean ± sample standard deviation over seeds. top-k %: how much slower '
      'the best of the k chosen', 'tiles is than the best tile, as a mean over '
      'kernels. "Best to worst seed" is of the top-5.', 'Written by '
      '`benchmarks/accuracy.py`; `benchmarks/README.md` says how the data is '
      'made.', '',
      "Epochs and LightGBM's trees are chosen on the validation split, and on "
      'no other.', '', *provenance(
          rows, '`tpu-graphs-ext train` at default flags, but for `--epochs` '
          'and `--seed`',
          "models.py, or a LightGBM row's booster.py (SHA-256)")]


def provenance(rows: list[Row], training: str, models_py: str) -> list[str]:
  """A list of what the rows come from: data, versions, machine, dates.

  Args:
    rows: all.
    training: how was trained.
    models_py: what to call that column.
  """
  recipes = dict.fromkeys(
      (row['data'], row['recipe'], row['content']) for row in rows)
  lines = [f'- Data `{data}`: {recipe}; content {content}.'
           for data, recipe, content in recipes]
  lines.append(f'- Training: {training}.')
  for title, column in (
      ('Versions', 'versions'), (models_py, 'models_py'),
      ('Machine', 'machine'), ('Threads of a run', 'threads'),
      ('Command', 'command')):
    values = dict.fromkeys(row[column] for row in rows if row[column])
    quote = '`' if column == 'command' else ''
    lines += [f'- {title}: {quote}{value}{quote}' for value in values]
  dates = sorted({row['date'] for row in rows})
  if dates:
    lines.append('- Date: ' + ' to '.join(dict.fromkeys([dates[0], dates[-1]])))
  return lines


def _summary(sets: dict[tuple, list[Row]]) -> list[str]:
  """One line a compared model: top-1 and top-5 wherever it was measured."""
  columns = {
      f'{data}, {split}, {epochs} epochs': (split, measured)
      for (data, _, epochs), rows in sets.items() for split in SPLITS
      if (measured := [row for row in rows if row['name'] == row['model']
                       and row[f'{split}_kernels']])}
  if not columns:
    return []
  models = dict.fromkeys(
      row['name'] for _, rows in columns.values() for row in rows)
  cells = [[model, *(' / '.join(
      _spread([row for row in rows if row['name'] == model],
              f'{split}_micro_{measure}', measure, 1)
      for measure in ('top1', 'top5')) for split, rows in columns.values())]
           for model in models]
  cells += [[label, *(' / '.join(
      _choice(label, rows[0], split, measure, 1)
      for measure in ('top1', 'top5')) for split, rows in columns.values())]
            for label in (_DEFAULT, _RANDOM)]
  return ['## Summary: micro top-1 % / top-5 %', '',
          *table(['model', *columns], cells)]


def _data_set(rows: list[Row], every: list[Row]) -> list[str]:
  """Compared models, then ablations, a table for each split."""
  compared = [row for row in rows if row['name'] == row['model']]
  ablated = [row for row in rows if row['name'] != row['model']]
  lines = _split_tables('', compared, every)
  for model in dict.fromkeys(row['model'] for row in ablated):
    # With the model as it is, to compare with.
    group = [row for row in [*compared, *ablated] if row['model'] == model]
    lines += _split_tables(f'Ablations of {model}: ', group, every)
  return lines


def _split_tables(title: str, rows: list[Row], every: list[Row]) -> list[str]:
  lines = []
  for split in SPLITS:
    measured = [row for row in rows if row[f'{split}_kernels']]
    if measured:
      kernels = '/'.join(dict.fromkeys(
          row[f'{split}_kernels'] for row in measured))
      note = '; trained on the data set above' * (split == 'real')
      lines += [f'### {title}{_TITLES[split]} ({kernels} kernels{note})', '',
                *_measure_table(split, measured, every)]
  return lines


def _measure_table(split: str, rows: list[Row],
                   every: list[Row]) -> list[str]:
  with_training = split == 'valid'
  heads = ['model', 'seeds', *_HEADS.values(), 'best to worst seed',
           *(['parameters', 's/epoch', 'best epoch'] if with_training else [])]
  cells = []
  for (name, model, kwargs), members in _best_first(rows, split):
    asked = sum(
        all(row[column] == members[0][column] for column in (
            'data', 'model', 'kwargs', 'epochs', 'content')) for row in every)
    top5 = percents_of(members, f'{split}_micro_top5')
    cells.append([
        name if name == model else f'{name} `{kwargs}`',
        f'{len(members)} of {asked}' if asked != len(members) else str(asked),
        *(_spread(members, f'{split}_micro_{measure}', measure, 2)
          for measure in MEASURES),
        f'{min(top5):.2f} to {max(top5):.2f}' if top5 else '-'])
    if with_training:
      cells[-1] += [
          f'{int(members[0]["parameters"]):,}',
          mean_std(numbers_of(members, 'seconds_an_epoch'), 2),
          mean_std(numbers_of(members, 'best_epoch'), 0)]
  for label in (_DEFAULT, _RANDOM):
    choice = [label, '', *(
        _choice(label, rows[0], split, measure, 2) for measure in MEASURES)]
    cells.append(choice + [''] * (len(heads) - len(choice)))
  return table(heads, cells)


def _best_first(rows: list[Row], split: str) -> list[tuple]:
  """Runs by (name, model, kwargs), in the order of their mean top-5.

  In a table of ablations the model as it is comes first.
  """
  runs = collections.defaultdict(list)
  for row in rows:
    runs[row['name'], row['model'], row['kwargs']].append(row)
  ablated = any(name != model for name, model, _ in runs)

  def order(item):
    (name, model, _), members = item
    numbers = numbers_of(members, f'{split}_micro_top5')
    return (ablated and name != model,
            statistics.fmean(numbers) if numbers else math.inf)

  return sorted(runs.items(), key=order)


def _choice(label: str, row: Row, split: str, measure: str,
            digits: int) -> str:
  """The cell of a choice without a model; '-' where there is no number."""
  if label == _DEFAULT:
    column = 'default' if measure == 'top1' else None
  elif measure in ('opa', 'kendall'):
    return {'opa': '0.500', 'kendall': '0.000'}[measure]
  else:
    column = measure.replace('top', 'random')
  return (mean_std(percents_of([row], f'{split}_{column}'), digits)
          if column else '-')


def _spread(rows: list[Row], column: str, measure: str, digits: int) -> str:
  if measure.startswith('top'):
    return mean_std(percents_of(rows, column), digits)
  return mean_std(numbers_of(rows, column), 3)


def numbers_of(rows: Iterable[Row], column: str) -> list[float]:
  """The values that are there: a measure may be undefined."""
  return [float(row[column]) for row in rows if row[column]]


def percents_of(rows: Iterable[Row], column: str) -> list[float]:
  return [100 * number for number in numbers_of(rows, column)]


def mean_std(numbers: list[float], digits: int) -> str:
  """'mean ± sample standard deviation'; of one number itself."""
  if not numbers:
    return '-'
  mean = f'{statistics.fmean(numbers):.{digits}f}'
  if len(numbers) == 1:
    return mean
  return f'{mean} ± {statistics.stdev(numbers):.{digits}f}'


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
  lines = [heads, ['---'] + ['---:'] * (len(heads) - 1), *rows]
  return ['| ' + ' | '.join(line) + ' |' for line in lines] + ['']


# --- The README's table ------------------------------------------------------

README_MARKS = ('<!-- Written by benchmarks/accuracy.py --readme. -->',
                '<!-- End of what it writes. -->')
# Name in the CSV -> in the table.
_README_ROWS = {
    'MyEarlyJoinSAGE': '`MyEarlyJoinSAGE`',
    'without feature_stats': 'without `feature_stats`',
    'AnalyticTileModel': '`AnalyticTileModel`, seven constants',
    'EarlyJoinSAGE': "`EarlyJoinSAGE`, the baseline's",
    'LightGBM': 'LightGBM on columns made by hand'}
# (data, split, measures, in the head)
_README_COLUMNS = (
    ('compiled_v3', 'test', ('top1', 'top5', 'opa'), 'test programs: '),
    ('compiled_v3', 'real', ('top1', 'top5', 'kendall'), 'real kernels: '),
    ('measured_tiles', 'valid', ('top1', 'top5', 'opa'),
     'timed on a CPU (valid): '))


def readme_table(rows: list[Row]) -> str:
  """The main numbers, of the runs with the most epochs.

  Data and models without a run are left out.
  """
  heads, cells = [''], {name: [] for name in _README_ROWS}
  choices = [[_DEFAULT], [_RANDOM]]
  for data, split, measures, title in _README_COLUMNS:
    own = [row for row in rows
           if (row['data'], row['status']) == (data, 'ok')
           and row['name'] in _README_ROWS and row[f'{split}_kernels']]
    if not own:
      continue
    epochs = max((row['epochs'] for row in own), key=int)
    heads += [title * (not number) + _HEADS[measure]
              for number, measure in enumerate(measures)]
    for name, cell in cells.items():
      runs = [row for row in own
              if (row['name'], row['epochs']) == (name, epochs)]
      for measure in measures:
        text = _spread(runs, f'{split}_micro_{measure}', measure, 1)
        cell.append(text if measure.startswith('top') else text.split(' ')[0])
    for choice in choices:
      choice += [_choice(choice[0], own[0], split, measure, 1)
                 for measure in measures]
  there = [[_README_ROWS[name], *cell] for name, cell in cells.items()
           if set(cell) - {'-'}]
  return '\n'.join(table(heads, there + choices)).rstrip()


def with_readme_table(text: str, rows: list[Row]) -> str:
  """The text of the README with the table of these rows between its marks.

  Raises:
    UserError: the text lacks one of the marks.
  """
  first, last = README_MARKS
  before, found, rest = text.partition(first)
  _, also_found, after = rest.partition(last)
  if not (found and also_found):
    raise UserError(f'--readme: the file must have the lines {first} and '
                    f'{last}, one after the other')
  return f'{before}{first}\n\n{readme_table(rows)}\n\n{last}{after}'
