"""A picture of a run's learning curves: loss and OPA by epoch."""

from __future__ import annotations

import io
import logging
import os
from typing import Any

from tpu_graphs_ext.errors import UserError, how_to_install
from tpu_graphs_ext.files import write_file

_log = logging.getLogger(__name__)

# Ending -> the first bytes of such files, and their kind.
FORMATS = {'.svg': (b'<?xml', 'SVG picture'), '.png': (b'\x89PNG', 'PNG file')}
# Colours that colour-blind readers can tell apart (Okabe and Ito).
_TRAIN = {'color': '#0072B2', 'linestyle': '--', 'label': 'train'}
_VALID = {'color': '#D55E00', 'linestyle': '-', 'label': 'valid'}
_INK, _FAINT = '#1f2328', '#d0d7de'


def kind_of(path: str) -> tuple[bytes, str]:
  """The first bytes and the kind of a file for `draw`; empty for ''.

  Raises:
    UserError: `draw` cannot draw such a file.
  """
  if not path:
    return b'', ''
  ending = os.path.splitext(path)[1].lower()
  if ending not in FORMATS:
    raise UserError(f'--plot={path}: must end in {" or ".join(FORMATS)}; it '
                    f'ends in {ending!r}')
  try:
    import matplotlib  # noqa: F401  Takes a second to import.
  except ImportError as error:
    raise UserError('--plot: matplotlib is not installed; '
                    f'{how_to_install()}') from error
  return FORMATS[ending]


def draw(path: str, run_info: dict[str, Any]) -> None:
  """Draws the curves; the file appears when complete.

  Args:
    path: .svg or .png; `~` is expanded.
    run_info: content of a run file. Equal curves give equal bytes with one
      version of matplotlib.

  Raises:
    UserError: the file cannot be written.
  """
  from matplotlib import rc_context
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  kind = os.path.splitext(path)[1].lower()[1:]
  content = io.BytesIO()
  with rc_context({
      'svg.fonttype': 'path', 'svg.hashsalt': 'curves', 'font.size': 9,
      'font.family': 'DejaVu Sans', 'text.color': _INK,
      'axes.labelcolor': _INK, 'axes.edgecolor': _FAINT,
      'xtick.color': _INK, 'ytick.color': _INK}):
    # Not through pyplot, which would open windows on some machines.
    figure = Figure(figsize=(8, 3.4), facecolor='white')
    FigureCanvasAgg(figure)
    _draw(figure, run_info)
    figure.savefig(content, format=kind, dpi=150, metadata=(
        {'Date': None, 'Creator': None} if kind == 'svg'
        else {'Software': None}))
  write_file(os.path.expanduser(path), content.getvalue())
  _log.info('learning curves: %s', path)


def _draw(figure: Any, run_info: dict[str, Any]) -> None:
  curve = run_info['train_curve']
  epochs = [epoch + 1 for epoch in curve['epoch']]  # Counted as the log does.
  # The first of equals, which is the one that is kept.
  best = max(range(len(epochs)), key=lambda i: curve['val_opa'][i])
  for panel, measure, title in zip(
      figure.subplots(1, 2), ('loss', 'opa'), ('loss', 'OPA')):
    for split, style in (('train', _TRAIN), ('val', _VALID)):
      # A run of one epoch is a point.
      panel.plot(epochs, curve[f'{split}_{measure}'], **style,
                 marker='o' if len(epochs) == 1 else '', linewidth=1.4)
    panel.axvline(epochs[best], color=_FAINT, linewidth=3, zorder=0)
    panel.set_xlabel('epoch')
    panel.set_title(title, fontsize=10)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.grid(color=_FAINT, linewidth=0.4)
    panel.spines[['top', 'right']].set_visible(False)
    panel.legend(frameon=False)
  seed = f', seed {run_info["seed"]}' if 'seed' in run_info else ''
  figure.suptitle(
      f'{run_info["args"]["model"]}{seed}: best validation OPA '
      f'{curve["val_opa"][best]:.4f} in epoch {epochs[best]} (grey line)',
      fontsize=10)
  figure.tight_layout()
