"""From a file to a trace."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.traces import kineto

# Limits on the text, and on the memory of its objects.
MOST_BYTES = 2**30
MOST_PARSED_BYTES = 4 * 2**30


def read(path: str) -> kineto.Trace:
  """Reads a trace of PyTorch's profiler: JSON, packed by gzip or not.

  Args:
    path: an object with `traceEvents`, or a list of events, in Chrome's format.

  Raises:
    UserError: the file cannot be read, is truncated, is not JSON, is not a
      trace, or holds no operators.
  """
  content = _parsed(path)
  devices = base_ns = None
  if isinstance(content, dict):
    devices, keys = content.get('deviceProperties'), sorted(content)
    base_ns = content.get('baseTimeNanoseconds')
    content = content.get('traceEvents')
    if not isinstance(content, list):
      raise UserError(f'{path}: is not a trace: it has no list traceEvents; '
                      f'its keys are {shortened(keys, 6) or "none"}')
  if not isinstance(content, list):
    raise UserError(f'{path}: is not a trace: it holds a '
                    f'{type(content).__name__}')
  trace = kineto.trace_of(path, content, devices, base_ns)
  if not any(call.kind == kineto.OPERATOR for call in trace.calls):
    raise UserError(
        f'{path}: has no operators (events of the category cpu_op); record '
        'them with ProfilerActivity.CPU')
  return trace


def _parsed(path: str) -> Any:
  try:
    with files.open_ordinary(files.require_path('FILE', path)) as file:
      packed = file.read(2) == b'\x1f\x8b'
      file.seek(0)
      content = (gzip.GzipFile(fileobj=file) if packed else file).read(
          MOST_BYTES + 1)
  except EOFError as error:
    raise UserError(f'{path}: is cut off: gzip ends too early; copy all of it, '
                    'or record it again') from error
  except (zlib.error, gzip.BadGzipFile) as error:
    raise UserError(f'{path}: is damaged: {error}') from error
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  if len(content) > MOST_BYTES:
    raise UserError(f'{path}: holds more than {MOST_BYTES:,} bytes of JSON; '
                    'record fewer steps')
  try:
    text = content.decode('utf-8-sig')
    files.require_parsable(text, path, MOST_PARSED_BYTES)
    return files.checked_json(text)
  except (ValueError, RecursionError) as error:
    reason = ' '.join(str(error).split())[:200]
    raise UserError(f'{path}: is not JSON, or is cut off ({reason})') from error
