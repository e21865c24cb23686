"""How TensorFlow uses the cores in training and ranking."""

from __future__ import annotations

import contextlib
import os

# Up to so many cores, one thread an operation was seen to be the faster.
_FEW_CORES = 4
# Models rank two chunks of configurations at a time, each on a core.
RANKING_CORES = 2

# TensorFlow's own variable; who sets it knows better.
VARIABLE = 'TF_NUM_INTRAOP_THREADS'
# It reads the others as well, or libraries in it do.
_VARIABLES = (VARIABLE, 'TF_NUM_INTEROP_THREADS', 'OMP_NUM_THREADS')


def one_for_each_operation(most_cores: int = _FEW_CORES) -> None:
  """Lets each operation keep to one thread; several still run side by side.

  The operations of a training step are so small that sharing one among the
  cores costs more than it brings: a fifth of the processor time on 2 cores, and
  more of it in ranking.
  Does nothing on machines of many cores, or where TensorFlow already runs.

  Args:
    most_cores: of a machine that has few.
  """
  if VARIABLE in os.environ or (os.cpu_count() or 1) > most_cores:
    return
  import tensorflow as tf
  try:
    tf.config.threading.set_intra_op_parallelism_threads(1)
  except RuntimeError:  # It is too late: TensorFlow has made its threads.
    pass


def divide(processes: int) -> None:
  """Gives this process its part of the machine, before TensorFlow starts.

  Does nothing where it has the machine for itself. A variable that is set
  already stays: who sets it knows better.

  Args:
    processes: that share the cores, this one among them.
  """
  if processes <= 1:
    return
  try:
    cores = len(os.sched_getaffinity(0))  # Those that this process may use.
  except AttributeError:  # Only Linux says.
    cores = os.cpu_count() or 1
  for name in _VARIABLES:
    os.environ.setdefault(name, str(max(1, cores // processes)))


def one_alone() -> None:
  """Lets TensorFlow use one thread, and with it one core, in this process.

  For processes that share the machine, and whose numbers shall be the same on
  machines with any number of cores. Does nothing where TensorFlow already runs.
  """
  import tensorflow as tf
  with contextlib.suppress(RuntimeError):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
