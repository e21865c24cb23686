"""Columns and tables of the accuracy benchmark of the layout task."""

from __future__ import annotations

import collections
import statistics

from accuracy_table import (
  KEY,
  Row,
  failed_runs,
  mean_std,
  numbers_of,
  percents_of,
  provenance,
  table,
)

SPLITS = ('valid', 'test', 'real')
# A model's measures, and what bounds them: the tau of a perfect order, where
# runtimes are equal less than 1, and what a blind choice is to be expected of.
MEASURES = ('kendall', 'opa', 'top1', 'top10', 'top100')
BOUNDS = ('most_kendall', 'random1', 'random10', 'random100')
TRAINING = ('parameters', 'seconds_an_epoch', 'epochs_done', 'best_epoch')
COLUMNS = (
    *KEY, 'name', 'status', 'error', *TRAINING,
    *(f'{split}_{column}' for split in SPLITS
      for column in ('programs', *MEASURES, *BOUNDS)),
    'threads', 'models_py', 'content', 'recipe', 'protocol', 'date', 'machine',
    'versions', 'command')

_TITLES = {
    'valid': 'Validation split, by which the epoch is chosen',
    'test': 'Labelled test split',
    'real': 'Labelled real files of the same collection, none trained on'}
_HEADS = {'kendall': 'tau', 'opa': 'OPA', 'top1': 'top-1 %',
          'top10': 'top-10 %', 'top100': 'top-100 %'}
_PERFECT, _BLIND = 'a perfect order', 'a blind choice'


def markdown(rows: list[Row]) -> str:
  """The tables: a summary, then a section for each data set."""
  sets = collections.defaultdict(list)
  for row in rows:
    if row['status'] == 'ok':
      sets[row['data'], row['content'], row['epochs']].append(row)
  lines = ['# Accuracy of the layout models', '', *_header(rows), '',
           *_summary(sets)]
  for (data, _, epochs), members in sets.items():
    lines += [f'## {data}, {epochs} epochs at most', '']
    for split in SPLITS:
      lines += _split_table(
          split, [row for row in members if row[f'{split}_programs']], rows)
  return '\n'.join(lines + failed_runs(rows)).rstrip() + '\n'


def _header(rows: list[Row]) -> list[str]:
  """What the numbers mean and where they come from."""
  return [
      "Mean ± sample standard deviation over seeds, of means over programs. "
      "tau: Kendall's tau-b of", 'the runtimes and the order of all '
      'configurations; where runtimes are equal a perfect order has', 'less '
      'than 1. OPA: pairs of unlike runtime in the right order. top-k %: how '
      'much slower the', 'fastest of the k chosen is than the fastest of all. '
      'Written by `benchmarks/accuracy.py --task layout`;',
      '`benchmarks/README.md` says how.', '',
      *provenance(rows, '`tpu-graphs-ext train --task layout` at default '
                  'flags, but for `--epochs` and `--seed`',
                  'layout_models.py (SHA-256)')]


def _summary(sets: dict[tuple, list[Row]]) -> list[str]:
  """One line a model: tau wherever it was measured."""
  columns = {
      f'{data}, {split}, {epochs} epochs': (split, measured)
      for (data, _, epochs), rows in sets.items() for split in SPLITS
      if (measured := [row for row in rows if row[f'{split}_programs']])}
  models = dict.fromkeys(
      _label(row) for _, rows in columns.values() for row in rows)
  cells = [[label, *(
      mean_std(numbers_of([row for row in rows if _label(row) == label],
                          f'{split}_kendall'), 3)
      for split, rows in columns.values())] for label in models]
  return ['## Summary: tau', '', *table(['model', *columns], cells)] * bool(
      columns)


def _label(row: Row) -> str:
  """The model, and what it was made with other than by default."""
  return (row['name'] if row['name'] == row['model']
          else f'{row["name"]} `{row["kwargs"]}`')


def _split_table(split: str, rows: list[Row], every: list[Row]) -> list[str]:
  """The models on one split, the highest tau first, and what bounds them."""
  if not rows:
    return []
  with_training = split == 'valid'
  heads = ['model', 'seeds', *_HEADS.values()]
  if with_training:
    heads += ['parameters', 's/epoch', 'best epoch']
  runs = collections.defaultdict(list)
  for row in rows:
    runs[_label(row)].append(row)
  cells = []
  for label, members in sorted(
      runs.items(), key=lambda run: -_mean(run[1], f'{split}_kendall')):
    cells.append([label, _seeds(members, every), *(
        _spread(members, f'{split}_{measure}', measure)
        for measure in MEASURES)])
    if with_training:
      cells[-1] += [
          f'{int(members[0]["parameters"]):,}',
          mean_std(numbers_of(members, 'seconds_an_epoch'), 2),
          mean_std(numbers_of(members, 'best_epoch'), 0)]
  cells += [bound + [''] * (len(heads) - len(bound))
            for bound in _bounds(split, rows[0])]
  programs = rows[0][f'{split}_programs']
  note = f'{programs} program{"s" * (programs != "1")}'
  return [f'### {_TITLES[split]} ({note})', '', *table(heads, cells)]


def _bounds(split: str, row: Row) -> list[list[str]]:
  """What the best and the blind order reach on these programs."""
  perfect = mean_std(numbers_of([row], f'{split}_most_kendall'), 3)
  blind = [mean_std(percents_of([row], f'{split}_random{k}'), 2)
           for k in (1, 10, 100)]
  return [[_PERFECT, '', perfect, *(
      text if perfect != '-' else '-' for text in (
          '1.000', '0.00', '0.00', '0.00'))],
          [_BLIND, '', '0.000', '0.500', *blind]]


def _seeds(members: list[Row], every: list[Row]) -> str:
  """How many there are, of how many that were asked for."""
  asked = sum(all(row[column] == members[0][column] for column in (
      'data', 'model', 'kwargs', 'epochs', 'content')) for row in every)
  return (str(len(members)) if asked == len(members)
          else f'{len(members)} of {asked}')


def _mean(rows: list[Row], column: str) -> float:
  numbers = numbers_of(rows, column)
  return statistics.fmean(numbers) if numbers else -2.0


def _spread(rows: list[Row], column: str, measure: str) -> str:
  if measure.startswith('top'):
    return mean_std(percents_of(rows, column), 2)
  return mean_std(numbers_of(rows, column), 3)
