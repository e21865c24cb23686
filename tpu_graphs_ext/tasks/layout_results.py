"""How well a model orders the layouts of programs: measures and their means."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data.programs import Program
from tpu_graphs_ext.engine import evaluate, results, scoring


def row_of(program: Program, scores: scoring.Scores,
           ks: Sequence[int]) -> dict[str, Any]:
  """Measures of one labelled program with a model's scores.

  Returns:
    program: its name.
    nodes, configurable, configs: number of nodes, of those with layouts, and
      of configurations.
    runtimes: number of distinct runtimes; few bound tau away from 1.
    kendall, opa, slowdown_<k>, random_<k>: see `evaluate.measures_of_order`.
  """
  return {
      'program': program.name,
      'nodes': program.num_nodes,
      'configurable': program.num_configurable,
      'configs': program.num_configs,
      'runtimes': len(np.unique(program.runtime_rel)),
      **evaluate.measures_of_order(program, scores, ks)}


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation(results.Results):
  """Measures of all programs of one source, by one model; see `row_of`."""
  NAME, PROBLEMS = 'program', 'programs'
  ABOUT = ('nodes', 'configs')
  CSV = files.Output(
      '--csv', 'model_dir,data,program,nodes,configurable,configs,runtimes,'
      'kendall,opa', 'CSV of evaluate --task layout')
