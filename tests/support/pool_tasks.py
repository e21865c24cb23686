"""Tasks for the pool, whose workers import them from here."""

import os
import pathlib
import signal
import time

from tpu_graphs_ext.engine import threads
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import pool


def refused(item):
  if item == 'user':
    raise UserError('a.json: lr must be positive')
  if item == 'exit':
    raise SystemExit(3)
  if item == 'odd result':
    return lambda: None
  raise MemoryError


def killed(item):
  """Kills its worker in the first so many attempts; then says how many.

  Args:
    item: (path of a file with a line an attempt, how many are killed).
  """
  path, times = item
  with open(path, 'a') as file:
    file.write(f'{os.getpid()}\n')
  attempts = len(pathlib.Path(path).read_text().split())
  if attempts <= times:
    os.kill(os.getpid(), signal.SIGKILL)
  return attempts


def doubled_by_threads(item):
  return 2 * item, os.environ.get(threads.VARIABLE)


def its_process(unused_item):
  return os.getpid()


def waits_until_unwanted(path):
  """Says in a file who it is, and later that nobody wanted it any more."""
  pathlib.Path(path).write_text(f'{os.getpid()}')
  while pool.is_wanted():
    time.sleep(0.05)
  pathlib.Path(path).write_text('unwanted')
