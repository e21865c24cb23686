"""A whole page of sections: one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_graphs_ext import __version__
from tpu_graphs_ext.report import html, style

# Nothing is loaded from anywhere, whatever a file name may hold.
_POLICY = ("default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
           "base-uri 'none'; form-action 'none'")


def document(start: str, title: str, sections: Sequence[str],
             problems: Sequence[str] = ()) -> str:
  """The page.

  Args:
    start: its first lines, by which its kind is told.
    title: of the page; HTML.
    sections: made by `html.section`.
    problems: what could not be read or measured, for a note on top.
  """
  titles = [part.split('<h2>')[1].split('</h2>')[0] for part in sections]
  links = ''.join(f'<li><a href="#{html.anchor(name)}">{name}</a></li>'
                  for name in titles)
  note = ''
  if problems:
    note = ('<div class="note" role="note"><p>Not all could be read or '
            f'measured:</p>{html.items(problems)}</div>')
  return ''.join([
      start, '\n<html lang="en"><head><meta charset="utf-8">',
      f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
      '<meta name="viewport" content="width=device-width, initial-scale=1">',
      '<meta name="color-scheme" content="light dark">',
      '<link rel="icon" href="data:,">',
      f'<title>{title}</title><style>{style.css()}</style></head><body>',
      '<a class="skip" href="#main">Skip to the content</a>',
      f'<header><h1>{title}</h1>',
      f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>',
      f'<main id="main">{note}{"".join(sections)}</main>',
      f'<footer>Written by tpu_graphs_ext {html.escape(__version__)}. '
      'This page loads nothing.</footer></body></html>\n'])
