"""Prints the tables of docs/pretrained.md.

  python benchmarks/pretrained.py --data DIR --real FILE.pb \\
      --model MyEarlyJoinSAGE=out/model_1,out/model_2 --seeds 1,2,3

DIR is what `tpu-graphs-ext sample-data --kernels all` writes; the models were
trained on it, one for each seed. LightGBM is trained here, and the analytic
part is `AnalyticTileModel` with its constants as they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys

import booster
from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import artifacts, evaluate, inputs, scoring

# Of real kernels with fewer tiles, few orders are wrong.
FEWEST_TILES = 10
COLUMNS = ('OPA', 'tau', 'top-1', 'top-5', 'top-10')


def sources(data: str, real: list[str]) -> dict[str, Partition]:
  """Where models are measured: name -> labelled kernels."""
  kernels = [kernel for path in real for kernel in inputs.read_kernels(path)]
  return {
      'test programs': inputs.read_kernels(os.path.join(data, 'test_labelled')),
      f'real, of {FEWEST_TILES} and more tiles': Partition.from_kernels(
          [one for one in kernels if one.num_configs >= FEWEST_TILES]),
      'real, all': Partition.from_kernels(kernels)}


def measured(ranker, kernels: Partition) -> evaluate.Evaluation:
  return evaluate.Evaluation(
      '', '', evaluate.measure(ranker, kernels, 'measure'))


def values(summary: evaluate.Summary) -> list[float]:
  """In the order of `COLUMNS`; slowdowns in per cent."""
  return [summary.opa, summary.kendall,
          *(100 * summary.slowdown[k] for k in (1, 5, 10))]


def table(first: str, rows: dict[str, list[list[float]]]) -> str:
  """Markdown: of each row the mean over seeds, and the standard deviation."""
  lines = [f'| {first} | {" | ".join(COLUMNS)} |',
           '| --- |' + ' ---: |' * len(COLUMNS)]
  for name, seeds in rows.items():
    cells = []
    for number, column in enumerate(zip(*seeds)):
      digits = 3 if number < 2 else 2
      cells.append(f'{statistics.mean(column):.{digits}f}')
      if len(column) > 1:
        cells[-1] += f' ± {statistics.stdev(column):.{digits}f}'
    lines.append(f'| {name} | {" | ".join(cells)} |')
  return '\n'.join(lines)


def analytic():
  """The analytic part alone, with the statistics of the package's model."""
  trained = scoring.load_ranker(artifacts.PRETRAINED)
  given = artifacts.load_run(artifacts.PRETRAINED).model_kwargs['feature_stats']
  return dataclasses.replace(trained, model=load_models.build(
      'AnalyticTileModel', 10, trained.num_ops, {'feature_stats': given},
      graph=scoring.sample_graph(trained.stats)))


def trees(data: str, seed: int):
  splits = {split: list(inputs.read_kernels(os.path.join(data, split)))
            for split in ('train', 'valid')}
  return booster.fit(**splits, settings=booster.Settings(), seed=seed,
                     threads=os.cpu_count() or 1)


def rankers(args) -> dict[str, list]:
  """Row of the tables -> a ranker for each seed."""
  named = dict(pair.split('=', 1) for pair in args.model)
  found = {name: [scoring.load_ranker(one) for one in dirs.split(',')]
           for name, dirs in named.items()}
  found['the analytic part alone'] = [analytic()]
  if args.seeds:
    found[booster.NAME] = [trees(args.data, int(seed))
                           for seed in args.seeds.split(',')]
  return found


def main() -> int:
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument('--data', required=True)
  flags.add_argument('--real', required=True, action='append')
  flags.add_argument('--model', required=True, action='append',
                     metavar='NAME=DIR,DIR...')
  flags.add_argument('--seeds', default='', help='of LightGBM; empty: none')
  args = flags.parse_args()
  try:
    found = rankers(args)
    for name, kernels in sources(args.data, args.real).items():
      evaluations = {row: [measured(ranker, kernels) for ranker in seeds]
                     for row, seeds in found.items()}
      one = next(iter(evaluations.values()))
      print(f'\n## {name}: {len(kernels)} kernels, the default tile '
            f'{100 * one[0].micro.default:.2f} %, one at random '
            f'{100 * one[0].micro.random[1]:.0f} %, the best of five '
            f'{100 * one[0].micro.random[5]:.0f} %\n')
      print(table('model', {row: [values(each.micro) for each in seeds]
                            for row, seeds in evaluations.items()}))
      print()
      print(table('kind', {
          f'{kind} ({summary.kernels})': [values(each.kinds[kind])
                                          for each in one]
          for kind, summary in one[0].kinds.items()}))
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
