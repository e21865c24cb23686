"""How TensorFlow uses the cores in training and ranking."""

from __future__ import annotations

import contextlib
import os

# Models rank two chunks of configurations at a time, each on a core.
RANKING_CORES = 2

# TensorFlow's own variable; whoever sets it knows better.
VARIABLE = 'TF_NUM_INTRAOP_THREADS'


def one_for_each_operation(most_cores: int = 4) -> None:
  """Lets each operation use one thread; several still run side by side.

  The operations of a training step are so small that splitting one among cores
  costs more than it gains: a fifth of the processor time on 2 cores, and more
  in ranking. Does nothing on machines with more than `most_cores`, or where
  TensorFlow already runs.
  """
  if VARIABLE in os.environ or (os.cpu_count() or 1) > most_cores:
    return
  import tensorflow as tf
  with contextlib.suppress(RuntimeError):  # TensorFlow has made its threads.
    tf.config.threading.set_intra_op_parallelism_threads(1)


def divide(processes: int) -> None:
  """Gives this one of several processes its share of the cores.

  To be called before TensorFlow starts. Variables that are set already stay.
  """
  if processes <= 1:
    return
  try:
    cores = len(os.sched_getaffinity(0))  # Those that this process may use.
  except AttributeError:  # Only Linux says.
    cores = os.cpu_count() or 1
  for name in (VARIABLE, 'TF_NUM_INTEROP_THREADS', 'OMP_NUM_THREADS'):
    os.environ.setdefault(name, str(max(1, cores // processes)))


def one_alone() -> None:
  """Lets TensorFlow use one thread, and with it one core, in this process.

  For processes that share the machine, and whose numbers must not depend on
  its cores. Does nothing where TensorFlow already runs.
  """
  import tensorflow as tf
  with contextlib.suppress(RuntimeError):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
