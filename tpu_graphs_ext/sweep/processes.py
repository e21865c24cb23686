"""Workers that are processes of this machine, by the standard library's pool.

Each is a pool of one: when a process dies its pool breaks, and one task, no
more, was in it.
"""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Callable

from tqdm import tqdm

from tpu_graphs_ext.errors import reason_of
from tpu_graphs_ext.host import threads
from tpu_graphs_ext.sweep import engine


class Processes:
  """A `engine.Crew` of so many processes, each started by its first task."""

  def __init__(self, workers: int):
    self._workers = workers
    self._idle = collections.deque(
        _Worker(workers) for _ in range(workers))
    self._busy: dict[concurrent.futures.Future, _Worker] = {}

  def free(self, unused_busy: int) -> int:
    return len(self._idle)

  def submit(self, function: Callable[[Any], Any],
             job: engine.Job) -> concurrent.futures.Future:
    worker = self._idle.popleft()
    try:
      future = worker.pool.submit(engine.called, function, job.item)
    except BrokenProcessPool:  # It died while it had nothing to do.
      worker.stop()
      worker = _Worker(self._workers)
      future = worker.pool.submit(engine.called, function, job.item)
    self._busy[future] = worker
    return future

  def wait(self, futures: list) -> list:
    done, _ = concurrent.futures.wait(
        futures, return_when=concurrent.futures.FIRST_COMPLETED)
    return list(done)

  def result(self, future: concurrent.futures.Future) -> tuple[Any, str]:
    worker = self._busy.pop(future)
    try:
      return future.result()
    except BrokenProcessPool:
      worker.stop()
      worker = _Worker(self._workers)
      raise engine.WorkerDiedError from None
    except Exception as error:  # The item or the result cannot be pickled.
      return None, f'{type(error).__name__}: {reason_of(error)}'
    finally:
      self._idle.append(worker)

  def stop(self) -> None:
    workers = [*self._idle, *self._busy.values()]
    for worker in workers:
      worker.end()
    for worker in workers:
      worker.stop()


class _Worker:
  """One process, that ends when this one closes a pipe, or ends itself.

  Args:
    workers: that share this machine, this one among them.
  """

  def __init__(self, workers: int):
    # A copy of this process (fork) would have TensorFlow's locks, not its
    # threads.
    context = multiprocessing.get_context('spawn')
    self._reader, self._writer = context.Pipe(duplex=False)
    self.pool = concurrent.futures.ProcessPoolExecutor(
        1, mp_context=context, initializer=_begin,
        initargs=(self._reader, workers))

  def end(self) -> None:
    """Lets it end, whatever it does."""
    self._writer.close()

  def stop(self) -> None:
    self.end()
    self.pool.shutdown(wait=True)
    self._reader.close()


def _begin(reader: Connection, workers: int) -> None:
  """What a process does first: it learns how it ends."""
  # Ctrl-C goes to all processes of a terminal; the first one decides.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  # As it is in a new program; what started this one may ignore it.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  # Its own has a semaphore, which a process that ends like that leaves behind.
  tqdm.set_lock(threading.RLock())
  threading.Thread(target=_end_with, args=(reader,), daemon=True).start()
  threads.divide(workers)


def _end_with(reader: Connection) -> None:
  """Ends this process when the other end of the pipe is closed."""
  try:
    reader.recv()
  except (EOFError, OSError):
    pass
  os._exit(1)
