"""A trained model as an object: loaded once, asked often, by many threads."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf

from tpu_graphs_ext.analytic import candidates, explain
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import artifacts, duplicate_configs, rank, scoring
from tpu_graphs_ext.engine.settings import TOP_CONFIGS, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo.features import config_features
from tpu_graphs_ext.serving import arguments, program, sources, tile_search
from tpu_graphs_ext.serving import blocks as blocks_lib
from tpu_graphs_ext.serving.arguments import BoundsLike, KernelLike
from tpu_graphs_ext.serving.score_cache import Recent
from tpu_graphs_ext.serving.sources import DEFAULT_TPU

_MOST_TILES = 100_000  # Of one kernel, where none are given.


class CostModel:
  """Ranks the tiles of kernels with a trained model.

      model = CostModel.load()  # Or CostModel.load('out/model_<hash>').
      print(model.rank('kernel.npz').text())

  `kernel` is in all methods the path of an .npz file, a `Kernel`, or the arrays
  of such a file by their names: `node_feat` float32 [nodes, 140], `node_opcode`
  uint8 [nodes], `edge_index` int64 [edges, 2] and, if tiles are known,
  `config_feat` float32 [configs, 24]. A file is read anew each time, so of what
  is asked often keep a `Kernel`.

  A tile is one of
    - layout tiles along the tiled tensor's physical dimensions, most major
      first, such as `[16, 32]`;
    - these with those of a convolution's filter, as `([16, 32], [4, 8])`;
    - a `Choice` of a ranking, or whatever else has `output_bounds` and
      `kernel_bounds`;
    - a row of `config_feat`, 24 numbers;
    - the number of one of the kernel's own configurations, counted from 0.

  The methods may be called by several threads at once. The model is compiled
  when it is loaded, for kernels of all sizes, and called once on a kernel of
  two nodes, so that no call of yours is the slow first one.
  Scores of the last million tiles are kept: programs repeat their kernels.

  Attributes:
    name: the folder that it was loaded from.
    num_ops: opcodes that it has seen; others count as unknown.
    constants: physical constants that it has learned, those of `explain`, by
      names that end in the unit; empty for a model without an analytic time.
  """

  def __init__(self, ranker: scoring.Ranker):
    """Compiles a model; `load` is what makes one from a folder.

    Args:
      ranker: the model and what its features are scaled with.

    Raises:
      UserError: the model cannot be compiled.
    """
    self._ranker = ranker
    self._in_elements = ranker.in_elements
    self._specs = program.input_specs(ranker)
    self._program = program.compiled(
        ranker, program.kernel_function(ranker), self._specs
    ).get_concrete_function()
    constants = getattr(ranker.model, 'constants', dict)
    self._constants = constants() or None
    self._explainers = weakref.WeakKeyDictionary()  # Of kernels that are kept.
    self._lock = threading.Lock()
    self._recent = Recent()
    # The first call takes seconds: TensorFlow then optimises the graph.
    self._program(*(tf.zeros([2, *spec.shape[1:]], spec.dtype)
                    for spec in self._specs))

  @classmethod
  def load(cls, model_dir: Union[str, os.PathLike[str]] = artifacts.PRETRAINED,
           loading: LoadSettings = LoadSettings()) -> CostModel:
    """Loads the package's model, or one that you trained.

    Args:
      model_dir: the folder model_<hash>, its run file beside it, as `train` or
        the baseline's trainer wrote them. Not given: the pretrained model,
        see docs/pretrained.md.
      loading: where its normalisation and its class come from. The defaults
        are right for what `train` wrote.

    Raises:
      UserError: a file is missing or damaged, or belongs to another model.
    """
    ranker = scoring.load_ranker(os.fspath(model_dir), loading)
    return cls(ranker)

  @property
  def name(self) -> str:
    return self._ranker.name

  @property
  def num_ops(self) -> int:
    return self._ranker.num_ops

  @property
  def constants(self) -> dict[str, float]:
    return dict(self._constants or {})

  def __repr__(self) -> str:
    return f'CostModel({self.name!r}: {type(self._ranker.model).__name__})'

  def score(self, kernel: KernelLike,
            bounds: Optional[BoundsLike] = None) -> np.ndarray:
    """Scores of tiles; the lowest is predicted to be the fastest.

    A score depends on the kernel and its own tile alone, and equal tiles have
    equal scores. Only scores of one kernel are comparable. They have no unit.

    Args:
      kernel: see the class.
      bounds: the tiles, at least one; None: the kernel's own configurations.

    Returns:
      float32 [tiles].

    Raises:
      UserError: a file cannot be read, arrays make no sense together, bounds
        are not those of the kernel's tensors, or the model gives no finite
        score.
    """
    return self._scores(kernel, bounds)[1].of_tiles

  def rank(self, kernel: Union[KernelLike, Callable[..., Any]],
           shapes: Any = None, *, top: int = TOP_CONFIGS,
           bounds: Optional[BoundsLike] = None,
           blocks: Optional[blocks_lib.BlocksLike] = None,
           tpu: str = DEFAULT_TPU, jax_python: str = '') -> Union[
               rank.Ranking, tile_search.SourceAdvice, blocks_lib.BlockRanking]:
    """The tiles to try first: of a kernel, or of all kernels of a function.

        model.rank('kernel.npz')
        model.rank(step, (params, batch), tpu='v5e')
        model.rank('my_model.py:step', 'f32[512,1024] f32[1024,4096]')
        model.rank(jnp.matmul, (x, w), blocks='usual', tpu='v6e')

    Args:
      kernel: see the class; or a function of JAX or TensorFlow, or its name as
        'module:function', which Google's TPU compiler compiles (extra [tpu]).
      shapes: of a function alone: the tuple of its arguments, nested as they
        are, of arrays or `jax.ShapeDtypeStruct`s or `tf.TensorSpec`s. For a
        name what `--shapes` of the command takes.
      top: how many, at least 1; fewer where there are fewer tiles.
      bounds: of a kernel alone: the tiles to choose from; None: the kernel's
        own configurations, or if it has none all legal tiles, of very many an
        even sample of 100,000.
      blocks: of a function that is one matrix product, which somebody writes
        as a Pallas kernel: the (bm, bk, bn) to choose from, in elements, or
        'usual' for those that a tuner would try; see docs/blocks.md. They are
        ranked by a formula, not by the trained model.
      tpu: of a function alone: v2, v3, v4, v5e, v5p, v6e or v7x.
      jax_python: of a function's name alone: the Python that has JAX; not
        given: this one.

    Returns:
      Of a kernel a `Ranking`: its `choices`, best first, have `index`, the
      place among the tiles counted from 0, `score`, and the bounds. One tile
      given several times comes once before all others do. Of a function a
      `SourceAdvice`: its `kernels`, those with most estimated time first, have
      `op_name`, `share`, the compiler's tile as `default`, and `picks`. Of
      blocks a `BlockRanking`: its `choices`, best first, have `block`.

    Raises:
      UserError: see `score`; or `top` is below 1; or no tile of the kernel
        fits on-chip memory; or a function cannot be compiled for a TPU.
    """
    if isinstance(top, bool) or not isinstance(
        top, (int, np.integer)) or top < 1:
      raise UserError(f'top={top!r}: must be a whole number of at least 1')
    if blocks is not None:
      return blocks_lib.rank_function(kernel, shapes, tpu, blocks, top,
                                      jax_python)
    if callable(kernel) or shapes is not None:
      return self._rank_function(kernel, shapes, top, bounds, tpu, jax_python)
    own = arguments.kernel_of(kernel)
    if bounds is None and own.config_feat.ndim and not own.num_configs:
      bounds = self._legal_tiles(own)
    return rank.ranking_of(*self._scores(own, bounds), top)

  def _rank_function(self, function, shapes, top, bounds, tpu,
                     jax_python) -> tile_search.SourceAdvice:
    if bounds is not None:
      raise UserError('bounds= goes with a kernel; a function has several')
    tile_search.require_tpu(self._ranker)
    if callable(function):
      source = sources.of_function(function, shapes, tpu)
    elif isinstance(function, str) and isinstance(shapes, str):
      source = sources.read_source(function, shapes, tpu, jax_python)
    else:
      raise UserError(
          f'shapes={shapes!r}: goes with a function, or as text with a '
          "function's name; how many tiles to give is top=")
    return tile_search.advice_on_source(self._ranker, source, top)

  def explain(self, kernel: KernelLike, bound: Any) -> explain.Explanation:
    """What one tile does, and where its time goes, by the analytic formula.

    The formula is that of `AnalyticTileModel`, with the physical constants
    that this model has learned if it has any, else those of a TPU v3. Other
    models do not look at it, so for them it is no account of the score.

    Args:
      kernel: see the class.
      bound: one tile.

    Returns:
      An `Explanation`: steps, bytes moved, padding, and the term of the time
      that bounds it.

    Raises:
      UserError: `bound` is no tile, or the kernel's graph makes no sense.
    """
    of = arguments.kernel_of(kernel)
    arguments.require_graph(of)
    row = arguments.config_row(of, bound, lambda: self._limits(of))
    arguments.require_rows(of, row[np.newaxis])
    return self._explainer(of).explain(row)

  def _explainer(self, kernel: Kernel) -> explain.Explainer:
    with self._lock:
      if kernel not in self._explainers:
        self._explainers[kernel] = explain.Explainer(
            kernel, self._constants, in_elements=self._in_elements)
      return self._explainers[kernel]

  def _legal_tiles(self, kernel: Kernel) -> np.ndarray:
    """Rows of `config_feat`, float32 [tiles, 24]."""
    if self._in_elements:
      raise UserError(
          f'{kernel.tile_id}: has no config_feat, and which tiles are legal is '
          'known of TPUs alone; say which are meant with bounds=')
    arguments.require_graph(kernel)
    loops = self._explainer(kernel).loops
    legal = candidates.candidates(loops, most=_MOST_TILES)
    if not len(legal):
      raise UserError(f'{kernel.tile_id}: none of its {legal.combinations:,} '
                      'tiles fits on-chip memory, by estimate; say which are '
                      'meant with bounds=')
    tiles = legal.tiles(0, len(legal))
    return config_features(
        loops.grid.kernel_bounds(tiles), loops.grid.output_bounds(tiles))

  def _limits(self, kernel: Kernel) -> tuple[list[int], list[int]]:
    """Largest bounds of the tiled tensor, and of a filter."""
    loops = self._explainer(kernel).loops
    output, filters = (list(units) for units in (
        loops.grid.output_units, loops.grid.kernel_units))
    if self._in_elements:  # Bounds are in the order of logical dimensions.
      output = [output[loops.dims.index(dim)] for dim in range(len(output))]
      filters = [filters[loops.filter_dims.index(dim)]
                 for dim in range(len(filters))]
    return output, filters

  def _scores(self, kernel: KernelLike, bounds: Optional[BoundsLike]
              ) -> tuple[Kernel, duplicate_configs.Scores]:
    """The kernel with the tiles that are meant, and what the model says."""
    own = arguments.kernel_of(kernel)
    kernel = arguments.with_tiles(own, bounds, lambda: self._limits(own))
    arrays = (kernel.node_feat, kernel.node_opcode, kernel.edge_index,
              kernel.config_feat)
    return kernel, self._recent.scores(arrays, lambda: self._new_scores(kernel))

  def _new_scores(self, kernel: Kernel) -> duplicate_configs.Scores:
    stats = self._ranker.stats
    features = stats.config.apply(kernel.config_feat, 'config_feat')
    stats.node.apply(kernel.node_feat[:0], 'node_feat')  # Counts its columns.
    scores = self._program(*(
        tf.constant(array, spec.dtype) for array, spec in zip(
            (kernel.node_feat, kernel.node_opcode, kernel.edge_index,
             kernel.config_feat), self._specs)))
    return self._ranker.checked(kernel, scores.numpy()[np.newaxis], features)
