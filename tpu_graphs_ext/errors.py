"""The one error that a user of the package is meant to see, and its wording."""

from __future__ import annotations

import re


class UserError(Exception):
  """Something the user gave cannot be used; the message says what and why.

  The message names the file or argument, the field, the rule, the value found
  and what to do. The command line prints it after `error:` and exits with 1.
  """


MOST_LETTERS = 500  # Of a line of an error.


def printable(message: str) -> str:
  """A message with lines of at most 500 characters, which can be printed.

  The beginning names the file and the field, the end says what to do: a long
  line loses its middle.
  """
  message = message.encode(errors='backslashreplace').decode()
  return '\n'.join(
      line if len(line) <= MOST_LETTERS else
      f'{line[:MOST_LETTERS // 2]} ... {line[-MOST_LETTERS // 2 + 5:]}'
      for line in message.split('\n'))


def how_to_install(extra: str) -> str:
  """The command for a missing dependency: this package is on no index."""
  return f'run pip install -e ".[{extra}]" in your clone of tpu_graphs_ext'


def shortened(names: list[str], most: int = 3) -> str:
  """'a, b, c and 4 more'."""
  more = f' and {len(names) - most} more' if len(names) > most else ''
  return ', '.join(names[:most]) + more


def reason_of(error: BaseException) -> str:
  """The message of any error, without the stack trace that some have."""
  # In a loop AutoGraph names the cause in a note on its own error.
  text = str(error).split('AutoGraph tried to define it automatically, but ran '
                          'into a ')[-1]
  lines = [line.strip() for line in text.split('\n') if line.strip()]
  if re.match('in user code|Exception encountered|Graph execution', str(error)):
    causes = [  # As AutoGraph, a running graph and Keras write them.
        line for before, line, after in zip(
            ['', *lines], lines, [*lines[1:], ''])
        if re.match(r'\w+Error: (?!Exception encountered)', line)
        or after.startswith('[[{{node') or (
            'Exception encountered' in before and line != 'in user code:')]
    lines = causes[-1:] or lines[-1:]
  return ' '.join(lines[:2])[:300] or type(error).__name__
