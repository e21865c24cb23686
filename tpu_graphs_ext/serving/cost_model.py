"""A trained model as an object: loaded once, asked often, by many threads."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

import cachetools
import numpy as np
import tensorflow as tf

from tpu_graphs_ext import files
from tpu_graphs_ext.analytic import explain, geometry
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel, readable
from tpu_graphs_ext.engine import pretrained, rank, scoring
from tpu_graphs_ext.engine.settings import TOP_CONFIGS, checked
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import kernel_sources, libtpu
from tpu_graphs_ext.hlo.features import config_features
from tpu_graphs_ext.hlo.kernel_sources import never_timed
from tpu_graphs_ext.serving import blocks as blocks_lib
from tpu_graphs_ext.serving import tf_program, tile_search
from tpu_graphs_ext.serving.tile_ranking import SourceRanking
from tpu_graphs_ext.tasks.tile import LoadSettings

KernelLike = Union[Kernel, str, 'os.PathLike[str]', Mapping[str, Any]]
BoundsLike = Sequence[Any]  # Tiles; see `CostModel`.

_CACHED_TILES = 1_000_000  # Of all cached kernels together: 12 MB.
_CONFIG_WIDTH = len(schema.CONFIG_FEATURES)


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
  tiles, so your first call is as fast as the next; the first with bounds, legal
  tiles or `explain` takes two seconds. The last million scores are cached.

  Attributes:
    name: the folder that it was loaded from.
    constants: physical constants that it has learned, as in `explain`, by
      names that end in the unit; empty for a model without an analytic time.
  """
  _process: Optional[int] = None  # That compiled the first one.

  def __init__(self, ranker: scoring.Ranker):
    """Compiles a model, or raises a UserError; `load` loads one."""
    self._ranker = ranker
    CostModel._process = os.getpid()
    self._loaded: Optional[tuple] = None  # What `load` was called with.
    self._program = tf_program.compiled(ranker).get_concrete_function()
    self._specs = self._program.structured_input_signature[0]
    self.name = ranker.name
    self.constants = dict(ranker.constants)
    self._scores_of = cachetools.cached(
        cachetools.LRUCache(
            _CACHED_TILES, getsizeof=lambda scores: scores.given.size),
        key=_digest, lock=threading.Lock())(self._new_scores)
    # TensorFlow optimises the graph in one call, finds memory in the second.
    for _ in range(2):
      self._program(*(tf.zeros([rows, *spec.shape[1:]], spec.dtype)
                      for rows, spec in zip((30, 30, 30, 1000), self._specs)))

  @classmethod
  @checked
  def load(cls, model_dir: str = pretrained.NAME,
           loading: LoadSettings = LoadSettings(), *,
           tpu: str = '') -> CostModel:
    """Loads the package's model, or one that you trained; or a UserError.

    Args:
      model_dir: the folder model_<hash>, with its run file beside it, as
        `train` or the baseline's trainer wrote them. By default the pretrained
        model, see docs/pretrained.md.
      loading: where its normalisation and its class come from. The defaults
        are right for models by `train`.
      tpu: of the package's models, that of this generation, such as 'v6e';
        '' for a TPU v3.
    """
    cls._require_own_process()
    tpu = tpu and libtpu.generation(tpu)
    if tpu and model_dir != pretrained.NAME:
      raise UserError(f'tpu={tpu!r}: chooses among the models of the package; '
                      f'leave it out to load {model_dir}')
    model_dir = pretrained.name_for(tpu) if tpu else model_dir
    model = cls(scoring.load_ranker(model_dir, loading))
    model._loaded = (model_dir if pretrained.tpu_of(model_dir)
                     else files.full_path(model_dir)), loading
    return model

  def __getstate__(self) -> tuple:
    """Pickles the folder, which must be there where the model is unpickled."""
    if self._loaded is None:
      raise TypeError('only a CostModel that was loaded can be pickled')
    return self._loaded

  def __setstate__(self, loaded: tuple) -> None:
    if self._process in (None, os.getpid()):  # Else its methods say why.
      self.__dict__ = self.load(*loaded).__dict__

  @classmethod
  def _require_own_process(cls) -> None:
    """Raises a UserError after a fork, where TensorFlow would hang."""
    if cls._process not in (None, os.getpid()):
      raise UserError(
          'TensorFlow hangs in a process that was forked after a CostModel was '
          "loaded: use multiprocessing.get_context('spawn')")

  def score(self, kernel: KernelLike,
            bounds: Optional[BoundsLike] = None) -> np.ndarray:
    """Scores of tiles, float32 [tiles]; the lowest predicts the fastest.

    `bounds` are the tiles, at least one; None for the kernel's own
    configurations. A score depends only on the kernel and its own tile, and
    equal tiles have equal scores. Scores have no unit, and cannot be compared
    between kernels.

    Raises UserError if a file cannot be read, arrays make no sense together,
    bounds do not fit the kernel's tensors, or scores are not finite.
    """
    self._require_own_process()
    return self._scores_of(self._with_tiles(kernel_of(kernel), bounds)).of_tiles

  @checked
  def rank(self, kernel: Union[KernelLike, Callable[..., Any]],
           shapes: Any = None, *, top: int = TOP_CONFIGS,
           bounds: Optional[BoundsLike] = None,
           blocks: Optional[blocks_lib.BlocksLike] = None,
           tpu: str = '', jax_python: str = '',
           vmem_limit: Optional[float] = None,
           progress: Optional[Callable[[float], None]] = None) -> Union[
               rank.Ranking, SourceRanking, blocks_lib.BlockRanking]:
    """The tiles to try first, for a kernel or for all kernels of a program.

        model.rank('kernel.npz')
        model.rank(step, (params, batch), tpu='v5e')
        model.rank('dump.hlo.pb', tpu='v5e')
        model.rank('my_model.py:step', 'f32[512,1024] f32[1024,4096]')
        model.rank(jnp.matmul, (x, w), blocks='usual', tpu='v6e')

    Args:
      kernel: see the class; or a function of JAX or TensorFlow, its name as
        'module:function', what `jax.jit(...).trace(...)` returned, or any file
        that the command `rank` takes, such as HLO. Google's TPU compiler
        compiles programs (extra [tpu]).
      shapes: a function's arguments: their tuple, nested as they are, with
        arrays, `jax.ShapeDtypeStruct`s or `tf.TensorSpec`s; or as `--shapes`.
      top: how many, at least 1; fewer if there are fewer tiles.
      bounds: only for a kernel: the tiles to choose from; None for its own
        configurations, or if it has none all legal tiles, up to 100,000.
      blocks: for a function that is one matrix product, which you write as a
        Pallas kernel: the (bm, bk, bn) to choose from, in elements, or 'usual';
        see docs/blocks.md. A formula ranks them, not the trained model.
      tpu: for a program or legal tiles: v2, v3, v4, v5e, v5p, v6e or v7x; '':
        the model's generation, or v3 for a model that you trained.
      jax_python: for a function's name and HLO text: the Python with JAX; '':
        this.
      progress: called about twice a second, with the seconds of compiling.
      vmem_limit: for blocks: MiB of on-chip memory that they may take; None:
        what the compiler gives a kernel that names no `vmem_limit_bytes`.

    Returns:
      For a kernel a `Ranking`: its `choices`, best first, have `index`, the
      place among the tiles from 0, `score`, and the bounds. Of duplicate tiles
      one is ranked normally, the rest last. For a program a `SourceRanking`:
      its `kernels`, those with most estimated time first, have `op_name`,
      `share`, the compiler's tile as `default`, and `choices`. For blocks a
      `BlockRanking`: its `choices`, best first, have `block` and the
      `vmem_limit_bytes` that such a kernel must ask for.

    Raises UserError as `score` does, and if no tile of the kernel fits on-chip
    memory, arguments do not go together, or a function cannot be compiled.
    """
    self._require_own_process()
    tpu = libtpu.generation(tpu or self._ranker.tpu or schema.DEFAULT_TPU)
    if vmem_limit is not None and blocks is None:
      raise UserError('vmem_limit= goes with blocks=')
    if kernel_sources.is_program(kernel) and not str(kernel).endswith('.npz'):
      if bounds is not None:
        raise UserError('bounds= goes with a kernel; a program has several')
      if blocks is not None:
        return blocks_lib.rank_function(
            kernel, shapes, tpu, blocks, top, jax_python, vmem_limit)
      tile_search.require_tpu(self._ranker)
      return tile_search.rank_source(self._ranker, kernel_sources.read_source(
          kernel, shapes, tpu, jax_python, progress), top)
    if shapes is not None or blocks is not None:
      raise UserError('shapes= and blocks= go with a program, not a kernel')
    return self._rank_kernel(kernel_of(kernel), bounds, tpu, top)

  def _rank_kernel(self, kernel: Kernel, bounds: Optional[BoundsLike],
                   tpu: str, top: int) -> rank.Ranking:
    if tpu != (self._ranker.tpu or tpu):
      raise UserError(f'tpu={tpu!r}: goes with a program; this model ranks the '
                      f"tiles of kernels of a TPU {self._ranker.tpu}: leave it "
                      'out, or load another with CostModel.load(tpu=...)')
    if bounds is None and not np.size(kernel.config_feat):
      bounds = self._legal_tiles(kernel, tpu)
    kernel = self._with_tiles(kernel, bounds)
    return rank.ranking_of(kernel, self._scores_of(kernel), top)

  def explain(self, kernel: KernelLike,
              tile: Union[rank.Choice, Any]) -> explain.Explanation:
    """What one tile does, and where its time goes, by the analytic formula.

    The formula is `AnalyticTileModel`'s, with the physical constants that this
    model learned on a TPU v3, else those of its generation. Models without
    such constants do not use it, so for them it does not account for the
    score. `tile` may also be a `Choice` of a ranking.

    Raises UserError if `tile` is not a tile, the kernel's graph makes no sense
    or fuses several products, or the model's tiles count elements.
    """
    self._require_own_process()
    kernel = kernel_of(kernel)
    loops = self._loops(kernel)
    if isinstance(tile, rank.Choice):
      tile = tile.output_bounds, tile.kernel_bounds
    rows = self._with_tiles(kernel, [tile]).config_feat
    if loops.products > 1:
      raise UserError(f'{kernel.tile_id}: fuses {loops.products} products, of '
                      'which the formula counts only the last')
    return explain.explain(
        loops, loops.tiles_of(rows),
        tile_search.constants_of(self._ranker, loops))[0]

  def _loops(self, kernel: Kernel, tpu: str = '') -> geometry.Loops:
    tile_search.require_tpu(self._ranker)
    kernel = readable(never_timed(
        kernel, np.zeros((1, _CONFIG_WIDTH), np.float32)))
    return geometry.loops_of(
        [kernel], tile_search.machine_of(self._ranker, tpu))[0]

  def _legal_tiles(self, kernel: Kernel, tpu: str) -> np.ndarray:
    """Rows of `config_feat`, float32 [tiles, 24]."""
    loops = self._loops(kernel, tpu)
    legal, notes = tile_search.legal_tiles(loops, never_timed(
        kernel, np.zeros((0, _CONFIG_WIDTH), np.float32)))
    if not len(legal.tiles):
      reason = (f'none of its {legal.combinations:,} tiles fits on-chip '
                'memory, by estimate') if legal.combinations else notes[0]
      raise UserError(f'{kernel.tile_id}: {reason}; name the tiles with '
                      'bounds=')
    return config_features(loops.kernel_bounds(legal.tiles),
                           loops.output_bounds(legal.tiles))

  def _with_tiles(self, kernel: Kernel, bounds: Optional[BoundsLike]) -> Kernel:
    """The kernel with the tiles to score as its configurations, checked."""
    if bounds is not None:
      kernel = never_timed(kernel, config_rows(
          bounds, lambda: self._loops(kernel).largest()))
    elif not np.size(kernel.config_feat):
      raise UserError(f'{kernel.tile_id}: has no config_feat; name the tiles '
                      'with bounds=')
    return readable(kernel)

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


# --- Arguments ----------------------------------------------------------------


def kernel_of(kernel: KernelLike) -> Kernel:
  """The kernel that a caller passes in one of the forms of `CostModel`."""
  if isinstance(kernel, Kernel):
    return kernel
  if isinstance(kernel, (str, os.PathLike)):
    return Kernel.load(os.fspath(kernel))
  names = set(kernel) if isinstance(kernel, Mapping) else set()
  if not set(kernel_sources.GRAPH) <= names <= set(STORED_NAMES.values()):
    raise UserError(
        'a kernel must be the path of an .npz file, a Kernel, or a dict with '
        f'arrays of such a file: {", ".join(kernel_sources.GRAPH)} and, if '
        'tiles are known, config_feat; got '
        f'{sorted(map(str, names)) or type(kernel).__name__}')
  try:
    arrays = {name: np.asarray(kernel[key])
              for name, key in STORED_NAMES.items() if key in names}
  except ValueError as error:
    raise UserError('a kernel must be of whole arrays, but a list has rows of '
                    f'different lengths ({error})') from error
  count = len(np.atleast_1d(arrays.setdefault(
      'config_feat', np.zeros((0, _CONFIG_WIDTH), np.float32))))
  return Kernel('kernel', **{
      'runtime_ns': np.zeros(count, np.int64),
      'normalizer_ns': np.ones(count, np.int64), **arrays})


def config_rows(bounds: BoundsLike, limits: Callable) -> np.ndarray:
  """Tiles, in the forms of `CostModel`, as rows: float32 [tiles, 24].

  `limits`, called only for bounds, returns the largest of the tiled tensor and
  of a filter. Raises UserError unless they are tiles, and each bound is a whole
  number from 1 to the whole dimension.
  """
  try:
    has_filters = np.ndim(bounds[0][0]) > 0
    output, filters = (np.asarray(table, np.float64) for table in (
        zip(*bounds) if has_filters else (
            bounds, np.zeros((len(bounds), 0)))))
    if output.ndim != 2 or filters.ndim != 2:
      raise ValueError
  except (ValueError, TypeError, LookupError, OverflowError) as error:
    raise UserError(f'bounds={bounds!r:.100}: must be a list of at least one '
                    "tile, such as [16, 32] or, with a filter's bounds, ([16, "
                    '32], [4, 8]), or rows of config_feat') from error
  if output.shape[1] == _CONFIG_WIDTH:
    return output.astype(np.float32)
  for table, most, of in zip((output, filters), limits(), (
      'the tiled tensor', "a product's filter")):
    if table is filters and bool(most) != (table.shape[1] > 0):
      raise UserError(f'bounds={bounds!r:.100}: ' + (
          f'this kernel has a filter: give pairs, as ({list(limits()[0])}, '
          f'{list(most)}) for the whole of both' if most else
          'this kernel has no filter: give the bounds of the tiled tensor, as '
          f'{list(limits()[0])} for all of it'))
    fits = table.shape[1] == len(most) and (
        (table == np.floor(table)) & (table >= 1) & (table <= most)).all(axis=1)
    if not np.all(fits):
      raise UserError(
          f'a tile has the bounds {table[np.argmin(fits)].tolist()} of {of}; '
          f'they must be {len(most)} whole numbers of at least 1 and at most '
          f'{list(most)}')
  return config_features(filters.astype(np.int64), output.astype(np.int64))
