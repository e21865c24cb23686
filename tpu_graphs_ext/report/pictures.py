"""The figures of a page by their titles, for notebooks and slides."""

from __future__ import annotations

import base64
import html.parser
import os

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report.page import START

_SVG = 'data:image/svg+xml;base64,'


def pictures(path: str) -> dict[str, str]:
  """Title of a figure -> an SVG document in light colours, in page order.

  Args:
    path: a page that `report` wrote; `~` is expanded.

  Raises:
    UserError: there is no such file, or it is not a report.
  """
  found = {}

  class Reader(html.parser.HTMLParser):

    def handle_starttag(self, tag, attrs):
      source = dict(attrs).get('src', '')
      if tag == 'img' and source.startswith(_SVG):
        found[dict(attrs)['title']] = base64.b64decode(
            source[len(_SVG):]).decode()

  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      page = file.read().decode()
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f'{path}: cannot be read ({error}); name a page that '
                    '`report` wrote') from error
  if not page.startswith(START):
    raise UserError(f'{path}: is not a report of this package; name a page '
                    'that `report` wrote')
  Reader().feed(page)
  return found
