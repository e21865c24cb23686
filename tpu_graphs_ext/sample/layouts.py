"""Synthetic measurements of one real program graph: layouts and runtimes.

The graph is compiled HLO; which nodes have layouts to choose, and which, is as
in the real files; the runtimes come from `analytic/layout_cost.py` and are
synthetic. The collections' two ways to choose configurations:

  random   every group of nodes takes one of its options by chance
  default  a search from the compiler's own layouts on: each next configuration
           is bred from the fastest so far
"""

from __future__ import annotations

import numpy as np

from tpu_graphs_ext.analytic import layout_cost
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.hlo import features, layout_choices
from tpu_graphs_ext.hlo.tuning import LayoutGraph

SEARCHES = ('default', 'random')
# Of the search: how many are bred at a time, from how many of the fastest, and
# the chance of a group to change by itself.
_GENERATIONS = 16
_PARENTS = 12
_MUTATION = 0.12


def sample_graph(module, name: str, search: str, configs: int,
                 constants: layout_cost.LayoutConstants,
                 seed) -> LayoutGraph | None:
  """A program with sampled layouts and synthetic runtimes.

  Args:
    module: `HloModuleProto` of `hlo.whole_program`.
    name: of the result.
    search: of `SEARCHES`.
    configs: how many configurations.
    constants: the machine.
    seed: of the sample and the noise.

  Returns:
    The graph; its first configuration is the compiler's own. None if it has
    fewer than two configurations.
  """
  choices = layout_choices.layout_choices(module)
  sizes = _group_sizes(choices)
  if not len(sizes):
    return None
  chance = np.random.default_rng(seed)

  def measured(chosen):
    true_ns = layout_cost.program_ns(module, choices, chosen, constants)
    noise = chance.normal(0, constants.noise, len(true_ns))
    return np.maximum(1, np.rint(true_ns * np.exp(noise))).astype(np.int64)

  if search == 'random':
    chosen = chance.integers(sizes, size=(configs, len(sizes)))
    chosen[0] = 0
    runtime = measured(chosen)
  else:
    chosen, runtime = _searched(sizes, configs, measured, chance)
  arrays = features.module_arrays(module)
  return LayoutGraph(
      name=name, node_feat=arrays.node_feat, node_opcode=arrays.node_opcode,
      edge_index=arrays.edge_index,
      node_config_feat=config_features(choices, chosen),
      node_config_ids=np.array([c.node for c in choices], np.int64),
      config_runtime=runtime, node_splits=arrays.node_splits)


def config_features(choices, chosen: np.ndarray) -> np.ndarray:
  """float32 [configs, configurable nodes, 18]: the layouts that were chosen.

  Args:
    choices: of `layout_choices`.
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


def _group_sizes(choices) -> np.ndarray:
  """int64 [groups]: options of each group."""
  sizes = {choice.group: len(choice.options) for choice in choices}
  return np.array([sizes[group] for group in range(len(sizes))], np.int64)


def _searched(sizes, configs, measured, chance):
  """Configurations and their runtimes, in the order of the search."""
  chosen = np.zeros((1, len(sizes)), np.int64)
  runtime = measured(chosen)
  step = max(1, configs // _GENERATIONS)
  while len(chosen) < configs:
    count = min(step, configs - len(chosen))
    best = chosen[np.argsort(runtime, kind='stable')[:_PARENTS]]
    mother, father = best[chance.integers(len(best), size=(2, count))]
    children = np.where(
        chance.random(mother.shape) < 0.5, mother, father)
    children = np.where(chance.random(mother.shape) < _MUTATION,
                        chance.integers(sizes, size=mother.shape), children)
    chosen = np.concatenate([chosen, children])
    runtime = np.concatenate([runtime, measured(children)])
  return chosen, runtime
