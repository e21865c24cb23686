"""A trained model as an object: loaded once, asked often, by many threads."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any, Callable, Optional, Union

import cachetools
import numpy as np
import tensorflow as tf

from tpu_graphs_ext.analytic import candidates, explain
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel, require_readable
from tpu_graphs_ext.engine import artifacts, rank, scoring
from tpu_graphs_ext.engine.settings import TOP_CONFIGS, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.serving import blocks as blocks_lib
from tpu_graphs_ext.serving import (
  kernel_arguments,
  kernel_sources,
  tf_program,
  tile_search,
)
from tpu_graphs_ext.serving.kernel_arguments import BoundsLike, KernelLike
from tpu_graphs_ext.serving.kernel_sources import DEFAULT_TPU

_CACHED_TILES = 1_000_000  # Of all cached kernels together: 12 MB.
_ONE_ROW = np.zeros((1, len(schema.CONFIG_FEATURES)), np.float32)


class CostModel:
  """Ranks the tiles of kernels with a trained model.

      model = CostModel.load()  # Or CostModel.load('out/model_<hash>').
      print(model.rank('kernel.npz').text())

  In all methods `kernel` is the path of an .npz file, a `Kernel`, or the arrays
  of such a file by their names: `node_feat` float32 [nodes, 140], `node_opcode`
  uint8 [nodes], `edge_index` int64 [edges, 2] and, if tiles are known,
  `config_feat` float32 [configs, 24]. A file is read again each time, so keep a
  `Kernel` for repeated calls.

  A tile is its bounds in layout tiles along the tiled tensor's physical
  dimensions, most major first, such as `[16, 32]`; with a convolution's filter
  both bounds, as `([16, 32], [4, 8])`; or a row of `config_feat`, 24 numbers.
  Tiles of one call have the same form.

  Several threads may call the methods at once. Loading compiles the model for
  kernels of all sizes and calls it twice on a kernel of 30 nodes with 1,000
  tiles, so your first call is as fast as the next. The scores of the last
  million tiles are cached, because programs repeat their kernels.

  Attributes:
    name: the folder that it was loaded from.
    constants: physical constants that it has learned, as in `explain`, by
      names that end in the unit; empty for a model without an analytic time.
  """

  def __init__(self, ranker: scoring.Ranker):
    """Compiles a model, or raises a UserError; `load` loads one."""
    self._ranker = ranker
    self._program = tf_program.compiled(ranker).get_concrete_function()
    self._specs = self._program.structured_input_signature[0]
    self.name = ranker.name
    self.constants = tile_search.constants_of(ranker.model)
    self._scores_of = cachetools.cached(
        cachetools.LRUCache(
            _CACHED_TILES, getsizeof=lambda scores: scores.given.size),
        key=_digest, lock=threading.Lock())(self._new_scores)
    # TensorFlow optimises the graph in the first call, which takes seconds, and
    # finds memory for a kernel of usual size in the second.
    for _ in range(2):
      self._program(*(
          tf.zeros([rows, *spec.shape[1:]], spec.dtype)
          for rows, spec in zip((30, 30, 30, 1000), self._specs)))

  @classmethod
  def load(cls, model_dir: Union[str, os.PathLike[str]] = artifacts.PRETRAINED,
           loading: LoadSettings = LoadSettings()) -> CostModel:
    """Loads the package's model, or one that you trained.

    Args:
      model_dir: the folder model_<hash>, with its run file beside it, as
        `train` or the baseline's trainer wrote them. By default the pretrained
        model, see docs/pretrained.md.
      loading: where its normalisation and its class come from. The defaults
        are right for models by `train`.

    Raises:
      UserError: a file is missing or damaged, or belongs to another model.
    """
    return cls(scoring.load_ranker(os.fspath(model_dir), loading))

  def score(self, kernel: KernelLike,
            bounds: Optional[BoundsLike] = None) -> np.ndarray:
    """Scores of tiles; the lowest is predicted to be the fastest.

    A score depends only on the kernel and its own tile, and equal tiles have
    equal scores. Scores have no unit, and cannot be compared between kernels.

    Args:
      kernel: see the class.
      bounds: the tiles, at least one; None for the kernel's own
        configurations.

    Returns:
      float32 [tiles].

    Raises:
      UserError: a file cannot be read, arrays make no sense together, bounds
        do not fit the kernel's tensors, or the model's scores are not finite.
    """
    own = kernel_arguments.kernel_of(kernel)
    return self._scores_of(self._with_tiles(own, bounds)).of_tiles

  def rank(self, kernel: Union[KernelLike, Callable[..., Any]],
           shapes: Any = None, *, top: int = TOP_CONFIGS,
           bounds: Optional[BoundsLike] = None,
           blocks: Optional[blocks_lib.BlocksLike] = None,
           tpu: str = DEFAULT_TPU, jax_python: str = '') -> Union[
               rank.Ranking, tile_search.SourceAdvice, blocks_lib.BlockRanking]:
    """The tiles to try first, for a kernel or for all kernels of a function.

        model.rank('kernel.npz')
        model.rank(step, (params, batch), tpu='v5e')
        model.rank('my_model.py:step', 'f32[512,1024] f32[1024,4096]')
        model.rank(jnp.matmul, (x, w), blocks='usual', tpu='v6e')

    Args:
      kernel: see the class; or a function of JAX or TensorFlow, or its name as
        'module:function', which Google's TPU compiler compiles (extra [tpu]).
      shapes: only for a function: the tuple of its arguments, nested as they
        are, with arrays, `jax.ShapeDtypeStruct`s or `tf.TensorSpec`s; or as
        `--shapes`.
      top: how many, at least 1; fewer if there are fewer tiles.
      bounds: only for a kernel: the tiles to choose from; None for its own
        configurations, or if it has none all legal tiles, up to 100,000.
      blocks: for a function that is one matrix product, which you write as a
        Pallas kernel: the (bm, bk, bn) to choose from, in elements, or 'usual';
        see docs/blocks.md. A formula ranks them, not the trained model.
      tpu: only for a function: v2, v3, v4, v5e, v5p, v6e or v7x.
      jax_python: only for a function's name: the Python with JAX; '': this.

    Returns:
      For a kernel a `Ranking`: its `choices`, best first, have `index`, the
      place among the tiles from 0, `score`, and the bounds. Of duplicate tiles
      one is ranked normally, the rest last. For a function a `SourceAdvice`:
      its `kernels`, those with most estimated time first, have `op_name`,
      `share`, the compiler's tile as `default`, and `picks`. For blocks a
      `BlockRanking`: its `choices`, best first, have `block`.

    Raises:
      UserError: see `score`; or `top` is below 1; or no tile of the kernel
        fits on-chip memory; or a function cannot be compiled for a TPU.
    """
    if not isinstance(top, (int, np.integer)) or top < 1:
      raise UserError(f'top={top!r}: must be a whole number of at least 1')
    if callable(kernel) or shapes is not None or blocks is not None:
      return self._rank_function(
          kernel, shapes, top, bounds, blocks, tpu, jax_python)
    own = kernel_arguments.kernel_of(kernel)
    if bounds is None and not own.config_feat.size:
      bounds = self._legal_tiles(own)
    own = self._with_tiles(own, bounds)
    return rank.ranking_of(own, self._scores_of(own), top)

  def _rank_function(
      self, function, shapes, top, bounds, blocks, tpu, jax_python
  ) -> Union[tile_search.SourceAdvice, blocks_lib.BlockRanking]:
    if bounds is not None:
      raise UserError('bounds= goes with a kernel; a function has several')
    if not (callable(function) or isinstance(shapes, str)):
      raise UserError(
          f'shapes={shapes!r}: goes with a function, or as text with a '
          "function's name; how many tiles to return is top=")
    if blocks is not None:
      return blocks_lib.rank_function(
          function, shapes, tpu, blocks, top, jax_python)
    tile_search.require_tpu(self._ranker)
    return tile_search.advice_on_source(
        self._ranker, kernel_sources.read_source(
            function, shapes, tpu, jax_python), top)

  def explain(self, kernel: KernelLike,
              tile: Union[rank.Choice, Any]) -> explain.Explanation:
    """What one tile does, and where its time goes, by the analytic formula.

    The formula is `AnalyticTileModel`'s, with this model's learned physical
    constants, else those of a TPU v3. Models without such constants do not use
    it, so for them it does not account for the score.

    Args:
      kernel: see the class.
      tile: see the class; or a `Choice` of a ranking.

    Returns:
      An `Explanation`: steps, bytes moved, padding, and the term of the time
      that bounds it.

    Raises:
      UserError: `tile` is not a tile, the kernel's graph makes no sense, or
        the model's tiles count elements.
    """
    own = kernel_arguments.kernel_of(kernel)
    explainer = self._explainer(own)
    if isinstance(tile, rank.Choice):
      tile = tile.output_bounds, tile.kernel_bounds
    rows = self._with_tiles(own, [tile]).config_feat
    return explainer.explain(explainer.tiles(rows))[0]

  def _explainer(self, kernel: Kernel) -> explain.Explainer:
    tile_search.require_tpu(self._ranker)
    require_readable(kernel_arguments.never_timed(kernel, _ONE_ROW))
    return explain.Explainer(kernel, self.constants)

  def _legal_tiles(self, kernel: Kernel) -> np.ndarray:
    """Rows of `config_feat`, float32 [tiles, 24]."""
    loops = self._explainer(kernel).loops
    legal = candidates.candidates(loops, most=tile_search.MOST_TILES)
    if not len(legal.tiles):
      raise UserError(f'{kernel.tile_id}: none of its {legal.combinations:,} '
                      'tiles fits on-chip memory, by estimate; name the tiles '
                      'with bounds=')
    return tile_search.config_rows(loops, legal.tiles)

  def _with_tiles(self, kernel: Kernel,
                  bounds: Optional[BoundsLike]) -> Kernel:
    """The kernel with the tiles to score as its configurations, checked."""
    def limits() -> tuple[list[int], list[int]]:
      grid = self._explainer(own).loops.grid
      return [list(units) for units in grid.largest]

    own = kernel
    if bounds is not None:
      kernel = kernel_arguments.never_timed(
          own, kernel_arguments.config_rows(bounds, limits))
    elif not own.config_feat.size:
      raise UserError(f'{own.tile_id}: has no config_feat; name the tiles with '
                      'bounds=')
    require_readable(kernel)
    return kernel

  def _new_scores(self, kernel: Kernel) -> scoring.Scores:
    stats = self._ranker.stats
    features = stats.config.apply(kernel.config_feat, 'config_feat')
    stats.node.apply(kernel.node_feat[:0], 'node_feat')  # Counts its columns.
    scores = self._program(*(tf.constant(array, spec.dtype)
                             for array, spec in zip(_inputs(kernel),
                                                    self._specs)))
    return self._ranker.checked(kernel, scores.numpy()[np.newaxis], features)


def _inputs(kernel: Kernel) -> tuple[np.ndarray, ...]:
  return (kernel.node_feat, kernel.node_opcode, kernel.edge_index,
          kernel.config_feat)


def _digest(kernel: Kernel) -> bytes:
  digest = hashlib.blake2b(digest_size=32)
  for array in _inputs(kernel):
    digest.update(f'{array.dtype.str}{array.shape}'.encode())
    digest.update(np.ascontiguousarray(array))
  return digest.digest()
