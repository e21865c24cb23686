"""Learned cost models for TPU tile sizes, around one drop-in models.py.

    import tpu_graphs_ext

    model = tpu_graphs_ext.CostModel.load('out/model_<hash>')
    print(model.rank('kernel.npz').text())

Programs may rely on the names in `__all__`; docs/api.md describes them. Each is
imported at its first use. Importing the package itself only makes TensorFlow
come with Keras 2 (see `stacks`), so import it before Keras is used.
"""

from tpu_graphs_ext.stacks import imports

TYPE_CHECKING = False
if TYPE_CHECKING:  # True for editors and type checkers.
  from tpu_graphs_ext.analytic.explain import Explanation
  from tpu_graphs_ext.data.kernel import Kernel
  from tpu_graphs_ext.engine.rank import Choice, Ranking
  from tpu_graphs_ext.engine.train import TrainResult, train
  from tpu_graphs_ext.errors import UserError
  from tpu_graphs_ext.serving.blocks import BlockChoice, BlockRanking
  from tpu_graphs_ext.serving.compiler_report import CompilerReport, kernels
  from tpu_graphs_ext.serving.cost_model import CostModel
  from tpu_graphs_ext.serving.export import Export, export
  from tpu_graphs_ext.serving.tile_ranking import (
    KernelRanking,
    SourceRanking,
    TileChoice,
  )
  from tpu_graphs_ext.tasks.api import (
    evaluate,
    evaluate_all,
    measure,
    predict,
    rank,
  )
  from tpu_graphs_ext.tasks.evaluations import Evaluation
  from tpu_graphs_ext.tasks.tile import LoadSettings, TrainSettings

__version__ = '0.3.0'

__all__ = [
    'BlockChoice', 'BlockRanking', 'Choice', 'CompilerReport', 'CostModel',
    'Evaluation', 'Explanation', 'Export', 'Kernel', 'KernelRanking',
    'LoadSettings', 'Ranking', 'SourceRanking', 'TileChoice', 'TrainResult',
    'TrainSettings', 'UserError', 'evaluate', 'evaluate_all', 'export',
    'kernels', 'measure', 'predict', 'rank', 'train']

_NAMES = {
    'analytic.explain': 'Explanation',
    'data.kernel': 'Kernel',
    'engine.rank': 'Choice Ranking',
    'engine.train': 'TrainResult train',
    'errors': 'UserError',
    'serving.blocks': 'BlockChoice BlockRanking',
    'serving.compiler_report': 'CompilerReport kernels',
    'serving.cost_model': 'CostModel',
    'serving.export': 'Export export',
    'serving.tile_ranking': 'KernelRanking SourceRanking TileChoice',
    'tasks.api': 'evaluate evaluate_all measure predict rank',
    'tasks.tile': 'LoadSettings TrainSettings',
    'tasks.evaluations': 'Evaluation',
}
# Name -> the module that has it.
_HOMES = {name: module for module, names in _NAMES.items()
          for name in names.split()}

imports.install()


def __getattr__(name: str) -> object:
  """One of the public names, whose module is imported now."""
  import importlib
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'{__name__}.{_HOMES[name]}')
  value = globals()[name] = getattr(module, name)
  return value


def __dir__() -> list:
  return sorted({*globals(), *__all__})
