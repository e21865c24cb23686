"""Scores of other frameworks: measured like a model's, alone or beside it."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest

import tpu_graphs_ext
from support import saved_run, tiny_kernels
from tpu_graphs_ext import cli
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.engine import evaluate
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import LAYOUT, TILE, api
from tpu_graphs_ext.tasks.tile import LoadSettings

# Relative runtimes 2, 1, 1.5, 4 and, of a second kernel, 3, 1.
RUNTIMES = {'net_a': [200, 100, 150, 400], 'net_b': [300, 100]}


def kernel(name: str) -> Kernel:
  count = len(RUNTIMES[name])
  return dataclasses.replace(
      tiny_kernels.make_kernel(name, num_configs=count),
      runtime_ns=np.array(RUNTIMES[name]), normalizer_ns=np.full(count, 100))


KERNELS = [*map(kernel, RUNTIMES)]
PROBLEMS = Partition.from_kernels(KERNELS)


def test_measures_by_hand():
  """net_a: 0 first (1.0 slower), then 1; net_b: the best one first."""
  scores = {'net_a': [1, 2, 3, 4], 'net_b': [[0.5, 0.25]], 'other': [1]}
  evaluation = tpu_graphs_ext.measure(KERNELS, scores, ks=(1, 2), name='m/ 1.5')
  assert evaluation.rows['slowdown_1'].tolist() == [1.0, 0.0]
  assert evaluation.rows['slowdown_2'].tolist() == [0.0, 0.0]
  # Pairs of net_a in order: 0<2? no (2 > 1.5); 4 of 6 are: (0, 1) is not too.
  assert evaluation.rows['opa'].tolist() == pytest.approx([4 / 6, 1.0])
  assert evaluation.model == 'm/ 1.5' and 'm/ 1.5 ' in evaluation.text()


def test_large_integers_keep_their_order():
  for dtype, offset in (np.int64, 2**62), (np.uint64, 2**63), (object, 2**70):
    scores = {name: np.array([offset + us for us in RUNTIMES[name]], dtype)
              for name in RUNTIMES}
    assert (tpu_graphs_ext.measure(KERNELS, scores).rows['opa'] == 1).all()


def test_equal_scores_are_no_order(caplog):
  scores = {'net_a': [1, 2, 3, 4], 'net_b': [7, 7]}
  tpu_graphs_ext.measure(KERNELS, scores)
  assert 'scores: all scores of 1 of 2 kernels are equal, so' in caplog.text
  caplog.clear()  # There is nothing to choose from.
  same = tiny_kernels.identical_configs()
  tpu_graphs_ext.measure(same, {same.name: np.zeros(same.num_configs)})
  assert not caplog.text


def test_duplicates_come_last_unless_kept():
  double = kernel('net_a')
  double.config_feat[1] = double.config_feat[0]
  scores = {'net_a': [1, 2, 3, 4]}
  for keep, first_two in ((False, 0.5), (True, 0.0)):
    evaluation = tpu_graphs_ext.measure(
        [double], scores, ks=(2,), loading=LoadSettings(keep_repeats=keep))
    assert evaluation.mean['slowdown_2'] == first_two


@pytest.mark.parametrize('scores, message', [
    ({'net_a': [1, 2, 3, 4]}, 'lacks 1 of 2 kernels of the data: net_b'),
    ({'net_a': [1, 2, 3], 'net_b': [1, 2]}, r'scores of net_a have the '
     r'shape \(1, 3\); it must be \(1, 4\), its configurations$'),
    ({'net_a': np.eye(2), 'net_b': [1, 2]}, r'shape \(2, 2\)'),
    ({'net_a': [1, 2, 3, np.nan], 'net_b': [1, 2]}, 'scores of net_a are NaN '
     'or infinite, the first at place 3; give each configuration a finite num'),
    ({'net_a': [1, -np.inf, 3, 4], 'net_b': [1, 2]}, 'the first at place 1; '),
    ({'net_a': ['a', 'b', 'c', 'd'], 'net_b': [1, 2]}, 'must be real numbers'),
    ({'net_a': [1, 2, 3, 4j], 'net_b': [1, 2]}, 'are complex128; scores'),
    ({'net_a': ['1', '2', '3', '4'], 'net_b': [1, 2]}, 'must be real numbers'),
    ({'net_a': [1, 2, 3, 10**400], 'net_b': [1, 2]}, 'must be real numbers'),
    ({'net_a': np.ma.array([1, 2, 3, 4], mask=[0, 0, 0, 1]), 'net_b': [1, 2]},
     'net_a: they are a masked array; fill it; scores must be real numbers'),
    ({1: [1], 'net_b': [1, 2]}, 'it has 1, net_b'),
    ({'net_a': None, 'net_b': [1, 2]}, 'net_a')])
def test_scores_that_cannot_be_used(scores, message):
  with pytest.raises(UserError, match=f'^mine: .*{message}'):
    tpu_graphs_ext.measure(KERNELS, scores, name='mine')


def test_kernels_that_are_none():
  for kernels in ([None], None, {'net_a': KERNELS[0]}, [vars(KERNELS[0])]):
    with pytest.raises(UserError, match='must be of the class Kernel'):
      tpu_graphs_ext.measure(kernels, {})
  tpu_graphs_ext.measure(KERNELS[0], {'net_a': [1, 2, 3, 4]})
  with pytest.raises(UserError, match='two of the kernels have the same name'):
    tpu_graphs_ext.measure(2 * KERNELS, {})
  with pytest.raises(UserError, match='must be the path of programs'):
    tpu_graphs_ext.measure(KERNELS, {}, loading=LAYOUT.loading())
  with pytest.raises(UserError, match='model_dirs is empty; name a model'):
    tpu_graphs_ext.evaluate_all([])


def read(tmp_path, text, task=TILE, **loading) -> evaluate.ForeignRanker:
  path = tmp_path / 'rows.csv'
  path.write_text(f'ID,TopConfigs\n{text}')
  return evaluate.read_predictions(str(path), task.loading(**loading))


def test_a_ranking_has_the_measures_of_its_places(tmp_path):
  """Two places of four: not OPA, nor top-3, and for no kernel: a mean over the
  small ones would mislead."""
  ranker = read(tmp_path, 'tile:xla:net_a,2;0\ntile:xla:net_b,0;1\n'
                'layout:xla:random:net_a,1;0\n')
  rows = evaluate.measure(ranker, PROBLEMS, '', (1, 2, 3))
  assert rows['slowdown_1'].tolist() == [0.5, 2.0]
  assert rows['slowdown_2'].tolist() == [0.5, 0.0]
  for column in ('slowdown_3', 'slowdown_kept_3', 'opa', 'kendall'):
    assert rows[column].isna().all(), column
  assert rows['random_3'].notna().all()
  # Padded with 0, as the baseline does; all of the order is known.
  ranker = read(tmp_path, 'tile:xla:net_a,1;2;0;3;0\ntile:xla:net_b,1;0;0;0;0')
  rows = evaluate.measure(ranker, PROBLEMS, '', (1, 3))
  assert rows['opa'].tolist() == [1.0, 1.0]
  assert rows['slowdown_3'].tolist() == [0.0, 0.0]


@pytest.mark.parametrize('text, message', [
    ('tile:xla:net_a,0;0;1\ntile:xla:net_b,0', 'net_a: must have distinct'),
    ('tile:xla:net_a,7;0\ntile:xla:net_b,0', 'configurations below 4'),
    ('tile:xla:net_a,0\ntile:xla:net_b,1;0;2', 'below 2, then only 0; it has '
     '1, 0, 2$'),
    ('tile:xla:net_b,0', 'lacks 1 of 2'), ('', 'lacks 2 of 2')])
def test_rankings_that_cannot_be_used(tmp_path, text, message):
  with pytest.raises(UserError, match=f'rows.csv: .*{message}'):
    evaluate.measure(read(tmp_path, text), PROBLEMS, '')


def test_rows_of_several_collections(tmp_path):
  text = 'layout:xla:random:u:net,1;0\nlayout:xla:default:u:net,0;1\n'
  with pytest.raises(UserError, match='has u:net of several collections; '
                     'choose one with --source and --search'):
    read(tmp_path, text, LAYOUT)
  ranker = read(tmp_path, text, LAYOUT, source='xla', search='default')
  assert ranker.of == {'u:net': [0, 1]}
  with pytest.raises(UserError, match='--data must name its programs'):
    read(tmp_path, text.split('\n')[0], LAYOUT).read(LAYOUT.loading(), 'valid')


def test_the_command(tmp_path, saved_model_dir, capsys):
  """Scores and the CSV of a model say what the model does, beside it."""
  loading, valid = LoadSettings(cache_dir=''), str(tmp_path / 'valid')
  for labelled in saved_run.KERNELS:
    labelled.save(valid)
  ranked = api.rank(saved_model_dir, valid, top_k=None, loading=loading)
  np.savez(tmp_path / 'mine.npz', **{
      of.tile_id: [choice.score for choice in sorted(
          of.choices, key=lambda choice: choice.index)] for of in ranked})
  rows = ''.join(f'\ntile:xla:{of.tile_id},' + ';'.join(
      str(choice.index) for choice in of.choices) for of in ranked)
  (tmp_path / 'theirs.csv').write_text(f'ID,TopConfigs{rows}')
  flags = ['evaluate', '--cache_dir=', f'--data={valid}', '--quiet',
           f'--scores={tmp_path}/mine.npz',
           f'--predictions={tmp_path}/theirs.csv']
  assert cli.main([*flags, f'--dir={saved_model_dir}', '--json']) == 0
  ours, mine, theirs = json.loads(capsys.readouterr().out)
  for other in (mine, theirs):
    assert other['micro']['slowdown'] == ours['micro']['slowdown']
  assert mine['micro']['opa'] == pytest.approx(ours['micro']['opa'])
  assert ours['differences'][0]['slowdown']['5']['mean'] == 0
  assert cli.main(flags) == 0
  text = capsys.readouterr().out
  assert '\nmine ' in text and '\ntheirs ' in text and 'mine - theirs' in text
  # A flag may come twice, as if both files came after one.
  for copied in ('again.npz', 'mine.npz'), ('again.csv', 'theirs.csv'):
    shutil.copy(*(tmp_path / name for name in copied[::-1]))
  assert cli.main([*flags, f'--scores={tmp_path}/again.npz', '--json',
                   f'--predictions={tmp_path}/again.csv']) == 0
  assert [os.path.basename(of['model_dir']) for of in json.loads(
      capsys.readouterr().out)] == [
          'mine.npz', 'again.npz', 'theirs.csv', 'again.csv']
  (tmp_path / 'mine.npz').write_bytes(b'PK')
  assert cli.main(flags) == 1
  assert 'cannot be read as a .npz file of scores' in capsys.readouterr().err


def test_without_any_model(capsys):
  """No package model ranks layouts; nothing is loaded to say so."""
  assert cli.main(['evaluate', '--task=layout']) == 1
  assert '--dir: name a model, or the scores' in capsys.readouterr().err


def test_kernels_may_be_a_path(tmp_path):
  KERNELS[0].save(str(tmp_path))
  evaluation = tpu_graphs_ext.measure(
      tmp_path, {'net_a': [1, 2, 3, 4]}, loading=LoadSettings(cache_dir=''))
  assert evaluation.data == str(tmp_path)
  assert evaluation.rows['tile_id'].tolist() == ['net_a']
