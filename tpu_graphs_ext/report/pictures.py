"""The figures of a page as pictures of their own, for notebooks and slides."""

from __future__ import annotations

import base64
import html.parser
import os

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import report

_SVG = 'data:image/svg+xml;base64,'


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
  reader = _Reader()
  reader.feed(page)
  return reader.found


class _Reader(html.parser.HTMLParser):
  """Collects the pictures of a page by their titles."""

  def __init__(self):
    super().__init__()
    self.found: dict[str, str] = {}

  def handle_starttag(self, tag, attrs):
    of = dict(attrs)
    if tag == 'img' and of.get('src', '').startswith(_SVG):
      self.found[of['title']] = base64.b64decode(
          of['src'][len(_SVG):]).decode()
