"""One training run on several devices, or on several machines, of one kind.

Every step's batch is the same whatever it is trained on: each replica of the
model, one a device, reads it all and takes its share, which is a run of whole
kernels. Gradients, losses and metrics are those of the whole batch, and so are
weights, curves and validation numbers, but for rounding.

`TF_CONFIG` in the environment names the machines, as TensorFlow's own
strategies read it:
  {"cluster": {"worker": ["a:2222", "b:2222"]},
   "task": {"type": "worker", "index": 0}}
The first worker, or the `chief` where there is one, is the only one that
reads and writes the output folder.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import parse_json

_log = logging.getLogger(__name__)

VARIABLE = 'TF_CONFIG'
# In the order in which TensorFlow counts them.
_JOBS = ('chief', 'worker')

_ADDRESS = re.compile(r'\S+:\d{1,5}')

# How long a worker waits for the others to start.
JOIN_SECONDS = 300

# What TensorFlow raises where another process is gone.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError,
         tf.errors.CancelledError, tf.errors.DeadlineExceededError)


@dataclasses.dataclass(frozen=True)
class Cluster:
  """What `TF_CONFIG` says.

  Attributes:
    addresses: host:port of every worker, in their order.
    index: of this one; 0 is the chief.
    jobs: the same addresses by their type, the chief first.
  """
  addresses: tuple[str, ...]
  index: int
  jobs: dict[str, list[str]]

  @classmethod
  def of_environment(cls) -> Optional[Cluster]:
    """None without `TF_CONFIG`, or where it names one worker.

    Raises:
      UserError: it is no JSON object, or not that of a cluster.
    """
    text = os.environ.get(VARIABLE, '').strip()
    config = parse_json(text, VARIABLE) if text else {}
    if not isinstance(config, dict):
      raise _wrong(f'must be a JSON object; got a {type(config).__name__}')
    if not config.get('cluster'):
      return None
    jobs = _jobs(config['cluster'])
    addresses = tuple(address for job in jobs.values() for address in job)
    if len(set(addresses)) < len(addresses):
      raise _wrong(f'each worker must have an address of its own; got '
                   f'{", ".join(addresses)}')
    job, index = _task(config.get('task'), jobs)
    if len(addresses) == 1:
      return None
    before = len(jobs.get('chief', ())) if job == 'worker' else 0
    return cls(addresses, before + index, jobs)


def _wrong(what: str) -> UserError:
  return UserError(
      f'{VARIABLE}: {what}. It must be like {{"cluster": {{"worker": '
      '["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}; unset '
      'it to train on this machine alone')


def _jobs(cluster: Any) -> dict[str, list[str]]:
  """The cluster of `TF_CONFIG`, looked over."""
  if not isinstance(cluster, dict) or not set(cluster) <= set(_JOBS):
    named = ', '.join(cluster) if isinstance(cluster, dict) else repr(cluster)
    raise _wrong(f'its cluster may have {" and ".join(_JOBS)}; got {named}')
  for job, addresses in cluster.items():
    if not isinstance(addresses, list) or not addresses or not all(
        isinstance(address, str) and _ADDRESS.fullmatch(address)
        for address in addresses):
      raise _wrong(f'its {job} must be a list of host:port; got {addresses!r}')
  if len(cluster.get('chief', ['one'])) > 1:
    raise _wrong(f'there can be one chief; got {cluster["chief"]!r}')
  return {job: cluster[job] for job in _JOBS if job in cluster}


def _task(task: Any, jobs: dict[str, list[str]]) -> tuple[str, int]:
  """Type and index of this process, looked over."""
  if not isinstance(task, dict) or task.get('type') not in jobs:
    raise _wrong(f'its task must have a type, one of {", ".join(jobs)}; got '
                 f'{task!r}')
  index, number = task.get('index'), len(jobs[task['type']])
  if type(index) is not int or not 0 <= index < number:
    raise _wrong(f'the index of its task must be 0 to {number - 1}, as its '
                 f'cluster has {number} of type {task["type"]}; got {index!r}')
  return task['type'], index


@dataclasses.dataclass(frozen=True)
class Share:
  """What one machine takes of each batch.

  Attributes:
    replicas: of all machines; each takes as many kernels.
    first: number of the first replica of this machine.
    here: how many there are on it.
  """
  replicas: int = 1
  first: int = 0
  here: int = 1

  def of(self, batches: np.ndarray) -> np.ndarray:
    """[batches, kernels, ...] -> [batches * here, kernels / replicas, ...]."""
    number, kernels, *rest = batches.shape
    parts = batches.reshape(
        number, self.replicas, kernels // self.replicas, *rest)
    own = parts[:, self.first:self.first + self.here]
    return own.reshape(number * self.here, -1, *rest)


WHOLE = Share()


class Workers:
  """The processes that train a run together; this one is one of them.

  Attributes:
    strategy: TensorFlow's, or None on one device of one machine.
    index: of this process.
    number: of processes.
    share: of this process in each batch.
  """

  def __init__(self, strategy: Optional[tf.distribute.Strategy] = None,
               index: int = 0, number: int = 1):
    self.strategy, self.index, self.number = strategy, index, number
    replicas = strategy.num_replicas_in_sync if strategy else 1
    here = replicas // number
    self.share = Share(replicas, index * here, here)

  @property
  def is_chief(self) -> bool:
    return self.index == 0

  def scope(self) -> contextlib.AbstractContextManager:
    """Inside, variables are made for every replica."""
    return self.strategy.scope() if self.strategy else contextlib.nullcontext()

  def fed(self, dataset: tf.data.Dataset) -> Any:
    """A dataset of this worker's shares without end, dealt to its replicas."""
    return self.strategy.distribute_datasets_from_function(
        lambda unused_context: dataset.repeat(),
        # Names of kernels are text, which no GPU takes.
        tf.distribute.InputOptions(experimental_fetch_to_device=False))

  def apart(self, step: Callable[[], None]) -> None:
    """Runs `step` outside of `scope`, in which Keras calls callbacks.

    Inside, a variable that one worker makes would wait for the others.
    """
    if self.strategy is None:
      step()
      return
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      thread.submit(step).result()

  def together(self, step: Callable[[], Any]) -> Any:
    """What `step` gives here; a UserError of any worker is raised at all."""
    if self.number == 1:
      return step()
    result, problem = None, ''
    try:
      result = step()
    except UserError as error:
      problem = str(error)
    for index, other in enumerate(self._gathered(problem)):
      if other:
        raise UserError(other if index == self.index
                        else f'worker {index}: {other}')
    return result

  def at_chief(self, step: Callable[[], Any]) -> Any:
    """What `step` gives at the chief, as JSON keeps it, or its UserError."""
    if self.number == 1:
      return step()
    result = self.together(lambda: step() if self.is_chief else None)
    shared = self._gathered(result)[0]
    return result if self.is_chief else shared

  def require_same(self, facts: Callable[[], dict[str, Any]]) -> None:
    """Raises a UserError where the workers differ in any of the facts."""
    if self.number == 1:
      return
    chief, *others = self._gathered(facts())
    for index, other in enumerate(others, 1):
      for name, value in chief.items():
        if other.get(name) != value:
          raise UserError(
              f'worker {index} has {name} {str(other.get(name))[:200]}, the '
              f'chief {str(value)[:200]}; give all workers the same data, '
              'flags and models.py')

  def take_from_chief(self, variables: Sequence[tf.Variable]) -> None:
    """Gives variables the values that they have at the chief."""
    if self.number == 1:
      return
    for dtype in dict.fromkeys(variable.dtype for variable in variables):
      alike = [v for v in variables if v.dtype == dtype]
      values = self._summed([
          v.numpy() if self.is_chief else np.zeros_like(v.numpy())
          for v in alike])
      for variable, value in zip(alike, values):
        variable.assign(value)

  def _gathered(self, value: Any) -> list[Any]:
    """The JSON of every worker, at each."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = np.zeros(self.number, np.int64)
    sizes[self.index] = len(text)
    sizes = self._summed([sizes])[0]
    table = np.zeros([self.number, sizes.max()], np.int32)
    table[self.index, :len(text)] = text
    table = self._summed([table])[0].astype(np.uint8)
    return [json.loads(row[:size].tobytes())
            for row, size in zip(table, sizes)]

  def _summed(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Sums over workers of arrays of one dtype."""
    def sums():
      context = tf.distribute.get_replica_context()
      # One replica of a machine speaks for it.
      speaks = context.replica_id_in_sync_group == self.share.first
      return context.all_reduce(tf.distribute.ReduceOp.SUM, [
          array * tf.cast(speaks, array.dtype) for array in arrays])

    summed = tf.function(lambda: self.strategy.run(sums), autograph=False)()
    return [self.strategy.experimental_local_results(part)[0].numpy()
            for part in summed]


def adam(learning_rate: Any, clip_norm: float) -> tf.keras.optimizers.Adam:
  """What models are trained with, by all replicas where there are several."""
  if tf.distribute.has_strategy():
    return _SharedAdam(learning_rate, clip_norm)
  return tf.keras.optimizers.Adam(learning_rate, clipnorm=clip_norm)


class _SharedAdam(tf.keras.optimizers.Adam):
  """Adam that adds the gradients of all replicas, then clips, as one would.

  Keras would gather the rows of an embedding's gradient, and TensorFlow's
  gathering cannot be repeated with another number of rows. So they are added
  up at each replica. The norm that Keras clips by is that of the rows as they
  were before, though, so their squares go along.
  """

  def __init__(self, learning_rate: Any, clip_norm: float):
    super().__init__(learning_rate)
    self._clip_norm = clip_norm

  def aggregate_gradients(self, grads_and_vars):
    pairs = [pair for pair in grads_and_vars if pair[0] is not None]
    squares = [
        tf.reduce_sum(gradient.values ** 2)
        for gradient, _ in pairs if isinstance(gradient, tf.IndexedSlices)]
    *sums, squares = tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM,
        [tf.convert_to_tensor(gradient) for gradient, _ in pairs]
        + [tf.stack(squares + [0.0])])
    squares = iter(tf.unstack(squares, num=squares.shape[0]))
    clipped = []
    for total, (gradient, variable) in zip(sums, pairs):
      square = (next(squares) if isinstance(gradient, tf.IndexedSlices)
                else tf.reduce_sum(total ** 2))
      clipped.append((total * self._clip_norm / tf.maximum(
          tf.sqrt(square), self._clip_norm), variable))
    return clipped


@contextlib.contextmanager
def joined(settings: Any) -> Iterator[Workers]:
  """The workers of `TF_CONFIG`, once all are there, each with its replicas.

  Args:
    settings: with the batch and the replicas of each machine.

  Raises:
    UserError: `TF_CONFIG` is wrong, the batch does not divide, devices are
      missing, the others do not come, or one of them is lost inside.
  """
  cluster = Cluster.of_environment()
  if cluster and not hasattr(settings, 'replicas'):
    raise UserError(f'{VARIABLE}: --task layout trains on one machine; unset '
                    'it')
  replicas = getattr(settings, 'replicas', 1)
  _require_whole_kernels(settings.batch, replicas, cluster)
  gpus = tf.config.list_physical_devices('GPU')
  if cluster is None:
    yield Workers(_of_devices(replicas, gpus) if replicas > 1 else None)
    return
  if replicas > max(1, len(gpus)):
    raise _too_few(replicas, len(gpus))
  _log.info('worker %d waits for the others', cluster.index)
  try:
    if cluster.index == 0:
      _await(cluster.addresses[1:])
    workers = Workers(
        _of_cluster(cluster, gpus[:replicas]), cluster.index,
        len(cluster.addresses))
  except (*_LOST, TimeoutError) as error:
    raise UserError(
        f'{VARIABLE}: not all of the {len(cluster.addresses)} workers came '
        f'within {JOIN_SECONDS} s ({_short(error)}); start one on each of '
        f'{", ".join(cluster.addresses)}, and see that they reach each other'
    ) from error
  _hear_sigterm_again()
  _log.info('worker %d of %d%s', cluster.index, workers.number,
            ', the chief' if workers.is_chief else
            '; the chief writes what there is to write')
  try:
    yield workers
  except tf.errors.OpError as error:
    if not isinstance(error, _LOST) and 'ollective ops' not in str(error):
      raise
    raise UserError(
        f'worker {cluster.index}: another worker is gone, or cannot be reached '
        f'({_short(error)}). The last finished epoch is kept; start all '
        'workers again with --resume') from error


def _await(addresses: Sequence[str]) -> None:
  """Waits until the others listen; TensorFlow's first worker waits for ever.

  Raises:
    TimeoutError: one does not.
  """
  end = time.monotonic() + JOIN_SECONDS
  for address in addresses:
    host, _, port = address.rpartition(':')
    while True:
      try:
        socket.create_connection((host.strip('[]'), int(port)), 1).close()
        break
      except (OSError, OverflowError) as error:
        if time.monotonic() > end:
          raise TimeoutError(f'{address}: {error}') from error
      time.sleep(0.2)


def _require_whole_kernels(batch: int, here: int,
                           cluster: Optional[Cluster]) -> None:
  machines = len(cluster.addresses) if cluster else 1
  replicas = here * machines
  if batch % replicas:
    raise UserError(
        f'--batch={batch}: must be a multiple of {replicas}, as {machines} '
        f'machine{"s" * (machines > 1)} with --replicas={here} share its '
        'kernels alike; give another --batch')


def _of_devices(replicas: int, gpus: list[Any]) -> tf.distribute.Strategy:
  kind = 'GPU' if gpus else 'CPU'
  there = tf.config.list_logical_devices(kind)
  if len(there) < replicas:
    raise _too_few(replicas, len(gpus))
  return tf.distribute.MirroredStrategy(
      [device.name for device in there[:replicas]])


def _too_few(replicas: int, gpus: int) -> UserError:
  return UserError(
      f'--replicas={replicas}: TensorFlow finds {gpus} GPUs on this machine; '
      'give as many as there are, or install TensorFlow with CUDA')


def _of_cluster(cluster: Cluster, gpus: list[Any]) -> tf.distribute.Strategy:
  """The strategy, which waits for all workers.

  Raises:
    UserError: TensorFlow runs already, or the port is taken.
  """
  # No public name tells TensorFlow not to wait for an hour.
  from tensorflow.python.eager import context
  jobs = tf.compat.v1.ConfigProto().experimental.coordination_config
  for name, addresses in cluster.jobs.items():
    jobs.coordinated_job_list.add(name=name, num_tasks=len(addresses))
  try:
    tf.config.set_visible_devices(gpus, 'GPU')
    context.context().configure_coordination_service(
        'standalone', f'/job:{next(iter(cluster.jobs))}/replica:0/task:0',
        cluster_register_timeout_in_ms=1000 * JOIN_SECONDS,
        coordinated_jobs=list(jobs.coordinated_job_list))
    return tf.distribute.MultiWorkerMirroredStrategy()
  except (RuntimeError, tf.errors.UnknownError) as error:
    raise UserError(
        f'{VARIABLE}: worker {cluster.index} cannot start ({_short(error)}); '
        f'is the port of {cluster.addresses[cluster.index]} taken, or did '
        'TensorFlow run in this process before?') from error


def _hear_sigterm_again() -> None:
  """Takes the signal back from TensorFlow, which only notes that it came."""
  if threading.current_thread() is threading.main_thread():
    known = signal.getsignal(signal.SIGTERM)
    if known is not None:
      signal.signal(signal.SIGTERM, known)


def _short(error: Exception) -> str:
  """What is telling of TensorFlow's pages."""
  text = str(error).rsplit('ollective ops is aborted by: ', 1)[-1].strip()
  return (text.splitlines() or [type(error).__name__])[0][:300]
