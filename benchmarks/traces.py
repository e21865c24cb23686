"""What docs/traces.md sums up: python benchmarks/traces.py FOLDER_OF_TRACES."""
import csv
import pathlib
import sys

from tpu_graphs_ext.traces import analysis

lines = pathlib.Path(__file__).with_suffix('.csv').read_text().split('\n')
for row in csv.DictReader(lines):
  part, other = (range(*map(int, row[key].split('-'))) if row[key] else None
                 for key in ('steps', 'predicted_steps'))
  learned, predicted = (str(next(pathlib.Path(sys.argv[1]).rglob(row[key])))
                        for key in ('learned', 'predicted'))
  print(analysis.text(analysis.compared(
      predicted, other, analysis.calibrated(learned, part)), 0), flush=True)
