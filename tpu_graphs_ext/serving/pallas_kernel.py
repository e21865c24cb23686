"""A matrix product as a plain Pallas kernel, with the blocks of a ranking.

Runs in a Python that has JAX and maybe nothing else of what this package needs.
`product` has the fields of `analytic.products.Product`.
"""

from __future__ import annotations

from typing import Any, Callable, Optional


def shapes(product: Any) -> tuple:
  """The kernel's arguments as `jax.ShapeDtypeStruct`s.

  x [batch, m, k], each weight [batch, k, n], what the epilogue reads
  [batch, m, n].
  """
  import jax
  x, w, _, extra = _types(product)
  batch, m, k, n = product.batch, product.m, product.k, product.n
  arguments = [((batch, m, k), x)] + [((batch, k, n), w)] * product.weights
  if extra:
    arguments.append(((batch, m, n), extra))
  return tuple(jax.ShapeDtypeStruct(*argument) for argument in arguments)


def _types(product: Any) -> tuple:
  """Of x, weights, result and what the epilogue reads, which may be None."""
  import jax.numpy as jnp
  whole = product.narrow == 'int8'
  types = {0: None, 1: jnp.int8 if whole else jnp.float8_e4m3fn,
           2: jnp.bfloat16, 4: jnp.float32}
  return (types[product.x_bytes],
          jnp.int8 if product.w_bytes == 1 and not product.narrow
          else types[product.w_bytes],
          jnp.int32 if whole and product.out_bytes == 4
          else types[product.out_bytes],
          types.get(product.extra_bytes, jnp.float32))


def kernel(product: Any, block: tuple, vmem_limit_bytes: Optional[int],
           interpret: bool = False) -> Callable:
  """A function of arrays as `shapes` describes them: result [batch, m, n].

  Products of several weights are multiplied, and what the epilogue reads is
  added. `interpret` runs it on any machine.
  """
  import jax
  import jax.numpy as jnp
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu
  # Of JAX 0.6.2 or later, or of an earlier one.
  limits = getattr(pltpu, 'CompilerParams', None) or pltpu.TPUCompilerParams
  bm, bk, bn = block
  x_type, _, out_type, extra = _types(product)
  sum_type = jnp.int32 if product.narrow == 'int8' else jnp.float32
  count, steps = product.weights, product.k // bk

  def finish(sums, extra_refs, out_ref):
    result = sums[0]
    for others in sums[1:]:
      result *= others
    for ref in extra_refs:
      result += ref[...].astype(sum_type)
    out_ref[...] = result.astype(out_type)

  def body(x_ref, *refs):
    w_refs, refs = refs[:count], refs[count:]
    extra_refs, (out_ref, *sum_refs) = refs[:bool(extra)], refs[bool(extra):]

    def product_with(w_ref):
      return jnp.dot(x_ref[...], w_ref[...].astype(x_type),
                     preferred_element_type=sum_type)

    if steps == 1:
      finish(list(map(product_with, w_refs)), extra_refs, out_ref)
      return
    step = pl.program_id(3)

    @pl.when(step == 0)
    def _():
      for ref in sum_refs:
        ref[...] = jnp.zeros_like(ref)
    for ref, w_ref in zip(sum_refs, w_refs):
      ref[...] += product_with(w_ref)

    @pl.when(step == steps - 1)
    def _():
      finish([ref[...] for ref in sum_refs], extra_refs, out_ref)

  result_spec = pl.BlockSpec((None, bm, bn), lambda b, i, j, s: (b, i, j))
  return pl.pallas_call(
      body, grid=(product.batch, pl.cdiv(product.m, bm),
                  pl.cdiv(product.n, bn), steps),
      in_specs=[pl.BlockSpec((None, bm, bk), lambda b, i, j, s: (b, i, s)),
                *[pl.BlockSpec((None, bk, bn), lambda b, i, j, s: (b, s, j))
                  ] * count, *([result_spec] if extra else [])],
      out_specs=result_spec, out_shape=jax.ShapeDtypeStruct(
          (product.batch, product.m, product.n), out_type),
      scratch_shapes=[pltpu.VMEM((bm, bn), sum_type)] * (
          count if steps > 1 else 0),
      compiler_params=limits(vmem_limit_bytes=vmem_limit_bytes),
      interpret=interpret)
