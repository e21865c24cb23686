"""Tables of what `evaluate --task layout` measured."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_graphs_ext.host.evaluation_text import (
  heads,
  intervals,
  numbered,
  pairs,
  table,
  values,
)
from tpu_graphs_ext.layout.evaluate import Evaluation

_MEASURES = ('kendall', 'opa', 'slowdown', 'random')
_NOTES = (
    "tau: Kendall's tau-b of the runtimes and the model's order; higher is "
    'better. top-k %: how',
    'much slower the fastest of the first k configurations is than the fastest '
    'of all.',
    '[low, high]: interval that holds the mean of 95 % of the sets that are '
    'drawn from these',
    'programs; of a handful it comes out too narrow.')


def text(evaluations: Sequence[Evaluation]) -> str:
  """The programs of each model, its means, and of several how they differ."""
  blocks = ['\n'.join(_of_model(evaluation)) for evaluation in evaluations]
  if len(evaluations) > 1:
    ks = evaluations[0].ks
    blocks.append('\n'.join([*numbered(evaluations), '', *table([
        ('difference, paired by program',
         *heads(Evaluation.COMPARED, ks)), *pairs(evaluations, ks)])]))
  return '\n\n'.join([*blocks, '\n'.join(_NOTES)])


def _of_model(evaluation: Evaluation) -> list[str]:
  mean, ks = evaluation.mean, evaluation.ks
  programs = [('', 'nodes', 'configs', *heads(_MEASURES, ks)), *(
      (row['program'], f'{row["nodes"]:,}', f'{row["configs"]:,}',
       *values(row, _MEASURES, ks))
      for row in evaluation.rows.to_dict('records'))]
  programs.append((f'mean of {mean.problems}', '', '',
                   *values(mean, _MEASURES, ks)))
  means = [('', *heads(Evaluation.COMPARED, ks)),
           ('mean', *intervals(mean, Evaluation.COMPARED, ks))]
  return [f'{evaluation.model_dir} on {evaluation.data}', '',
          *table(programs), '', *table(means)]
