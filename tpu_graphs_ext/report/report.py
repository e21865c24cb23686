"""From runs to a page: one HTML file that needs nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.report import (
  KERNELS,
  compare,
  kernels,
  measure,
  overview,
  page,
  runs,
)

_log = logging.getLogger(__name__)


def report(paths: Sequence[str], *, out: str, data: str = '',
           num_kernels: int = KERNELS, task: str = '',
           loading: LoadSettings = LoadSettings()) -> str:
  """Writes a page about training runs; returns its path.

  What cannot be read or measured is named in the page and in the log.

  Args:
    paths: model folders, run files, or folders of them.
    out: the file to write.
    data, loading: see `measure.measure`.
    num_kernels: of the worst and of the best kernels of each group.
    task: 'tile' or 'layout'; '': the one task of all runs.

  Raises:
    UserError: there is no run of one task, a package of the extra [report] is
      not installed, or the file cannot be written.
  """
  page.require_packages()
  path = output_paths.check_file(
      '--out', out, page.START, 'report of this package')
  found, problems = runs.find(paths)
  groups = runs.grouped(runs.of_one_task(found, task))
  comparison = measure.measure(groups, data, loading, problems)
  for problem in problems:
    _log.warning('%s', problem)
  looks = compare.looks_of([group.name for group in groups])
  content = page.render(
      comparison=comparison and compare.section(comparison, looks),
      kernels=comparison and kernels.section(comparison, num_kernels, looks),
      task=groups[0].runs[0].task, problems=problems,
      **overview.section(groups, comparison, looks))
  files.write_file(path, content.encode())
  return path
