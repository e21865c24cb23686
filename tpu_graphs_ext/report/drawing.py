"""A kernel's graph: boxes with opcode and shape; data flows down.

grandalf lays it out in layers, by Sugiyama's method.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.report import charts, page

# Of larger graphs only the nodes nearest to the results are drawn.
MOST_NODES = 200
_SWEEPS = 8  # In search of an order with few crossings.
_LETTER, _HEIGHT, _GAP = 6.9, 36, 12  # Pixels; a letter of 11 pixels.
_MARGIN = 6


class Node(NamedTuple):
  """What a reader sees of an instruction.

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
  nodes, shown = nodes_of(kernel), _nearest_to_the_end(kernel)
  links = [(consumer, producer) for consumer, producer in np.unique(
      kernel.edge_index, axis=0).tolist()
           if {consumer, producer} <= shown and consumer != producer]
  places, routes = layout(sorted(shown), links, [
      max(len(node.opcode), len(node.shape)) * _LETTER + 16 for node in nodes])
  width = max(x + w for x, _, w in places.values()) + 2 * _MARGIN
  height = max(y for _, y, _ in places.values()) + _HEIGHT + 2 * _MARGIN
  common = collections.Counter(node.opcode for node in nodes).most_common()
  said = (f'Nodes: {len(nodes)}; edges: {len(kernel.edge_index)}; '
          + ', '.join(f'{number} {opcode}' for opcode, number in common[:6])
          + ', and others' * (len(common) > 6) + '. Data flows down; a thick '
          'frame is the result of a computation.')
  if len(shown) < len(nodes):
    said += (f' {len(nodes) - len(shown)} nodes far from the result are not '
             'drawn.')
  return page.Figure(
      f'Graph of {kernel.tile_id}', said, charts.svg(
          lambda _, axes: _draw(axes, nodes, places, routes),
          width=width / 96, height=height / 96, bare=True), size=int(width))


def table(kernel: Kernel) -> page.Table:
  """Its nodes, and what each reads."""
  producers = collections.defaultdict(list)
  for consumer, producer in kernel.edge_index.tolist():
    producers[consumer].append(str(producer))
  return page.table(
      f'Nodes of {kernel.tile_id}, in the order of the file',
      ('node', 'opcode', 'shape', 'layout', 'reads'),
      ((number, node.opcode, node.shape, node.order,
        ', '.join(producers[number]))
       for number, node in enumerate(nodes_of(kernel))))


def _nearest_to_the_end(kernel: Kernel) -> set[int]:
  """At most `MOST_NODES` nodes, those nearest to the last ones."""
  producers = collections.defaultdict(list)
  for consumer, producer in kernel.edge_index.tolist():
    producers[consumer].append(producer)
  read = set(kernel.edge_index[:, 1].tolist())
  waiting = collections.deque(
      node for node in range(kernel.num_nodes - 1, -1, -1) if node not in read)
  found: set[int] = set()
  while waiting and len(found) < MOST_NODES:
    node = waiting.popleft()
    if node not in found:
      found.add(node)
      waiting.extend(producers[node])
  return found


class _View:
  """What grandalf asks of a box (w, h; it sets xy) and of an edge (setpath)."""

  def __init__(self, w: float = 0, h: float = _HEIGHT):
    self.w, self.h, self.xy, self.path = w, h, (0.0, 0.0), np.zeros((0, 2))

  def setpath(self, points: Sequence[tuple[float, float]]) -> None:
    self.path = np.array(points)


def layout(nodes: Sequence[int], links: Sequence[tuple[int, int]],
           widths: Sequence[float]) -> tuple[dict, list[np.ndarray]]:
  """Places of the boxes, and the points that the edges go through.

  Args:
    nodes: numbers of the nodes.
    links: (consumer, producer), each once.
    widths: of the box of each node, in pixels.

  Returns:
    Node -> (left, top, width), and [points, 2] from producer to consumer; the
    top left corner is (0, 0).
  """
  from grandalf.graphs import Edge, Graph, Vertex
  from grandalf.layouts import SugiyamaLayout
  vertices = {node: Vertex(node) for node in nodes}
  for node, vertex in vertices.items():
    vertex.view = _View(widths[node])
  # From consumer to producer: results are the first layer, and a constant
  # stands above its consumer, not at the far top.
  edges = [Edge(vertices[consumer], vertices[producer])
           for consumer, producer in links]
  for edge in edges:
    edge.view = _View()
  left = 0.0
  for part in Graph(list(vertices.values()), edges).C:
    sugiyama = SugiyamaLayout(part)
    sugiyama.xspace, sugiyama.yspace = _GAP, 26
    sugiyama.init_all(optimize=True)
    sugiyama.draw(_SWEEPS)
    boxes = [vertex.view for vertex in part.sV]
    shift = left - min(box.xy[0] - box.w / 2 for box in boxes)
    for box in boxes:
      box.xy = box.xy[0] + shift, box.xy[1]
    for edge in part.sE:
      edge.view.path = edge.view.path + [shift, 0]
    left = max(box.xy[0] + box.w / 2 for box in boxes) + 2 * _GAP
  bottom = max(vertex.view.xy[1] for vertex in vertices.values())
  places = {node: (vertex.view.xy[0] - vertex.view.w / 2,
                   bottom - vertex.view.xy[1], vertex.view.w)
            for node, vertex in vertices.items()}
  routes = []
  for edge in edges:
    route = edge.view.path[::-1] * [1, -1] + [0, bottom + _HEIGHT / 2]
    route[[0, -1], 1] += [_HEIGHT / 2, -_HEIGHT / 2]  # From edge to edge.
    routes.append(route)
  return places, routes


def _draw(axes, nodes: Sequence[Node], places: dict,
          routes: Sequence[np.ndarray]) -> None:
  """Draws in pixels."""
  from matplotlib import patches, path
  for route in [way + _MARGIN for way in routes]:
    points, codes = [route[0]], [path.Path.MOVETO]
    for (x, y), (to_x, to_y) in zip(route, route[1:]):
      middle = (y + to_y) / 2  # Leaves and arrives upright.
      points += [(x, middle), (to_x, middle), (to_x, to_y)]
      codes += 3 * [path.Path.CURVE4]
    axes.add_patch(patches.FancyArrowPatch(
        path=path.Path(points, codes), ec=charts.SOFT, fc='none', lw=0.9,
        arrowstyle='-|>', mutation_scale=7))
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
