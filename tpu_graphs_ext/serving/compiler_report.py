"""What the TPU's compiler says of a program's kernels; no model, no TensorFlow.

    print(tpu_graphs_ext.kernels('dump.hlo.pb', tpu='v5e').text())
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine.settings import checked
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import costs, kernel_sources


@dataclasses.dataclass(frozen=True)
class KernelReport:
  """One kernel; of equal ones in the program only the first is listed."""
  name: str
  op_name: str  # The operation in the user's program; '' if unknown.
  runs: int  # Of all equal kernels, each time the program runs.
  in_open_loop: bool  # In a loop of unknown trips: `runs` counts one.
  share: Optional[float]  # Of the program's time, by the compiler's cycles.
  cycles: Optional[int]  # Of one run, by the compiler's estimate.
  output_bounds: tuple[int, ...]  # The compiler's tile, as `Window` has it.
  kernel_bounds: tuple[int, ...]
  flops: int  # Of one run, as are the others.
  bytes: int  # Read and written.
  hbm_bytes: int  # Those of them in main memory.
  flops_per_byte: float
  on_chip_bytes: int  # The kernel's buffers, and its tensors on chip.


@dataclasses.dataclass(frozen=True)
class CompilerReport:
  """The kernels of a program, those with most estimated time first."""
  source: str  # The program's name.
  tpu: str  # Generation, such as 'v5e'.
  kernels: list[KernelReport]  # One for all equal ones.
  notes: list[str]  # How they were made and what was left out.

  def text(self) -> str:
    """A heading, notes and a line for each kernel."""
    return '\n'.join([f'{self.source}: {counted(len(self.kernels), "kernel")}',
                      *(f'  {note}' for note in self.notes), '', self.table()])

  def table(self) -> str:
    return table([
        ('kernel', 'share of time', 'cycles', 'tile', 'GFLOP', 'MiB',
         'of HBM', 'FLOP/byte', 'MiB on chip', 'operation'),
        *map(_row, self.kernels)])

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)


def to_csv(reports: Sequence[CompilerReport]) -> str:
  """One row for each kernel; bounds as '16x32'."""
  import pandas as pd
  names = [field.name for field in dataclasses.fields(KernelReport)]
  return files.csv_of(pd.DataFrame([
      (report.source, report.tpu, *(
          sizes(value) if isinstance(value, tuple) else value
          for value in vars(kernel).values()))
      for report in reports for kernel in report.kernels
  ], columns=['source', 'tpu', *names], dtype=object))


@checked
def kernels(source: Any, shapes: Any = '', tpu: str = schema.DEFAULT_TPU,
            jax_python: str = '',
            progress: Optional[Callable[[float], None]] = None
            ) -> CompilerReport:
  """Compiles a program with Google's TPU compiler and reports its kernels.

  Needs the extra [tpu], neither a TPU nor a model. For the arguments see
  `CostModel.rank`: a file of HLO or StableHLO, the folder of a SavedModel, a
  function with its `shapes`, or what `jax.jit(...).trace(...)` returned.

  Raises UserError if it cannot be read, lowered or compiled.
  """
  return report_of(with_program(kernel_sources.read_source(
      source, shapes, tpu, jax_python, progress)))


def with_program(source: kernel_sources.Source) -> kernel_sources.Source:
  """The source; a UserError if its kernels are not those of a program."""
  if source.kernels and not any(
      each.compiled.module for each in source.kernels):
    raise UserError(f'{source.name}: has kernels and their tiles but no '
                    'program to compile; name HLO, StableHLO or '
                    'module:function')
  return source


def report_of(source: kernel_sources.Source) -> CompilerReport:
  """The same for a source that is compiled; without it, no kernels."""
  return CompilerReport(source.name, source.tpu, [
      _kernel(kernel) for kernel in source.kernels if kernel.compiled.module
  ], source.notes)


def table(rows: list[tuple[str, ...]]) -> str:
  """Lines of columns; those without any value are left out."""
  columns = [column for column in zip(*rows) if any(column[1:])]
  widths = [max(map(len, column)) for column in columns]
  return '\n'.join('  '.join(map(str.ljust, row, widths)).rstrip()
                   for row in zip(*columns))


def counted(number: int, what: str) -> str:
  """'1 kernel', or '2 kernels'."""
  return f'{number:,} {what}{"" if number == 1 else "s"}'


def sizes(bounds: tuple[int, ...], filters: tuple[int, ...] = ()) -> str:
  """'16x32', or '16x32 | 4x8' with a filter's."""
  text = 'x'.join(map(str, bounds))
  return f'{text or "-"} | {sizes(filters)}' if filters else text


def _kernel(source: kernel_sources.SourceKernel) -> KernelReport:
  module, op_name, window, _, in_open_loop = source.compiled
  cost = costs.cost_of(module)
  return KernelReport(
      source.name, op_name, source.copies, in_open_loop,
      source.share, source.cycles, window.output_bounds if window else (),
      window.kernel_bounds if window else (), cost.flops, cost.bytes,
      cost.hbm_bytes, cost.flops / max(1, cost.bytes), cost.on_chip_bytes)


def _row(kernel: KernelReport) -> tuple[str, ...]:
  share = '' if kernel.share is None else f'{100 * kernel.share:.1f} %'
  return (
      kernel.name + (f' x{kernel.runs}' if kernel.runs != 1 else ''),
      share + (' *' if kernel.in_open_loop else ''),
      f'{kernel.cycles:,}' if kernel.cycles else '',
      sizes(kernel.output_bounds, kernel.kernel_bounds),
      f'{kernel.flops / 1e9:,.3f}', f'{kernel.bytes / 2**20:,.2f}',
      f'{kernel.hbm_bytes / 2**20:,.2f}', f'{kernel.flops_per_byte:,.1f}',
      f'{kernel.on_chip_bytes / 2**20:,.2f}', kernel.op_name)
