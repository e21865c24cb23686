"""The speed benchmark: its kernels, its stand-in and its tables, not times."""

import csv
import os
import sys
import textwrap

import numpy as np
import pytest

from support.places import BENCHMARKS
from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches

sys.path.insert(0, str(BENCHMARKS))

import speed
import speed_in_turn
import speed_kernels
import speed_ranking
import speed_training
from replicated_join import ReplicatedEarlyJoinSAGE


def row(value, **changes):
  return {'part': 'memory', 'subject': 'NetA', 'case': 'configs 10',
          'measure': 'time', 'value': value, 'unit': 'ms',
          'date': '2026-01-02', 'machine': 'm', 'versions': 'v', **changes}


def test_kernels_have_the_sizes_of_the_collection():
  kernels = speed_kernels.like_the_collection(12)
  nodes = [kernel.num_nodes for kernel in kernels]
  configs = sorted(kernel.num_configs for kernel in kernels)
  # Quantiles 1/24 and 13/24: 2 + 5 * (1/24) / 0.05 and, between 37 and 58,
  # 37 + 21 * (13/24 - 0.5) / 0.25.
  assert nodes[0] == round(2 + 5 * (1 / 24) / 0.05)
  assert nodes[6] == round(37 + 21 * (13 / 24 - 0.5) / 0.25)
  # 25 * 400^(1/24) and 25 * 400^(23/24).
  assert (configs[0], configs[-1]) == (32, 7790)
  assert 1.0 <= sum(kernel.num_edges for kernel in kernels) / sum(nodes) <= 1.1
  for kernel in kernels:
    consumer, producer = kernel.edge_index.T
    assert (consumer > producer).all()
    assert set(consumer) == set(range(1, kernel.num_nodes))  # Connected.


def test_the_stand_in_scores_as_the_model_whose_weights_it_has():
  kernels = [speed_kernels.random_kernel(7, 5),
             speed_kernels.random_kernel(9, 3)]
  stats = FeatureStats.of_partition(Partition.from_kernels(kernels))
  model = load_models.build('EarlyJoinSAGE', 10, speed_kernels.NUM_OPS, {})
  for kernel in kernels:
    graph = tile_batches.kernel_graph(kernel, stats)
    expected = model.forward(graph, kernel.num_configs)
    found = ReplicatedEarlyJoinSAGE(model).forward(graph, kernel.num_configs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# Takes the place of a process of `speed.py`: answers as `rank_on_demand` does,
# the baseline's with 50 s and then 8 s a ranking, ours with 30 s and then 2 s.
ANSWERING = textwrap.dedent('''
    import os, sys
    import numpy as np
    _, side, name, root, folder = sys.argv[1:]
    seconds, off = {'theirs': ([50, 8], 0.0), 'ours': ([30, 2], 0.5)}[side]
    print(0.25, flush=True)
    for line in sys.stdin:
      if line == 'scores\\n':
        np.savez(os.path.join(folder, 'scores_' + side),
                 [1.0, -2.0 + off], [4.0])
      print(seconds[0], flush=True)
      seconds = seconds[1:] or seconds
''')


def test_two_processes_rank_in_turn(tmp_path):
  rows = speed_in_turn.ranking(
      [sys.executable, '-c', ANSWERING], str(tmp_path))
  assert len(rows) == 2 * 9
  assert {(row['subject'], row['measure']): row['value'] for row in rows
          if row['case'].startswith('oneDNN 1')} == {
      ('EarlyJoinSAGE', 'time'): 0.25,
      ('EarlyJoinSAGE', 'largest difference'): 0.25,  # 0.5 off, of 2.
      ('EarlyJoinSAGE', 'baseline EarlyJoinSAGE'): 8,
      ('EarlyJoinSAGE', 'ours'): 2, ('EarlyJoinSAGE', 'ratio'): 4,
      ('MyEarlyJoinSAGE', 'time'): 0.25,
      ('MyEarlyJoinSAGE', 'baseline EarlyJoinSAGE'): 8,
      ('MyEarlyJoinSAGE', 'ours'): 2, ('MyEarlyJoinSAGE', 'ratio'): 4}


def test_a_process_that_ends_is_named():
  with speed_in_turn._Process(
      [sys.executable, '-c', 'print(1)'], 'ours', 'MLP', '', '',
      dict(os.environ)) as process:
    assert process.answer() == 1
    with pytest.raises(UserError, match=r'MLP \(ours\) ended'):
      process.ask('rank')


def test_the_first_call_does_not_count():
  calls = []
  speed_ranking.median_seconds(lambda: calls.append(0), repeats=3)
  assert len(calls) == 1 + 3


def test_a_part_measured_again_replaces_its_rows(tmp_path):
  speed.write_results(str(tmp_path), [
      row(1.0), row(2.0, case='a case of older code'),
      row(4.0, part='loading')])
  speed.write_results(str(tmp_path), [row(3.0)])
  with open(tmp_path / 'speed.csv') as file:
    found = [(each['part'], each['case'], each['value'])
             for each in csv.DictReader(file)]
  assert found == [('loading', 'configs 10', '4'),
                   ('memory', 'configs 10', '3')]
  assert '| NetA | configs 10 | time | 3 | ms |' in (
      tmp_path / 'speed.md').read_text()


def test_an_unknown_part_is_named(capsys):
  assert speed.main(['--parts', 'rankin']) == 1
  assert "no part 'rankin'; choose from ranking" in capsys.readouterr().err


def test_keras_lines_of_epochs_are_read():
  text = '''46/47 [====>.] - ETA: 0s - loss: 11.2
47/47 [======] - 2s 34ms/step - loss: 11.1 - val_loss: 9.9
47/47 [======] - 60s 1s/step - loss: 10.8 - val_loss: 9.3'''
  assert speed_training._EPOCH.findall(text) == [('34', 'ms'), ('1', 's')]
