"""Draws the figures of docs/: results.png from rows, architecture.png.

  python benchmarks/figure.py

results.png has the rows of the tables of docs/results.md: means over seeds and
kernels, with the standard deviation over seeds where there are several.
"""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use('Agg')

from matplotlib import patches, pyplot

import tables

DOCS = pathlib.Path(__file__).resolve().parent.parent / 'docs'
# Row -> on the axis, from the top.
ROWS = {
    'MyEarlyJoinSAGE': 'MyEarlyJoinSAGE',
    'AnalyticTileModel': 'AnalyticTileModel',
    'LightGBM': 'LightGBM',
    'EarlyJoinSAGE': 'EarlyJoinSAGE (baseline)',
    'default': 'default tile',
    'random': 'random choice'}
PANELS = (  # Table, split, title.
    ('accuracy-compiled', 'test', "Test programs\nTPU compiler's estimates"),
    ('accuracy-compiled', 'real', '15 real kernels\ntimed on a TPU v3'),
    ('accuracy-timed', 'cpu_valid', 'C loops\ntimed on a CPU'),
    ('accuracy-timed', 'gpu_valid', 'Triton kernels\ntimed on a GPU'))
COLORS = {1: '#c2410c', 5: '#1d4ed8'}
INK, LINE = '#1b1f24', '#9ca3af'


def results() -> pyplot.Figure:
  shown, labels = tables.views(), list(ROWS.values())
  with pyplot.rc_context({'font.size': 10, 'font.family': 'DejaVu Sans'}):
    drawn, panels = pyplot.subplots(
        1, len(PANELS), figsize=(12, 3.4), sharey=True, layout='constrained')
    for axes, (table, split, title) in zip(panels, PANELS):
      for height, row in enumerate(ROWS):
        _draw_row(axes, -height, {
            k: cell for k in COLORS if (cell := shown[table].cells.get(
                row, {}).get(f'{split}_top{k}'))})
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
                    'logarithmic above 1; bars: standard deviation over seeds)',
                    fontsize=10)
    drawn.legend(
        handles=[pyplot.Line2D([], [], marker='o', linestyle='', color=color,
                               label=f'best of the first {k}' if k > 1 else
                               'first tile') for k, color in COLORS.items()],
        loc='outside upper right', ncols=2, frameon=False, fontsize=9)
  return drawn


def _draw_row(axes, height: float, cells: dict[int, tables.Cell]) -> None:
  axes.plot([cell.value for cell in cells.values()], [height] * len(cells),
            color=LINE, linewidth=2, zorder=1)
  for k, cell in cells.items():
    if cell.spread == cell.spread:
      axes.errorbar(cell.value, height, xerr=cell.spread, color=COLORS[k],
                    capsize=3, linewidth=1.2, zorder=2)
    axes.scatter(cell.value, height, s=45, color=COLORS[k], zorder=3,
                 clip_on=False)
    axes.annotate(f'{cell.value:.{int(cell.value < 10)}f}',
                  (cell.value, height), textcoords='offset points',
                  xytext=(0, 6), ha='center', fontsize=8, color=COLORS[k])


# Name, left, top, width and lines of each box; the first line is bold.
_BOXES = {name: (float(left), float(top), float(width), text.split('|'))
          for name, left, top, width, text in (
              line.split(maxsplit=4) for line in """
files 0 9 2.5 TpuGraphs .npz|tuning data .pb|sample-data
programs 0 5.6 2.5 Your program|JAX, TensorFlow,|HLO, StableHLO
compiler 3.3 5.6 2.5 hlo/|Google's TPU compiler|features of kernels
data 3.3 9 2.5 data/|read, checked,|cached, scaled
models 6.6 9 2.8 models.py|layout_models.py|what a student hands in
analytic 6.6 5.6 2.8 analytic/|geometry as arrays, legal|tiles, blocks, machines
engine 10.2 9 2.8 engine/ + tasks/|train, score, evaluate,|predict, rank
serving 10.2 5.6 2.8 serving/|CostModel, rank, kernels,|export
student 13.9 9.9 3 Student|course/: doctor, verify,|package, kaggle-csv
researcher 13.9 7.75 3 Researcher|report/, sweep/,|evaluate, foreign models
engineer 13.9 5.6 3 Compiler engineer|tiles and blocks to|time first
""".strip().splitlines())}
_ARROWS = (('files', 'data'), ('programs', 'compiler'), ('compiler', 'data'),
           ('data', 'models'), ('models', 'engine'), ('models', 'analytic'),
           ('compiler', 'analytic'), ('analytic', 'serving'),
           ('engine', 'serving'), ('engine', 'student'),
           ('engine', 'researcher'), ('serving', 'engineer'))


def architecture() -> pyplot.Figure:
  """What flows where, from files and programs to those who use it."""
  with pyplot.rc_context({'font.size': 9, 'font.family': 'DejaVu Sans'}):
    drawn, axes = pyplot.subplots(figsize=(12, 4.6), layout='constrained')
    axes.set(xlim=(-0.2, 17.1), ylim=(3.2, 10.2))
    axes.axis('off')
    for name, (left, top, width, lines) in _BOXES.items():
      is_user = name in ('student', 'researcher', 'engineer')
      axes.add_patch(patches.FancyBboxPatch(
          (left, top - 1.75), width, 1.75, boxstyle='round,pad=0.05',
          facecolor='#fff7ed' if is_user else '#eff6ff', edgecolor=LINE))
      for number, line in enumerate(lines):
        axes.text(left + width / 2, top - 0.35 - 0.55 * number, line,
                  ha='center', va='center', color=INK,
                  fontweight='bold' if not number else 'normal')
    for start, end in _ARROWS:
      axes.annotate('', _side(end, start), _side(start, end), arrowprops={
          'arrowstyle': '-|>', 'color': INK, 'linewidth': 1.2})
    axes.text(0, 3.4, 'Imports go one way, from right to left. traces/ learns '
              "a GPU's constants from PyTorch traces and stands apart.",
              color=INK)
  return drawn


def _side(of: str, towards: str) -> tuple[float, float]:
  """The middle of the side of a box that faces another."""
  left, top, width, _ = _BOXES[of]
  other_left, other_top, _, _ = _BOXES[towards]
  if abs(left - other_left) < 1:
    return left + width / 2, top - 1.85 if other_top < top else top + 0.1
  return (left + width + 0.08 if other_left > left else left - 0.08,
          top - 0.875)


def main() -> None:
  for name, draw in (('results', results), ('architecture', architecture)):
    # A white background of its own: readable on light and on dark pages.
    draw().savefig(DOCS / f'{name}.png', dpi=130, facecolor='white',
                   metadata={'Software': None})


if __name__ == '__main__':
  main()
