"""The figures of a page as pictures of their own, for notebooks and slides."""

from __future__ import annotations

import html
import os
import re

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import report, style

_FONT = 'font-family:"DejaVu Sans","Liberation Sans",Verdana,sans-serif'
# What the page's style sheet says of figures.
_STYLE = ('<style>*{stroke-linejoin:round;stroke-linecap:butt}'
          f'text{{{_FONT}}}</style>')


def pictures(path: str) -> dict[str, str]:
  """The figures that a report has, in light colours.

  Args:
    path: a page that `report` wrote; `~` is expanded.

  Returns:
    Title of a figure -> an SVG document, in the order of the page.

  Raises:
    UserError: there is no such file, or it is no report.
  """
  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      page = file.read().decode()
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f'{path}: cannot be read ({error}); name a page that '
                    '`report` wrote') from error
  if not page.startswith(report.START):
    raise UserError(f'{path}: is no {report.WHAT}; name a page that `report` '
                    'wrote')
  found = {}
  for svg in re.findall(r'<svg.*?</svg>', page, re.DOTALL):
    title = re.search(r'<title[^>]*>(.*?)</title>', svg, re.DOTALL)[1]
    found[html.unescape(title)] = _alone(svg)
  return found


def _alone(svg: str) -> str:
  """An element of the page as a document that needs none."""
  for name, (light, _) in style.COLOURS.items():
    svg = svg.replace(f'var(--{name})', light)
  opening, inside = svg.split('>', 1)
  left, top, width, height = re.search(
      r'viewBox="([^"]+)"', opening)[1].split()
  if ' width=' not in opening:
    opening += f' width="{float(width):.0f}" height="{float(height):.0f}"'
  paper = (f'<rect x="{left}" y="{top}" width="{width}" height="{height}" '
           f'fill="{style.COLOURS["page"][0]}"/>')
  return (opening + ' xmlns="http://www.w3.org/2000/svg" '
          f'xmlns:xlink="http://www.w3.org/1999/xlink">{_STYLE}{paper}{inside}')
