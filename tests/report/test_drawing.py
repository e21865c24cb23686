"""Graphs of kernels: what is written in the boxes, and where they stand."""

import numpy as np

from support import tiny_hlo, tiny_kernels
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import features
from tpu_graphs_ext.report import drawing


def kernel_of(module, tile_id='net_0'):
  arrays = features.module_arrays(module)
  configs = features.config_features(np.zeros([2, 0]), np.ones([2, 2]))
  return Kernel(tile_id, arrays.node_feat, arrays.node_opcode,
                arrays.edge_index, configs, np.array([1, 2]), np.array([1, 1]))


def test_nodes_say_opcode_shape_and_layout():
  nodes = drawing.nodes_of(kernel_of(tiny_hlo.convolution()))
  assert nodes[1] == drawing.Node(
      'parameter', 'f32[32,10,10,256]', '{3,0,2,1}', False)
  assert nodes[2].shape == 'bf16[3,3,256,384]'
  assert nodes[5] == drawing.Node('add', 'f32[32,4,4,384]', '{3,0,2,1}', True)
  assert [node.opcode for node in nodes[-2:]] == ['parameter', 'fusion']


def test_odd_features_are_no_reason_to_fail():
  kernel = tiny_kernels.make_kernel(node_width=12)
  kernel.node_opcode[0] = 250
  nodes = drawing.nodes_of(kernel)
  assert nodes[0] == drawing.Node('unknown', '?[]', '', False)


def laid_out(kernel):
  links = [tuple(map(int, edge)) for edge in kernel.edge_index]
  widths = [60.0 + 7 * number for number in range(kernel.num_nodes)]
  return drawing._layout(set(range(kernel.num_nodes)), links, widths)


def test_data_flows_down_and_no_box_covers_another():
  kernels = [kernel_of(tiny_hlo.convolution()), tiny_kernels.diamond(),
             tiny_kernels.no_edges(), tiny_kernels.one_node()]
  for kernel in kernels:
    places, routes = laid_out(kernel)
    assert len(places) == kernel.num_nodes
    assert len(routes) == kernel.num_edges
    for consumer, producer in kernel.edge_index.tolist():
      assert places[consumer][1] >= places[producer][1] + drawing._HEIGHT
    boxes = sorted(places.values())
    for number, (x, y, width) in enumerate(boxes):
      assert x >= 0 and y >= 0
      for other_x, other_y, _ in boxes[number + 1:]:
        assert (abs(other_y - y) >= drawing._HEIGHT
                or other_x >= x + width), (kernel.tile_id, boxes)


def test_an_edge_starts_below_its_producer_and_ends_on_its_consumer():
  kernel = tiny_kernels.diamond()
  places, routes = laid_out(kernel)
  ends = {(round(way[0][0]), round(way[0][1]), round(way[-1][0]),
           round(way[-1][1])) for way in routes}

  def middle(node):
    x, y, width = places[node]
    return round(x + width / 2), round(y)

  assert ends == {
      (middle(p)[0], middle(p)[1] + drawing._HEIGHT, *middle(c))
      for c, p in kernel.edge_index.tolist()}


def test_a_long_edge_goes_around_the_boxes_between():
  kernel = tiny_kernels.make_kernel(
      num_nodes=4, edges=((1, 0), (2, 1), (3, 2), (3, 0)))
  places, routes = laid_out(kernel)
  long = max(routes, key=len)
  assert len(long) == 4
  for node in (1, 2):
    x, y, width = places[node]
    bend = min(long, key=lambda point: abs(point[1] - y - 18))
    assert not x < bend[0] < x + width


def test_equal_kernels_give_equal_drawings():
  kernel = kernel_of(tiny_hlo.convolution())
  assert drawing.drawing(kernel) == drawing.drawing(kernel)


def test_of_a_large_graph_the_end_is_drawn(monkeypatch):
  monkeypatch.setattr(drawing, 'MOST_NODES', 3)
  kernel = tiny_kernels.make_kernel(
      num_nodes=6, edges=((1, 0), (2, 1), (3, 2), (4, 3), (5, 4)))
  assert drawing._nearest_to_the_end(kernel) == {5, 4, 3}
  figure = drawing.drawing(kernel)
  assert '3 nodes far from the result are not drawn.' in figure.said
  assert len(drawing.table(kernel).rows) == 6  # The table has all.


def test_the_drawing_fits_its_frame_and_says_what_it_shows():
  kernel = kernel_of(tiny_hlo.convolution())
  figure = drawing.drawing(kernel)
  assert '10 nodes, 9 edges: 6 parameter, 1 convolution' in figure.said
  places, _ = laid_out(kernel)
  assert min(y for _, y, _ in places.values()) == 0  # No empty space on top.
  assert figure.size >= max(x + width for x, _, width in places.values()) / 2
  for node in drawing.nodes_of(kernel):
    assert f'>{node.opcode}<' in figure.svg
