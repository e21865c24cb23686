"""Graphs of kernels: what is written in the boxes, and where they stand."""

import numpy as np

from support import tiny_hlo, tiny_kernels
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import features
from tpu_graphs_ext.report import drawing


def convolution():
  arrays = features.module_arrays(tiny_hlo.convolution())
  configs = features.config_features(np.zeros([2, 0]), np.ones([2, 2]))
  return Kernel('net_0', arrays.node_feat, arrays.node_opcode,
                arrays.edge_index, configs, np.array([1, 2]), np.array([1, 1]))


def test_nodes_say_opcode_shape_and_layout():
  nodes = drawing.nodes_of(convolution())
  assert nodes[1] == drawing.Node(
      'parameter', 'f32[32,10,10,256]', '{3,0,2,1}', False)
  assert nodes[2].shape == 'bf16[3,3,256,384]'
  assert nodes[5] == drawing.Node('add', 'f32[32,4,4,384]', '{3,0,2,1}', True)
  assert [node.opcode for node in nodes[-2:]] == ['parameter', 'fusion']
  odd = tiny_kernels.make_kernel(node_width=12)
  odd.node_opcode[0] = 250
  assert drawing.nodes_of(odd)[0] == drawing.Node('unknown', '?[]', '', False)


def laid_out(kernel):
  links = [tuple(map(int, edge)) for edge in kernel.edge_index]
  widths = [60.0 + 7 * number for number in range(kernel.num_nodes)]
  return links, *drawing.layout(range(kernel.num_nodes), links, widths)


def test_data_flows_down_and_no_box_covers_another():
  for kernel in (convolution(), tiny_kernels.diamond(),
                 tiny_kernels.no_edges(), tiny_kernels.one_node()):
    links, places, routes = laid_out(kernel)
    assert len(places) == kernel.num_nodes
    assert min(y for _, y, _ in places.values()) == 0  # No empty space on top.
    for (consumer, producer), route in zip(links, routes):
      assert places[consumer][1] >= places[producer][1] + drawing._HEIGHT
      # From the bottom of the producer to the top of the consumer.
      for (x, y), node, height in ((route[0], producer, drawing._HEIGHT),
                                   (route[-1], consumer, 0)):
        left, top, width = places[node]
        assert np.allclose((x, y), (left + width / 2, top + height))
    boxes = sorted(places.values())
    for number, (x, y, width) in enumerate(boxes):
      assert x >= 0 and y >= 0
      for other_x, other_y, _ in boxes[number + 1:]:
        assert (abs(other_y - y) >= drawing._HEIGHT
                or other_x >= x + width), (kernel.tile_id, boxes)


def test_a_long_edge_goes_around_the_boxes_between():
  kernel = tiny_kernels.make_kernel(
      num_nodes=4, edges=((1, 0), (2, 1), (3, 2), (3, 0)))
  _, places, routes = laid_out(kernel)
  long = max(routes, key=len)
  assert len(long) == 4
  for node in (1, 2):
    x, y, width = places[node]
    bend = min(long, key=lambda point: abs(point[1] - y - 18))
    assert not x < bend[0] < x + width


def test_the_drawing_fits_its_frame_and_says_what_it_shows(monkeypatch):
  kernel = convolution()
  figure = drawing.drawing(kernel)
  assert figure == drawing.drawing(kernel)  # Equal bytes.
  assert 'Nodes: 10; edges: 9; 6 parameter, 1 convolution' in figure.said
  _, places, _ = laid_out(kernel)
  assert figure.size >= max(x + width for x, _, width in places.values()) / 2
  for node in drawing.nodes_of(kernel):
    assert f'>{node.opcode}<' in figure.svg
  monkeypatch.setattr(drawing, 'MOST_NODES', 3)
  chain = tiny_kernels.make_kernel(
      num_nodes=6, edges=((1, 0), (2, 1), (3, 2), (4, 3), (5, 4)))
  assert drawing._nearest_to_the_end(chain) == {5, 4, 3}
  assert '3 nodes far from the result' in drawing.drawing(chain).said
  assert len(drawing.table(chain).frame) == 6  # The table has all.
