"""Runs a function on many items by workers, any of which may die.

The workers are processes of this machine, or those of a Dask cluster whose
scheduler has an address. Either way an item whose worker dies is tried again,
and after a few times is an error of that item; the rest goes on.

  for key, result, error in engine.run(work, items, workers=4):
    print(key, error or result)
"""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NamedTuple, Optional, Protocol

from tpu_graphs_ext.errors import UserError, reason_of

# So often is an item tried whose worker dies; on a cluster its scheduler
# counts (distributed.scheduler.allowed-failures, where it is 3 deaths more).
TRIES = 3
_DIED = 'its worker died'


class Outcome(NamedTuple):
  """How one item ended.

  Attributes:
    key: of the item.
    result: what the function returned; None where it did not.
    error: why it did not; '' where it did.
  """
  key: str
  result: Any
  error: str = ''


class WorkerDiedError(Exception):
  """The process that had a task is gone, and its result with it."""


class Job(NamedTuple):
  """One item, and which attempt it is, from 1."""
  key: str
  item: Any
  attempt: int = 1


class Crew(Protocol):
  """Workers of some kind; `run` asks for no more than this."""

  def free(self, busy: int) -> int:
    """How many more tasks would start at once, where so many are under way."""

  def submit(self, function: Callable[[Any], Any], job: Job) -> Any:
    """Starts a task; returns a future of `called`, to be hashed."""

  def wait(self, futures: list) -> list:
    """Those that ended, at least one of those that are given."""

  def result(self, future: Any) -> tuple[Any, str]:
    """What `called` returned.

    Raises:
      WorkerDiedError: the worker died, and the task shall be tried again.
      UserError: there are no workers any more, so nothing can go on.
    """

  def stop(self) -> None:
    """Ends tasks that are under way, and what was started for them."""


def run(function: Callable[[Any], Any], items: Iterable[tuple[str, Any]], *,
        workers: int = 0, scheduler: str = '') -> Iterator[Outcome]:
  """Yields how each item ended, in the order in which they end.

  A worker may die after a task is done and before its result is fetched, and
  the task is then done again: the function must bear that.

  Args:
    function: of the top of a module that workers can import; takes an item,
      returns what can be pickled. What it raises becomes an `error`, and is
      not tried again.
    items: (key, item) pairs; a key is a text that no other item has. They are
      taken one by one as workers become free, so an iterator may look at what
      was yielded before.
    workers: tasks at a time. 0: one on this machine, as many as a cluster has
      workers.
    scheduler: address of a Dask scheduler, as tcp://10.0.0.5:8786; '':
      processes of this machine, started by spawn: a script that calls this
      needs its `if __name__ == '__main__':`.

  Raises:
    UserError: the scheduler cannot be reached, or goes away; Dask is not
      installed.
    ValueError: two items have one key, or `workers` is below 0.
  """
  if workers < 0:
    raise ValueError(f'workers must be 0 or more; got {workers}')
  crew = _crew(workers, scheduler)
  try:
    yield from _run(function, iter(items), crew)
  finally:  # Also where whoever asked was interrupted, or wants no more.
    crew.stop()


def _crew(workers: int, scheduler: str) -> Crew:
  if scheduler:
    from tpu_graphs_ext.sweep import cluster
    return cluster.Cluster(scheduler, workers)
  from tpu_graphs_ext.sweep import processes
  return processes.Processes(workers or 1)


def _run(function: Callable[[Any], Any], items: Iterator[tuple[str, Any]],
         crew: Crew) -> Iterator[Outcome]:
  again: collections.deque[Job] = collections.deque()
  running: dict[Any, Job] = {}
  fresh = _jobs(items)
  while True:
    while crew.free(len(running)) > 0:
      job = again.popleft() if again else next(fresh, None)
      if job is None:
        break
      running[crew.submit(function, job)] = job
    if not running:
      return
    for future in crew.wait(list(running)):
      job = running.pop(future)
      try:
        outcome = Outcome(job.key, *crew.result(future))
      except WorkerDiedError:
        if job.attempt < TRIES:
          again.append(job._replace(attempt=job.attempt + 1))
          continue
        outcome = Outcome(job.key, None, died(job.attempt))
      yield outcome


def _jobs(items: Iterator[tuple[str, Any]]) -> Iterator[Job]:
  keys = set()
  for key, item in items:
    if key in keys:
      raise ValueError(f'two items have the key {key!r}')
    keys.add(key)
    yield Job(key, item)


def died(times: int) -> str:
  """The error of an item whose worker died each time."""
  return (f'{_DIED}, {times} times (killed by somebody, or by the system for '
          'want of memory)')


def is_death(error: str) -> bool:
  """Whether an error is that of `died`, and not what the function raised."""
  return error.startswith(_DIED)


def called(function: Callable[[Any], Any],
           item: Any) -> tuple[Optional[Any], str]:
  """(result, '') or (None, what went wrong): what a worker does."""
  try:
    return function(item), ''
  except UserError as error:
    return None, str(error)
  except (Exception, SystemExit, KeyboardInterrupt) as error:
    return None, f'{type(error).__name__}: {reason_of(error)}'


def is_wanted() -> bool:
  """Whether anybody still waits for the task that this code runs in.

  On a cluster a task outlives who asked for it. A long one should ask now and
  then, and give up. A worker of this machine ends with who started it.
  """
  if 'distributed' not in sys.modules:
    return True
  from tpu_graphs_ext.sweep import cluster
  return cluster.is_wanted()


def wait_for(there: Callable[[], bool], seconds: float,
             pause: float = 0.2) -> bool:
  """Looks until something is there; False where the time is up."""
  end = time.monotonic() + seconds
  while not there():
    if time.monotonic() > end:
      return False
    time.sleep(pause)
  return True
