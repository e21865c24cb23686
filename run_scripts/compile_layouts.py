"""Judges layouts of the sample programs by Google's TPU compiler.

  python run_scripts/compile_layouts.py DIR [--only NAME ...]

For maintainers; needs this package with its extra [tpu], no TPU. Reads
DIR/hlo/NAME.pb of `lower_programs.py` and writes, for each program,

  DIR/NAME.pb       its HLO before layouts are assigned
  DIR/NAME.jsonl    a line for each configuration: search, options, cycles
  DIR/kernels.jsonl cycles of each distinct kernel, of all programs

Each result is appended as it comes, so an interrupted run goes on.

The compiler assigns layouts and fuses in milliseconds; what takes seconds is
the machine code, and with it the cycles of each kernel. So a program is
compiled with an argument that no TPU has room for: it fails after the last
pass over the HLO, and the compiler's dump has the kernels. Only kernels that
were not seen before are compiled to the end, each alone. Their cycles are the
same as within the whole program.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Optional

import layout_choices
import numpy as np
import pack_kernels

from tpu_graphs_ext.hlo import (
  kernel_modules,
  libtpu,
  protos,
  tiles,
  tpu_compiler,
)
from tpu_graphs_ext.sample import layouts

# Of the search: from how many of the fastest is bred, and the chance of a
# group to change by itself.
_PARENTS = 12
_MUTATION = 0.12
_PATIENCE = 400  # Draws without a new configuration that end a search.
# Of a copy that turns dimensions around, by the compiler's own estimates.
BYTES_PER_CYCLE = 170
COMPILER = 'libtpu 0.0.42.1'
# Configurations of a search, by split. Of 150, ten tries with any model find
# one of the fastest.
CONFIGS = {'train': 150, 'valid': 150, 'test': 500}
FEWEST = min(CONFIGS.values())  # Of a program that is packed.
_DUMP = ('--xla_dump_to={} --xla_dump_hlo_as_proto --xla_dump_hlo_pass_re=.* '
         '--xla_dump_hlo_pipeline_re=Layout.assignment|final.rematerialization')
# Optimisations of machine code, a quarter of the time; cycles are estimated
# before those.
_QUICKLY = ('--xla_tpu_enable_pipelined_loop_unrolling=false '
            '--xla_jf_xlu_optimizer=false '
            '--xla_jf_critical_path_scheduler=false '
            '--xla_tpu_load_store_optimizations=false')
# What the compiler decided about a kernel's tile: it is to decide again.
_DECISIONS = ('window_config', 'used_scoped_memory_configs', 'retry_config',
              'convolution_algorithm_config')
_BEFORE = 'Layout_assignment.after_pipeline-start'
_AFTER = 'Layout_assignment.after_layout-assignment'
_NO_ROOM = 'no_room'
# Tensors that there is no room for are later stored differently.
_LAST = 'final_rematerialization.after_pipeline-start'


def compiler(dump: str) -> libtpu.Compiler:
  """libtpu in this process, which leaves stages of each program in a folder."""
  os.environ.update(libtpu.ENVIRONMENT, XLA_FLAGS=_DUMP.format(dump),
                    LIBTPU_INIT_ARGS=_QUICKLY)
  return libtpu.Compiler(
      libtpu.library(), libtpu.topology_of('v3'))


class Passes:
  """The compiler's passes over the HLO, without its back end."""

  def __init__(self, tpu: libtpu.Compiler, folder: str):
    self._tpu, self._folder = tpu, folder

  def run(self, module) -> dict:
    """Stage -> the module there: before and after layouts, and optimised."""
    self._stages()  # What kernels left.
    try:
      self._tpu.compile(_without_room(module).SerializeToString(), 'hlo',
                        tpu_compiler.compile_options())
      raise RuntimeError('there is room for the argument')
    except libtpu.PjrtError as error:
      if 'Ran out of memory' not in str(error):
        raise
    return self._stages()

  def _stages(self) -> dict:
    stages = {}
    for name in sorted(os.listdir(self._folder)):
      path = os.path.join(self._folder, name)
      for stage in (_BEFORE, _AFTER, _LAST):
        if stage in name:
          with open(path, 'rb') as file:
            stages[stage] = tpu_compiler.parse_optimized(file.read())
      os.remove(path)
    return stages


def _without_room(module):
  """The program with one more argument, of 2^38 bytes."""
  larger = protos.HloModuleProto()
  larger.CopyFrom(module)
  entry = _entry(larger)
  argument = entry.instructions.add(
      name=_NO_ROOM, opcode='parameter', id=_next_id(larger),
      parameter_number=sum(
          node.opcode == 'parameter' for node in entry.instructions))
  argument.shape.element_type = protos.PrimitiveType.Value('S8')
  argument.shape.dimensions.extend([1 << 19] * 2)
  argument.shape.is_dynamic_dimension.extend([False] * 2)
  argument.shape.layout.minor_to_major.extend([1, 0])
  for shape in (entry.program_shape, larger.host_program_shape):
    shape.parameters.add().CopyFrom(argument.shape)
    shape.parameter_names.append(argument.name)
  return larger


def _with_room(module):
  """A program of the dump without that argument, which comes last."""
  smaller = protos.HloModuleProto()
  smaller.CopyFrom(module)
  smaller.ClearField('frontend_attributes')  # They count arguments, too.
  entry = _entry(smaller)
  for node in [n for n in entry.instructions if n.name == _NO_ROOM]:
    entry.instructions.remove(node)
    for shape in (entry.program_shape, smaller.host_program_shape):
      del shape.parameters[-1], shape.parameter_names[-1]
  return smaller


def _entry(module):
  return next(c for c in module.computations
              if c.id == module.entry_computation_id)


def _next_id(module) -> int:
  """An id for the entry; XLA tells ids apart by their lower 32 bits."""
  low = max(node.id % 2**32 for c in module.computations
            for node in c.instructions)
  return 1 + low + (_entry(module).root_id >> 32 << 32)


# --- Layouts -----------------------------------------------------------------


def constrained(module, choices, chosen):
  """The program, asked for the layouts of a configuration.

  Args:
    module: before layouts are assigned.
    choices: of `layout_choices`.
    chosen: the option of each group.
  """
  asked = protos.HloModuleProto()
  asked.CopyFrom(module)
  entry, number = _entry(asked), _next_id(asked)
  wanted = {choice.instruction_id: choice.options[chosen[choice.group]]
            for choice in choices}
  nodes = {node.id: node for node in entry.instructions}
  renamed, written = {}, []

  def constraint(operand: int, shape, order):
    nonlocal number
    node = protos.HloInstructionProto(
        name=f'layout.{number}', opcode='custom-call', id=number,
        custom_call_target='LayoutConstraint', operand_ids=[operand],
        constrain_layout=True)
    node.shape.CopyFrom(shape)
    node.shape.layout.minor_to_major[:] = layout_choices.completed(
        order, len(shape.dimensions))
    node.operand_shapes_with_layout.add().CopyFrom(node.shape)
    number += 1
    written.append(node)
    return node.id

  for node in list(entry.instructions):
    option = wanted.get(node.id, ((), (), ()))
    operands = [renamed.get(i, i) for i in node.operand_ids]
    for place, order in enumerate(option[1:]):
      if order:
        operands[place] = constraint(
            operands[place], nodes[node.operand_ids[place]].shape, order)
    copy = protos.HloInstructionProto()
    copy.CopyFrom(node)
    copy.operand_ids[:] = operands
    written.append(copy)
    if option[0]:
      renamed[node.id] = constraint(node.id, node.shape, option[0])
  root = renamed.get(entry.root_id, entry.root_id)
  del entry.instructions[:]
  entry.instructions.extend(written)
  entry.root_id = root
  return asked


def compilers_own(assigned, choices) -> list:
  """The option of each group that is next to the compiler's own layouts.

  Args:
    assigned: the program after the compiler has assigned layouts.
    choices: of the program before that; instructions keep their names.
  """
  nodes = {node.id: node for c in assigned.computations
           for node in c.instructions}
  by_name = {node.name: node for node in nodes.values()}
  nearest = {}
  for choice in choices:
    node = by_name.get(choice.name)
    if choice.group in nearest or node is None:
      continue
    shapes = [node.shape, *(nodes[i].shape for i in node.operand_ids)][:3]
    orders = [list(shape.layout.minor_to_major) for shape in shapes]

    def agreement(option, orders=orders):
      # A reshape is left to the compiler, as in the real files.
      if not any(option):
        return 9
      return sum(bool(order) and order.index(wanted[0]) < order.index(
          wanted[1]) for wanted, order in zip(option, orders)
          if len(wanted) > 1)
    nearest[choice.group] = max(
        range(len(choice.options)),
        key=lambda i, c=choice: agreement(c.options[i]))
  return [nearest.get(group, 0) for group in range(
      1 + max(choice.group for choice in choices))]


# --- Cycles ------------------------------------------------------------------


class Cycles:
  """Cycles of kernels, each compiled once."""

  def __init__(self, tpu: libtpu.Compiler, path: str):
    self._tpu, self._path, self.known = tpu, path, {}
    if os.path.exists(path):
      with open(path) as file:
        self.known = dict(map(json.loads, file))

  def of_program(self, optimized) -> int | None:
    """The sum over kernels; None if the compiler refuses one of them."""
    cycles = [(self._of_kernel(kernel.module), kernel.runs)
              for kernel in tpu_compiler.kernels_of(optimized).kernels]
    if any(count is None for count, _ in cycles):
      return None
    return sum(count * times for count, times in cycles)

  def _of_kernel(self, kernel) -> int | None:
    kernel = kernel_modules.renumbered(kernel)
    key = fingerprint(kernel)
    if key not in self.known:
      try:
        module = tpu_compiler.parse_optimized(compiled(kernel, self._tpu))
        self.known[key] = cycles_of(module) or moved_cycles(kernel)
      except libtpu.PjrtError as error:
        print(f'  {kernel.name}: {error}'[:300], flush=True)
        self.known[key] = None
      with open(self._path, 'a') as file:
        file.write(json.dumps([key, self.known[key]]) + '\n')
    return self.known[key]


def compiled(kernel, tpu: libtpu.Compiler) -> bytes:
  """A kernel alone as the compiler optimises it, all tensors in main memory."""
  module = protos.HloModuleProto()
  module.CopyFrom(kernel)
  for node in protos.nodes(module):
    if node.backend_config.startswith(b'{'):
      node.backend_config = json.dumps({
          key: value for key, value in json.loads(node.backend_config).items()
          if key not in _DECISIONS}).encode()
  kernel_modules.complete(module)
  return tpu.compile(module.SerializeToString(), 'hlo',
                     tpu_compiler.compile_options(
                         shape=module.host_program_shape))[0]


def cycles_of(module) -> int:
  """The sum over all instructions with a tile."""
  windows = [tpu_compiler.window_of(node) for c in module.computations
             for node in c.instructions]
  return sum(window.cycles or 0 for window in windows if window)


def moved_cycles(kernel) -> int:
  """For kernels of which the compiler estimates nothing: what they move.

  Those are reshapes that move elements, gathers, gradients of max pools.
  """
  root = tpu_compiler.root_of(kernel)
  shapes = [root.shape, *(
      node.shape for node in _entry(kernel).instructions
      if node.id in root.operand_ids)]
  return math.ceil(sum(map(_stored_bytes, shapes)) / BYTES_PER_CYCLE)


def _stored_bytes(shape) -> int:
  if shape.tuple_shapes:
    return sum(map(_stored_bytes, shape.tuple_shapes))
  sizes = [shape.dimensions[d] for d in tiles.physical_dims(
      shape.layout.minor_to_major, len(shape.dimensions))]
  padded = math.prod(math.ceil(size / unit) * unit for size, unit in zip(
      sizes, tiles.layout_units(sizes)))
  return padded * tiles.element_bytes(
      protos.PrimitiveType.Name(shape.element_type))


def fingerprint(kernel) -> str:
  """Of what a renumbered kernel computes: without names."""
  bare = protos.HloModuleProto()
  bare.CopyFrom(kernel)
  for computation in bare.computations:
    computation.name = ''
    computation.ClearField('program_shape')
    for node in computation.instructions:
      for field in ('name', 'metadata', 'frontend_attributes',
                    'backend_config'):
        node.ClearField(field)
  content = b''.join(c.SerializeToString(deterministic=True)
                     for c in bare.computations)
  return hashlib.sha256(content).hexdigest()[:24]


# --- Searches ----------------------------------------------------------------


def group_sizes(choices) -> np.ndarray:
  """int64 [groups]: options of each group of `layout_choices`."""
  sizes = {choice.group: len(choice.options) for choice in choices}
  return np.array([sizes[group] for group in range(len(sizes))], np.int64)


def searched(kind: str, sizes: np.ndarray, first: Sequence[int], configs: int,
           judge: Callable[[tuple], Optional[int]], name: str
           ) -> dict[tuple, int]:
  """Distinct configurations and their runtimes, in the order of the search.

  Args:
    kind: of `SEARCHES`.
    sizes: options of each group.
    first: the compiler's own choice, the first configuration.
    configs: how many.
    judge: the runtime of a configuration, None if it does not compile.
    name: of the program, which seeds the search.
  """
  chance = np.random.default_rng(zlib.crc32(f'{kind} {name}'.encode()))
  tried, runtimes = set(), {}
  drawn, fruitless = np.array(first), 0
  while len(runtimes) < configs and fruitless < _PATIENCE:
    fresh = tuple(drawn.tolist()) not in tried
    runtime = None
    if fresh:
      tried.add(chosen := tuple(drawn.tolist()))
      runtime = judge(chosen)
    if runtime is None:
      fruitless += 1
    else:
      runtimes[chosen], fruitless = runtime, 0
    drawn = chance.integers(sizes)
    if kind == 'default' and runtimes:
      best = sorted(runtimes, key=runtimes.get)[:_PARENTS]
      mother, father = (np.array(best[i]) for i in chance.integers(
          len(best), size=2))
      child = np.where(chance.random(len(sizes)) < 0.5, mother, father)
      drawn = np.where(chance.random(len(sizes)) < _MUTATION, drawn, child)
  return runtimes


# --- Programs ----------------------------------------------------------------


def measure(name: str, folder: str, configs: int, passes: Passes,
            cycles: Cycles) -> str:
  """Adds what a program lacks; returns a line that says what it has."""
  start = time.monotonic()
  with open(os.path.join(folder, 'hlo', name + '.pb'), 'rb') as file:
    module = protos.as_module(file.read())
  before = _with_room(passes.run(module)[_BEFORE])
  before.name = name
  stages = passes.run(before)
  choices = layout_choices.layout_choices(before)
  path = os.path.join(folder, name)
  with open(path + '.pb', 'wb') as file:
    file.write(before.SerializeToString(deterministic=True))
  known, refused = {}, 0
  if os.path.exists(path + '.jsonl'):
    with open(path + '.jsonl') as file:
      known = {tuple(chosen): count for _, chosen, count in map(
          json.loads, file)}
  sizes = group_sizes(choices)
  first = compilers_own(stages[_AFTER], choices)
  free = cycles.of_program(stages[_LAST])

  def judge(search, chosen):
    nonlocal refused
    chosen = tuple(int(option) for option in chosen)
    if chosen not in known:
      try:
        optimized = passes.run(constrained(before, choices, chosen))[_LAST]
        known[chosen] = cycles.of_program(optimized)
      except libtpu.PjrtError as error:
        print(f'  {chosen}: {error}'[:300], flush=True)
        known[chosen] = None
      with open(path + '.jsonl', 'a') as file:
        file.write(json.dumps([search, chosen, known[chosen]]) + '\n')
    refused += known[chosen] is None
    return known[chosen]

  runtimes = {}
  for search in layouts.SEARCHES:
    runtimes[search] = searched(
        search, sizes, first, configs, lambda c, s=search: judge(s, c), name)
  counts = '; '.join(
      f'{search} {len(judged)} of {min(judged.values()):,} to '
      f'{max(judged.values()):,}'
      for search, judged in runtimes.items() if judged)
  return (f'{name}: {len(choices)} nodes, {len(sizes)} groups; own {free:,}; '
          f'{counts}; {refused} refused; {len(cycles.known)} kernels, '
          f'{time.monotonic() - start:.0f} s')


def pack(folder: str, splits: dict) -> None:
  """Writes the sample data of all programs that were judged."""
  programs = []
  for name, split in splits.items():
    path = os.path.join(folder, name)
    if not os.path.exists(path + '.jsonl'):
      continue
    with open(path + '.pb', 'rb') as file:
      module = protos.as_module(file.read())
    with open(path + '.jsonl') as file:
      rows = [(tuple(chosen), cycles)
              for _, chosen, cycles in map(json.loads, file)]
    known, first = dict(rows), rows[0][0]
    choices = layout_choices.layout_choices(module)
    sizes = group_sizes(choices)
    searches = {}
    for search in layouts.SEARCHES:
      judged = searched(
          search, sizes, first, CONFIGS[split], known.get, name)
      searches[search] = (np.array(list(judged)),
                          np.array(list(judged.values()), np.int64))
    if min(len(cycles) for _, cycles in searches.values()) < FEWEST:
      print(f'{name}: left out, too few configurations', file=sys.stderr)
      continue
    programs.append(layouts.Program(
        name, split, bare(module), np.array([c.node for c in choices]),
        np.array([c.group for c in choices]),
        list(map(layout_choices.option_features, choices)), searches))
  save(programs, COMPILER)
  print(f'{layouts.PATH}: {len(programs)} programs, '
        f'{os.path.getsize(layouts.PATH) / 1024:.0f} KiB')


def save(programs: Sequence[layouts.Program], compiler: str,
         path: str = layouts.PATH) -> None:
  """Writes a file that `layouts.load` reads."""
  judged = [rows for p in programs for rows in p.searches.values()]
  pack_kernels.pack(
      path, {'format': layouts.FORMAT, 'compiler': compiler, 'programs': [
          [p.name, p.split, len(p.module), len(p.nodes),
           {search: len(cycles) for search, (_, cycles) in p.searches.items()}]
          for p in programs]},
      modules=np.frombuffer(b''.join(p.module for p in programs), np.uint8),
      nodes=np.concatenate([np.stack(
          [p.nodes, p.groups, list(map(len, p.options))], 1)
                            for p in programs]).astype(np.uint16),
      options=np.concatenate([options for p in programs
                              for options in p.options]).astype(np.int8),
      chosen=np.concatenate([options.T.reshape(-1) for options, _ in judged]
                            ).astype(np.uint8),
      cycles=np.concatenate([cycles for _, cycles in judged]))


def bare(module) -> bytes:
  """A program without what features do not have, all tensors row-major."""
  for computation in module.computations:
    is_entry = computation.id == module.entry_computation_id
    computation.name = 'cluster' if is_entry else 'region'
    computation.ClearField('program_shape')
    for node in computation.instructions:
      for field in ('name', 'literal', 'metadata', 'frontend_attributes',
                    'backend_config', 'statistics_viz', 'sharding'):
        node.ClearField(field)
      for shape in (node.shape, *node.shape.tuple_shapes):
        if not shape.tuple_shapes:
          shape.layout.Clear()
          shape.layout.minor_to_major.extend(range(len(shape.dimensions))[::-1])
  kept = protos.HloModuleProto(entry_computation_id=module.entry_computation_id)
  kept.computations.extend(module.computations)
  return kept.SerializeToString(deterministic=True)


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('dir')
  parser.add_argument('--only', nargs='*', help='names of programs')
  parser.add_argument('--pack', action='store_true',
                      help='write what there is into the package')
  args = parser.parse_args()
  with open(os.path.join(args.dir, 'hlo', 'programs.json')) as file:
    splits = json.load(file)
  if args.pack:
    pack(args.dir, splits)
    return
  with tempfile.TemporaryDirectory(dir='/dev/shm') as dump:
    tpu = compiler(dump)
    passes = Passes(tpu, dump)
    cycles = Cycles(tpu, os.path.join(args.dir, 'kernels.jsonl'))
    for name in args.only or splits:
      try:
        print(measure(name, args.dir, CONFIGS[splits[name]], passes, cycles),
              flush=True)
      except Exception as error:
        print(f'{name}: {error!r}'[:600], file=sys.stderr, flush=True)


if __name__ == '__main__':
  main()
