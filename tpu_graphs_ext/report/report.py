"""From runs to a page: one HTML file that needs nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.report import (
  KERNELS,
  charts,
  kernels,
  layout_report,
  measure,
  overview,
  page,
  runs,
  slowdowns,
  summary,
)
from tpu_graphs_ext.tasks import feature_stats

_log = logging.getLogger(__name__)

START = '<!DOCTYPE html>\n<!-- tpu_graphs_ext report -->'
WHAT = 'report of this package'
TITLE = 'What the models learned'


def report(paths: Sequence[str], *, out: str, data: str = '',
           num_kernels: int = KERNELS, task: str = '',
           loading: LoadSettings = LoadSettings()) -> str:
  """Writes a page about training runs; returns its path.

  What cannot be read or measured is named in the page and in the log, one
  message each, and the rest is still made.

  Args:
    paths: model folders, run files, or folders of them.
    out: the file to write.
    data: labelled kernels: a folder of .npz files, one .npz or a .pb; empty:
      <data_root>/valid of `loading`, or where that has the default, of the
      data root that the runs were trained on, if it is one.
    num_kernels: so many of the worst and of the best kernels of each group
      are shown one by one; of the layout task none is.
    task: 'tile' or 'layout', whose runs are reported; '': those that are
      there, which must be of one task.
    loading: how to load the models.

  Raises:
    UserError: there is no run at all, or of both tasks, a package of the extra
      [report] is not installed, or the file cannot be written.
  """
  charts.require_packages()
  path = output_paths.check_file('--out', out, START, WHAT)
  found, problems = runs.find(paths)
  found, task = runs.of_one_task(found, task)
  groups = runs.grouped(found)
  if task == 'layout':
    sections = layout_report.sections(groups, data, loading, problems)
  else:
    measurements = measure.measure(groups, data, loading, problems)
    sections = _sections(measurements, num_kernels)
  for problem in problems:
    _log.warning('%s', problem)
  content = page.page(START, TITLE, sections, problems)
  files.write_file(path, content.encode())
  return path


def _sections(measurements: measure.Measurements,
              num_kernels: int) -> list[page.Section]:
  """Those of runs of the tile task."""
  sections = [summary.summary(measurements)]
  if measurements.measured_groups:
    sections += [slowdowns.by_program(measurements),
                 slowdowns.by_kind(measurements),
                 slowdowns.distribution(measurements),
                 slowdowns.differences(measurements)]
  sections += [overview.learning_curves(measurements.groups),
               overview.constants(measurements)]
  if measurements.measured_groups:
    chosen = measure.chosen_kernels(measurements, num_kernels)
    in_elements = (feature_stats.what_tiles_count(measurements.kernels)
                   == feature_stats.TILES[1])
    if chosen:
      sections.append(kernels.kernels(measurements, chosen, in_elements))
  sections.append(overview.runs(measurements))
  return [part for part in sections if part]
