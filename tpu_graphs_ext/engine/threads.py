"""How TensorFlow uses the cores in training and ranking."""

from __future__ import annotations

import contextlib
import os

# Models rank two chunks of configurations at a time, each on a core.
RANKING_CORES = 2

VARIABLE = 'TF_NUM_INTRAOP_THREADS'  # Whoever sets it knows better.


def cores() -> int:
  """The cores that this process may use: at most those of the machine."""
  if hasattr(os, 'sched_getaffinity'):  # Not on a Mac.
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def one_for_each_operation(most_cores: int = 4) -> None:
  """Lets each operation use one thread; several still run side by side.

  Splitting them costs a fifth of the processor time on 2 cores. Does nothing
  where there are more cores.
  """
  if VARIABLE not in os.environ and cores() <= most_cores:
    one_each('intra')


def divide(processes: int) -> None:
  """Gives this one of several processes its share, before TensorFlow starts."""
  if processes > 1:
    for name in (VARIABLE, 'TF_NUM_INTEROP_THREADS', 'OMP_NUM_THREADS'):
      os.environ.setdefault(name, str(max(1, cores() // processes)))


def one_each(*names: str) -> None:
  """One thread, 'intra' or 'inter'; no effect where TensorFlow already runs."""
  import tensorflow as tf
  with contextlib.suppress(RuntimeError):
    for name in names:
      getattr(tf.config.threading, f'set_{name}_op_parallelism_threads')(1)
