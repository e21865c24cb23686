"""From runs to a page: one HTML file that needs nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tpu_graphs_ext import files
from tpu_graphs_ext.host import feature_stats, outputs
from tpu_graphs_ext.host.settings import LoadSettings
from tpu_graphs_ext.report import (
  charts,
  cli,
  document,
  kernels,
  measure,
  overview,
  runs,
  slowdowns,
)

_log = logging.getLogger(__name__)

START = '<!DOCTYPE html>\n<!-- tpu_graphs_ext report -->'
WHAT = 'report of this package'
TITLE = 'What the models learned'


def report(paths: Sequence[str], *, out: str, data: str = '',
           num_kernels: int = cli.KERNELS,
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
      are shown one by one.
    loading: how to load the models.

  Raises:
    UserError: there is no run at all, a package of the extra [report] is not
      installed, or the file cannot be written.
  """
  charts.require_matplotlib()
  path = outputs.check_file('--out', out, START, WHAT)
  found, problems = runs.find(paths)
  measurements = measure.measure(
      runs.grouped(found), data, loading, problems)
  for problem in problems:
    _log.warning('%s', problem)
  content = _page(measurements, problems, num_kernels)
  files.write_file(path, content.encode())
  return path


def _page(measurements: measure.Measurements, problems: Sequence[str],
          num_kernels: int) -> str:
  sections = [overview.runs(measurements),
              overview.learning_curves(measurements)]
  if measurements.measured_groups:
    sections += [slowdowns.by_program(measurements),
                 slowdowns.by_kind(measurements),
                 slowdowns.distribution(measurements),
                 slowdowns.differences(measurements)]
  sections.append(overview.constants(measurements))
  if measurements.measured_groups:
    chosen = measure.chosen_kernels(measurements, num_kernels)
    in_elements = (feature_stats.what_tiles_count(measurements.kernels)
                   == feature_stats.TILES[1])
    if chosen:
      sections.append(kernels.kernels(measurements, chosen, in_elements))
  return document.document(
      START, TITLE, [part for part in sections if part], problems)
