"""An analysis as one HTML page: tables and flame graphs."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_graphs_ext.host import outputs
from tpu_graphs_ext.report import document, html
from tpu_graphs_ext.traces import flame, texts
from tpu_graphs_ext.traces.analysis import Analysis

START = '<!DOCTYPE html>\n<!-- tpu_graphs_ext trace -->'
FILE = outputs.Text('--html', START, 'page of a trace')
TITLE = 'Where the time of a trace goes'


def page(found: Analysis, top: int = 15) -> str:
  """The page's text; tables have their `top` dearest rows."""
  said = [line.strip() for line in texts.heading(found)
          if not line.startswith('  note:')]
  sections = [html.section('Trace', html.items(said))]
  if found.groups:
    sections.append(html.section('Predicted and measured', _predictions(
        found, top)))
  missing = texts.unpredicted_rows(found)
  if len(missing) > 1:
    sections.append(html.section('Without a prediction', _table(
        'Operators and why they have none, times in us', missing, top)))
  if found.trace.timed:
    sections += [
        html.section('Flame graphs', _flames(found)),
        html.section('Operators', _table(
            'Times in us, of all calls', texts.operator_rows(found), top))]
  if found.idle_us:
    sections.append(html.section('What the GPU waits for', ''.join(
        _table(f'GPU {device}: idle time in us, by the operator that its '
               'thread was in', texts.idle_rows(found, device), top)
        for device in found.idle_us)))
  return document.document(START, TITLE, sections, found.notes)


def _table(caption: str, rows: Sequence[Sequence[str]], top: int) -> str:
  head, *body = rows
  table = html.table(html.Table(caption, head, _dashed(body[:top])))
  if len(body) > top:
    table += html.details(f'{len(body) - top:,} more', html.table(
        html.Table(caption, head, _dashed(body[top:]))))
  return table


def _dashed(rows: Sequence[Sequence[str]]) -> list[list[str]]:
  return [[html.NOTHING if cell == texts.NONE else cell for cell in row]
          for row in rows]


def _predictions(found: Analysis, top: int) -> str:
  head, *body = texts.group_rows(found)
  content = html.paragraph(
      f'Roofline times for {found.hardware.name}: {texts.whole(found)}.')
  content += html.table(html.Table(
      'By kind of operator, times in us; errors are |predicted - measured| / '
      'measured', head, _dashed(body)))
  worst = texts.worst_rows(found, top)
  if len(worst) > 1:
    content += '<h3>Calls that are off by the most time</h3>' + _table(
        'Single calls, times in us', worst, top)
  return content


def _flames(found: Analysis) -> str:
  """Of the GPU's work, and of each thread on the CPU."""
  boxes = [*([flame.of_gpu(found.part)] if found.part.activities else []),
           *flame.of_threads(found.part)]
  content = html.paragraph(
      'Each box is as wide as the time of all calls with its path; those that '
      'it calls are below it. A box tells more when the pointer rests on it. '
      'A bar on top tells the kind: '
      + ', '.join(f'{kind} ({_COLOUR_NAMES[number]})'
                  for number, kind in enumerate(flame.COLOURS)) + '.')
  for number, box in enumerate(boxes):
    title = f'Flame graph of {box.name}'
    picture = flame.svg(box, f'flame-{number}', title)
    if picture:
      content += (f'<h3>{html.escape(box.name)}, {texts.us(box.us)} us</h3>'
                  + html.scrolled(picture, title, 'graph'))
  return content


# Of `style.COLOURS`, run0 and so on.
_COLOUR_NAMES = ('blue', 'orange', 'green', 'pink', 'yellow', 'violet')
