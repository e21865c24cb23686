"""Ranks the test split with a trained layout model and writes the CSV.

  ID,TopConfigs
  layout:<source>:<search>:<program>,<i>;<i>; ...

Indices of all configurations, counted from 0 in the order of the file, lowest
predicted runtime first. Programs are in the order of their file names. As the
baseline's trainer writes it, a newline ends each row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tpu_graphs_ext import files
from tpu_graphs_ext.host import metrics, outputs, predictions_csv
from tpu_graphs_ext.layout import scoring, unfamiliar
from tpu_graphs_ext.layout.programs import Programs
from tpu_graphs_ext.layout.settings import CSV_NAME, LayoutLoadSettings

START, WHAT = predictions_csv.START, predictions_csv.WHAT


def predict(model_dir: str, *, out: str = CSV_NAME,
            loading: LayoutLoadSettings | None = None) -> str:
  """Ranks the test split with a trained model; returns the CSV's path.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    out: the file to write.
    loading: how to load the model; also where the split is, and of which
      collection.

  Warns of features that the model was not trained on.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model.
  """
  loading = loading or LayoutLoadSettings()
  path = outputs.check_file('--out', out, START, WHAT)
  ranker = scoring.load_ranker(model_dir, loading)
  test = scoring.read_split(ranker, loading, 'test')
  unfamiliar.warn(ranker, test)
  write(path, ranker, test, loading.source or ranker.source,
        loading.search or ranker.search)
  return path


def write(path: str, ranker: scoring.Ranker, programs: Programs, source: str,
          search: str) -> None:
  """Writes the CSV, a program at a time; it appears when complete.

  Raises:
    UserError: it cannot be written, or replaces a file of another kind, or a
      program cannot be scored.
  """
  predictions_csv.require_own(path)
  with files.new_file(path) as file, contextlib.closing(
      _rows(ranker, programs, source, search)) as rows:
    file.write((START + '\n').encode())
    for row in rows:
      file.write(row.encode())


def _rows(ranker: scoring.Ranker, programs: Programs, source: str,
          search: str) -> Iterator[str]:
  for program, scores in ranker.score_all(programs, 'predict'):
    order = ';'.join(map(str, metrics.best_first(scores).tolist()))
    name = predictions_csv.quoted(f'layout:{source}:{search}:{program.name}')
    yield f'{name},{order}\n'
