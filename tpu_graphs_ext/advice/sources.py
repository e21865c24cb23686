"""What a user names as something to rank -> kernels, measured or not.

  .npz                 the kernel; its own tiles tell the default
  tuning data (.pb)    the kernels, with their runs
  HLO, proto or text   of an optimised program the fusions; any other one is cut
  module:function      TensorFlow's or JAX's, compiled for shapes, then cut
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Optional

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import (
  cutting,
  dumps,
  features,
  fusions,
  protos,
  tuning,
  workers,
)
from tpu_graphs_ext.host import inputs

# A function's name; not a Windows path, whose part after ':' has a slash.
_FUNCTION = re.compile(r'[\w./~-]+:[A-Za-z_][\w.]*')
_SHAPE = re.compile(r'([a-z]+\d*)\[([\d,\s]*)\]')
# As the sample data's programs are cut on average; nothing is added.
_LIMITS = cutting.CutLimits(share_probability=0.2, join_probability=0.75,
                            copies=0)


@dataclasses.dataclass(frozen=True)
class Found:
  """One kernel of a source.

  Attributes:
    kernel: its name is `tile_id`; no configurations where it has no tiles yet.
    copies: how many kernels of the program are the same.
    notes: what to know of it, a sentence each.
  """
  kernel: Kernel
  copies: int = 1
  notes: tuple = ()


@dataclasses.dataclass(frozen=True)
class Source:
  """Kernels of one file or function.

  Attributes:
    name: as it was given.
    found: the kernels, each graph once.
    notes: how they were made, and what was left out, a sentence each.
    faults: of kernels that cannot be ranked, a message each.
  """
  name: str
  found: list[Found]
  notes: list[str]
  faults: list[str]


def read_source(name: str, shapes: str = '') -> Source:
  """Reads a file, or compiles a function.

  Args:
    name: see the module's docstring.
    shapes: of a function's arguments, as 'f32[512,1024] bf16[1024]'.

  Raises:
    UserError: nothing of it can be read, with the reason.
  """
  path = os.path.expanduser(name)
  if not os.path.exists(path) and _FUNCTION.fullmatch(name):
    module = protos.as_module(
        workers.module_of_function(name, parsed_shapes(shapes)))
    return _of_program(name, dumps.Dump(module, is_optimized=False))
  if not os.path.exists(path):
    raise UserError(f'{name}: no such file; a function is named as '
                    'module:function')
  if shapes:
    raise UserError(f'--shapes goes with a function; {name} is a file')
  if os.path.isdir(path):
    raise UserError(f'{name}: is a folder; name a file of it, or rank the '
                    'tiles of its .npz files with --data')
  if path.endswith('.npz'):
    return _of_npz(name, path)
  content = dumps.content_of(path)
  # XLA's own dumps have the first field of tuning data too.
  data = None if path.endswith('.hlo.pb') else tuning.data_in(path, content)
  if data is not None and _has_runs(data[0]):
    return _of_tuning(name, *data)
  return _of_program(name, dumps.read_dump(name, content))


def parsed_shapes(text: str) -> list[tuple]:
  """'f32[512,1024] s32[]' -> [('f32', [512, 1024]), ('s32', [])].

  Raises:
    UserError: it is written otherwise, or a type has another name.
  """
  found, rest = [], _SHAPE.sub('', text)
  for name, sizes in _SHAPE.findall(text):
    if name not in workers.TYPES:
      raise UserError(f'--shapes={text}: there is no type {name!r}; choose '
                      f'from {", ".join(workers.TYPES)}')
    try:
      found.append((name, [int(size) for size in sizes.split(',')
                           if sizes.strip()]))
    except ValueError:
      rest = sizes
  if rest.strip(' ,;'):
    raise UserError(f'--shapes={text}: cannot be read at {rest.strip()!r}; '
                    'write, for example, "f32[512,1024] bf16[1024,4096]"')
  return found


# --------------------------------------------------------------- files


def _of_npz(name: str, path: str) -> Source:
  return Source(name, [Found(kernel) for kernel in inputs.read_kernels(path)],
                [], [])


def _has_runs(data) -> bool:
  return any(run.HasField('op_config') or run.HasField('module_config')
             for module in data.modules for run in module.runs)


def _of_tuning(name: str, data, stem: str) -> Source:
  parts = []
  for module_data in data.modules:
    single = protos.TuningData(modules=[module_data])
    kernels = []
    try:
      kernels = tuning.tile_kernels(single, stem)
    except UserError as error:
      unmeasured = str(error)
    else:
      unmeasured = 'it has no two runs that count'
    if kernels:
      parts.append(Source(name, [Found(kernel) for kernel in kernels], [], []))
      continue
    module = protos.as_module(module_data.module)
    part = _of_program(name, dumps.Dump(module, dumps.is_fused(module)))
    parts.append(dataclasses.replace(
        part, notes=[f'module {module.name!r} is ranked as one that was never '
                     f'timed: {unmeasured}', *part.notes]))
  return Source(name, *(
      [one for part in parts for one in getattr(part, field)]
      for field in ('found', 'notes', 'faults')))


# ------------------------------------------------------------ programs


def _of_program(name: str, dump: dumps.Dump) -> Source:
  """Takes a program apart, or cuts it; its name goes into messages."""
  notes = []
  try:
    if dump.is_optimized:
      taken = fusions.kernels_of(dump.module)
      modules, passed_over = taken.modules, taken.passed_over
      if passed_over:
        notes.append('passed over, as no kernels with tiles: ' + ', '.join(
            f'{count} {opcode}' for opcode, count in passed_over.items()))
    else:
      module = fusions.inlined(dump.module)
      notes += _too_many_dims(module)
      modules = cutting.cut_kernels(module, _LIMITS, seed=0)
      notes.insert(0, (
          f'not fused: cut into kernels ({len(modules)}), with layouts, by the '
          "rules of the sample data, which are not the TPU compiler's"))
  except (LookupError, ValueError, ArithmeticError) as error:
    raise UserError(f'{name}: HLO module {dump.module.name!r} cannot be taken '
                    f'apart ({error!r}); it is incomplete or damaged'
                    ) from error
  except UserError as error:
    raise UserError(f'{name}: {error}') from error
  found, faults = _each_once(modules)
  if not found and not faults:
    notes.append('it has no kernel with tiles' + (
        '' if dump.is_optimized else '; results of fewer than 512 elements '
        'become none'))
  return Source(name, found, notes, [f'{name}: {fault}' for fault in faults])


def _too_many_dims(module) -> list[str]:
  names = [node.name for computation in module.computations
           if computation.id == module.entry_computation_id
           for node in computation.instructions
           if len(node.shape.dimensions) > schema.MAX_DIMS]
  if not names:
    return []
  return [f'{shortened(names)}: more than {schema.MAX_DIMS} dimensions, for '
          'which features have no columns; kernels that would hold them are '
          'left out']


def _each_once(modules: Sequence) -> tuple[list[Found], list[str]]:
  """(kernels with different graphs, messages of those without features)."""
  found, faults, uses = {}, [], collections.Counter()
  for module in modules:
    uses[module.name] += 1
    name = module.name
    if uses[name] > 1:  # Cut kernels are numbered one by one.
      name += f' ({uses[name]})'
    try:
      kernel, notes = _kernel(module, name)
    except UserError as error:
      faults.append(str(error))
      continue
    key = (kernel.node_feat.tobytes(), kernel.node_opcode.tobytes(),
           kernel.edge_index.tobytes())
    if key in found:
      found[key] = dataclasses.replace(
          found[key], copies=found[key].copies + 1)
    else:
      found[key] = Found(kernel, notes=tuple(notes))
  return list(found.values()), faults


def _kernel(module, name) -> tuple[Kernel, list[str]]:
  """A kernel without configurations, and what to know of it."""
  nodes = [node for computation in module.computations
           for node in computation.instructions]
  high = [node for node in nodes
          if len(node.shape.dimensions) > schema.MAX_DIMS]
  if high:
    raise UserError(
        f'{name}: {high[0].name} has {len(high[0].shape.dimensions)} '
        f'dimensions; features have columns for {schema.MAX_DIMS}, so this '
        'kernel cannot be ranked')
  unknown = sorted({node.opcode for node in nodes
                    if node.opcode not in schema.OPCODES})
  notes = [f'the model does not know what {shortened(unknown)} does: no '
           'number of the data set stands for it'] if unknown else []
  arrays = features.module_arrays(module)
  none = np.zeros(0, np.int64)
  return Kernel(
      tile_id=name, node_feat=arrays.node_feat,
      node_opcode=arrays.node_opcode, edge_index=arrays.edge_index,
      config_feat=np.zeros((0, len(schema.CONFIG_FEATURES)), np.float32),
      runtime_ns=none, normalizer_ns=none), notes


def default_of(kernel: Kernel) -> Optional[int]:
  """The configuration that is the compiler's default; None without any.

  The normalizer is its time; where times are withheld it is the tile that is
  listed several times, else the first.
  """
  if not kernel.num_configs:
    return None
  same = np.flatnonzero(kernel.runtime_ns == kernel.normalizer_ns)
  if same.size and (kernel.runtime_ns > 1).all():
    return int(same[0])
  _, first, count = np.unique(kernel.config_feat, axis=0, return_index=True,
                              return_counts=True)
  return int(first[np.argmax(count)]) if count.max() > 1 else 0
