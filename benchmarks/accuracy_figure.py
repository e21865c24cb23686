"""The figure of the README: slowdowns of our models and of EarlyJoinSAGE.

  python benchmarks/accuracy_figure.py

draws results/accuracy.svg from results/accuracy.csv, which `accuracy.py` also
does at its end. Equal rows give an equal picture, but for what differs between
versions of matplotlib.
"""

from __future__ import annotations

import collections
import hashlib
import io
import math
import os
import statistics
import sys
from typing import NamedTuple

import accuracy_table
from accuracy_table import Row
from tpu_graphs_ext import files
from tpu_graphs_ext.errors import how_to_install

DATA = 'synthetic'
BASELINE = 'EarlyJoinSAGE'
# The baseline's other models, which are not drawn: it calls EarlyJoinSAGE its
# best.
LEFT_OUT = ('LateJoinSAGE', 'EarlyJoinResGCN', 'LateJoinResGCN', 'MLP')
# Without what it knows of tile geometry; the one ablation that is drawn.
BLIND = ('MyEarlyJoinSAGE', 'without feature_stats')
# These hold an analytic time of the form that the synthetic runtimes follow.
WITH_THE_LAW = ('MyEarlyJoinSAGE', 'HybridEarlyJoinSAGE', 'AnalyticTileModel')

PANELS = {
    'test': 'Sample data, {} test kernels\n(synthetic runtimes)',
    'real': '{} real TPU kernels\n(trained on synthetic runtimes alone)'}
# Colours that colour-blind readers tell apart (Okabe and Ito), and shapes for
# those who see none.
MARKS = {'top1': ('top-1', '#0072B2', 'o', 6.5),
         'top5': ('top-5', '#D55E00', 's', 5.5),
         'top10': ('top-10', '#009E73', '^', 6)}
# On white, in dark pages too: a picture cannot ask which page it is on.
PAPER, INK, FAINT = '#ffffff', '#1f2328', '#d0d7de'
TICKS = (0, 1, 5, 10, 20, 40, 80, 160)
_MARK = 'rows '  # Before the hash of what is drawn.


class Bar(NamedTuple):
  """Slowdowns in % of one model on one split over its seeds."""
  mean: float
  least: float
  most: float


class Picture(NamedTuple):
  """What is drawn.

  Attributes:
    epochs: at most so many for every model.
    seeds: of every model; a range if they differ.
    kernels: split -> how many.
    bars: label of a model -> (split, measure) -> bar; best first.
  """
  epochs: str
  seeds: str
  kernels: dict[str, str]
  bars: dict[str, dict[tuple[str, str], Bar]]

  def digest(self) -> str:
    """First digits of a hash over all that is drawn."""
    return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


# --- From rows to what is drawn ----------------------------------------------


def picture(rows: list[Row]) -> Picture | None:
  """The runs on the sample data at the epochs that most models were run with.

  Returns:
    None where the baseline's model or every other one is missing.
  """
  by_epochs = collections.defaultdict(lambda: collections.defaultdict(list))
  for row in rows:
    if (row['status'], row['data']) == ('ok', DATA) and _label(row):
      by_epochs[row['epochs']][_label(row)].append(row)
  if not by_epochs:
    return None
  epochs, models = max(
      by_epochs.items(), key=lambda item: (len(item[1]), int(item[0])))
  if BASELINE not in models or len(models) < 2:
    return None
  bars = {label: _bars(runs) for label, runs in models.items()}
  numbers = sorted({len(runs) for runs in models.values()})
  return Picture(
      epochs=epochs,
      seeds=' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1])))),
      kernels={split: models[BASELINE][0][f'{split}_kernels']
               for split in PANELS if (split, 'top1') in bars[BASELINE]},
      bars=dict(sorted(bars.items(), key=lambda item: _place(*item))))


def _label(row: Row) -> str:
  """What stands beside the row's model; '' for a row that is not drawn."""
  if (row['model'], row['name']) == BLIND:
    return ' '.join(BLIND)
  return row['name'] if (row['name'] == row['model']
                         and row['name'] not in LEFT_OUT) else ''


def _bars(runs: list[Row]) -> dict[tuple[str, str], Bar]:
  bars = {}
  for split in PANELS:
    for measure in MARKS:
      numbers = [100 * float(run[f'{split}_micro_{measure}'])
                 for run in runs if run[f'{split}_micro_{measure}']]
      if numbers:
        bars[split, measure] = Bar(
            statistics.fmean(numbers), min(numbers), max(numbers))
  return bars


def _place(label: str, bars: dict[tuple[str, str], Bar]) -> tuple:
  """By top-5 on the test split to a hundredth of a percent, then top-1."""
  means = [bars['test', measure].mean if ('test', measure) in bars else math.inf
           for measure in ('top5', 'top1')]
  return (*(round(mean, 2) for mean in means), label)


# --- Drawing -----------------------------------------------------------------


def write(rows: list[Row], path: str) -> bool:
  """Draws the rows into an SVG file.

  Returns:
    Whether there was something to draw, and matplotlib to do it with; it says
    on stderr what was missing.
  """
  drawn = picture(rows)
  if drawn is None:
    print(f'no figure: the models of the data set {DATA!r} were not run',
          file=sys.stderr)
    return False
  try:
    import matplotlib
  except ImportError:
    print('no figure: matplotlib is not installed; '
          f'{how_to_install("report")}', file=sys.stderr)
    return False
  matplotlib.use('Agg')
  from matplotlib import pyplot
  content = io.BytesIO()
  with pyplot.rc_context({
      # Text as shapes looks the same everywhere; ids that do not change.
      'svg.fonttype': 'path', 'svg.hashsalt': 'accuracy', 'font.size': 9,
      'font.family': 'DejaVu Sans', 'text.color': INK,
      'axes.labelcolor': INK, 'axes.edgecolor': FAINT, 'xtick.color': INK,
      'ytick.color': INK, 'figure.facecolor': PAPER}):
    figure = _figure(drawn)
    figure.savefig(content, format='svg', metadata={
        'Date': None, 'Creator': None, 'Description': _MARK + drawn.digest()})
    pyplot.close(figure)
  lines = content.getvalue().decode().splitlines()
  files.write_file(path, '\n'.join(
      line.rstrip() for line in lines).encode() + b'\n')
  return True


def is_of(svg: str, rows: list[Row]) -> bool:
  """Whether the text of an SVG file shows these rows."""
  drawn = picture(rows)
  return drawn is not None and _MARK + drawn.digest() in svg


def _figure(drawn: Picture):
  from matplotlib import pyplot
  height = 1.7 + 0.26 * len(drawn.bars)
  figure, panels = pyplot.subplots(
      1, len(drawn.kernels), figsize=(9, height), sharey=True, squeeze=False)
  for panel, (split, kernels) in zip(panels[0], drawn.kernels.items()):
    panel.set_title(PANELS[split].format(kernels), fontsize=9.5)
    _draw(panel, split, drawn.bars)
  first = panels[0][0]
  first.set_yticks(range(len(drawn.bars)), [
      label + ' *' * (label in WITH_THE_LAW)
      + ', the baseline' * (label == BASELINE) for label in drawn.bars])
  first.set_ylim(len(drawn.bars) - 0.4, -0.6)  # The best on top.
  figure.legend(
      *first.get_legend_handles_labels(), loc='upper left', ncol=3,
      frameon=False, bbox_to_anchor=(0.01, 0.99), handletextpad=0.2,
      columnspacing=0.8)
  figure.supxlabel(
      'How much slower the best of the top k tiles is than the best tile, in %,'
      f' on a root scale.\nMean of {drawn.seeds} seeds, the line from the best '
      f'to the worst; {drawn.epochs} epochs at most.\n'
      '* has an analytic time of the form that the synthetic runtimes follow',
      fontsize=9)
  figure.tight_layout()
  return figure


def _draw(panel, split: str, bars: dict) -> None:
  """One split: a line of the panel a model, lower is better."""
  for place, label in enumerate(bars):
    if label == BASELINE:
      panel.axhspan(place - 0.5, place + 0.5, color=FAINT, alpha=0.5, lw=0)
  for offset, (measure, (name, colour, shape, size)) in zip(
      (-0.24, 0, 0.24), MARKS.items()):
    for place, bar in enumerate(
        models.get((split, measure)) for models in bars.values()):
      if bar is not None:
        panel.plot([bar.least, bar.most], [place + offset] * 2, color=colour,
                   lw=1.6, alpha=0.6, solid_capstyle='butt', clip_on=False)
        panel.plot(bar.mean, place + offset, color=colour, marker=shape,
                   ms=size, mec=PAPER, mew=0.6, lw=0, clip_on=False,
                   zorder=3, label=None if place else name)
  panel.set_xscale('function', functions=(
      lambda x: abs(x) ** 0.5, lambda x: x ** 2))
  most = max(bar.most for models in bars.values()
             for (part, _), bar in models.items() if part == split)
  panel.set_xlim(0, 1.08 * max(most, 1))
  panel.set_xticks([tick for tick in TICKS if tick <= 1.08 * max(most, 1)])
  panel.grid(axis='x', color=FAINT, lw=0.6)
  panel.set_axisbelow(True)
  panel.tick_params(length=0)
  for side in ('top', 'right', 'left'):
    panel.spines[side].set_visible(False)


def main() -> int:
  """0: the figure is written."""
  folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'results')
  results = accuracy_table.Results(os.path.join(folder, 'accuracy.csv'))
  path = os.path.join(folder, 'accuracy.svg')
  if not write(results.rows(), path):
    return 1
  print(path)
  return 0


if __name__ == '__main__':
  sys.exit(main())
