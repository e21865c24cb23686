"""Measures the model in the package: the tables of docs/pretrained.md.

  python benchmarks/pretrained.py --data DIR --real FILE.pb \\
      --row EarlyJoinSAGE=out/model_1,out/model_2 --seeds 1,2,3

DIR is what `tpu-graphs-ext sample-data --kernels all` writes; the models of a
row were trained on it, one for each seed. With --tpu v6e and that generation's
data, the package's models for it and for a TPU v3 are measured. LightGBM is
trained here; the analytic time is that of `analytic/machines.py`.
Rows go to results/numbers.csv, of which `tables.py --write` makes the page.
Last it prints what the analytic time tells of gains over the default tile.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import booster
import tables
from tpu_graphs_ext.analytic import explain, geometry
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.engine import evaluate, pretrained, results, scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import kernel_sources, tuning
from tpu_graphs_ext.serving import tile_search
from tpu_graphs_ext.tasks import TILE, evaluations
from tpu_graphs_ext.tasks.tile import LoadSettings

# Of real kernels with fewer tiles, few orders are wrong.
FEWEST_TILES = 10


def data_sets(data: str, real: list[str]) -> dict[str, Partition]:
  """Where models are measured: name -> labelled kernels."""
  kernels = [kernel for path in real
             for kernel in tuning.read_tile_kernels(path)]
  return {
      'test': read.read_kernels(os.path.join(data, 'test_labelled')),
      **({'real': Partition.from_kernels([
          kernel for kernel in kernels if kernel.num_configs >= FEWEST_TILES])}
         if kernels else {})}


def measured(ranker, kernels: Partition) -> evaluations.Evaluation:
  return evaluations.Evaluation(
      '', '', evaluate.measure(ranker, kernels, 'measure'))


def columns(summaries: list[results.Summary],
            prefix: str = '') -> dict[str, list[float]]:
  """Column of the table -> a value for each seed; slowdowns in %."""
  return {prefix + column: [scale * summary[name] for summary in summaries]
          for column, name, scale in (
              ('opa', 'opa', 1), ('kendall', 'kendall', 1),
              *((f'top{k}', f'slowdown_{k}', 100)
                for k in results.ks_of(summaries[0].rows)))}


def choices(summary: results.Summary,
            prefix: str) -> dict[str, dict[str, float]]:
  """The rows of the default tile, if there is one, and of a random choice."""
  rows = {'random': {prefix + 'opa': 0.5, prefix + 'kendall': 0.0, **{
      f'{prefix}top{k}': 100 * summary[f'random_{k}']
      for k in results.ks_of(summary.rows)}}}
  if 'default' in summary.rows:
    rows['default'] = {prefix + 'top1': 100 * summary['default']}
  return rows


@dataclasses.dataclass
class AnalyticTime:
  """Orders tiles by the analytic time with a generation's constants, as a
  `scoring.Ranker` orders them by a model."""
  tpu: str
  task: Any = TILE

  def score_all(self, kernels: Iterable[Kernel], what: str = ''
                ) -> Iterator[tuple[Kernel, scoring.Scores]]:
    del what  # As `Ranker` has it.
    kernels = list(kernels)
    for kernel, loops in zip(kernels, geometry.loops_of(
        kernels, MACHINES[self.tpu])):
      yield kernel, scoring.Scores(
          explain.terms(loops, loops.tiles_of(kernel.config_feat)).time,
          scoring.first_copies(kernel.config_feat))


def some_tiles(kernel: Kernel, most: int) -> Kernel:
  """The kernel with at most that many of its tiles, drawn with seed 0."""
  if kernel.num_configs <= most:
    return kernel
  chosen = np.sort(np.random.default_rng(0).choice(
      kernel.num_configs, most, replace=False))
  return dataclasses.replace(kernel, **{
      name: getattr(kernel, name)[chosen]
      for name in ('config_feat', 'runtime_ns', 'normalizer_ns')})


def trees(data: str, seed: int, most: int = booster.Settings().trees,
          tiles: int = sys.maxsize):
  """LightGBM, of at most so many trees and tiles of a kernel."""
  splits = {
      split: [some_tiles(kernel, tiles) for kernel in
              read.read_kernels(os.path.join(data, split))]
      for split in ('train', 'valid')}
  return booster.fit(**splits, settings=booster.Settings(trees=most), seed=seed)


def rankers(args) -> dict[str, list]:
  """Row of the tables -> a ranker for each seed."""
  package = pretrained.name_for(args.tpu)
  named = {'package': package, **(
      {} if package == pretrained.NAME else {'v3': pretrained.NAME}),
           **dict(pair.split('=', 1) for pair in args.row)}
  of_row = {name: [scoring.load_ranker(model_dir, LoadSettings())
                   for model_dir in dirs.split(',')]
            for name, dirs in named.items()}
  of_row['analytic'] = [AnalyticTime(args.tpu)]
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
      loops, = geometry.loops_of([kernel], tile_search.machine_of(ranker))
    except UserError:
      continue
    kernel_tiles = loops.tiles_of(kernel.config_feat)
    times = explain.terms(
        loops, kernel_tiles, tile_search.constants_of(ranker, loops)).time
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


def put(table: str, rows: Mapping[str, Mapping[str, Any]], code: str,
        command: str) -> None:
  """`tables.put`, but LightGBM's row is by its own code."""
  for of_trees, decides in (False, code), (True, 'benchmarks/booster.py'):
    tables.put(table, {row: cells for row, cells in rows.items()
                       if (row == booster.NAME) == of_trees}, decides, command)


def main() -> int:
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument('--data', required=True)
  flags.add_argument('--real', action='append', default=[])
  flags.add_argument('--row', action='append', default=[],
                     metavar='ROW=DIR,DIR...')
  flags.add_argument('--tpu', default='v3', choices=MACHINES,
                     help='whose kernels these are')
  flags.add_argument('--seeds', default='', help='of LightGBM; empty: none')
  flags.add_argument('--trees', type=int, default=booster.Settings().trees,
                     help='of LightGBM at most (default: %(default)s)')
  flags.add_argument('--tiles', type=int, default=1000,
                     help='of a kernel that LightGBM learns from, at most '
                     '(default: %(default)s)')
  args = flags.parse_args()
  try:
    of_row = rankers(args)
    rows, kinds = collections.defaultdict(dict), {}
    for name, kernels in data_sets(args.data, args.real).items():
      evaluations = {row: [measured(ranker, kernels) for ranker in seeds]
                     for row, seeds in of_row.items()}
      for row, seeds in evaluations.items():
        rows[row].update(columns([each.micro for each in seeds], f'{name}_'))
      package = evaluations['package'][0]
      for row, cells in choices(package.micro, f'{name}_').items():
        rows[row].update(cells)
      if name == 'test':
        kinds = {kind: {'kernels': summary.problems, **columns([summary])}
                 for kind, summary in package.kinds.items()}
      print(f'{name}, {len(kernels)} kernels\n'
            + gains(of_row['package'][0], kernels))
    command = shlex.join(['python', 'benchmarks/pretrained.py', *sys.argv[1:]])
    put(f'pretrained-{args.tpu}', rows, 'models.py', command)
    tables.put(f'pretrained-{args.tpu}-kinds', kinds, 'models.py', command,
               whole=True)
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
