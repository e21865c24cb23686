"""Ranks blocks for a matrix product that somebody writes as a Pallas kernel."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np

from tpu_graphs_ext.analytic import blocks as plain_blocks
from tpu_graphs_ext.analytic import grouped_blocks, products
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import kernel_sources, protos
from tpu_graphs_ext.serving import block_kernels, compiler_report

USUAL = 'usual'  # Instead of blocks: a grid, `usual_blocks` of the formula.
_MIB = 2**20
AnyProduct = Union[products.Product, products.GroupedProduct]
BlocksLike = Union[str, Sequence[Sequence[int]]]  # See `rank_blocks`.


@dataclasses.dataclass(frozen=True)
class BlockChoice:
  """Blocks of one size."""
  index: int  # Place among the candidates, from 0.
  block: tuple[int, int, int]  # bm, bk, bn in elements, as for `pl.BlockSpec`.
  time_ns: float  # By formula: good for the order, not as a runtime.
  vmem_bytes: int  # On-chip memory that the blocks take.
  vmem_limit_bytes: Optional[int]  # The kernel must ask for it; None: nothing.
  refusal: Optional[str] = None  # '': it compiled; None: that was not tried.


@dataclasses.dataclass(frozen=True)
class BlockRanking:
  """The blocks to measure first."""
  product: AnyProduct  # Its sizes, types and what is not counted.
  tpu: str  # Generation, such as 'v6e'.
  vmem_limit_bytes: int  # What they were allowed.
  choices: list[BlockChoice]  # Best first.
  candidates: int  # How many there were.
  dropped: dict[int, str]  # Place of one that no kernel can have -> the reason.

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  def text(self) -> str:
    """A heading, and one line for each choice."""
    lines = [
        f'{self.product.text()} on {self.tpu}: {self.candidates:,} blocks, '
        f'{len(self.dropped):,} that no kernel can have',
        *(f'  {count:,}: {reason}' for reason, count in
          collections.Counter(self.dropped.values()).most_common(3))]
    if self.product.ignored:
      lines.append(f'  not counted: {"; ".join(self.product.ignored)}')
    rows = [('place', 'bm', 'bk', 'bn', 'us', 'VMEM MiB', 'vmem_limit_bytes',
             'compiles')]
    for place, choice in enumerate(self.choices, 1):
      refusal = choice.refusal and f'no: {choice.refusal}'
      rows.append((
          str(place), *map(str, choice.block), f'{choice.time_ns / 1e3:,.1f}',
          f'{choice.vmem_bytes / _MIB:.1f}',
          str(choice.vmem_limit_bytes or 'default'),
          'yes' if refusal == '' else refusal or ''))
    return '\n'.join([*lines, compiler_report.table(rows)])


def rank_function(function: Union[str, Callable[..., Any]], shapes: Any,
                  tpu: str, blocks: BlocksLike = USUAL,
                  top: Optional[int] = 5, jax_python: str = '',
                  vmem_limit: Optional[float] = None,
                  check: bool = False) -> BlockRanking:
  """`rank_blocks` for a function; see `kernel_sources.lowered`.

  With `check` the choices are compiled, by `block_kernels.checked`.
  """
  lowered = kernel_sources.lowered(function, shapes, jax_python)
  product = products.product_of(protos.as_module(lowered))
  ranking = rank_blocks(product, tpu, blocks, top, vmem_limit)
  return block_kernels.checked(ranking, jax_python) if check else ranking


def rank_blocks(product: AnyProduct, tpu: str,
                blocks: BlocksLike = USUAL, top: Optional[int] = 5,
                vmem_limit: Optional[float] = None) -> BlockRanking:
  """Puts blocks in the order in which to measure them.

  Args:
    product: what the kernel computes; see `analytic.products.product_of`.
    tpu: one of `machines.MACHINES`, such as 'v5e'.
    blocks: (bm, bk, bn) in elements, or as text '128x1024x512 256x512x512';
      'usual': those that a tuner would try.
    top: how many to return; None: all.
    vmem_limit: MiB of on-chip memory that the blocks may take; None: what the
      compiler gives a kernel that names no `vmem_limit_bytes`.

  Raises UserError if the generation has less memory, blocks are not three whole
  numbers, or no kernel can have any of them.
  """
  machine = MACHINES[tpu]
  limit, most = machine.vmem_limit_bytes, machine.vmem_bytes // _MIB
  if vmem_limit is not None:
    if not 0 < vmem_limit <= most:
      raise UserError(f'vmem_limit={vmem_limit}: must be above 0 and at most '
                      f'{most} MiB, the on-chip memory of a {tpu}')
    limit = int(vmem_limit * _MIB)
  formula = (grouped_blocks if isinstance(product, products.GroupedProduct)
             else plain_blocks)
  candidates = (formula.usual_blocks(product, machine, limit)
                if isinstance(blocks, str) and blocks == USUAL
                else _checked(blocks))
  if not len(candidates):
    raise UserError(f'blocks={USUAL}: none takes at most {limit / _MIB:.3g} '
                    'MiB; allow more with vmem_limit')
  faults = [formula.fault_of(product, block, machine, limit)
            for block in candidates.tolist()]
  dropped = {index: fault for index, fault in enumerate(faults) if fault}
  if len(dropped) == len(candidates):
    raise UserError(
        f'blocks: a Pallas kernel can have none of the {len(candidates)}; the '
        f'first is {tuple(candidates[0].tolist())}: {faults[0]}')
  times = formula.times_ns(product, candidates, machine)
  times[list(dropped)] = np.inf
  memory = formula.vmem_bytes(product, candidates, machine)
  order = np.argsort(times, kind='stable')
  order = order[:len(candidates) - len(dropped)][:top]
  return BlockRanking(product, tpu, limit, [
      BlockChoice(
          index, tuple(candidates[index].tolist()), float(times[index]),
          int(memory[index]), None if memory[index] <= machine.vmem_limit_bytes
          else math.ceil(memory[index] / _MIB) * _MIB)
      for index in order.tolist()], len(candidates), dropped)


def _checked(blocks: BlocksLike) -> np.ndarray:
  """int64 [blocks, 3]."""
  try:
    sizes = np.asarray(
        [list(map(int, block.split('x'))) for block in blocks.split()]
        if isinstance(blocks, str) else blocks)
    if sizes.shape[1:] != (3,) or sizes.dtype.kind not in 'iu' or (
        sizes < 1).any():
      raise ValueError
  except ValueError as error:
    raise UserError(
        f'blocks={blocks!r:.100}: must be {USUAL!r}, or a list of (bm, bk, bn) '
        "in elements, as text '128x1024x512 256x512x512'") from error
  return sizes.astype(np.int64)
