"""Ranks blocks for a matrix product that somebody writes as a Pallas kernel."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np

from tpu_graphs_ext.analytic import blocks as analytic
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import libtpu, protos
from tpu_graphs_ext.serving import kernel_sources

USUAL = 'usual'  # Instead of blocks: a grid, `analytic.usual_blocks`.
BlocksLike = Union[str, Sequence[Sequence[int]]]  # See `rank_blocks`.


@dataclasses.dataclass(frozen=True)
class BlockChoice:
  """Blocks of one size."""
  index: int  # Place among the candidates, from 0.
  block: tuple[int, int, int]  # bm, bk, bn in elements, as for `pl.BlockSpec`.
  time_ns: float  # By formula: good for the order, not as a runtime.
  vmem_bytes: int  # On-chip memory that the blocks take.


@dataclasses.dataclass(frozen=True)
class BlockRanking:
  """The blocks to measure first."""
  product: analytic.Product
  tpu: str
  choices: list[BlockChoice]  # Best first.
  candidates: int  # How many there were.
  dropped: dict[int, str]  # Place of one that no kernel can have -> the reason.

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  def text(self) -> str:
    """A heading, and one line for each choice."""
    product = self.product
    sizes = f'm {product.m:,} x k {product.k:,} x n {product.n:,}'
    if product.batch > 1:
      sizes += f', {product.batch:,} times'
    return '\n'.join([
        f'{sizes} on {self.tpu}: {self.candidates:,} blocks, '
        f'{len(self.dropped):,} that no kernel can have',
        *(f'  {count:,}: {reason}' for reason, count in
          collections.Counter(self.dropped.values()).most_common(3)),
        f'  {"place":>5} {"bm":>6} {"bk":>6} {"bn":>6} {"us":>9} '
        f'{"VMEM MiB":>9}',
        *(f'  {place:>5} {choice.block[0]:>6} {choice.block[1]:>6} '
          f'{choice.block[2]:>6} {choice.time_ns / 1e3:>9.1f} '
          f'{choice.vmem_bytes / 2**20:>9.1f}'
          for place, choice in enumerate(self.choices, 1))])


def rank_function(function: Union[str, Callable[..., Any]], shapes: Any,
                  tpu: str, blocks: BlocksLike = USUAL,
                  top: Optional[int] = 5, jax_python: str = '') -> BlockRanking:
  """`rank_blocks` for a function; see `kernel_sources.lowered`."""
  lowered = kernel_sources.lowered(function, shapes, jax_python)
  product = analytic.product_of(protos.as_module(lowered))
  return rank_blocks(product, tpu, blocks, top)


def rank_blocks(product: analytic.Product, tpu: str,
                blocks: BlocksLike = USUAL,
                top: Optional[int] = 5) -> BlockRanking:
  """Puts blocks in the order in which to measure them.

  Args:
    product: what the kernel computes; see `analytic.blocks.product_of`.
    tpu: generation, such as 'v5e'.
    blocks: (bm, bk, bn) in elements, or as text '128x1024x512 256x512x512';
      'usual': `analytic.blocks.usual_blocks`.
    top: how many to return; None: all.

  Raises UserError if the generation is unknown, blocks are not three whole
  numbers, or no kernel can have any of them.
  """
  libtpu.topology_of(tpu)
  machine = analytic.MACHINES[tpu]
  given = (analytic.usual_blocks(product, machine)
           if isinstance(blocks, str) and blocks == USUAL
           else _checked(blocks))
  faults = [analytic.fault_of(product, block, machine)
            for block in given.tolist()]
  dropped = {index: fault for index, fault in enumerate(faults) if fault}
  if len(dropped) == len(given):
    raise UserError(
        f'blocks: a Pallas kernel can have none of the {len(given)}; the first '
        f'is {tuple(given[0].tolist())}: {faults[0]}')
  times = analytic.times_ns(product, given, machine)
  times[list(dropped)] = np.inf
  memory = analytic.vmem_bytes(product, given)
  order = np.argsort(times, kind='stable')[:len(given) - len(dropped)][:top]
  return BlockRanking(product, tpu, [
      BlockChoice(index, tuple(given[index].tolist()), float(times[index]),
                  int(memory[index])) for index in order.tolist()],
                      len(given), dropped)


def _checked(blocks: BlocksLike) -> np.ndarray:
  """int64 [blocks, 3]."""
  try:
    found = np.asarray(
        [list(map(int, block.split('x'))) for block in blocks.split()]
        if isinstance(blocks, str) else blocks)
    if found.shape[1:] != (3,) or found.dtype.kind not in 'iu' or (
        found < 1).any():
      raise ValueError
  except ValueError as error:
    raise UserError(
        f'blocks={blocks!r:.100}: must be {USUAL!r}, or a list of (bm, bk, bn) '
        "in elements, as text '128x1024x512 256x512x512'") from error
  return found.astype(np.int64)
