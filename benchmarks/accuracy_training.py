"""What the accuracy benchmarks of both tasks record about a training."""

from __future__ import annotations

from typing import NamedTuple


class Training(NamedTuple):
  """Columns of the CSV."""
  parameters: int
  seconds: float
  epochs_done: int
  best_epoch: int

  @classmethod
  def of(cls, run_info: dict, model) -> Training:
    """Of a run of the package's own engine."""
    curve = run_info['train_curve']
    return cls(
        parameters=sum(variable.shape.num_elements()
                       for variable in model.trainable_variables),
        seconds=run_info['seconds']['train'], epochs_done=len(curve['epoch']),
        best_epoch=1 + curve['val_opa'].index(max(curve['val_opa'])))


def training_columns(trainings: list[Training]) -> dict[str, object]:
  """Means over the trainings of a run; parameters are the last one's."""
  done = sum(training.epochs_done for training in trainings)
  return {
      'parameters': trainings[-1].parameters,
      'seconds_an_epoch': sum(
          training.seconds for training in trainings) / done,
      'epochs_done': done / len(trainings),
      'best_epoch': sum(
          training.best_epoch for training in trainings) / len(trainings)}
