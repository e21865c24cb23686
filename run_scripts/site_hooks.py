"""Adapts the pages to the site that mkdocs builds.

The README becomes the first page. Links out of docs/ lead nowhere on the site,
so only their text stays.
"""

import pathlib
import re

_README = pathlib.Path(__file__).resolve().parent.parent / 'README.md'


def on_page_markdown(markdown: str, page, **unused) -> str:
  if page.file.src_uri == 'index.md':
    markdown = _README.read_text(encoding='utf-8').replace('](docs/', '](')
    return re.sub(r'\[([^][]+)\]\((?![\w-]+\.(?:md|png|ipynb)|#|http)[^)]*\)',
                  r'\1', markdown)
  markdown = re.sub(r'\]\(\.\./README\.md', '](index.md', markdown)
  return re.sub(r'\[([^][]+)\]\(\.\.?/[^)]*\)', r'\1', markdown)
