"""The programs of the layout task that the package brings, and their layouts.

Google's TPU compiler judged hundreds of layout configurations of each program:
`run_scripts/compile_layouts.py` asked for the layouts and added up the cycles
of the kernels. `compiled/layouts.xz` is an .npz, compressed as a whole:

  about    JSON: format, compiler, [name, split, bytes of HLO, nodes with
           layouts, searches] of each program; searches: name -> configurations
  modules  the HLO of all programs, one after another
  nodes    [such nodes of all programs, 3]: number in the program, group, number
           of options; nodes of a group take the same option
  options  int8 [options of all nodes, 18], as in `node_config_feat`
  chosen   uint8, the option of each group of nodes: [groups, configurations] of
           a search after another
  cycles   int64, of all configurations
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from tpu_graphs_ext.sample.kernels import CLOCK_GHZ, FOLDER, unpacked

PATH = os.path.join(FOLDER, 'layouts.xz')
TPU = 'v3'
SEARCHES = ('default', 'random')
FORMAT = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """A program before layouts are assigned, and what the compiler judged."""
  name: str
  split: str
  module: bytes  # A serialized `HloModuleProto`.
  nodes: np.ndarray  # int64 [nodes], numbers of those with layouts to choose.
  groups: np.ndarray  # int64 [nodes], their groups.
  options: Sequence[np.ndarray]  # float32 [options, 18] for each of them.
  # Search -> (options int [configs, groups], cycles int64 [configs]), the
  # compiler's own layouts first.
  searches: Mapping[str, tuple[np.ndarray, np.ndarray]]

  def graph(self, search: str):
    """A `LayoutGraph` with the configurations of a search."""
    from tpu_graphs_ext.hlo import features, tuning
    chosen, cycles = self.searches[search]
    return tuning.LayoutGraph(
        self.name, **features.module_arrays(self.module)._asdict(),
        node_config_feat=np.stack([  # [configs, nodes, 18]
            options[chosen[:, group]]
            for options, group in zip(self.options, self.groups)], 1),
        node_config_ids=self.nodes,
        config_runtime=np.rint(cycles / CLOCK_GHZ[TPU]).astype(np.int64))


def load(path: str = PATH) -> list[Program]:
  """All programs; see `kernels.unpacked`."""
  return unpacked(path, FORMAT, _programs)


def _programs(arrays, about) -> list[Program]:
  modules = arrays['modules'].tobytes()
  chosen, cycles = arrays['chosen'], arrays['cycles']
  columns = arrays['nodes'].astype(np.int64)
  options = np.split(arrays['options'].astype(np.float32),
                     np.cumsum(columns[:, 2])[:-1])
  programs = []
  for name, split, size, count, configs in about['programs']:
    nodes, groups, _ = columns[:count].T
    searches = {}
    for search, number in configs.items():
      end = (groups.max() + 1) * number
      searches[search] = (chosen[:end].reshape(-1, number).T, cycles[:number])
      chosen, cycles = chosen[end:], cycles[number:]
    programs.append(Program(name, split, modules[:size], nodes, groups,
                            options[:count], searches))
    modules, columns, options = modules[size:], columns[count:], options[count:]
  return programs
