"""Where configurations come from: all of a grid, or draws by Optuna.

  <out>/search.json   what a search has drawn, so that it goes on from there
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Optional, Union

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid as grids
from tpu_graphs_ext.sweep import pruning
from tpu_graphs_ext.sweep.grid import Configuration, Grid

FILE = 'search.json'


class WholeGrid:
  """Every configuration of a grid, in the order of the file."""

  def __init__(self, grid: Grid):
    self._grid = grid

  def known(self) -> Iterator[Configuration]:
    """Those that are known before any trial ends."""
    return self._grid.configurations()

  configurations = known

  def tell(self, number: int, value: Optional[float]) -> None:
    """Says what the goal of a configuration is; nothing depends on it."""


class Draws:
  """Configurations that Optuna draws, by what it was told of earlier ones.

  Random draws need not be told. Bayesian ones are by its tree-structured
  Parzen estimator (Bergstra et al. 2011, Algorithms for Hyper-Parameter
  Optimization), whose first ten are random; a configuration that is under way
  counts as a bad one there, so that workers do not crowd.

  Args:
    grid: with a search.
    out: full path of the sweep's folder.

  Raises:
    UserError: Optuna is missing, or another search was begun in the folder.
  """

  def __init__(self, grid: Grid, out: str):
    self._grid = grid
    self._path = os.path.join(out, FILE)
    self._optuna = pruning.require_optuna(f'the search {grid.search.method!r}')
    self._drawn = self._stored()[:grid.search.configurations]
    # Else a search that goes on would draw again what it had drawn.
    seed = grid.search.seed + len(self._drawn)
    samplers = self._optuna.samplers
    self._study = self._optuna.create_study(
        direction='maximize' if grid.highest_is_best else 'minimize',
        sampler=samplers.RandomSampler(seed)
        if grid.search.method == 'random'
        else samplers.TPESampler(seed=seed, constant_liar=True))
    for drawn in self._drawn:
      self._study.enqueue_trial(drawn)
    self._asked: list[Any] = []

  def known(self) -> Iterator[Configuration]:
    for drawn in self._drawn:
      yield self._of(self._optuna.trial.FixedTrial(drawn))

  def configurations(self) -> Iterator[Configuration]:
    for number in range(self._grid.search.configurations):
      trial = self._study.ask()
      self._asked.append(trial)
      configuration = self._of(trial)
      if number >= len(self._drawn):
        self._drawn.append(trial.params)
        self._store()
      yield configuration

  def tell(self, number: int, value: Optional[float]) -> None:
    """Says what came of a configuration.

    Args:
      number: of the configuration, in the order of `configurations`.
      value: of the goal; None where all its trials failed.
    """
    if value is None:
      self._study.tell(self._asked[number],
                       state=self._optuna.trial.TrialState.FAIL)
    else:
      self._study.tell(self._asked[number], value)

  def _of(self, trial: Any) -> Configuration:
    models = self._grid.models
    place = 0
    if len(models) > 1:
      place = trial.suggest_categorical('model', list(range(len(models))))
    model = models[place]
    chosen = []
    for part, name, values in model.values():
      name = f'{part}.{name}'
      if name in model.own:  # Which means something else for another model.
        name = f'models[{place}].{name}'
      chosen.append(values.suggested(trial, name))
    return grids.configuration(model, chosen)

  def _stored(self) -> list[dict[str, Any]]:
    try:
      with files.open_ordinary(self._path) as file:
        stored = files.parse_json(file.read(), self._path)
      if (set(stored) == {'space', 'drawn'}
          and isinstance(stored['drawn'], list)):
        if stored['space'] != self._grid.space_hash:
          raise UserError(
              f'{self._path}: another search was begun here, with other '
              f'models, values, seeds or goal than {self._grid.path} has; '
              'give another --out')
        return stored['drawn']
      raise UserError(f'{self._path}: is damaged; remove it to draw anew '
                      '(trials that are finished stay so)')
    except FileNotFoundError:
      return []
    except OSError as error:
      raise files.cannot_be_read(self._path, error) from error

  def _store(self) -> None:
    files.write_file(self._path, json.dumps(
        {'space': self._grid.space_hash, 'drawn': self._drawn},
        indent=1).encode())


def of(grid: Grid, out: str) -> Union[WholeGrid, Draws]:
  """What a grid's "search" says."""
  return WholeGrid(grid) if grid.search.method == 'grid' else Draws(grid, out)
