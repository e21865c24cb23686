"""Runs a function on many items, in processes any of which may die.

On this machine the processes are pools of concurrent.futures; elsewhere they
are the workers of a Dask cluster, which Dask's own commands start:

  dask scheduler                                  on one machine
  dask worker tcp://ADDRESS:8786 --nthreads 1     on each, once per task

  for key, result, error in pool.run(work, items, workers=4):
    print(key, error or result)
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from tqdm import tqdm

from tpu_graphs_ext.engine import threads
from tpu_graphs_ext.errors import UserError, how_to_install, reason_of

# Attempts at an item whose process dies. A cluster has its own number:
# distributed.scheduler.allowed-failures, by default 3 more attempts.
TRIES = 3
_DIED = 'its worker died'

_ANSWER_SECONDS = 20  # For a scheduler to answer.
_WORKER_SECONDS = 60  # For it to have a first worker.

# TensorFlow's and Keras's state belongs to the process, so the threads of a
# Dask worker take turns.
_one_at_a_time = threading.Lock()


class Outcome(NamedTuple):
  """How the item `key` ended: with a `result`, or else with an `error`."""
  key: str
  result: Any
  error: str = ''


def run(function: Callable[[Any], Any], items: Iterable[tuple[str, Any]], *,
        workers: int = 0, scheduler: str = '') -> Iterator[Outcome]:
  """Yields how each item ended, in the order in which they end.

  Args:
    function: at the top of a module that workers can import. What it raises
      becomes an `error`, and is not retried.
    items: (key, item) pairs, taken one by one as workers become free, so an
      iterator may depend on what was yielded before.
    workers: tasks at a time. 0: one on this machine; on a cluster, one for
      each of its workers.
    scheduler: address of a Dask scheduler, such as tcp://10.0.0.5:8786; '':
      processes of this machine, started by spawn.

  Raises:
    UserError: the scheduler cannot be reached, or goes away; Dask is not
      installed.
  """
  pool = _Cluster(scheduler, workers) if scheduler else _Processes(workers or 1)
  keys, fresh = {}, iter(items)
  try:
    while True:
      while len(keys) < pool.size():
        key, item = next(fresh, (None, None))
        if key is None:
          break
        keys[pool.submit(function, item)] = key
      if not keys:
        return
      done, _ = concurrent.futures.wait(
          keys, return_when=concurrent.futures.FIRST_COMPLETED)
      for future in done:
        yield Outcome(keys.pop(future), *pool.result(future))
  finally:  # Also if the caller was interrupted, or wants no more.
    pool.stop()


def died(times: int) -> str:
  """The error of an item whose worker died each time."""
  return f'{_DIED}, {times} times (killed, or out of memory)'


def is_death(error: str) -> bool:
  """Whether an error is one of `died`, not raised by the function."""
  return error.startswith(_DIED)


def called(function: Callable[[Any], Any], item: Any) -> tuple[Any, str]:
  """In a worker: (result, '') or (None, what went wrong)."""
  with _one_at_a_time:
    try:
      return function(item), ''
    except (Exception, SystemExit, KeyboardInterrupt) as error:
      return None, _described(error)


def _described(error: BaseException) -> str:
  return (str(error) if isinstance(error, UserError)
          else f'{type(error).__name__}: {reason_of(error)}')


class _Processes:
  """Threads, each with a pool of one process: a pool breaks if one dies."""

  def __init__(self, workers: int):
    self._workers = workers
    self._threads = concurrent.futures.ThreadPoolExecutor(workers)
    self._own = threading.local()
    self._pools: list[concurrent.futures.Executor] = []
    # A fork would have TensorFlow's locks, but not its threads.
    self._context = multiprocessing.get_context('spawn')
    self._reader, self._writer = self._context.Pipe(duplex=False)

  def size(self) -> int:
    return self._workers

  def submit(self, function: Callable[[Any], Any], item: Any) -> Future:
    return self._threads.submit(self._call, function, item)

  def result(self, future: Future) -> tuple[Any, str]:
    return future.result()

  def _call(self, function: Callable[[Any], Any],
            item: Any) -> tuple[Any, str]:
    for _ in range(TRIES):
      if getattr(self._own, 'pool', None) is None:
        self._own.pool = concurrent.futures.ProcessPoolExecutor(
            1, mp_context=self._context, initializer=_begin,
            initargs=(self._reader, self._workers))
        self._pools.append(self._own.pool)
      try:
        return self._own.pool.submit(called, function, item).result()
      except BrokenProcessPool:
        self._own.pool = None
        if self._writer.closed:
          break
      except Exception as error:  # The item or the result cannot be pickled.
        return None, _described(error)
    return None, died(TRIES)

  def stop(self) -> None:
    self._writer.close()  # Ends every process, whatever it is doing.
    self._threads.shutdown(cancel_futures=True)
    for pool in self._pools:
      pool.shutdown()
    self._reader.close()


def _begin(reader: Any, workers: int) -> None:
  """Prepares a process, which ends when its starter closes the pipe or dies."""
  def end() -> None:
    with contextlib.suppress(EOFError, OSError):
      reader.recv()
    os._exit(1)

  # Ctrl-C goes to all processes of a terminal; the first one decides.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  # As in a new program; whoever started this one may ignore it.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  # tqdm's own lock is a semaphore, which `os._exit` would leave behind.
  tqdm.set_lock(threading.RLock())
  threading.Thread(target=end, daemon=True).start()
  threads.divide(workers)


class _Cluster:
  """The workers of a Dask cluster; they may come and go."""

  def __init__(self, address: str, most: int):
    try:
      import distributed
      import distributed.scheduler
    except ImportError as error:
      raise UserError('--scheduler needs Dask, which is not installed; '
                      f'{how_to_install("scale")}') from error
    self._flag, self._most = f'--scheduler={address}', most
    self._killed = distributed.scheduler.KilledWorker
    try:
      self._client = distributed.Client(
          address, timeout=_ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
      raise UserError(
          f'{self._flag}: no Dask scheduler answers there '
          f'({reason_of(error)}); `dask scheduler` starts one and prints its '
          'address') from error
    self._executor = self._client.get_executor(pure=False)
    try:
      self._client.wait_for_workers(1, timeout=_WORKER_SECONDS)
    except (TimeoutError, distributed.TimeoutError) as error:
      self.stop()
      raise UserError(
          f'{self._flag}: it has no workers; `dask worker {address} '
          '--nthreads 1` starts one, on any machine') from error

  def size(self) -> int:
    with self._going_away(OSError, RuntimeError, TimeoutError):
      # While all are restarting, one task waits for the first that is back.
      return self._most or max(1, len(self._client.nthreads()))

  def submit(self, function: Callable[[Any], Any], item: Any) -> Future:
    return self._executor.submit(called, function, item)

  def result(self, future: Future) -> tuple[Any, str]:
    with self._going_away():
      try:
        return future.result()
      except self._killed as error:
        return None, died(getattr(error, 'allowed_failures', 0) + 1)
      except concurrent.futures.CancelledError:
        raise
      except Exception as error:  # Its item cannot be unpickled there, or such.
        return None, _described(error)

  @contextlib.contextmanager
  def _going_away(self, *errors: type[Exception]) -> Iterator[None]:
    try:
      yield
    except (concurrent.futures.CancelledError, *errors) as error:
      raise UserError(
          f'{self._flag}: the scheduler went away; what is finished is kept. '
          'Start it and its workers, then the same command') from error

  def stop(self) -> None:
    self._client.close()  # Waiting tasks are dropped; others see `is_wanted`.


def is_wanted() -> bool:
  """Whether the command that asked for the task of this code still runs.

  On a cluster a task outlives its command, so a long one should ask now and
  then, and give up. A worker of this machine ends with its command.
  """
  if 'distributed' not in sys.modules:
    return True
  try:
    worker = sys.modules['distributed'].get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
  except (ValueError, AttributeError):  # Not in a task.
    return True
  return task is not None and task.state != 'cancelled'
