"""From a file to its JSON, and to whichever kind of trace it is."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.traces import execution, profile
from tpu_graphs_ext.traces.calls import OPERATOR, Trace

# Of text, and of the memory that its objects take.
MOST_BYTES = 2**30
MOST_PARSED_BYTES = 4 * 2**30
_PART = 1 << 20
_GZIP = b'\x1f\x8b'


def read(path: str) -> Trace:
  """Reads a trace of PyTorch, as JSON, packed by gzip or not.

  Args:
    path: a profiler's trace (Kineto; Chrome's format, an object with
      `traceEvents` or a list of events) or an execution trace (`nodes`).

  Raises:
    UserError: the file cannot be read, is cut off, is no JSON, no trace, or
      holds no operators.
  """
  content = parsed(path)
  if isinstance(content, dict) and isinstance(content.get('nodes'), list):
    trace = execution.trace_of(path, content['nodes'])
  else:
    trace = profile.trace_of(path, *_events(path, content))
  if not any(call.kind == OPERATOR for call in trace.calls):
    raise UserError(
        f'{path}: has no operators (events of the category cpu_op); record '
        'them with ProfilerActivity.CPU')
  return trace


def _events(path: str, content: Any) -> tuple[list, Any]:
  """The list of events, and of devices."""
  if isinstance(content, list):
    return content, None
  events = content.get('traceEvents') if isinstance(content, dict) else None
  if isinstance(events, list):
    return events, content.get('deviceProperties')
  found = (f'its keys are {shortened(sorted(content), 6) or "none"}'
           if isinstance(content, dict)
           else f'it holds a {type(content).__name__}')
  raise UserError(
      f'{path}: is no trace: it has no list traceEvents (of a profiler) and '
      f'no list nodes (of an execution trace); {found}')


def parsed(path: str) -> Any:
  """The JSON of a file.

  Raises:
    UserError: it cannot be read, or is none.
  """
  text = _text(path)
  files.require_parsable(text, path, MOST_PARSED_BYTES)
  try:
    return files.checked_json(text)
  except json.JSONDecodeError as error:
    if text.strip() and _is_cut_off(error):
      raise UserError(
          f'{path}: is cut off: its JSON ends after {len(text):,} letters, '
          f'where more must follow ({error.msg}); record it again, or copy '
          'all of it') from error
    raise UserError(f'{path}: is not JSON ({error})') from error
  except (ValueError, RecursionError) as error:
    raise UserError(f'{path}: is not JSON ({error})') from error


_WORDS = ('true', 'false', 'null', 'NaN', 'Infinity', '-Infinity')


def _is_cut_off(error: json.JSONDecodeError) -> bool:
  """Whether JSON ends where more must follow, as a killed program leaves it."""
  rest = error.doc[error.pos:].strip()
  return (error.msg.startswith('Unterminated')
          or any(word.startswith(rest) for word in _WORDS)
          or (error.msg.startswith('Invalid \\') and len(rest) < 6))


def _text(path: str) -> str:
  try:
    with files.open_ordinary(files.require_path('FILE', path)) as file:
      start = file.read(2)
      file.seek(0)
      content = (_unpacked(path, file) if start == _GZIP
                 else _limited(path, file.read(MOST_BYTES + 1)))
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    raise UserError(f'{path}: is not JSON ({error.reason} at byte '
                    f'{error.start:,}: no UTF-8)') from error


def _limited(path: str, content: bytes) -> bytes:
  if len(content) > MOST_BYTES:
    raise UserError(f'{path}: holds more than {MOST_BYTES:,} bytes of JSON; '
                    'record fewer steps')
  return content


def _unpacked(path: str, file: Any) -> bytes:
  """What gzip packed; a small file may hold far too much."""
  unpacker = zlib.decompressobj(31)
  content = io.BytesIO()
  try:
    while not unpacker.eof:
      part = unpacker.unconsumed_tail or file.read(_PART)
      if not part:
        raise UserError(
            f'{path}: is cut off: gzip ends too early, after '
            f'{content.tell():,} bytes of JSON; copy all of it, or record it '
            'again')
      content.write(unpacker.decompress(part, _PART))
      _limited(path, content.getbuffer())
  except zlib.error as error:
    raise UserError(f'{path}: is damaged: {error}') from error
  return content.getvalue()
