"""Learned cost models for TPU tile sizes, around one drop-in models.py.

    import tpu_graphs_ext

    model = tpu_graphs_ext.CostModel.load('out/model_<hash>')
    print(model.rank('kernel.npz').text())

`__all__` has the names that programs may rely on; docs/api.md describes them.
Importing this package imports nothing: what a name needs comes with its first
use. It only sees to it that TensorFlow will come with Keras 2 (see `stacks`),
so it must be imported before Keras is used.
"""

from tpu_graphs_ext.stacks import imports

TYPE_CHECKING = False
if TYPE_CHECKING:  # Editors and type checkers take it for true.
  from tpu_graphs_ext.analytic.explain import Explanation
  from tpu_graphs_ext.data.kernel import Kernel
  from tpu_graphs_ext.engine.evaluate import evaluate, evaluate_all
  from tpu_graphs_ext.engine.predict import predict
  from tpu_graphs_ext.engine.rank import Choice, Ranking, rank
  from tpu_graphs_ext.engine.settings import LoadSettings, TrainSettings
  from tpu_graphs_ext.engine.train import TrainResult, train
  from tpu_graphs_ext.errors import UserError
  from tpu_graphs_ext.serving.cost_model import CostModel
  from tpu_graphs_ext.serving.export import Export, export
  from tpu_graphs_ext.tasks.tile_results import Evaluation

__version__ = '0.2.0'

__all__ = [
    'Choice', 'CostModel', 'Evaluation', 'Explanation', 'Export', 'Kernel',
    'LoadSettings', 'Ranking', 'TrainResult', 'TrainSettings', 'UserError',
    'evaluate', 'evaluate_all', 'export', 'predict', 'rank', 'train']

# Name -> the module that has it.
_HOMES = {
    'Choice': 'engine.rank',
    'CostModel': 'serving.cost_model',
    'Evaluation': 'tasks.tile_results',
    'Explanation': 'analytic.explain',
    'Export': 'serving.export',
    'Kernel': 'data.kernel',
    'LoadSettings': 'engine.settings',
    'Ranking': 'engine.rank',
    'TrainResult': 'engine.train',
    'TrainSettings': 'engine.settings',
    'UserError': 'errors',
    'evaluate': 'engine.evaluate',
    'evaluate_all': 'engine.evaluate',
    'export': 'serving.export',
    'predict': 'engine.predict',
    'rank': 'engine.rank',
    'train': 'engine.train',
}

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
