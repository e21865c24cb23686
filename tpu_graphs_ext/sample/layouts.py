"""The programs of the layout task that the package brings, and their layouts.

Google's TPU compiler judged hundreds of layout configurations of each program:
`run_scripts/compile_layouts.py` asked for the layouts and added up the cycles
of the kernels. `compiled/layouts.xz` is an .npz, compressed as a whole:

  about    JSON: format, compiler, [name, split, bytes of HLO, groups, searches]
           of each program; searches: name -> configurations
  modules  the HLO of all programs, one after another
  chosen   uint8, the option of each group of nodes: [groups, configurations] of
           a search after another
  cycles   int64, of all configurations
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.sample.kernels import CLOCK_GHZ, FOLDER, unpacked

PATH = os.path.join(FOLDER, 'layouts.xz')
TPU = 'v3'
SEARCHES = ('default', 'random')
FORMAT = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """A program before layouts are assigned, and what the compiler judged.

  Attributes:
    name: of the program.
    split: train, valid or test.
    module: a serialized `HloModuleProto`.
    searches: search -> (options int [configs, groups], cycles int64
      [configs]), the compiler's own layouts first.
  """
  name: str
  split: str
  module: bytes
  searches: Mapping[str, tuple[np.ndarray, np.ndarray]]

  def graph(self, search: str):
    """A `LayoutGraph` with the configurations of a search."""
    from tpu_graphs_ext.hlo import features, layout_choices, protos, tuning
    module = protos.as_module(self.module)
    choices = layout_choices.layout_choices(module)
    chosen, cycles = self.searches[search]
    return tuning.LayoutGraph(
        self.name, **features.module_arrays(module)._asdict(),
        node_config_feat=config_features(choices, chosen),
        node_config_ids=np.array([c.node for c in choices], np.int64),
        config_runtime=np.rint(cycles / CLOCK_GHZ[TPU]).astype(np.int64))


def config_features(choices, chosen: np.ndarray) -> np.ndarray:
  """float32 [configs, configurable nodes, 18]: the layouts that were chosen.

  Args:
    choices: of `hlo.layout_choices`.
    chosen: int [configs, groups], which option each group takes.
  """
  feats = np.empty((len(chosen), len(choices),
                    len(schema.LAYOUT_CONFIG_FEATURES)), np.float32)
  for column, choice in enumerate(choices):
    table = np.full((len(choice.options), feats.shape[-1]),
                    schema.LAYOUT_PADDING, np.float32)
    for row, option in zip(table, choice.options):
      for columns, dims in zip(schema.LAYOUT_CONFIG_GROUPS.values(), option):
        row[columns][:len(dims)] = dims
    feats[:, column] = table[chosen[:, choice.group]]
  return feats


def load(path: str = PATH) -> list[Program]:
  """All programs; see `kernels.unpacked`."""
  return unpacked(path, FORMAT, _programs)


def _programs(arrays, about) -> list[Program]:
  modules = arrays['modules'].tobytes()
  chosen, cycles = arrays['chosen'], arrays['cycles']
  programs = []
  for name, split, size, groups, counts in about['programs']:
    searches = {}
    for search, count in counts.items():
      options = chosen[:groups * count].reshape(groups, count).T
      searches[search] = options, cycles[:count]
      chosen, cycles = chosen[groups * count:], cycles[count:]
    programs.append(Program(name, split, modules[:size], searches))
    modules = modules[size:]
  return programs
