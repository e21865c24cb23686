"""A kernel's graph: boxes with opcode and shape, data flowing down.

grandalf lays it out, in layers as Sugiyama has them. It starts from what is
read last, so that a constant stands above its reader and not at the far top.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.report import charts, page

# Of larger graphs the nodes that are nearest to the last ones are drawn.
MOST_NODES = 200
_SWEEPS = 8  # That look for an order with few crossings.
_LETTER, _HEIGHT, _GAP = 6.9, 36, 12  # Pixels; a letter of 11 pixels.
_MARGIN = 6


class Node(NamedTuple):
  """What is told of an instruction.

  Attributes:
    opcode: its name; 'unknown' for a number that is not listed.
    shape: as HLO writes it, such as 'f32[128,64]'.
    order: layout, most minor dimension first, such as '{1,0}'.
    is_root: whether it is the result of its computation.
  """
  opcode: str
  shape: str
  order: str
  is_root: bool


def nodes_of(kernel: Kernel) -> list[Node]:
  """Read off the features, in the order of the file."""
  table = np.zeros((kernel.num_nodes, len(schema.NODE_FEATURES)))
  known = min(table.shape[1], kernel.node_feat.shape[1])
  table[:, :known] = np.rint(kernel.node_feat[:, :known])
  sizes, types, minor = (
      table[:, schema.NODE_GROUPS[group]].astype(np.int64) for group in (
          'shape_dimensions', 'shape_element_type', 'layout_minor_to_major'))
  roots = table[:, schema.NODE_COLUMN['is_root']] > 0
  parts = table[:, schema.NODE_COLUMN['shape_tuple_shapes_size']]
  found = []
  for number in range(kernel.num_nodes):
    dims = [int(size) for size in sizes[number, :schema.MAX_DIMS] if size > 0]
    is_type = np.flatnonzero(types[number] == 1)
    kind = schema.ELEMENT_TYPES[is_type[0]].lower() if is_type.size else '?'
    shape = (f'tuple of {int(parts[number])}' if kind == 'tuple'
             else f'{kind}[{",".join(map(str, dims))}]')
    order = ','.join(str(dim) for dim in minor[number, :len(dims)])
    found.append(Node(
        schema.OPCODE_NAMES.get(int(kernel.node_opcode[number]), 'unknown'),
        shape, f'{{{order}}}' if dims else '', bool(roots[number])))
  return found


def drawing(kernel: Kernel) -> page.Figure:
  """The graph of a kernel, as large as it is."""
  nodes = nodes_of(kernel)
  shown = _nearest_to_the_end(kernel)
  links = [(consumer, producer)
           for consumer, producer in np.unique(
               kernel.edge_index, axis=0).tolist()
           if consumer in shown and producer in shown and consumer != producer]
  places, routes = _layout(shown, links, [
      max(len(node.opcode), len(node.shape)) * _LETTER + 16 for node in nodes])
  left_out = len(nodes) - len(shown)
  width = max(x + w for x, _, w in places.values()) + 2 * _MARGIN
  height = max(y for _, y, _ in places.values()) + _HEIGHT + 2 * _MARGIN
  return page.Figure(
      f'Graph of {kernel.tile_id}',
      _in_words(nodes, len(kernel.edge_index)) + ' Data flows down; a thick '
      'frame is the result of a computation.'
      + f' {left_out} nodes far from the result are not drawn.' * bool(
          left_out),
      charts.svg(lambda _, axes: _draw(axes, nodes, places, routes),
                 width=width / 96, height=height / 96, bare=True),
      size=int(width))


def _in_words(nodes: Sequence[Node], edges: int) -> str:
  common = collections.Counter(node.opcode for node in nodes).most_common(6)
  return (f'{len(nodes)} nodes, {edges} edges: '
          + ', '.join(f'{number} {opcode}' for opcode, number in common)
          + (', and others.' if len({n.opcode for n in nodes}) > 6 else '.'))


def table(kernel: Kernel) -> page.Table:
  """Its nodes, and what each reads."""
  producers = collections.defaultdict(list)
  for consumer, producer in kernel.edge_index.tolist():
    producers[consumer].append(str(producer))
  return page.Table(
      f'Nodes of {kernel.tile_id}, in the order of the file',
      ('node', 'opcode', 'shape', 'layout', 'reads'),
      [(str(number), node.opcode, node.shape, node.order,
        ', '.join(producers[number]))
       for number, node in enumerate(nodes_of(kernel))])


def _nearest_to_the_end(kernel: Kernel) -> set[int]:
  """At most `MOST_NODES` nodes, those that the last ones read first."""
  producers = collections.defaultdict(list)
  read = set()
  for consumer, producer in kernel.edge_index.tolist():
    producers[consumer].append(producer)
    read.add(producer)
  waiting = collections.deque(
      node for node in range(kernel.num_nodes - 1, -1, -1) if node not in read)
  found: set[int] = set()
  while waiting and len(found) < MOST_NODES:
    node = waiting.popleft()
    if node not in found:
      found.add(node)
      waiting.extend(producers[node])
  return found


class _Box:
  """What grandalf asks of a node's picture; it sets `xy`, the middle."""

  def __init__(self, w: float, h: float):
    self.w, self.h = w, h
    self.xy = (0.0, 0.0)


def _layout(shown: set[int], links: Sequence[tuple[int, int]],
            widths: Sequence[float]) -> tuple[dict, list]:
  """Places of the boxes and the points that the edges go through.

  Returns:
    Node -> (left, top, width), and lists of points from producer to consumer;
    the top left corner is (0, 0).
  """
  from grandalf.graphs import Edge, Graph, Vertex
  from grandalf.layouts import SugiyamaLayout
  vertices = {node: Vertex(node) for node in sorted(shown)}
  for node, vertex in vertices.items():
    vertex.view = _Box(widths[node], _HEIGHT)
  # From the reader to the read: the first layer is that of the results.
  edges = [Edge(vertices[consumer], vertices[producer])
           for consumer, producer in links]
  places, routes, left = {}, [], 0.0
  for part in Graph(list(vertices.values()), edges).C:
    sugiyama = SugiyamaLayout(part)
    sugiyama.xspace, sugiyama.yspace = _GAP, 26
    sugiyama.init_all(optimize=True)
    sugiyama.draw(_SWEEPS)
    own, ways = _of_part(sugiyama, part)
    right = max(x + width for x, _, width in own.values())
    shift = left - min(x for x, _, _ in own.values())
    places.update({node: (x + shift, y, width)
                   for node, (x, y, width) in own.items()})
    routes += [[(x + shift, y) for x, y in way] for way in ways]
    left += right - (left - shift) + 2 * _GAP
  depth = max(y for _, y, _ in places.values()) + _HEIGHT
  return ({node: (x, depth - y - _HEIGHT, width)
           for node, (x, y, width) in places.items()},
          [[(x, depth - y) for x, y in way] for way in routes])


def _of_part(sugiyama, part) -> tuple[dict, list]:
  """Boxes and ways of a connected part, results on top."""
  boxes = {}
  for vertex in part.sV:
    x, y = vertex.view.xy
    boxes[vertex.data] = (x - vertex.view.w / 2, y - _HEIGHT / 2,
                          vertex.view.w)
  ways = []
  # In a fixed order: that of its set goes by addresses in memory.
  for edge in sorted(part.sE, key=lambda edge: (edge.v[0].data,
                                                edge.v[1].data)):
    consumer, producer = edge.v
    bends = []
    # A long edge has a point in each layer that it crosses.
    if edge in sugiyama.ctrls:
      ranks = sorted(sugiyama.ctrls[edge])
      if sugiyama.grx[consumer].rank > sugiyama.grx[producer].rank:
        ranks.reverse()
      for rank in ranks:
        dummy = sugiyama.ctrls[edge][rank]
        if dummy is not consumer and dummy is not producer:
          bends.append(dummy.view.xy)
    ways.append([(producer.view.xy[0], producer.view.xy[1] - _HEIGHT / 2),
                 *reversed(bends),
                 (consumer.view.xy[0], consumer.view.xy[1] + _HEIGHT / 2)])
  return boxes, ways


def _draw(axes, nodes: Sequence[Node], places: dict, routes: list) -> None:
  """Draws in pixels."""
  from matplotlib import patches, path
  moves = {'ec': charts.SOFT, 'fc': charts.SOFT, 'lw': 0.9, 'shrinkA': 0,
           'shrinkB': 0, 'arrowstyle': '-|>', 'mutation_scale': 7}
  for way in routes:
    points, codes = [way[0]], [path.Path.MOVETO]
    for (x, y), (to_x, to_y) in zip(way, way[1:]):
      middle = (y + to_y) / 2  # Leaves and arrives upright.
      points += [(x, middle), (to_x, middle), (to_x, to_y)]
      codes += 3 * [path.Path.CURVE4]
    axes.add_patch(patches.FancyArrowPatch(path=path.Path(
        np.array(points) + _MARGIN, codes), **moves)).set_facecolor('none')
  for number, (x, y, width) in sorted(places.items()):
    node = nodes[number]
    x, y = x + _MARGIN, y + _MARGIN
    is_source = node.opcode in ('parameter', 'constant', 'iota')
    axes.add_patch(patches.FancyBboxPatch(
        (x, y), width, _HEIGHT, ec=charts.INK,
        boxstyle=f'round,pad=0,rounding_size={_HEIGHT / 2 if is_source else 3}',
        fc='none' if is_source else charts.PANEL,
        lw=1.8 if node.is_root else 0.7))
    for offset, weight, text in ((11, 'bold', node.opcode),
                                 (25, 'normal', node.shape)):
      axes.text(x + width / 2, y + offset, text, fontsize=8.25,
                fontweight=weight, ha='center', va='center')
