"""TensorFlow and JAX functions -> HLO that no compiler has changed yet.

JAX functions are lowered for a TPU, so that platform-dependent code takes the
TPU's branch. Imports TensorFlow or JAX only to lower a function of theirs.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import operator
import os
import re
import sys
import types
from typing import Any, Callable

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError, how_to_install, reason_of

# XLA's name of an element type -> NumPy's, which may be written too.
_TYPES = {'f32': 'float32', 'f16': 'float16', 'bf16': 'bfloat16',
          'f64': 'float64', 'pred': 'bool', 's4': 'int4', 's8': 'int8',
          's16': 'int16', 's32': 'int32', 's64': 'int64', 'u4': 'uint4',
          'u8': 'uint8', 'u16': 'uint16', 'u32': 'uint32', 'u64': 'uint64',
          'c64': 'complex64', 's2': 'int2', 'u2': 'uint2',
          'f4e2m1fn': 'float4_e2m1fn', **{f'f8{form}': f'float8_{form}' for form
          in ('e4m3fn', 'e5m2', 'e4m3', 'e3m4', 'e8m0fnu', 'e4m3b11fnuz')}}
NUMPY_NAMES = {**_TYPES, **{name: name for name in _TYPES.values()}}
_SHAPE = re.compile(r'([a-z]\w*)\[\s*((?:\d{1,18}(?:\s*,\s*\d{1,18})*)?)\s*\]')
# A function's name, with its module or the path of its file, or without.
_NAME = re.compile(r'(?:.+:)?[A-Za-z_][\w.]*')
# Those whose functions and modules JAX compiles, and TensorFlow.
_JAX_LIBRARIES = frozenset({'jax', 'jaxlib', 'flax', 'haiku', 'equinox',
                            'optax', 'penzai'})
_TF_LIBRARIES = frozenset({'tensorflow', 'keras', 'tf_keras'})
SAVED_MODEL = 'saved_model.pb'  # The file in its folder.
# With these a file may define names that do not stand in it.
_MAKE_NAMES = frozenset({'__getattr__', 'globals', 'exec', 'setattr', 'vars'})


def names_function(name: str) -> bool:
  """Whether this is 'module:function', and not the path of a file."""
  return (':' in name and bool(_NAME.fullmatch(name))
          and not os.path.exists(os.path.expanduser(name)))


def parse_shapes(text: str) -> list[tuple[str, list[int]]]:
  """'f32[512,1024] s32[]' -> [('f32', [512, 1024]), ('s32', [])].

  Raises UserError if it is not a list of shapes, or names an unknown type.
  """
  shapes = [(name, [int(size) for size in re.findall(r'\d+', sizes)])
            for name, sizes in _SHAPE.findall(text)]
  if _SHAPE.sub('', text).strip(' ,;\t\n') or not all(
      name in NUMPY_NAMES for name, _ in shapes):
    raise UserError(
        f'--shapes={text[:200]}: cannot be read; write, for example, '
        '"f32[512,1024] bf16[1024,4096]", or name a function that returns the '
        f'arguments. The types are {", ".join(_TYPES)}')
  return shapes


def require_names(target: str, arguments: str, jax_python: str = '') -> None:
  """Raises a UserError for names that are wrong.

  Runs nothing of the user's: it looks for the file and reads it.
  """
  if not is_name(arguments):
    parse_shapes(arguments)
  module, _, name = target.rpartition(':')
  if not module:
    raise UserError(f'{target}: names no function; name one as module:function '
                    'or file.py:function')
  is_file = module.endswith('.py')
  path = os.path.expanduser(
      module if is_file else module.replace('.', os.sep) + '.py')
  if not os.path.isfile(path):
    if is_file:
      raise UserError(f'{target}: no such file: {module}')
    package = module.split('.')[0]
    if not jax_python and not _is_installed(package):
      raise UserError(f'{target}: there is no module {package!r} in '
                      f'{os.getcwd()} or PYTHONPATH')
    return
  try:
    text = files.read_file(path).decode(errors='replace')
  except UserError:
    return  # Python says it better when it imports the file.
  words = set(re.findall(r'[^\W\d]\w*', text))
  if words & _MAKE_NAMES or 'import *' in text:
    return
  for wanted in (name, arguments.strip() if is_name(arguments) else ''):
    first = wanted.split('.')[0]
    if first and ':' not in first and first not in words:
      similar = difflib.get_close_matches(first, words, 1)
      raise UserError(f'{target}: {module} has no {first!r}' + (
          f'; did you mean {similar[0]!r}?' if similar else ''))


def _is_installed(package: str) -> bool:
  try:
    return any(os.path.exists(each) for each in (package, package + '.py')
               ) or importlib.util.find_spec(package) is not None
  except (ImportError, ValueError):
    return False


def lower_named(target: str, arguments: str) -> bytes:
  """Imports 'module:function' or 'file.py:function'; then as `lower`.

  `arguments` are shapes, or the name of a function that returns them, in the
  same module or as 'module:name'. The target may be the folder of a SavedModel.
  """
  if is_saved_model(target):
    return _lower_saved(target, arguments)
  function = _import(target)
  return lower(function, _returned(target, arguments.strip())
               if is_name(arguments)
               else arguments_of_shapes(function, arguments), target)


def is_name(arguments: str) -> bool:
  """Whether these name a function that returns them, and are no shapes."""
  name = arguments.strip()
  return bool(_NAME.fullmatch(name)) and name not in NUMPY_NAMES


def arguments_of_shapes(function: Callable, text: str) -> tuple:
  """'f32[512,1024] s32[]' -> abstract arguments for `lower`."""
  shapes, hint = parse_shapes(text), ''
  if is_jax(function):
    import jax
    hint = (f'; JAX {jax.__version__} does not have it: name the Python of a '
            'later one with --jax_python')
    Spec = jax.ShapeDtypeStruct
    wide = [name for name, _ in shapes if '64' in name and name[0] != 'c']
    if wide and not jax.config.jax_enable_x64:
      raise UserError(f'--shapes: JAX makes {wide[0]} half as wide unless '
                      'JAX_ENABLE_X64=1 is set; set it, or write f32, s32, u32')
  else:
    from tensorflow import TensorSpec as Spec
  try:
    return tuple(Spec(tuple(dims), NUMPY_NAMES[name]) for name, dims in shapes)
  except TypeError as error:  # TensorFlow, or an older JAX, lacks the type.
    raise UserError(f'--shapes: {reason_of(error)}{hint}') from error


def lower(function: Any, arguments: Any, name: str = '') -> bytes:
  """A TensorFlow or JAX function as a serialized `HloModuleProto`.

  The function may be a module of Keras, Equinox, Flax or Haiku, and what
  `jax.jit(...)`'s `trace` or `lower` returns. `arguments`, a tuple or a single
  one, are arrays, `jax.ShapeDtypeStruct`s or `tf.TensorSpec`s, nested as you
  like; empty or None for a `tf.function` with an input signature. Anything else
  in them is static, such as numbers and functions of a module. Shardings of JAX
  are kept.

  Raises UserError, which names the function, if it cannot be lowered.
  """
  name = name or getattr(function, '__name__', type(function).__name__)
  if not isinstance(arguments, (tuple, list, type(None))):
    arguments = (arguments,)
  arguments = tuple(arguments or _signature(function))
  of_jax = is_jax(function, arguments)
  try:
    return (_lower_jax if of_jax else _lower_tensorflow)(function, arguments)
  except Exception as error:  # The user's function may raise anything.
    if isinstance(error, UserError):
      raise UserError(f'{name}: {error}') from error
    shown = ', '.join(str(argument)[:60] for argument in arguments[:6])
    hint = ('; a callback such as jax.pure_callback or io_callback leaves the '
            'TPU: take it out' if 'lowering platform' in str(error) else
            '; leave out what runs on the host, such as tf.print'
            if 'unsupported operations' in str(error) else '')
    raise UserError(
        f'{name}: {"JAX" if of_jax else "XLA"} cannot compile it for the '
        f'arguments {shown or "(none; give --shapes)"} '
        f'({type(error).__name__}: {reason_of(error)}){hint}') from error


def _signature(function) -> tuple:
  """The arguments that a `tf.function`, a module or a Keras model declares."""
  declared = getattr(function, 'input_signature', None)
  if declared is None and callable(function):
    declared = getattr(function.__call__, 'input_signature', None)
  if (declared is None and hasattr(function, 'get_config')
      and not is_jax(function)):
    import tensorflow as tf
    declared = [tf.TensorSpec(each.shape, each.dtype)
                for each in getattr(function, 'inputs', None) or ()]
    declared = [declared] if len(declared) > 1 else declared
  return declared or ()


def _lower_jax(function, arguments: tuple) -> bytes:
  if type(function).__name__ == 'Traced':  # Of `jax.jit(f).trace(...)`.
    function = function.lower(lowering_platforms=('tpu',))
  if hasattr(function, 'compiler_ir'):  # `jax.stages.Lowered`.
    return function.compiler_ir('hlo').as_serialized_hlo_module_proto()
  import jax
  _pass_over_prints()
  name = getattr(function, '__name__', type(function).__name__)
  function, arguments = _with_weights(function, arguments)
  leaves, structure = jax.tree_util.tree_flatten(arguments)
  abstract = {place: _abstract(leaf) for place, leaf in enumerate(leaves)
              if hasattr(leaf, 'shape') and hasattr(leaf, 'dtype')}

  def filled(arrays):
    values = {**dict(enumerate(leaves)), **dict(zip(abstract, arrays))}
    return jax.tree_util.tree_unflatten(structure, list(values.values()))

  # Not `jax.nn.relu`. A `jax.pmap` within a jit would collect its results.
  compiles = (isinstance(function, type(jax.jit(abs)))
              or type(function).__name__ == 'PmapFunction')
  if compiles and all(
      place in abstract or isinstance(leaf, (bool, int, float, complex))
      for place, leaf in enumerate(leaves)):
    return _for_tpu(function, filled(abstract.values()))

  def flat(*arguments):
    arrays = jax.tree_util.tree_leaves(arguments)
    given, known = filled(arrays), set(map(id, arrays))
    modules = jax.tree_util.tree_leaves(given, is_leaf=lambda each: (
        not isinstance(each, (dict, list, tuple))))
    returned = function(*given)
    # A module of Flax changes its own state, which is a result then.
    changed = [leaf for leaf in jax.tree_util.tree_leaves(modules)
               if id(leaf) not in known]
    return [leaf for leaf in [*jax.tree_util.tree_leaves(returned), *changed]
            if hasattr(leaf, 'dtype')]  # A module has functions too.

  flat.__name__, flat.__wrapped__ = name, function  # For arguments' names.
  # None is no leaf of JAX's, so that static arguments drop out.
  return _for_tpu(jax.jit(flat), jax.tree_util.tree_unflatten(
      structure, map(abstract.get, range(len(leaves)))))


def _with_weights(function, arguments: tuple) -> tuple:
  """(function, arguments), with the weights of a module, which would else be
  constants, among the arguments."""
  import jax
  if hasattr(function, 'stateless_call'):  # Of Keras, which hides them.
    values = ([each.value for each in variables] for variables in (
        function.trainable_variables, function.non_trainable_variables))
    return (lambda weights, state, *inputs: function.stateless_call(
        weights, state, *inputs)[0], (*values, *arguments))
  if any(leaf is not function and hasattr(leaf, 'shape')
         for leaf in jax.tree_util.tree_leaves(function)):
    return lambda module, *inputs: module(*inputs), (function, *arguments)
  return function, arguments


def _abstract(leaf):
  import jax
  sharding = getattr(leaf, 'sharding', None)
  # An array in one place is not meant to stay there.
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding if (
      isinstance(sharding, jax.sharding.NamedSharding)) else None)


def _for_tpu(jitted, arguments) -> bytes:
  if hasattr(jitted, 'trace'):
    lowered = jitted.trace(*arguments).lower(lowering_platforms=('tpu',))
  else:  # JAX before 0.4.31.
    lowered = jitted.lower(*arguments)
  return lowered.compiler_ir('hlo').as_serialized_hlo_module_proto()


def _pass_over_prints() -> None:
  """Lowers `jax.debug.print` and `callback` to nothing, as no TPU is here."""
  def nothing(context, *_, **__):
    context.set_tokens_out(context.tokens_in)
    return []

  try:
    from jax._src import debugging
    from jax._src.interpreters import mlir
  except ImportError:  # Not promised; without it JAX refuses such functions.
    return
  for name in ('debug_callback_p', 'debug_print_p'):
    if hasattr(debugging, name):
      mlir.register_lowering(getattr(debugging, name), nothing, platform='tpu')


def converted(content: bytes) -> bytes:
  """HLO text as a serialized `HloModuleProto`; StableHLO bytecode as text.

  Needs jaxlib, and for bytecode JAX. Raises UserError without them, and if the
  content cannot be read.
  """
  try:
    if not content.startswith(b'ML\xefR'):
      try:
        from jaxlib import _hlo as library
      except ImportError:  # Before jaxlib 0.9.
        from jaxlib.xla_client import _xla as library
      return library.hlo_module_from_text(
          content.decode(errors='replace')).as_serialized_hlo_module_proto()
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo
    with mlir.make_ir_context() as context:
      if content[4:].startswith(b'\rStableHLO_v'):
        return str(stablehlo.deserialize_portable_artifact(
            context, content)).encode()
      return str(ir.Module.parse(content)).encode()
  except ImportError as error:
    raise UserError(
        f'jaxlib reads, but this Python has none: {how_to_install("jax")}, or '
        'name the Python of an environment that has JAX with --jax_python; '
        'XLA writes protobufs with --xla_dump_hlo_as_proto') from error
  except Exception as error:  # Whatever XLA's parsers raise.
    raise UserError(f'jaxlib cannot read ({reason_of(error)})') from error


def _lower_tensorflow(function, arguments: tuple) -> bytes:
  import tensorflow as tf
  # A tf.function is unwrapped: it may have been made without jit_compile.
  function = getattr(function, 'python_function', function)
  leaves = tf.nest.flatten(arguments)
  for leaf in leaves:
    if getattr(leaf, 'dtype', None) == tf.string:
      raise UserError('an argument is text (tf.string), which no TPU takes: '
                      'name a function of the numbers that are made of it')
    shape = tf.TensorShape(getattr(leaf, 'shape', []))
    if not shape.is_fully_defined():
      raise UserError(
          f'an argument has the shape {shape}, but a TPU compiles for whole '
          'sizes: give one in place of each None, such as the batch, with '
          "--shapes 'f32[8,224,224,3]' or a tf.TensorSpec([8, 224, 224, 3])")
  tensors = {place: tf.TensorSpec(leaf.shape, leaf.dtype)
             for place, leaf in enumerate(leaves)
             if hasattr(leaf, 'shape') and hasattr(leaf, 'dtype')}

  def flat(*values):  # XLA's compiler takes no nested specifications.
    values = {**dict(enumerate(leaves)), **dict(zip(tensors, values))}
    return function(*tf.nest.pack_sequence_as(arguments, list(values.values())))

  # AutoGraph would read a '<lambda>' as one, and leave its loops as they are.
  flat.__name__ = getattr(function, '__name__', 'function').strip('<>')
  return tf.function(flat, jit_compile=True).experimental_get_compiler_ir(
      *tensors.values())(stage='hlo_serialized')


def is_saved_model(path: str) -> bool:
  """Whether it is a TensorFlow SavedModel: its folder, or the file in it."""
  return os.path.isfile(os.path.join(path, SAVED_MODEL)) or (
      os.path.basename(path) == SAVED_MODEL and os.path.isfile(path))


def _lower_saved(path: str, shapes: str) -> bytes:
  """The function that a SavedModel serves, for its own or other shapes.

  Shapes are those of its inputs, in the order of their names.
  """
  import tensorflow as tf
  folder = path if os.path.isdir(path) else os.path.dirname(path) or '.'
  try:
    with files.no_pattern(folder) as folder:
      model = tf.saved_model.load(folder)
  except Exception as error:  # Whatever TensorFlow raises of a damaged one.
    raise UserError(f'{path}: cannot be loaded as a SavedModel '
                    f'({reason_of(error)})') from error
  served = model.signatures.get('serving_default')
  if served is None:
    raise UserError(
        f'{path}: is a SavedModel without the signature serving_default; it '
        f'has {", ".join(model.signatures) or "none"}. Name a function that '
        'calls it, as module:function')
  # They are stored without an order.
  inputs = dict(sorted(served.structured_input_signature[1].items()))
  given = arguments_of_shapes(served, shapes) or tuple(
      tf.TensorSpec(each.shape, each.dtype) for each in inputs.values())
  if len(given) != len(inputs):
    raise UserError(f'{path}: takes {len(inputs)} inputs, {", ".join(inputs)}'
                    f', in this order; --shapes has {len(given)}')

  def serve(*tensors):
    return served(**dict(zip(inputs, tensors)))

  return lower(serve, given, path)


def _returned(target: str, name: str) -> Any:
  """The arguments that another function returns."""
  if ':' not in name:
    name = f'{target.rpartition(":")[0]}:{name}'
  function = _import(name)
  try:
    return function()
  except Exception as error:  # The user's function may raise anything.
    raise UserError(
        f'{name}: must return the arguments of {target} when called without '
        f'any ({type(error).__name__}: {reason_of(error)})') from error


def _import(target: str) -> Any:
  """The object that 'module:name' or 'file.py:name' names.

  Only from here on is the working folder searched for modules.
  """
  module_name, _, attribute = target.rpartition(':')
  sys.path.insert(0, os.getcwd())
  try:
    module = (_run_file(module_name) if module_name.endswith('.py')
              else importlib.import_module(module_name))
  except (Exception, SystemExit) as error:
    needs_jax = (getattr(error, 'name', None) or '').startswith('jax')
    hint = (f'; {how_to_install("jax")}, or name the Python of an environment '
            'that has it with --jax_python') if needs_jax else ''
    raise UserError(
        f'{target}: {module_name} cannot be imported from {os.getcwd()} or '
        f'PYTHONPATH by {sys.executable} '
        f'({type(error).__name__}: {reason_of(error)}){hint}'
    ) from error
  try:
    return operator.attrgetter(attribute)(module)
  except AttributeError as error:
    raise UserError(f'{target}: {module_name} has no {attribute!r}') from error


def _run_file(path: str) -> Any:
  """A file as a module, run once, with its folder on the import path."""
  name = 'file_' + ''.join(c if c.isalnum() else '_' for c in path)
  if name not in sys.modules:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look their module up.
    spec.loader.exec_module(module)
  return sys.modules[name]


def is_jax(function, arguments: tuple = ()) -> bool:
  """Whether JAX compiles it, by its arguments, its kind, or its module."""
  roots = {type(leaf).__module__.split('.')[0] for leaf in _leaves(arguments)}
  if bool(roots & _JAX_LIBRARIES) != bool(roots & _TF_LIBRARIES):
    return bool(roots & _JAX_LIBRARIES)
  inner = function
  for _ in range(20):  # A jitted function of a partial of a module's method.
    roots = {each.__module__.split('.')[0] for each in type(inner).__mro__}
    roots.add(getattr(inner, '__globals__', {}).get(
        '__name__', '').split('.')[0])
    if roots & (_JAX_LIBRARIES | _TF_LIBRARIES):
      return not roots & _TF_LIBRARIES or (
          hasattr(inner, 'stateless_call')  # Of Keras 3.
          and sys.modules['keras'].backend.backend() == 'jax')
    inner = next((within for within in (
        getattr(inner, name, None) for name in (
            '__self__', 'func', '__wrapped__')) if within is not None), None)
    if inner is None or isinstance(inner, types.ModuleType):
      break
  names = {getattr(value, '__name__', '').split('.')[0]
           for value in getattr(inspect.unwrap(getattr(
               function, 'func', function)), '__globals__', {}).values()
           if type(value).__name__ in ('module', 'LazyLoader')}
  if not names & {'tensorflow', *_JAX_LIBRARIES}:
    names = sys.modules
  return 'tensorflow' not in names and not _JAX_LIBRARIES.isdisjoint(names)


def _leaves(arguments: Any) -> list:
  """What is in nested tuples, lists and dicts."""
  if isinstance(arguments, dict):
    arguments = list(arguments.values())
  if not isinstance(arguments, (tuple, list)):
    return [arguments]
  return [leaf for each in arguments for leaf in _leaves(each)]
