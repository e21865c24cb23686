"""Maps over worker processes; retries when one dies.

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
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tqdm import tqdm

from tpu_graphs_ext import children
from tpu_graphs_ext.engine import threads
from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.stacks import imports

# Attempts at an item whose process dies. A cluster has its own number:
# distributed.scheduler.allowed-failures, by default 3 more attempts.
TRIES = 3
DIED = 'its worker died'

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
    function: of a module that workers can import; what it raises is not
      retried.
    items: (key, item) pairs, taken one by one as workers become free, so an
      iterator may depend on what was yielded before.
    workers: tasks at a time; 0: one, or as many as the cluster has workers.
    scheduler: address of a Dask scheduler, such as tcp://10.0.0.5:8786; '':
      processes of this machine.

  Raises UserError if Dask is missing, or the scheduler does not answer or has
  no workers.
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
  return f'{DIED}, {times} times (killed, or out of memory)'


def called(function: Callable[[Any], Any], item: Any) -> tuple[Any, str]:
  """In a worker: (result, '') or (None, what went wrong), without messages."""
  with _one_at_a_time, open(os.devnull, 'w') as nowhere, (
      contextlib.redirect_stderr(nowhere)), contextlib.redirect_stdout(nowhere):
    logging.disable(logging.WARNING)
    try:
      return function(item), ''
    except (Exception, SystemExit, KeyboardInterrupt) as error:
      return None, described(error)
    finally:
      logging.disable(logging.NOTSET)


def described(error: BaseException) -> str:
  """What went wrong; of any error but a UserError also its type."""
  return (str(error) if isinstance(error, UserError)
          else f'{type(error).__name__}: {reason_of(error)}')


def _result(future: Future) -> tuple[Any, str]:
  try:
    return future.result()
  except CancelledError:  # By a scheduler that went away.
    raise
  except Exception as error:  # Dask's KilledWorker, or one of pickling.
    times = getattr(error, 'allowed_failures', None)
    return None, described(error) if times is None else died(times + 1)


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[tuple[Callable, Callable]]:
  """Threads, each with a process of its own.

  Yields `submit` as of an executor, and the number of items at a time.
  """
  place, every, is_over = threading.local(), [], threading.Event()

  def call(*task):
    for _ in range(TRIES):
      if not hasattr(place, 'process'):
        place.process = _Process(workers)
        every.append(place.process)
      if is_over.is_set():
        place.process.kill()
      with contextlib.suppress(EOFError, OSError):  # It has died.
        return place.process.call(task)
      del place.process
    return None, died(TRIES)

  executor = concurrent.futures.ThreadPoolExecutor(workers)
  try:
    yield functools.partial(executor.submit, call), lambda: workers
  finally:
    is_over.set()
    for process in every:
      process.kill()  # Whatever it is doing.
    executor.shutdown(cancel_futures=True)


class _Process:
  """A process that calls functions, and ends with the one that started it.

  Not one of multiprocessing's, whose modules Python looks for in the working
  folder. A fork would have TensorFlow's locks, but not its threads.
  """

  def __init__(self, workers: int):
    self._connection, other = multiprocessing.Pipe()
    handle = other.fileno()
    self._process = subprocess.Popen(
        children.command(f'from {__name__} import _work; '
                         f'_work({handle}, {workers})'),
        pass_fds=[handle], stdin=subprocess.DEVNULL)
    other.close()

  def call(self, task: tuple) -> Any:
    """The result of a call; EOFError or OSError if the process dies."""
    self._connection.send(task)
    return self._connection.recv()

  def kill(self) -> None:
    self._process.kill()
    self._process.wait()


def _work(handle: int, workers: int) -> None:
  """In a process: calls what it is sent, until its starter dies."""
  # Ctrl-C goes to all processes of a terminal; the first one decides.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  # As in a new program; whoever started this one may ignore it.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  imports.quieten()
  # tqdm's own lock starts a process of multiprocessing's on some systems.
  tqdm.set_lock(threading.RLock())
  threads.divide(workers)
  connection, tasks = Connection(handle), queue.SimpleQueue()

  def receive() -> None:
    with contextlib.suppress(EOFError, OSError):
      while True:
        tasks.put(connection.recv_bytes())
    os._exit(1)

  threading.Thread(target=receive, daemon=True).start()
  while True:
    try:
      function, *arguments = pickle.loads(tasks.get())
      content = pickle.dumps(function(*arguments))
    except Exception as error:  # Of pickling.
      content = pickle.dumps((None, described(error)))
    connection.send_bytes(content)


@contextlib.contextmanager
def _cluster(address: str, workers: int) -> Iterator[tuple[Callable, Callable]]:
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
    raise UserError(f'--scheduler={address}: no scheduler with workers answers '
                    f'there ({reason_of(error)}). What is finished is kept: '
                    'start them, then the same command') from error


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
