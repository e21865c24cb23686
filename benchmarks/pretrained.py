"""Prints the tables of docs/pretrained.md.

  python benchmarks/pretrained.py --data DIR --real FILE.pb \\
      --model MyEarlyJoinSAGE=out/model_1,out/model_2 --seeds 1,2,3

DIR is what `tpu-graphs-ext sample-data --kernels all` writes; the models were
trained on it, one for each seed. LightGBM is trained here, and the analytic
part is `AnalyticTileModel` with its constants as they are. Last it says what
the analytic time of the first model tells of gains over the default tile.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys

import numpy as np

import accuracy_table
import booster
from accuracy_table import mean_std
from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic import explain
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.engine import artifacts, evaluate, results, scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import kernel_sources, tuning
from tpu_graphs_ext.serving import tile_search
from tpu_graphs_ext.tasks import TILE, tile_results
from tpu_graphs_ext.tasks.tile import LoadSettings

# Of real kernels with fewer tiles, few orders are wrong.
FEWEST_TILES = 10


def data_sets(data: str, real: list[str]) -> dict[str, Partition]:
  """Where models are measured: name -> labelled kernels."""
  kernels = [kernel for path in real
             for kernel in tuning.read_tile_kernels(path)]
  return {
      'test programs': read.read_kernels(os.path.join(data, 'test_labelled')),
      f'real, of {FEWEST_TILES} and more tiles': Partition.from_kernels(
          [kernel for kernel in kernels if kernel.num_configs >= FEWEST_TILES]),
      'real, all': Partition.from_kernels(kernels)}


def measured(ranker, kernels: Partition) -> tile_results.Evaluation:
  return tile_results.Evaluation(
      '', '', evaluate.measure(ranker, kernels, 'measure'))


def table(first: str, rows: dict[str, list[results.Summary]]) -> str:
  """Markdown: of each row the mean over seeds, and the standard deviation."""
  cells = [[name, *(mean_std([seed[column] for seed in seeds], 3)
                    for column in ('opa', 'kendall')),
            *(mean_std([100 * seed[f'slowdown_{k}'] for seed in seeds], 2)
              for k in (1, 5, 10))] for name, seeds in rows.items()]
  return '\n'.join(accuracy_table.table(
      [first, 'OPA', 'tau', 'top-1', 'top-5', 'top-10'], cells))


def analytic():
  """The analytic part alone, with the statistics of the package's model."""
  trained = scoring.load_ranker(artifacts.PRETRAINED, LoadSettings())
  stats = artifacts.load_run(
      artifacts.PRETRAINED, TILE).model_kwargs['feature_stats']
  return dataclasses.replace(trained, model=load_models.build(
      'AnalyticTileModel', 10, trained.num_ops, {'feature_stats': stats},
      graph=trained.task.sample_graph(trained.stats)))


def some_tiles(kernel: Kernel, most: int) -> Kernel:
  """The kernel with at most that many of its tiles, drawn with seed 0."""
  if kernel.num_configs <= most:
    return kernel
  chosen = np.sort(np.random.default_rng(0).choice(
      kernel.num_configs, most, replace=False))
  return dataclasses.replace(kernel, **{
      name: getattr(kernel, name)[chosen]
      for name in ('config_feat', 'runtime_ns', 'normalizer_ns')})


def trees(data: str, seed: int, most: int, tiles: int):
  splits = {
      split: [some_tiles(kernel, tiles) for kernel in
              read.read_kernels(os.path.join(data, split))]
      for split in ('train', 'valid')}
  return booster.fit(**splits, settings=booster.Settings(trees=most), seed=seed)


def rankers(args) -> dict[str, list]:
  """Row of the tables -> a ranker for each seed."""
  named = dict(pair.split('=', 1) for pair in args.model)
  of_row = {name: [scoring.load_ranker(model_dir, LoadSettings())
                   for model_dir in dirs.split(',')]
            for name, dirs in named.items()}
  of_row['the analytic part alone'] = [analytic()]
  if args.seeds:
    of_row[booster.NAME] = [trees(args.data, int(seed), args.trees, args.tiles)
                            for seed in args.seeds.split(',')]
  return of_row


def gains(ranker: scoring.Ranker, kernels: Partition) -> str:
  """Gains over the default: by the analytic time, and by the runtimes.

  Of each kernel's first choice, where that is another tile; and of all tiles.
  Kernels whose loops cannot be read are left out.
  """
  from scipy import stats
  firsts, tiles, together = [], [], []
  for kernel in kernels:
    default = kernel_sources.default_of(kernel)
    try:
      explainer = explain.Explainer(
          kernel, tile_search.constants_of(ranker.model))
    except UserError:
      continue
    kernel_tiles = explainer.tiles(kernel.config_feat)
    times = explainer.terms(kernel_tiles).time
    scores = ranker.scored(ranker.prepared(kernel)).of_tiles
    both = np.stack([part[default] / part - 1
                     for part in (times, kernel.runtime_ns)])
    first = np.lexsort((times, scores))[0]
    is_other = (kernel_tiles != kernel_tiles[default]).any(1)
    if is_other[first]:
      firsts.append(both[:, first])
    tiles.append(both[:, is_other])
    if kernel.num_configs >= FEWEST_TILES:
      together.append(np.corrcoef(np.log1p(both))[0, 1])
  told, true = np.concatenate(tiles, axis=1)
  faster = told > 0
  lines = [
      f'{len(tiles)} kernels; the first choice is not the default in '
      f'{len(firsts)}',
      f'{faster.sum():,} of {len(told):,} other tiles are faster by the '
      f'analytic time, by {told[faster].mean():.1%} in the mean; '
      f'{(true[faster] > 0).sum():,} are, and all by {true[faster].mean():.1%}',
      'correlation of the logarithms over the tiles of a kernel: '
      f'{np.nanmean(together):.2f}']
  if len(firsts) > 2:
    told, true = np.transpose(firsts)
    lines.append(
        f'these first choices: gain by the analytic time {told.mean():.1%} in '
        f'the mean, true {true.mean():.1%}, above 0 in {(true > 0).sum()}; '
        f'rank correlation {stats.spearmanr(told, true)[0]:.2f}')
  return '\n'.join(f'- {line}' for line in lines)


def main() -> int:
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument('--data', required=True)
  flags.add_argument('--real', required=True, action='append')
  flags.add_argument('--model', required=True, action='append',
                     metavar='NAME=DIR,DIR...')
  flags.add_argument('--seeds', default='', help='of LightGBM; empty: none')
  flags.add_argument('--trees', type=int, default=booster.Settings().trees,
                     help='of LightGBM at most (default: %(default)s)')
  flags.add_argument('--tiles', type=int, default=1000,
                     help='of a kernel that LightGBM learns from, at most '
                     '(default: %(default)s)')
  args = flags.parse_args()
  try:
    of_row = rankers(args)
    for name, kernels in data_sets(args.data, args.real).items():
      evaluations = {row: [measured(ranker, kernels) for ranker in seeds]
                     for row, seeds in of_row.items()}
      first = next(iter(evaluations.values()))
      print(f'\n## {name}: {len(kernels)} kernels, the default tile '
            f'{100 * first[0].micro["default"]:.2f} %, one at random '
            f'{100 * first[0].micro["random_1"]:.0f} %, the best of five '
            f'{100 * first[0].micro["random_5"]:.0f} %\n')
      print(table('model', {row: [each.micro for each in seeds]
                            for row, seeds in evaluations.items()}))
      print(table('kind', {
          f'{kind} ({summary.problems})': [each.kinds[kind] for each in first]
          for kind, summary in first[0].kinds.items()}))
      print(gains(next(iter(of_row.values()))[0], kernels))
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
