"""Draws the README's figure, docs/results.png, from results/accuracy.csv.

  python benchmarks/figure.py

It has the rows of the README's table, which `accuracy.py --readme` writes.
"""

from __future__ import annotations

import pathlib

import matplotlib
import pandas

matplotlib.use('Agg')

from matplotlib import pyplot

HERE = pathlib.Path(__file__).resolve().parent
# Name in the CSV -> on the axis, from the top.
MODELS = {
    'MyEarlyJoinSAGE': 'MyEarlyJoinSAGE',
    'AnalyticTileModel': 'AnalyticTileModel',
    'LightGBM': 'LightGBM',
    'EarlyJoinSAGE': 'EarlyJoinSAGE (baseline)'}
CHOICES = {'default': 'default tile', 'random': 'random choice'}
PANELS = (
    ('compiled_v3', 'test', 'Test programs\nTPU compiler\'s estimates'),
    ('compiled_v3', 'real', '15 real kernels\ntimed on a TPU v3'),
    ('measured_tiles', 'valid', 'C loops\ntimed on a CPU'))
COLORS = {1: '#c2410c', 5: '#1d4ed8'}


def slowdowns(rows: pandas.DataFrame, split: str) -> dict[str, dict]:
  """Label -> {k: mean slowdown over seeds in per cent}; k is 1 or 5."""
  by_model = {}
  for name, label in MODELS.items():
    runs = rows[rows['name'] == name]
    if len(runs):
      by_model[label] = {k: 100 * runs[f'{split}_micro_top{k}'].mean()
                         for k in COLORS}
  first = rows.iloc[0]
  by_model[CHOICES['default']] = {1: 100 * first[f'{split}_default']}
  by_model[CHOICES['random']] = {k: 100 * first[f'{split}_random{k}']
                                 for k in COLORS}
  return by_model


def figure(table: pandas.DataFrame) -> pyplot.Figure:
  labels = [*MODELS.values(), *CHOICES.values()]
  with pyplot.rc_context({'font.size': 10, 'font.family': 'DejaVu Sans'}):
    drawn, panels = pyplot.subplots(
        1, len(PANELS), figsize=(10, 3.4), sharey=True, layout='constrained')
    for axes, (data, split, title) in zip(panels, PANELS):
      rows = table[(table['data'] == data) & (table['status'] == 'ok')]
      rows = rows[rows['epochs'] == rows['epochs'].max()]
      for label, values in slowdowns(rows, split).items():
        height = -labels.index(label)
        axes.plot(list(values.values()), [height] * len(values),
                  color='#9ca3af', linewidth=2, zorder=1)
        for k, value in values.items():
          axes.scatter(value, height, s=45, color=COLORS[k], zorder=2)
          axes.annotate(f'{value:.1f}' if value < 10 else f'{value:.0f}',
                        (value, height), textcoords='offset points',
                        xytext=(0, 6), ha='center', fontsize=8,
                        color=COLORS[k])
      axes.set_xscale('symlog', linthresh=1, linscale=0.6)
      axes.set(title=title, xlim=(-0.25, 600), ylim=(0.5 - len(labels), 0.7),
               xticks=[0, 1, 10, 100], xticklabels=['0', '1', '10', '100'],
               yticks=range(0, -len(labels), -1), yticklabels=labels)
      axes.title.set_fontsize(10)
      axes.grid(axis='x', color='#e5e7eb')
      axes.set_axisbelow(True)
      axes.spines[['top', 'right', 'left']].set_visible(False)
      axes.tick_params(axis='y', length=0)
    drawn.supxlabel('slower than the fastest tile, % (lower is better; '
                    'logarithmic above 1)', fontsize=10)
    drawn.legend(
        handles=[pyplot.Line2D([], [], marker='o', linestyle='', color=color,
                               label=f'best of the first {k}' if k > 1 else
                               'first tile') for k, color in COLORS.items()],
        loc='outside upper right', ncols=2, frameon=False, fontsize=9)
  return drawn


def main() -> None:
  table = pandas.read_csv(HERE / 'results' / 'accuracy.csv')
  # A white background of its own: readable on light and on dark pages.
  figure(table).savefig(HERE.parent / 'docs' / 'results.png', dpi=160,
                        facecolor='white', metadata={'Software': None})


if __name__ == '__main__':
  main()
