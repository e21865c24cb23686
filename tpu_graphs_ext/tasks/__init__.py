"""The two tasks: tiles of a kernel, layouts of a program.

tile, layout                  the object of each task, and the settings of verbs
shipped                       what commands, report and course ask of them
api                           the verbs as Python functions, of tiles by default
evaluations                   their measures
tile_batches, layout_batches  kernels, programs -> GraphTensors
feature_stats                 the scale of the features, as a model's argument
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks.layout import LAYOUT
from tpu_graphs_ext.tasks.shipped import ShippedTask
from tpu_graphs_ext.tasks.tile import TILE

# The only list of tasks; the first is the default. A name is --task.
TASKS: dict[str, ShippedTask] = {task.name: task for task in (TILE, LAYOUT)}


def of_run(run_info: Mapping[str, Any], path: str) -> ShippedTask:
  """The task that a run file is of, or a UserError that names its path."""
  for task in TASKS.values():
    if task.owns(run_info):
      return task
  raise UserError(f'{path}: its task {run_info["task"][:100]!r} is not one of '
                  f'this package: {", ".join(TASKS)}')
