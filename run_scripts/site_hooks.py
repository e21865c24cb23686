"""What mkdocs.yml does to pages that GitHub shows as they are.

The first page is the README. Links out of docs/ have no place on the site, so
what they name stands there alone.
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
