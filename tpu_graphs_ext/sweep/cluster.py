"""Workers of a Dask cluster, which anybody starts by Dask's own commands.

  dask scheduler                                  on one machine
  dask worker tcp://ADDRESS:8786 --nthreads 1     on each, as often as it may
"""

from __future__ import annotations

import collections
import concurrent.futures
import logging
import sys
import threading
from typing import Any, Callable

from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.host import threads
from tpu_graphs_ext.sweep import engine

_log = logging.getLogger(__name__)

_ANSWER_SECONDS = 20  # For a scheduler to answer.
_WORKER_SECONDS = 60  # For it to have a first worker.

# What Dask raises where its connections break.
_LOST = (OSError, RuntimeError, TimeoutError, concurrent.futures.CancelledError)

# TensorFlow's and Keras's state is of a process, so its threads take turns.
_one_at_a_time = threading.Lock()


class Cluster:
  """A `engine.Crew` of a cluster's workers.

  Args:
    address: of the scheduler.
    most: tasks at a time; 0: as many as there are workers, which may come
      and go.

  Raises:
    UserError: Dask is missing, nobody answers, or there is no worker.
  """

  def __init__(self, address: str, most: int):
    distributed = _distributed()
    self._address, self._most = address, most
    self._wait = distributed.wait
    self._died = distributed.scheduler.KilledWorker
    try:
      self._client = distributed.Client(
          address, timeout=_ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
      raise UserError(
          f'--scheduler={address}: no Dask scheduler answers there '
          f'({reason_of(error)}); `dask scheduler` starts one and prints its '
          'address') from error
    self._hosts = collections.Counter()
    if not engine.wait_for(self._workers, _WORKER_SECONDS):
      self._client.close()
      raise UserError(
          f'--scheduler={address}: it has no workers; `dask worker {address} '
          '--nthreads 1` starts one, on any machine')

  def _workers(self) -> int:
    """How many there are now."""
    try:
      found = self._client.nthreads()
    except _LOST as error:
      raise self._gone() from error
    self._hosts = collections.Counter(map(_host, found))
    return len(found)

  def free(self, busy: int) -> int:
    # While all are restarting, one task waits for the first that is back.
    return (self._most or max(1, self._workers())) - busy

  def submit(self, function: Callable[[Any], Any], job: engine.Job) -> Any:
    self._workers()
    return self._client.submit(
        _called, function, job.item, dict(self._hosts), pure=False)

  def wait(self, futures: list) -> list:
    try:
      with self._client.as_current():
        return list(self._wait(futures, return_when='FIRST_COMPLETED').done)
    except _LOST as error:
      raise self._gone() from error

  def result(self, future: Any) -> tuple[Any, str]:
    if future.status in ('cancelled', 'lost'):
      raise self._gone()
    try:
      return future.result()
    except self._died as error:
      return None, engine.died(getattr(error, 'allowed_failures', 0) + 1)
    except Exception as error:  # Its item cannot be unpickled there, or such.
      if future.status != 'error':
        raise self._gone() from error
      return None, f'{type(error).__name__}: {reason_of(error)}'

  def stop(self) -> None:
    # Lets go of its tasks; those that wait are dropped, see `is_wanted`.
    self._client.close()

  def _gone(self) -> UserError:
    return UserError(
        f'--scheduler={self._address}: the scheduler went away; what is '
        'finished is kept. Start it and its workers, then the same command')


def _distributed() -> Any:
  try:
    import distributed
    import distributed.scheduler
  except ImportError as error:
    raise UserError(
        '--scheduler needs Dask, which is not installed; '
        f'{how_to_install("scale")}') from error
  return distributed


def _host(address: str) -> str:
  """'tcp://10.0.0.5' of 'tcp://10.0.0.5:40123'."""
  return address.rpartition(':')[0]


def _called(function: Callable[[Any], Any], item: Any,
            hosts: dict[str, int]) -> tuple[Any, str]:
  """What a worker does: a task that shares the machine with its neighbours.

  Args:
    function: of the task.
    item: its argument.
    hosts: host -> workers on it.
  """
  import distributed
  neighbours = hosts.get(_host(distributed.get_worker().address), 1)
  with _one_at_a_time:
    threads.divide(neighbours)
    return engine.called(function, item)


def is_wanted() -> bool:
  """See `engine.is_wanted`."""
  get_worker = sys.modules['distributed'].get_worker
  try:
    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
  except (ValueError, AttributeError):  # Not in a task of a worker's.
    return True
  return task is not None and task.state != 'cancelled'
