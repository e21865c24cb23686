#!/usr/bin/env python3
"""Writes docs/api.md from the docstrings of the public names.

    .venv/bin/python run_scripts/api_page.py

Takes some seconds, most of it for importing TensorFlow. A test says when the
page is not what this would write.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import tpu_graphs_ext

PAGE = pathlib.Path(__file__).resolve().parent.parent / 'docs' / 'api.md'
_WIDTH = 120  # Of a line, as on the other pages.
_START = [
    'Made of the docstrings by `run_scripts/api_page.py`: change those, not '
    'this page.',
    '`import tpu_graphs_ext` imports nothing else; what a name needs, such as '
    'TensorFlow, comes with its first use. What cannot be used raises a '
    '`UserError` that says what to do. Names that are not on this page may '
    'change.']
_PARTS = ('Args', 'Attributes', 'Returns', 'Yields', 'Raises')
_ATTRIBUTES = (property, functools.cached_property)


def page() -> str:
  """The whole page."""
  parts = ['# The package from Python\n']
  parts += ['\n'.join(_filled(paragraph)) + '\n' for paragraph in _START]
  parts.append('\n'.join(_contents()))
  for name in tpu_graphs_ext.__all__:
    parts.append('\n'.join(_entry(name, getattr(tpu_graphs_ext, name))))
  text = '\n'.join(part.rstrip() + '\n' for part in parts)
  return re.sub(r'\n{3,}', '\n\n', text)


def _contents() -> Iterator[str]:
  yield '| | |'
  yield '| --- | --- |'
  for name in tpu_graphs_ext.__all__:
    first = inspect.getdoc(getattr(tpu_graphs_ext, name)).splitlines()[0]
    yield f'| [`{name}`](#{name.lower()}) | {first} |'


def _entry(name: str, value: Any) -> Iterator[str]:
  """A heading, and what is below it."""
  yield f'## {name}'
  yield ''
  module = f'`{value.__module__}`'
  if not inspect.isclass(value):
    yield f'{_signature(name, value)}\n\nA function of {module}.\n'
    yield from _told(value)
    return
  yield f'A class of {module}.\n'
  yield from _told(value)
  yield from _fields(value)
  for own_name, member in vars(value).items():
    if own_name.startswith('_'):
      continue
    if isinstance(member, (classmethod, staticmethod)):
      member = getattr(value, own_name)
    attribute = isinstance(member, _ATTRIBUTES)
    if not inspect.getdoc(member) or not (
        attribute or inspect.isroutine(member)):
      continue
    yield f'\n### {name}.{own_name}\n'
    if not attribute:
      yield f'{_signature(f"{name}.{own_name}", member)}\n'
    yield from _told(member)


def _fields(value: type) -> Iterator[str]:
  """Settings have the help of their flags instead of a docstring's lines."""
  for field in dataclasses.fields(value) if dataclasses.is_dataclass(
      value) else ():
    if 'help' in field.metadata:
      yield from _filled(
          f'`{field.name}`, `{field.default!r}`: {field.metadata["help"]}.',
          '- ')


def _signature(name: str, function: Any) -> str:
  """A block of code with the arguments and their types."""
  parameters = inspect.signature(function).parameters.values()
  arguments = [_argument(parameter) for parameter in parameters
               if parameter.name != 'self']
  stars = [parameter.kind for parameter in parameters
           if parameter.name != 'self']
  only = inspect.Parameter.KEYWORD_ONLY
  if only in stars:
    arguments.insert(stars.index(only), '*')
  returned = inspect.signature(function).return_annotation
  text = f'{name}({", ".join(arguments)})'
  if returned is not inspect.Signature.empty:
    text += f' -> {returned}'
  return f'```\n{text}\n```'


def _argument(parameter: inspect.Parameter) -> str:
  text = parameter.name
  if parameter.annotation is not inspect.Parameter.empty:
    text += f': {parameter.annotation}'
  default = parameter.default
  if default is inspect.Parameter.empty:
    return text
  plain = default is None or isinstance(
      default, (bool, int, float, str, tuple))
  return text + (f' = {default!r}' if plain
                 else f' = {type(default).__name__}()')


# --- A docstring as Markdown --------------------------------------------------


def _told(value: Any) -> Iterator[str]:
  """The lines of a docstring: text first, then its parts."""
  part, lines = '', []
  for line in [*inspect.getdoc(value).splitlines(), 'End:']:
    heading = re.fullmatch(r'(\w+):', line)
    if heading and heading[1] in (*_PARTS, 'End'):
      yield from _part(part, lines)
      part, lines = heading[1], []
    else:
      lines.append(line)


def _part(part: str, lines: list[str]) -> Iterator[str]:
  text = textwrap.dedent('\n'.join(lines)).strip('\n')
  if not text:
    return
  if not part:
    yield from _text(text)
  elif part in ('Returns', 'Yields'):
    yield from _filled(f'**{part}:** ' + ' '.join(text.split()))
  else:
    yield f'**{part}:**\n'
    for entry in re.split(r'\n(?=\S)', text):
      names, _, meaning = entry.partition(': ')
      names = ', '.join(f'`{name}`' for name in names.split(', '))
      yield from _filled(f'{names}: {" ".join(meaning.split())}', '- ')
  yield ''


def _text(text: str) -> Iterator[str]:
  """Paragraphs; what is indented are lists, or code and formulas."""
  for kind, lines in _blocks(text):
    if kind == 'code':
      yield '```\n' + textwrap.dedent('\n'.join(lines)) + '\n```\n'
    elif kind == 'item':
      yield from _filled(' '.join(lines)[2:], '- ')
    else:
      yield ''  # Ends a list.
      yield from _filled(' '.join(lines))
      yield ''


def _blocks(text: str) -> list[tuple[str, list[str]]]:
  """('text', 'item' or 'code', its lines) for each block."""
  blocks = []
  for line in text.splitlines():
    kind = blocks[-1][0] if blocks else ''
    if not line.strip():
      blocks.append(('', []))
    elif re.match(r' *- ', line):
      blocks.append(('item', [line.strip()]))
    elif kind == 'item' and line.startswith(' '):
      blocks[-1][1].append(line.strip())
    else:
      now = 'code' if line.startswith('    ') else 'text'
      if now != kind:
        blocks.append((now, []))
      blocks[-1][1].append(line if now == 'code' else line.strip())
  return [(kind, lines) for kind, lines in blocks if lines]


def _filled(text: str, start: str = '') -> Iterator[str]:
  yield from textwrap.wrap(
      text, _WIDTH, initial_indent=start, subsequent_indent=' ' * len(start),
      break_long_words=False, break_on_hyphens=False)


if __name__ == '__main__':
  PAGE.write_text(page(), encoding='utf-8')
  print(PAGE)
