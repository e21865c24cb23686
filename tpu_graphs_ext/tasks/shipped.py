"""What the commands, the report and the course ask of the package's tasks."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tpu_graphs_ext.engine.task import Task

if TYPE_CHECKING:
  from tpu_graphs_ext.data.rules import TaskRules
  from tpu_graphs_ext.engine.results import Results
  from tpu_graphs_ext.sample.write import Summary


class ShippedTask(Task, Protocol):
  """A task that comes with the package: the engine's, and what users see."""
  choices: str  # What is ranked, such as 'tiles',
  about: str  # and of what.
  sources: str  # What --data may name.
  has_pretrained: bool  # Whether its trained model is in the package.
  has_small_steps: bool  # One thread an operation makes it faster.
  has_geometry: bool  # Whether `analytic` knows legal choices and their costs.
  has_groups: bool  # Whether an evaluation shows groups before problems.
  compared_by: Sequence[str]  # Measures of a report; the first decides.
  baseline_models: str  # The baseline's file of models, in a checkout.
  sample_flags: Sequence[str] = ()  # Arguments of `write_sample` but `out`.

  @property
  def evaluation(self) -> type[Results]:
    """Means over problems, and their groups."""
    from tpu_graphs_ext.tasks import evaluations
    return evaluations.OF_TASK[self.name]

  @property
  def rules(self) -> TaskRules:
    """The rules for its files."""
    from tpu_graphs_ext.data import rules
    return rules.OF_TASK[self.name]

  @abc.abstractmethod
  def write_sample(self, out: str, **flags: Any) -> Summary:
    """Writes sample data into a new folder, or finds it written.

    Raises UserError if `out` holds something else or cannot be written, or a
    flag has a wrong value.
    """
