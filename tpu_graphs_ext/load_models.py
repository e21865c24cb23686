"""The only place that imports a models.py and knows which models it has."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import io
import linecache
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError, reason_of

# Names the checkout of the baseline, whose own package a models.py may import;
# there a relative import starts from the tile task's folder.
ROOT_VARIABLE = 'TPU_GRAPHS_ROOT'
BASELINE_PACKAGE = 'tpu_graphs'
_BASELINE_FOLDER = f'{BASELINE_PACKAGE}.baselines.tiles'
# The arguments that each model gets; the graders' script gives them by name.
_GIVEN = ('num_configs', 'num_ops')
# What an edit of a model may raise; the last is AutoGraph's for an error whose
# constructor it does not know, as of LookupError.
_FAULTS = frozenset({
    'TypeError', 'ValueError', 'LookupError', 'AttributeError', 'NameError',
    'ArithmeticError', 'AssertionError', 'RuntimeError',
    'InvalidArgumentError', 'StagingError'})
# File of the package -> its first content, which its module may have.
_packaged: dict[str, bytes] = {}


def models_path(name: str = 'models.py') -> str:
  """The package's file of that name, found without importing TensorFlow."""
  return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def models_module(models_py: str = '') -> ModuleType:
  """The module of a file as it is now; '' is the package's models.py.

  Each content is imported once, so an edited file gives another module, and
  models that were made before keep their code. Raises UserError if the file is
  missing or cannot be imported.
  """
  path = os.path.abspath(os.path.expanduser(models_py or models_path()))
  try:
    source = files.read_file(path)
  except UserError as error:
    raise UserError(f'--models_py: {error}; name another file') from error
  # The package's own are imported under their names, once.
  packaged = os.path.basename(path)
  if packaged in ('models.py', 'layout_models.py') and path == models_path(
      packaged) and _packaged.setdefault(path, source) == source:
    return importlib.import_module(f'{__package__}.{packaged[:-3]}')
  name = 'models_' + hashlib.sha256(path.encode() + b'\0' + source).hexdigest()
  if name not in sys.modules:
    sys.modules[name] = _imported(name, path, source)
  return sys.modules[name]


def _imported(name: str, path: str, source: bytes) -> ModuleType:
  module = ModuleType(name)
  module.__file__, module.__package__ = path, _BASELINE_FOLDER
  sys.modules[name] = module  # A dataclass looks for its module.
  # Tracebacks, and AutoGraph, which reads code again to convert it, find these
  # lines under a name that no file has, however the file is edited.
  lines = f'{path}:{name[-8:]}'
  try:
    code = compile(source, lines, 'exec', dont_inherit=True)
    # Unlike str.splitlines, this splits where Python counts lines.
    text = io.StringIO(importlib.util.decode_source(source)).readlines()
    linecache.cache[lines] = len(source), None, text, lines
    root = os.environ.get(ROOT_VARIABLE)
    if root and files.full_path(root) not in sys.path:
      sys.path.append(files.full_path(root))  # Functions may import later.
    exec(code, vars(module))
  except BaseException as error:
    del sys.modules[name]
    if isinstance(error, KeyboardInterrupt):
      raise
    missing = str(getattr(error, 'name', ''))
    advice = (f'set {ROOT_VARIABLE} to the checkout of the baseline that has it'
              if missing.split('.')[0] == BASELINE_PACKAGE else 'mend the file')
    raise UserError(
        f'--models_py: {path} cannot be imported '
        f'({type(error).__name__}: {error}); {advice}') from error
  return module


def model_names(models_py: str = '') -> list[str]:
  """Names of the public model classes, in the order of the file."""
  import tensorflow as tf
  module = models_module(models_py)
  return [name for name, value in vars(module).items()
          if inspect.isclass(value) and issubclass(value, tf.keras.Model)
          and value.__module__ == module.__name__ and not name.startswith('_')]


def model_class(name: str, models_py: str = '') -> Callable:
  """The model class, or function that makes one, of that name; or UserError."""
  names, module = model_names(models_py), models_module(models_py)
  made = vars(module).get(name)
  if name not in names and not (name[:1] != '_' and inspect.isfunction(made)):
    file = os.path.basename(str(module.__file__))
    raise UserError(f'--model: there is no model {name!r} in {file}; the '
                    f'models are {", ".join(names) or "none"}')
  return made


def constructor_arguments(cls: Callable) -> tuple[dict[str, Any], bool]:
  """Keywords of a model with their defaults, and whether it takes others too.

  A constructor with **kwargs passes them to the next class, which knows them.
  """
  allowed, takes_any = _parameters(cls)
  return {name: parameter.default for name, parameter in allowed.items()
          if name not in ('self', *_GIVEN)
          and parameter.kind is not inspect.Parameter.VAR_KEYWORD}, takes_any


def _parameters(cls: Callable) -> tuple[dict[str, inspect.Parameter], bool]:
  import tensorflow as tf
  allowed, takes_any = {}, False
  for base in getattr(cls, '__mro__', [cls]):
    if base is tf.keras.Model:
      break
    if inspect.isclass(base) and '__init__' not in vars(base):
      continue
    parameters = inspect.signature(
        base.__init__ if inspect.isclass(base) else base).parameters
    allowed = {**parameters, **allowed}  # A subclass's default goes first.
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD
                    for parameter in parameters.values())
    if not takes_any:
      break
  return allowed, takes_any


def class_taking(name: str, arguments: Iterable[str],
                 models_py: str = '') -> type:
  """The class of a model; raises UserError unless it takes the arguments."""
  cls = model_class(name, models_py)
  allowed, takes_any = constructor_arguments(cls)
  parameters, _ = _parameters(cls)
  for key in _GIVEN:
    if not takes_any and key not in parameters:
      raise UserError(f'{name}: its constructor has no argument {key!r}; it '
                      f'must take {" and ".join(_GIVEN)}, by these names')
  for key in arguments:
    if key not in allowed and (not takes_any or key in _GIVEN):
      raise UserError(f'--model_kwargs_json: {name} has no argument {key!r}; '
                      f'it takes {", ".join(allowed)}')
  return cls


def parsed(path: str) -> tuple[ast.Module, str]:
  """The syntax tree and the text of a models.py, or a UserError."""
  source = files.read_file(path)
  try:
    return ast.parse(source), importlib.util.decode_source(source)
  # The last two where the text is nested without end.
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    raise UserError(f'{path}: is not a Python file for Python '
                    f'{sys.version.split()[0]} ({reason_of(error)})') from error


def require_in_text(name: str, arguments: Iterable[str], path: str) -> None:
  """`class_taking` by the text of a models.py, none of which is run.

  Lets pass what only running it would tell, as of a class that is imported.
  """
  tree, text = parsed(path)
  # One within an `if` may have a second definition, or another one's name.
  classes = {node.name: node for node in tree.body
             if isinstance(node, ast.ClassDef)}
  # It may be imported, assigned or a text, as of setattr.
  if not re.search(rf'\b{re.escape(name)}\b|import\s+\*', text):
    public = ', '.join(cls for cls in classes if cls[0] != '_') or 'none'
    raise UserError(f'--model: there is no model {name!r} in '
                    f'{os.path.basename(path)}; the models are {public}')
  allowed, cls = [], classes.get(name)
  while cls:
    for node in cls.body:
      if isinstance(node, ast.FunctionDef) and node.name == '__init__':
        allowed += [argument.arg for argument in (
            *node.args.args, *node.args.kwonlyargs)
                    if argument.arg not in ('self', *_GIVEN)]
        unknown = [key for key in arguments if key not in allowed]
        if unknown and not node.args.kwarg:
          raise UserError(f'--model_kwargs_json: {name} has no argument '
                          f'{unknown[0]!r}; it takes {", ".join(allowed)}')
    base = getattr(cls.bases[0], 'id', '') if cls.bases else ''
    cls = classes.pop(base, None)


def takes(name: str, argument: str, models_py: str = '') -> bool:
  """Whether a model's constructor has an argument of that name."""
  return argument in constructor_arguments(model_class(name, models_py))[0]


def create_variables(model, graph, tried: bool = False) -> None:
  """Creates the variables of a new model, or raises a UserError.

  If `tried`, a model of your own must also score `graph`.
  """
  name = type(model).__name__
  *_, count, columns = config_feats(graph).shape
  if not hasattr(model, 'forward'):
    raise UserError(f'{name}: needs a method forward(graph, num_configs)')
  with _as_user_errors(name):
    if hasattr(model, '_create_for'):  # Needs no trace, unlike a call.
      model._create_for(graph.node_sets['op']['feats'].shape[-1], columns)
      if not tried or is_packaged(model):
        return
    scores = model.forward(graph, count)
  # Others would be refused after the training.
  form = (f'{scores.dtype.name} {tuple(scores.shape)}'
          if hasattr(scores, 'dtype') else type(scores).__name__)
  if form != f'float32 (1, {count})':
    raise UserError(f'{name}: forward returns {form}; return scores float32 '
                    f'(1, {count}), one per configuration')
  if model.non_trainable_variables:
    logging.getLogger(__name__).warning(
        '%s: has variables that are not trained, as batch normalisation has; '
        'the graders, and the commands here, restore trained ones only', name)


def config_feats(graph):
  """Features [..., configs, columns] of a graph of either task."""
  name = 'nconfig' if 'nconfig' in graph.node_sets else 'config'
  return graph.node_sets[name]['feats']


def _places_of(error: BaseException, packaged: bool = False) -> list[tuple]:
  """(file, line, function, code) of each call in a models.py.

  The package's own count if `packaged`: users edit them.
  """
  text = ''.join(traceback.format_tb(error.__traceback__)) + str(error)
  own = '|'.join(map(re.escape, _packaged if packaged else ())) or '(?!)'
  return re.findall(  # See `_imported`; AutoGraph has them in its message.
      rf'File "({own}|[^"\n]+(?=:[0-9a-f]{{8}}"))[^"\n]*", line (\d+), in '
      r'(\w*).*\n *(.*)', text)


def _last(places: list[tuple]) -> str:
  """'; see FILE, line N: ...'; or ''."""
  return ('; see {0}, line {1}: {3}'.format(*places[-1]).rstrip(': ')
          if places else '')


def is_packaged(model) -> bool:
  """Whether the class is one of the package's files, not of your own."""
  return type(model).__module__.startswith(f'{__package__}.')


@contextlib.contextmanager
def errors_of_model(model, cannot: str, method: str) -> Iterator[None]:
  """Reports why a model cannot be used, as a UserError with a line of its file.

  `cannot` says what was tried, such as 'be trained', by which `method`.
  """
  try:
    yield
  except Exception as error:
    if _FAULTS.isdisjoint(cls.__name__ for cls in type(error).__mro__):
      raise
    places = _places_of(error, packaged=True)
    if is_packaged(model) and not places:
      raise
    reason = reason_of(error)
    if not re.match(r'\w+Error: ', reason):
      reason = f'{type(error).__name__}: {reason}'
    raise UserError(
        f'{type(model).__name__}: cannot {cannot} ({reason}); its '
        f'{method} must return scores float32 [kernels, configurations]'
        # That of `fit` is of every training.
        + _last([place for place in places if place[2] != 'fit'])) from error


@contextlib.contextmanager
def _as_user_errors(name: str) -> Iterator[None]:
  """Reports why a model refuses its arguments, fails or is too large."""
  import tensorflow as tf
  try:
    yield
  except (Exception, SystemExit) as error:
    what = f'{name}: {type(error).__name__}: {reason_of(error)}'
    if places := _places_of(error):
      raise UserError(what + _last(places)) from error
    if isinstance(error, (TypeError, ValueError, SystemExit)):
      raise UserError(f'--model_kwargs_json: {name}: {error}') from error
    if isinstance(error, (
        MemoryError, OverflowError, tf.errors.ResourceExhaustedError,
        tf.errors.InvalidArgumentError)):
      raise UserError(f'--model_kwargs_json: {what}; give smaller numbers, '
                      'such as a lower hidden_dim') from error
    if places := _places_of(error, packaged=True):
      raise UserError(what + _last(places)) from error
    raise


def build(name: str, num_configs: int, num_ops: int, kwargs: dict[str, Any],
          models_py: str = '', graph=None, tried: bool = False):
  """Makes a model, and with a `graph` its variables; see `create_variables`.

  `num_configs` are those of each kernel in training, `num_ops` the opcodes,
  `kwargs` from `--model_kwargs_json`; for `models_py` see `models_module`.
  Raises UserError for what the model or its constructor refuses.
  """
  import tensorflow as tf
  cls = class_taking(name, kwargs, models_py)
  policy = tf.keras.mixed_precision.global_policy().name
  # The package's; your own may compute as they like.
  if hasattr(cls, '_create_for') and policy != 'float32':
    raise UserError(f'{name}: computes in float32, but the global policy of '
                    f'tf.keras.mixed_precision is {policy}; set float32 before')
  with _as_user_errors(name):
    model = cls(num_configs, num_ops, **kwargs)
  if graph is not None:
    create_variables(model, graph, tried)
  return model
