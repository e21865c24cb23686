"""Runs a function on many items, in processes any of which may die.

They are of this machine, or the workers of a Dask cluster (docs/scale.md).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
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

# TensorFlow's state belongs to the process, so threads of a Dask worker wait.
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
    function: of a module that workers can import. What it raises becomes an
      `error`, and is not retried.
    items: (key, item) pairs, taken one by one as workers become free, so an
      iterator may depend on what was yielded before.
    workers: tasks at a time. 0: one on this machine; on a cluster, one for
      each of its workers.
    scheduler: address of a Dask scheduler, such as tcp://10.0.0.5:8786; '':
      processes of this machine, started by spawn.

  Raises UserError if the scheduler cannot be reached, has no workers or goes
  away, or Dask is not installed.
  """
  keys, fresh = {}, iter(items)
  with (_cluster(scheduler, workers) if scheduler
        else _processes(workers or 1)) as (submit, number):
    while True:
      for key, item in itertools.islice(fresh, max(0, number() - len(keys))):
        keys[submit(called, function, item)] = key
      if not keys:
        return
      done, _ = concurrent.futures.wait(
          keys, return_when=concurrent.futures.FIRST_COMPLETED)
      for future in done:
        yield Outcome(keys.pop(future), *_result(future))


def died(times: int) -> str:
  """The error of an item whose worker died each time."""
  return f'{_DIED}, {times} times (killed, or out of memory)'


def is_death(error: str) -> bool:
  return error.startswith(_DIED)


def called(function: Callable[[Any], Any], item: Any) -> tuple[Any, str]:
  """In a worker: (result, '') or (None, what went wrong), without messages."""
  with _one_at_a_time, open(os.devnull, 'w') as nowhere, (
      contextlib.redirect_stderr(nowhere)), contextlib.redirect_stdout(nowhere):
    logging.disable(logging.WARNING)
    try:
      return function(item), ''
    except (Exception, SystemExit, KeyboardInterrupt) as error:
      return None, _described(error)
    finally:
      logging.disable(logging.NOTSET)


def _described(error: BaseException) -> str:
  return (str(error) if isinstance(error, UserError)
          else f'{type(error).__name__}: {reason_of(error)}')


def _result(future: Future) -> tuple[Any, str]:
  try:
    return future.result()
  except CancelledError:  # By a scheduler that went away.
    raise
  except BrokenProcessPool:
    return None, died(TRIES)
  except Exception as error:  # Dask's KilledWorker, or one of pickling.
    times = getattr(error, 'allowed_failures', None)
    return None, _described(error) if times is None else died(times + 1)


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[tuple[Callable, Callable]]:
  """Threads, each with a pool of one process: a pool breaks if one dies.

  Yields `submit` as of an executor, and the number of items at a time.
  """
  # A fork would have TensorFlow's locks, but not its threads.
  context = multiprocessing.get_context('spawn')
  reader, writer = context.Pipe(duplex=False)
  own, pools = threading.local(), []

  def call(*task):
    for tries_left in reversed(range(TRIES)):
      if getattr(own, 'pool', None) is None:
        own.pool = concurrent.futures.ProcessPoolExecutor(
            1, mp_context=context, initializer=_begin,
            initargs=(reader, workers))
        pools.append(own.pool)
      try:
        return own.pool.submit(*task).result()
      except BrokenProcessPool:
        own.pool = None
        if not tries_left or writer.closed:
          raise

  executor = concurrent.futures.ThreadPoolExecutor(workers)
  try:
    yield functools.partial(executor.submit, call), lambda: workers
  finally:
    writer.close()  # Ends every process, whatever it is doing.
    executor.shutdown(cancel_futures=True)
    for pool in pools:
      pool.shutdown()
    reader.close()


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


@contextlib.contextmanager
def _cluster(address: str,
             workers: int) -> Iterator[tuple[Callable, Callable]]:
  """The same on the workers of a Dask cluster, which may come and go."""
  try:
    import distributed
  except ImportError as error:
    raise UserError('--scheduler needs Dask, which is not installed; '
                    f'{how_to_install("scale")}') from error
  try:
    with distributed.Client(address, timeout=_ANSWER_SECONDS,
                            set_as_default=False) as client:
      client.wait_for_workers(1, timeout=_WORKER_SECONDS)
      # While all are restarting, one task waits for the first that is back.
      yield (client.get_executor(pure=False).submit,
             lambda: workers or max(1, len(client.nthreads())))
  except (OSError, ValueError, RuntimeError, TimeoutError, CancelledError,
          distributed.TimeoutError) as error:
    raise UserError(
        f'--scheduler={address}: no scheduler with workers answers there '
        f'({reason_of(error)}). What is finished is kept: start them, then the '
        'same command') from error


def is_wanted() -> bool:
  """Whether the command that asked for this task still runs.

  On a cluster a task outlives its command, so a long one asks now and then.
  """
  try:
    worker = sys.modules['distributed'].get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
  except (KeyError, ValueError, AttributeError):  # Not in a task of Dask's.
    return True
  return task is not None and task.state != 'cancelled'
