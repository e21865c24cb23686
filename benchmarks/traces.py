"""Predicts the traces of docs/traces.md: python benchmarks/traces.py [FOLDER].

Measures anew the rows of results/traces.csv whose traces are in the folder, and
prints the page's table of the rows and their errors by kind. Of `host_steps`
only the host's constants are taken, where kernels are learned from a sweep.
"""
import csv
import dataclasses
import datetime
import functools
import itertools
import pathlib
import sys

from tpu_graphs_ext.traces import analysis, kineto, replay

FILE = pathlib.Path(__file__).parent / 'results' / 'traces.csv'
COLUMNS = 'kernels', 'seen', 'mean', 'geometric', 'step', 'known'
calibrated = functools.lru_cache(maxsize=1)(analysis.calibrated)
read = functools.lru_cache(maxsize=1)(kineto.read)


def table():
  """In Markdown; rows of the same names are one, from least to largest."""
  with open(FILE, newline='') as file:
    rows = [*csv.DictReader(file)]
  lines = ['| learned from | predicted | kernels | seen % | mean | geom. '
           '| step | comm. as recorded |', '| --- | ---' + ' | ---:' * 6 + ' |']
  for names, group in itertools.groupby(
      rows, lambda row: (row['source'], row['program'])):
    group = [*group]
    cells = [sorted((row[column] for row in group if row[column]), key=float)
             for column in COLUMNS]
    lines.append('| ' + ' | '.join([*names, *(
        ' to '.join(dict.fromkeys([*values[:1], *values[-1:]]))
        for values in cells)]) + ' |')
  return '\n'.join(lines) + '\n'


def measure(row, folder):
  """Sets the results of a row, if its traces are there."""
  learned, predicted = (
      next(iter(sorted(map(str, folder.rglob(row[key])))), '')
      for key in ('learned', 'predicted'))
  if not (learned and predicted):
    print(f'{row["learned"]}, {row["predicted"]}: not in {folder}')
    return
  part, other, host = (
      range(*map(int, row[key].split('-'))) if row[key] else None
      for key in ('steps', 'predicted_steps', 'host_steps'))
  known = calibrated(learned, part)
  if host:
    known = dataclasses.replace(known, host=replay.host_of(
        kineto.steps_of(read(predicted), host)))
  result = analysis.compared(predicted, other, known)
  kernels, kinds = result.kernels, analysis.summary(result.kernels)
  total, seen = kinds.loc[analysis.ALL], kernels.kernel.isin(known.launches)
  us, step = kernels.measured_us, result.step
  row.update({
      'date': datetime.date.today(), 'gpu': result.trace.gpu,
      'kernels': int(total.kernels),
      'seen': f'{100 * us[seen].sum() / us.sum():.1f}',
      'mean': f'{100 * total.mean_error:.1f}',
      'geometric': f'{100 * total.geometric_error:.1f}',
      'kinds': '; '.join(f'{kind} {100 * each:.1f}' for kind, each in
                         kinds.geometric_error.items() if kind != analysis.ALL),
      **{name: '' if not (step and step[key]) or (
          name == 'known' and not result.communication_us) else
         f'{100 * (step[key] / step["measured_us"] - 1):+.1f}'
         for name, key in (('step', 'predicted_us'),
                           ('known', 'communication_as_recorded_us'))}})
  print(*row.values(), flush=True)


def main():
  with open(FILE, newline='') as file:
    rows = [*csv.DictReader(file)]
  if len(sys.argv) > 1:
    for row in rows:
      measure(row, pathlib.Path(sys.argv[1]))
    with open(FILE, 'w', newline='') as file:
      writer = csv.DictWriter(file, rows[0], lineterminator='\n')
      writer.writeheader()
      writer.writerows(rows)
  print(table())
  for row in rows:
    print(f'{row["predicted"]}: {row["geometric"]}; {row["kinds"]}')


if __name__ == '__main__':
  main()
