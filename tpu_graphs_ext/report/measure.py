"""What the models of the runs do on labelled kernels."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import duplicate_configs, evaluate, scoring
from tpu_graphs_ext.engine.settings import DATA_ROOT, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report.runs import Group, Run
from tpu_graphs_ext.tasks import kernel_inputs

if TYPE_CHECKING:
  import pandas


@dataclasses.dataclass(frozen=True)
class Measured:
  """A run on the kernels.

  Attributes:
    run: which.
    rows: one a kernel, in the kernels' order; see
      `tile_results.row_of`.
    ranker: its model.
    constants: physical constant -> (where training started, where it is now);
      the first is None where the model does not tell. Empty for a model that
      has none.
  """
  run: Run
  rows: pandas.DataFrame
  ranker: scoring.Ranker
  constants: dict[str, tuple[Optional[float], float]]


@dataclasses.dataclass(frozen=True)
class Measurements:
  """What the sections of the page are made of.

  Attributes:
    source: where the kernels are from; '' if there are none.
    kernels: all of them with labels; None if there are none.
    groups: every group of runs.
    of_group: name -> its runs that could be measured, maybe none.
  """
  source: str
  kernels: Optional[Partition]
  groups: Sequence[Group]
  of_group: dict[str, list[Measured]]

  @property
  def measured_groups(self) -> list[Group]:
    return [group for group in self.groups if self.of_group[group.name]]

  def per_kernel(self, group: Group, column: str) -> np.ndarray:
    """float64 [kernels]: mean of a measure over the group's runs."""
    return np.mean([measured.rows[column]
                    for measured in self.of_group[group.name]], axis=0)

  def per_run(self, group: Group, column: str) -> list[Optional[float]]:
    """For each run of the group the mean over kernels; None if not measured.

    NaN of a kernel is left out.
    """
    means = {}
    for measured in self.of_group[group.name]:
      values = measured.rows[column].dropna().to_numpy()
      means[measured.run.run_path] = values.mean() if values.size else None
    return [means.get(run.run_path) for run in group.runs]


def measure(groups: Sequence[Group], data: str, loading: LoadSettings,
            problems: list[str]) -> Measurements:
  """Ranks all labelled kernels with every model that can be loaded.

  Args:
    groups: the runs.
    data: folder of .npz files, one .npz or a .pb; empty: the valid split of
      the data root that is given, else of the one that the runs name.
    loading: how to load the models.
    problems: what cannot be done is added, one message each.
  """
  of_group = {group.name: [] for group in groups}
  source, loading = _source(groups, data, loading)
  try:
    kernels = _labelled(kernel_inputs.read_kernels(
        source, cache_dir=loading.cache_dir), source, problems)
  except UserError as error:
    problems.append(f'{error}. Without kernels the report has only what the '
                    'run files say; --data names a folder of them')
    return Measurements('', None, groups, of_group)
  for group in groups:
    for run in group.runs:
      if run.model_dir is None:
        continue
      try:
        of_group[group.name].append(_measured(run, kernels, loading))
      except UserError as error:
        # Of an error in the data root, say, the run is not named yet.
        problems.append(str(error) if run.model_dir in str(error)
                        else f'{run.model_dir}: {error}')
  return Measurements(source, kernels, groups, of_group)


def _source(groups: Sequence[Group], data: str,
            loading: LoadSettings) -> tuple[str, LoadSettings]:
  """Where kernels are read, and `loading` with the data root of the runs."""
  roots = {run.info.get('settings', {}).get('data_root')
           for group in groups for run in group.runs}
  root, = roots if len(roots) == 1 else (None,)
  if loading.data_root == DATA_ROOT and isinstance(root, str) and root:
    loading = dataclasses.replace(loading, data_root=root)
  return data or os.path.join(loading.data_root, 'valid'), loading


def _labelled(kernels: Partition, source: str,
              problems: list[str]) -> Partition:
  """The kernels that have runtimes.

  Raises:
    UserError: none has.
  """
  good = np.array([
      bool((kernel.runtime_ns > 0).all() and (kernel.normalizer_ns > 0).all())
      for kernel in kernels])
  if not good.any():
    raise UserError(
        f'{source}: none of its {len(kernels)} kernels has labels (runtimes '
        'above 0); a public test split is blanked, so name valid or a '
        'labelled copy')
  if not good.all():
    first = kernels.tile_ids[int(np.flatnonzero(~good)[0])]
    problems.append(
        f'{source}: {np.sum(~good)} of {len(kernels)} kernels have no labels '
        f'(runtimes above 0), first {first}; they are left out')
  return kernels if good.all() else kernels.select(good)


def _measured(run: Run, kernels: Partition, loading: LoadSettings) -> Measured:
  ranker = scoring.load_ranker(run.model_dir, loading)
  rows = evaluate.measure(ranker, kernels, f'{run.model} {run.name[:8]}')
  return Measured(run, rows, ranker, _constants(run, ranker, loading))


def _constants(run: Run, ranker: scoring.Ranker, loading: LoadSettings
               ) -> dict[str, tuple[Optional[float], float]]:
  """See `Measured`."""
  tell = getattr(ranker.model, 'constants', None)
  if not callable(tell):
    return {}
  now = tell()
  starts = {}
  if 'trained' in inspect.signature(tell).parameters:
    starts = tell(trained=False)
  return {name: (starts.get(name), value) for name, value in now.items()}


# ------------------------------------------------------------ single kernels


@dataclasses.dataclass(frozen=True)
class Shown:
  """A kernel to look at, and for whom it is a good or a bad one.

  Attributes:
    kernel: it.
    roles: name of a group -> 'worst' or 'best'.
    rows: name -> what the group's first run measured, by column.
    scores: name -> what that run thinks of the configurations.
  """
  kernel: Kernel
  roles: dict[str, str]
  rows: dict[str, Any]
  scores: dict[str, duplicate_configs.Scores]


def chosen_kernels(measurements: Measurements, count: int) -> list[Shown]:
  """The `count` worst and the `count` best kernels of each group's first run.

  Worst is where the first tile to try is slowest against the best one; of
  equal ones that where the order of all is worse. The best are the other end,
  of kernels with more than ten tiles if there are so many. Kernels whose
  configurations are all alike are not among them.
  """
  roles: dict[int, dict[str, str]] = {}
  for group in measurements.measured_groups:
    rows = measurements.of_group[group.name][0].rows
    for role, places in _ends(rows, count):
      for place in places:
        roles.setdefault(place, {}).setdefault(group.name, role)
  order = sorted(roles, key=lambda place: (
      min('worst best'.index(role) for role in roles[place].values()),
      -max(measurements.of_group[name][0].rows['slowdown_1'][place]
           for name in roles[place])))
  scores = {place: {} for place in order}
  for group in measurements.measured_groups:
    own = [place for place in order if group.name in roles[place]]
    if not own:
      continue
    ranker = measurements.of_group[group.name][0].ranker
    chosen = ranker.score_all(
        measurements.kernels.select(own), f'kernels of {group.name}')
    for place, (_, found) in zip(own, chosen):
      scores[place][group.name] = found
  return [
      Shown(measurements.kernels.kernel(place), roles[place],
            {name: measurements.of_group[name][0].rows.iloc[place]
             for name in roles[place]}, scores[place])
      for place in order]


def _ends(rows: pandas.DataFrame,
          count: int) -> Iterable[tuple[str, list[int]]]:
  """('worst', places) and ('best', places), no place in both."""
  places = np.flatnonzero(rows['rankable']).tolist()
  many = [place for place in places if rows['configs'][place] > 10]

  def badness(place: int) -> tuple:
    row = rows.iloc[place]
    tau = -1.0 if math.isnan(row['kendall']) else row['kendall']
    return (-row['slowdown_1'], tau, row['tile_id'])

  def goodness(place: int) -> tuple:
    slowdown, tau, tile_id = badness(place)
    return (-slowdown, -tau, tile_id)

  worst = sorted(places, key=badness)[:count]
  rest = many if len(set(many) - set(worst)) >= count else places
  best = sorted(set(rest) - set(worst), key=goodness)[:count]
  return [('worst', worst), ('best', best)]


