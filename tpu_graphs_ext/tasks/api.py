"""The engine's verbs for programs: of tiles, unless `loading` is of layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from tpu_graphs_ext import files
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.engine import evaluate as evaluate_lib
from tpu_graphs_ext.engine import origin, out_of_range, predictions_csv
from tpu_graphs_ext.engine import rank as rank_lib
from tpu_graphs_ext.engine.results import Results
from tpu_graphs_ext.engine.scoring import load_ranker
from tpu_graphs_ext.engine.settings import TOP_CONFIGS, Loading, checked
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks.tile import LoadSettings


@checked
def evaluate(model_dir: str, data: str = '', *,
             loading: Loading = LoadSettings(),
             ks: Optional[Sequence[int]] = None) -> Results:
  """Measures a trained model on labelled kernels; see `evaluate_all`."""
  return evaluate_all([model_dir], data, loading=loading, ks=ks)[0]


@checked
def evaluate_all(model_dirs: Sequence[str], data: str = '', *,
                 loading: Loading = LoadSettings(),
                 ks: Optional[Sequence[int]] = None,
                 foreign: Sequence[evaluate_lib.ForeignRanker] = ()
                 ) -> list[Results]:
  """Measures trained models on the same labelled kernels, or programs.

  Raises UserError if a file is missing or damaged, has no labels, or belongs to
  another model or task.

  Args:
    model_dirs: folders model_<hash>; the run file of each lies beside it.
    data: folder of .npz files, one .npz or a .pb; empty: valid of the data
      root of `loading`, or of the first model's collection.
    loading: how to load the models; also data_root and cache_dir of `data`.
      Its models_py may name a file for each model.
    ks: how many configurations to try; None: the task's.
    foreign: scores of other models, as from files; they come after these.
  """
  # All models first: a wrong name must not wait for the others' scores.
  trained = [*map(load_ranker, model_dirs, loading.for_each(len(model_dirs)))]
  rankers = [*trained, *foreign]
  if not rankers:
    raise UserError('model_dirs is empty; name a model')
  source, problems = rankers[0].read(loading, 'valid', data)
  for ranker in trained if not data else ():
    origin.warn_of_other_data(ranker.name, ranker.data, source, 'valid')
  problems = evaluate_lib.labelled(problems, source, loading.task)
  for ranker in trained:
    out_of_range.warn(ranker, problems)
  return [evaluate_lib.evaluation(ranker, problems, source, ks)
          for ranker in rankers]


@checked
def measure(kernels: Union[str, Iterable[Kernel]], scores: Mapping[str, Any],
            *, name: str = 'scores', ks: Optional[Sequence[int]] = None,
            loading: Loading = LoadSettings()) -> Results:
  """Measures the scores of any model, of any framework, on labelled kernels.

  Args:
    kernels: a folder of .npz files, one .npz or a .pb; or kernels. With
      `loading` of layouts a folder of programs, or one.
    scores: kernel's name -> numbers [configs]; the lowest is the fastest. Other
      names may be there too.
    name: what to call the model in tables.
    ks: how many configurations to try; None: the task's.
    loading: its `keep_repeats` says where duplicates are ranked.

  Raises:
    UserError: scores of a kernel are missing, of another size or not finite, or
      the kernels have no labels.
  """
  task, is_path = loading.task, isinstance(kernels, str)
  if not is_path and task.name != LoadSettings.task.name:
    raise UserError(f'kernels= must be the path of {task.problem}s')
  source = kernels if is_path else name
  problems = (task.read(source, loading) if is_path
              else Partition.from_kernels(kernels))
  return evaluate_lib.evaluation(
      evaluate_lib.ForeignRanker(
          name, task, scores, keep_repeats=loading.keep_repeats),
      evaluate_lib.labelled(problems, source, task), source, ks)


@checked
def rank(model_dir: str, data: str = '', *, top_k: Optional[int] = TOP_CONFIGS,
         loading: Loading = LoadSettings()) -> list[rank_lib.Ranking]:
  """Ranks the configurations of every kernel or program, labelled or not.

  Warns of features that the model was not trained on, but puts known ones in
  their place where the task can; `evaluate` and `predict` do not. Raises
  UserError if a file is missing or damaged, or belongs to another model.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    data: folder of .npz files, one .npz or a .pb; empty: test of the data root
      of `loading`, or of the model's collection.
    top_k: configurations of each to list; None: all.
    loading: how to load the model; also data_root and cache_dir of `data`.
  """
  ranker = load_ranker(model_dir, loading)
  _, problems = ranker.read(loading, 'test', data)
  out_of_range.warn(ranker, problems)
  problems = type(problems)(
      ranker.task.in_known_features(problem, ranker.stats)
      for problem in problems)
  return [rank_lib.ranking_of(problem, scores, top_k)
          for problem, scores in ranker.score_all(problems, 'rank')]


@checked
def predict(model_dir: str, *, out: str = '', top_configs: Optional[int] = None,
            loading: Loading = LoadSettings()) -> str:
  """Ranks the test split with a trained model; returns the CSV's path.

  Other arguments and errors are as for `rank`.

  Args:
    out: the file to write; empty: the task's default name.
    top_configs: configurations of each kernel; None: 5, or of a program all.
  """
  task = loading.task
  if (top_configs or 0) > 100_000:  # Shorter rows are padded with 0.
    raise UserError(f'top_configs={top_configs}: must be at most 100,000')
  path = files.Output('--out', *predictions_csv.KIND).check(
      out or task.csv_name)
  ranker = load_ranker(model_dir, loading)
  _, test = ranker.read(loading, 'test')
  out_of_range.warn(ranker, test)
  rank_lib.write_csv(
      path, ranker, test, top_configs or task.csv_configs, loading)
  return path
