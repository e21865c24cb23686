"""The two tasks, and which of them a file belongs to."""

from __future__ import annotations

from tpu_graphs_ext.data import npz

# Task -> the array that only its files have.
FEATURES = {'tile': 'config_feat', 'layout': 'node_config_feat'}


def of_other_task(path: str, task: str) -> str:
  """Says that a file is of the other task; '' where it is not.

  Args:
    path: an .npz file.
    task: 'tile' or 'layout', to which it ought to belong.
  """
  try:
    with npz.opened(path) as archive:
      names = set(archive.namelist())
  except npz.DamagedError:
    return ''
  there = [name for name, array in FEATURES.items() if f'{array}.npy' in names]
  if not there or task in there:
    return ''
  return (f'is a file of the {there[0]} task: it has {FEATURES[there[0]]} and '
          f'no {FEATURES[task]}; give files of the {task} task, of '
          f'npz/{task}/ in the published data')
