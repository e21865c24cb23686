"""Features of programs to rank that training never showed the model.

As `host.unfamiliar`, which has the reasons: of nodes, opcodes and layouts. What
a file's layouts range over is known when it is opened, so they are read for
this only where they go beyond, to be counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpu_graphs_ext.host import unfamiliar
from tpu_graphs_ext.host.unfamiliar import Unfamiliar
from tpu_graphs_ext.layout import programs
from tpu_graphs_ext.layout.programs import Program, Programs
from tpu_graphs_ext.layout.scoring import Ranker

_BLOCK_FLOATS = 1 << 22  # Of layouts that are counted at once.


def of_program(ranker: Ranker, program: Program) -> list[Unfamiliar]:
  """All columns and opcodes of one program that training had not like that."""
  stats, bounds = ranker.stats.config, program.bounds.config
  found = [
      *unfamiliar.of_rows(ranker.stats.node, program.name, 'node_feat',
                          [program.node_feat]),
      *unfamiliar.of_opcodes(program.name, program.node_opcode,
                             ranker.opcodes)]
  if (bounds.minimum < stats.minimum).any() or (
      bounds.maximum > stats.maximum).any():
    found += unfamiliar.of_rows(
        stats, program.name, 'node_config_feat', _layouts(program))
  return found


def _layouts(program: Program) -> Iterator[np.ndarray]:
  """float32 [rows, 18], the layouts of nodes in all configurations."""
  columns = program.bounds.config.minimum.size
  at_once = max(1, _BLOCK_FLOATS // (program.num_configurable * columns))
  for configs in programs.blocks_of(program.num_configs, at_once):
    yield program.layouts(configs).reshape(-1, columns)


def warn(ranker: Ranker, members: Programs) -> None:
  """Warns of what the model was not trained on, one line a column or opcode."""
  unfamiliar.warn_of(
      [found for program in members for found in of_program(ranker, program)],
      len(members), ranker.name, 'program')
