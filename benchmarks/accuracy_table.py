"""The results of the accuracy benchmark: a CSV, and Markdown tables of it."""

from __future__ import annotations

import collections
import io
import os
import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

# What a run is: two rows never agree in all of these.
KEY = ('data', 'model', 'kwargs', 'seed', 'epochs')
SPLITS = ('valid', 'test', 'real')
TRAINING = ('parameters', 'seconds_an_epoch', 'epochs_done', 'best_epoch')
_HEADS = {'kendall': 'tau', 'opa': 'OPA', **{
    f'top{k}': f'top-{k} %' for k in (1, 5, 10, 100)}}

Row = dict[str, str]


class Task(NamedTuple):
  """What the tables of a task have.

  Attributes:
    title: of the page.
    about: what its numbers mean.
    training: how models are trained.
    models_py: what to call the column `models_py`.
    problems: 'kernels' or 'programs'.
    prefix: of the measures in the CSV, after the split.
    measures: in the order of the columns; `best` decides the order of models.
    summarized: measures of the first table.
    choices: choice without a model -> measure -> column, or its value.
    bounds: columns of the choices.
    titles: split -> its heading.
  """
  title: str
  about: str
  training: str
  models_py: str
  problems: str
  prefix: str
  measures: tuple[str, ...]
  best: str
  summarized: tuple[str, ...]
  choices: Mapping[str, Mapping[str, str]]
  bounds: tuple[str, ...]
  titles: Mapping[str, str]

  @property
  def columns(self) -> tuple[str, ...]:
    """All columns of the CSV."""
    measures = [self.prefix + measure for measure in self.measures]
    return (*KEY, 'name', 'status', 'error', *TRAINING, *(
        f'{split}_{column}' for split in SPLITS
        for column in (self.problems, *measures, *self.bounds)),
            'threads', 'models_py', 'content', 'recipe', 'protocol', 'date',
            'machine', 'versions', 'command')


TILE = Task(
    'Accuracy of the models',
    'Mean ± sample standard deviation over seeds. top-k %: how much slower the '
    'best of the k chosen\ntiles is than the best tile, as a mean over kernels.'
    '\nWritten by `benchmarks/accuracy.py`; `benchmarks/README.md` says how the'
    " data is made.\n\nEpochs and LightGBM's trees are chosen on the "
    'validation split, and on no other.',
    '`tpu-graphs-ext train` at default flags, but for `--epochs` and `--seed`',
    "models.py, or a LightGBM row's booster.py (SHA-256)", 'kernels', 'micro_',
    ('top1', 'top5', 'top10', 'opa', 'kendall'), 'top5', ('top1', 'top5'), {
        "the compiler's default tile": {'top1': 'default'},
        'a random choice': {'top1': 'random1', 'top5': 'random5',
                            'top10': 'random10', 'opa': '0.500',
                            'kendall': '0.000'}},
    ('default', 'random1', 'random5', 'random10'), {
        'valid': 'Validation split', 'test': 'Labelled test split',
        'real': 'Real TPU kernels, none trained on'})
LAYOUT = Task(
    'Accuracy of the layout models',
    "Mean ± sample standard deviation over seeds, of means over programs. tau: "
    "Kendall's tau-b of\nthe runtimes and the order of all configurations; "
    'where runtimes are equal a perfect order has\nless than 1. OPA: pairs of '
    'unlike runtime in the right order. top-k %: how much slower the\nfastest '
    'of the k chosen is than the fastest of all. Written by '
    '`benchmarks/accuracy.py --task layout`;\n`benchmarks/README.md` says how.',
    '`tpu-graphs-ext train --task layout` at default flags, but for `--epochs` '
    'and `--seed`', 'layout_models.py (SHA-256)', 'programs', '',
    ('kendall', 'opa', 'top1', 'top10', 'top100'), 'kendall', ('kendall',), {
        'a perfect order': {'kendall': 'most_kendall', 'opa': '1.000',
                            'top1': '0.00', 'top10': '0.00', 'top100': '0.00'},
        'a blind choice': {'kendall': '0.000', 'opa': '0.500',
                           'top1': 'random1', 'top10': 'random10',
                           'top100': 'random100'}},
    ('most_kendall', 'random1', 'random10', 'random100'), {
        'valid': 'Validation split, by which the epoch is chosen',
        'test': 'Labelled test split',
        'real': 'Labelled real files of the same collection, none trained on'})


# --- The CSV -----------------------------------------------------------------


class Results:
  """A CSV with a row a run; each change replaces the file as a whole."""

  def __init__(self, path: str, task: Task = TILE):
    self.path, self._task = path, task

  def rows(self) -> list[Row]:
    """All rows, as text.

    Raises:
      UserError: the file has other columns.
    """
    if not os.path.exists(self.path):
      return []
    frame = pandas.read_csv(self.path, dtype=str, keep_default_na=False)
    if tuple(frame.columns) != self._task.columns:
      raise UserError(
          f'{self.path}: its columns are not those of this benchmark; move '
          'it away, or name another --results')
    return frame.to_dict('records')

  def put(self, row: dict[str, object]) -> None:
    """Adds a row, or replaces the one of the same run."""
    new = {column: _text(row.get(column)) for column in self._task.columns}
    rows = {key_of(each): each for each in [*self.rows(), new]}
    text = io.StringIO()
    pandas.DataFrame(rows.values()).to_csv(text, index=False)
    files.write_file(self.path, text.getvalue().encode())

  def write_table(self) -> str:
    """Writes the Markdown beside the CSV; returns its path."""
    path = os.path.splitext(self.path)[0] + '.md'
    files.write_file(path, markdown(self.rows(), self._task).encode())
    return path


def key_of(row: dict[str, object]) -> tuple[str, ...]:
  return tuple(_text(row[column]) for column in KEY)


def _text(value: object) -> str:
  if value is None:
    return ''
  return f'{value:.6g}' if isinstance(value, float) else str(value)


# --- Markdown ----------------------------------------------------------------


def markdown(rows: list[Row], task: Task = TILE) -> str:
  """The tables: a summary, then a section for each data set."""
  lines = [f'# {task.title}', '', task.about, '', *_provenance(rows, task), '']
  sets = collections.defaultdict(list)
  for row in rows:
    if row['status'] == 'ok':
      sets[row['data'], row['content'], row['epochs']].append(row)
  lines += _summary(sets, task)
  for (data, _, epochs), members in sets.items():
    lines += [f'## {data}, {epochs} epochs at most', '',
              *_data_set(members, rows, task)]
  failed = [row for row in rows if row['status'] != 'ok']
  if failed:
    lines += ['## Failed runs', '', *table(
        ['run', 'data', 'seed', 'epochs', 'error'],
        [[row['name'], row['data'], row['seed'], row['epochs'],
          row['error'].replace('|', '\\|')] for row in failed])]
  return '\n'.join(lines).rstrip() + '\n'


def _provenance(rows: list[Row], task: Task) -> list[str]:
  """A list of what the rows come from: data, versions, machine, dates."""
  recipes = dict.fromkeys(
      (row['data'], row['recipe'], row['content']) for row in rows)
  lines = [f'- Data `{data}`: {recipe}; content {content}.'
           for data, recipe, content in recipes]
  lines.append(f'- Training: {task.training}.')
  for title, column in (
      ('Versions', 'versions'), (task.models_py, 'models_py'),
      ('Machine', 'machine'), ('Threads of a run', 'threads'),
      ('Command', 'command')):
    values = dict.fromkeys(row[column] for row in rows if row[column])
    quote = '`' if column == 'command' else ''
    lines += [f'- {title}: {quote}{value}{quote}' for value in values]
  dates = sorted({row['date'] for row in rows})
  if dates:
    lines.append('- Date: ' + ' to '.join(dict.fromkeys([dates[0], dates[-1]])))
  return lines


def _summary(sets: dict[tuple, list[Row]], task: Task) -> list[str]:
  """One line a compared model: the main measures wherever it was measured."""
  columns = {
      f'{data}, {split}, {epochs} epochs': (split, measured)
      for (data, _, epochs), rows in sets.items() for split in SPLITS
      if (measured := [row for row in rows if row['name'] == row['model']
                       and row[f'{split}_{task.problems}']])}
  if not columns:
    return []
  models = dict.fromkeys(
      row['name'] for _, rows in columns.values() for row in rows)
  cells = [[model, *(' / '.join(
      spread([row for row in rows if row['name'] == model], split, measure, 1,
             task) for measure in task.summarized)
                     for split, rows in columns.values())] for model in models]
  cells += [[label, *(' / '.join(
      _choice(label, rows[0], split, measure, 1, task)
      for measure in task.summarized) for split, rows in columns.values())]
            for label in task.choices]
  title = ' / '.join(_HEADS[measure] for measure in task.summarized)
  return [f'## Summary: {title}', '', *table(['model', *columns], cells)]


def _data_set(rows: list[Row], every: list[Row], task: Task) -> list[str]:
  """Compared models, then ablations, a table for each split."""
  compared = [row for row in rows if row['name'] == row['model']]
  ablated = [row for row in rows if row['name'] != row['model']]
  groups = {'': compared, **{
      # With the model as it is, to compare with.
      f'Ablations of {model}: ': [row for row in [*compared, *ablated]
                                  if row['model'] == model]
      for model in dict.fromkeys(row['model'] for row in ablated)}}
  lines = []
  for title, group in groups.items():
    for split in SPLITS:
      measured = [row for row in group if row[f'{split}_{task.problems}']]
      if measured:
        count = '/'.join(dict.fromkeys(
            row[f'{split}_{task.problems}'] for row in measured))
        lines += [f'### {title}{task.titles[split]} ({count} {task.problems})',
                  '', *_measure_table(split, measured, every, task)]
  return lines


def _measure_table(split: str, rows: list[Row], every: list[Row],
                   task: Task) -> list[str]:
  with_training = split == 'valid'
  heads = ['model', 'seeds', *(_HEADS[measure] for measure in task.measures)]
  if with_training:
    heads += ['parameters', 's/epoch', 'best epoch']
  cells = []
  for (name, model, kwargs), members in _best_first(rows, split, task):
    asked = sum(
        all(row[column] == members[0][column] for column in (
            'data', 'model', 'kwargs', 'epochs', 'content')) for row in every)
    cells.append([
        name if name == model else f'{name} `{kwargs}`',
        f'{len(members)} of {asked}' if asked != len(members) else str(asked),
        *(spread(members, split, measure, 2, task)
          for measure in task.measures)])
    if with_training:
      cells[-1] += [
          f'{int(members[0]["parameters"]):,}',
          mean_std(_numbers(members, 'seconds_an_epoch'), 2),
          mean_std(_numbers(members, 'best_epoch'), 0)]
  for label in task.choices:
    choice = [label, '', *(_choice(label, rows[0], split, measure, 2, task)
                           for measure in task.measures)]
    cells.append(choice + [''] * (len(heads) - len(choice)))
  return table(heads, cells)


def _best_first(rows: list[Row], split: str, task: Task) -> list[tuple]:
  """Runs by (name, model, kwargs), best mean first.

  In a table of ablations the model as it is comes first.
  """
  runs = collections.defaultdict(list)
  for row in rows:
    runs[row['name'], row['model'], row['kwargs']].append(row)
  ablated = any(name != model for name, model, _ in runs)
  sign = 1 if task.best.startswith('top') else -1

  def order(item):
    (name, model, _), members = item
    numbers = _numbers(members, f'{split}_{task.prefix}{task.best}')
    return (ablated and name != model, not numbers,
            sign * statistics.fmean(numbers) if numbers else 0)

  return sorted(runs.items(), key=order)


def _choice(label: str, row: Row, split: str, measure: str, digits: int,
            task: Task) -> str:
  """The cell of a choice without a model; '-' where there is no number."""
  column = task.choices[label].get(measure, '-')
  return (_cell([row], f'{split}_{column}', measure, digits)
          if column in task.bounds else column)


def spread(rows: list[Row], split: str, measure: str, digits: int,
           task: Task = TILE) -> str:
  """Mean and deviation of a measure; slowdowns in % with that many digits."""
  return _cell(rows, f'{split}_{task.prefix}{measure}', measure, digits)


def _cell(rows: list[Row], column: str, measure: str, digits: int) -> str:
  numbers = _numbers(rows, column)
  if measure.startswith('top'):
    return mean_std([100 * number for number in numbers], digits)
  return mean_std(numbers, 3)


def _numbers(rows: Iterable[Row], column: str) -> list[float]:
  """The values that are there: a measure may be undefined."""
  return [float(row[column]) for row in rows if row[column]]


def mean_std(numbers: list[float], digits: int) -> str:
  """'mean ± sample standard deviation'; a single number alone."""
  if not numbers:
    return '-'
  mean = f'{statistics.fmean(numbers):.{digits}f}'
  if len(numbers) == 1:
    return mean
  return f'{mean} ± {statistics.stdev(numbers):.{digits}f}'


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
  lines = [heads, ['---'] + ['---:'] * (len(heads) - 1), *rows]
  return ['| ' + ' | '.join(line) + ' |' for line in lines] + ['']
