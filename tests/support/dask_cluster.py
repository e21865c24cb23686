"""A Dask cluster on loopback: a scheduler and workers, by Dask's commands."""

import contextlib
import os
import re
import signal
import subprocess
import sys

from support import waiting
from support.places import PYTHONPATH

SECONDS = 120  # For it to start, on a machine that has much else to do.


@contextlib.contextmanager
def started(folder, workers=2):
  """Yields the scheduler's address; all processes end after it.

  Args:
    folder: for what they say, and files of their own.
    workers: processes, each with one thread and a nanny that restarts it.
  """
  processes = []

  def start(kind, *words):
    log = folder / f'{kind}{len(processes)}.log'
    with open(log, 'wb') as file:
      processes.append(subprocess.Popen(
          [sys.executable, '-m', f'distributed.cli.dask_{kind}',
           '--no-dashboard', *words],
          stdout=file, stderr=file, cwd=folder, start_new_session=True,
          env={**os.environ, 'PYTHONPATH': PYTHONPATH}))
    return log

  try:
    log = start('scheduler', '--host', '127.0.0.1', '--port', '0')
    address = re.compile(r'Scheduler at: +(tcp://\S+)')
    assert waiting.wait_for(lambda: address.search(log.read_text()), SECONDS)
    address, = address.search(log.read_text()).groups()
    for _ in range(workers):
      start('worker', address, '--nthreads', '1', '--local-directory',
            str(folder))
    yield address
  finally:
    for process in reversed(processes):
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()
