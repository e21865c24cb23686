"""The machine that a benchmark runs on, in words."""

from __future__ import annotations

import os
import platform
import re


def machine() -> str:
  """Processor, cores that may be used, memory."""
  name = platform.processor() or platform.machine()
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      name = next(line.split(':')[1].strip() for line in file
                  if line.startswith('model name'))
  except (OSError, StopIteration):
    pass
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
  return f'{name}, {cores()} cores, {memory:.0f} GiB, {platform.system()}'


def shown(command: str) -> str:
  """A command without the folders of absolute paths, which others lack."""
  return re.sub(r'(?<![\w.])/[^\s,=\'"]*/(?=[^\s,=\'"])', '', command)


def cores() -> int:
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
