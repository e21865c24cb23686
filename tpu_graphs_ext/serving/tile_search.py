"""A model's first choices among all legal tiles of a kernel, and why.

Tiles with equal scores are ordered by analytic time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Optional

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext.analytic import candidates, explain, geometry, machines
from tpu_graphs_ext.analytic.geometry import Loops
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import out_of_range, pretrained, scoring, threads
from tpu_graphs_ext.engine.settings import TOP_CONFIGS
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, kernel_sources, stored
from tpu_graphs_ext.hlo.kernel_sources import never_timed
from tpu_graphs_ext.serving import compiler_report, tile_ranking
from tpu_graphs_ext.tasks import feature_stats, tile_batches
from tpu_graphs_ext.tasks.tile import LoadSettings

_log = logging.getLogger(__name__)

MOST_TILES = 100_000  # Scored tiles of a kernel; of more, an even sample.
_AT_ONCE = 8192  # Tiles in one call of the model.
_TILES_THAT_TELL = 20  # What a kernel's tiles count, though all fit.
_MOST_WORKERS = 8  # Parts that are scored side by side: each takes memory.
# Opcodes that nearly every kernel has, and those that say most about one.
_PLAIN = frozenset({'parameter', 'fusion', 'constant', 'tuple', 'broadcast',
                    'bitcast', 'get-tuple-element'})
_TELLING = ('convolution', 'dot', 'reduce', 'reduce-window',
            'select-and-scatter')


def rank_sources(model_dir: str, sources: Sequence[Future], *,
                 top_k: Optional[int] = TOP_CONFIGS,
                 loading: LoadSettings = LoadSettings(), alone: bool = False
                 ) -> list[tile_ranking.SourceRanking]:
  """Ranks the legal tiles of the kernels of each source.

  See `scoring.load_ranker` for `model_dir` and `loading`; `sources` are those
  of `kernel_sources.compiling`. `top_k` tiles are returned for each kernel,
  None for all; what cannot be ranked is in the faults. For `alone` see
  `rank_kernel`.

  Raises UserError if the model cannot be loaded, or is for other hardware.
  """
  ranker = scoring.load_ranker(model_dir, loading)
  require_tpu(ranker)
  return [rank_source(ranker, source.result(), top_k, alone)
          for source in sources]


def rank_source(ranker: scoring.Ranker, source: kernel_sources.Source,
                top_k: Optional[int],
                alone: bool = False) -> tile_ranking.SourceRanking:
  """Ranks the legal tiles of each kernel of a file or function."""
  kernels, faults = [], list(source.faults)
  ranked = [kernel for kernel in source.kernels if kernel.kernel is not None]
  nests = geometry.loops_of([kernel.kernel for kernel in ranked],
                            machine_of(ranker, source.tpu))
  for kernel, loops in tqdm(
      list(zip(ranked, nests)), 'kernels', unit='kernel', disable=None,
      leave=False):
    try:
      kernels.append(rank_kernel(
          ranker, kernel, top_k, loops=loops, alone=alone))
    except UserError as error:
      faults.append(f'{source.name}: {error}')
  if _log.isEnabledFor(logging.DEBUG):  # Else beside each kernel.
    out_of_range.warn_of(ranker, [
        each for kernel in kernels for each in kernel.unfamiliar], len(kernels))
  notes = notes_of(ranker, source)
  if alone:
    notes += ['only tiles that fit with all tensors in main memory, where the '
              'modules have them']
  return tile_ranking.SourceRanking(
      source.name, kernels, notes, faults, compiler_report.report_of(source))


def notes_of(ranker: scoring.Ranker,
             source: kernel_sources.Source) -> list[str]:
  """How the kernels were made, and what ranking their tiles is worth."""
  notes = [*source.notes]
  if source.tpu in machines.UNCHECKED:
    notes.append(f'legal tiles and analytic time for a TPU {source.tpu} are '
                 "inferred from other generations' and not checked")
  if source.tpu and ranker.tpu and source.tpu != ranker.tpu:
    has_own = pretrained.tpu_of(pretrained.name_for(source.tpu)) == source.tpu
    notes.append(f'ranked by the model of a TPU {ranker.tpu}; ' + (
        f"{source.tpu} has its own: --dir pretrained, or in Python "
        f"CostModel.load(tpu='{source.tpu}')"
        if has_own else f'not checked for {source.tpu}'))
  return notes


def require_tpu(ranker: scoring.Ranker) -> None:
  """Raises a UserError if the model is for hardware with other tiles."""
  if ranker.in_elements:
    raise UserError(
        f'{ranker.name}: was trained on tiles that are counted in elements, '
        'but legal tiles are known only for TPUs; rank given tiles: those '
        'that a file lists, with --data, or in Python rows of config_feat')


def machine_of(ranker: scoring.Ranker, tpu: str = '') -> machines.Machine:
  """That of `tpu`, else of the model's generation, else a TPU v3."""
  return machines.MACHINES[tpu or ranker.tpu or schema.DEFAULT_TPU]


def constants_of(ranker: scoring.Ranker, loops: Loops) -> machines.TpuConstants:
  """Those that the model learned if both are a TPU v3's, else the machine's."""
  is_of_v3 = machine_of(ranker) is loops.machine is machine_of(
      ranker, schema.DEFAULT_TPU)
  return dataclasses.replace(
      loops.machine.constants, **(ranker.constants if is_of_v3 else {}))


def rank_kernel(ranker: scoring.Ranker, source: kernel_sources.SourceKernel,
                top_k: Optional[int] = TOP_CONFIGS,
                at_once: int = _MOST_WORKERS, loops: Optional[Loops] = None,
                tpu: str = '',
                alone: bool = False) -> tile_ranking.KernelRanking:
  """Ranks the legal tiles of one kernel, or raises a UserError.

  If it has more than `MOST_TILES`, an even sample is ranked. At most `at_once`
  parts of them are scored side by side; `loops` are read unless passed, for
  `machine_of(ranker, tpu)`. `alone` leaves out tiles that fit only with some
  tensors on the chip: a module of the kernel alone has none there.
  """
  loops = loops or geometry.loops_of(
      [source.kernel], machine_of(ranker, tpu))[0]
  constants = constants_of(ranker, loops)  # The next lines change the machine.
  if source.compiled.module is not None:
    loops.note(stored.tensors_of(source.compiled.module),
               stored.limit_bytes(source.compiled.module))
    if alone:
      loops.on_chip[:] = False
  kernel, default_notes = _with_default(source, loops)
  legal, notes = legal_tiles(loops, kernel)
  unfamiliar = out_of_range.of_nodes(ranker, kernel)
  choices, default, default_from, compiled = [], None, '', source.compiled
  if len(legal.tiles) > 1:
    rows = features.config_features(
        loops.kernel_bounds(legal.tiles),
        loops.output_bounds(legal.tiles))  # float32 [tiles, 24]
    unfamiliar += out_of_range.of_rows(
        ranker.stats.config, kernel.tile_id, 'config_feat', [rows])
    scores = _scores(ranker, kernel, rows, at_once)
    times = explain.terms(loops, legal.tiles, constants).time
    order = np.lexsort((times, scores))
    row = kernel_sources.default_of(kernel)
    if row is None:  # By the machine's constants, not by learned ones.
      default_from = kernel_sources.FROM_TIME
      chosen = explain.terms(loops, legal.tiles).time.argmin()
    else:
      default_from = (kernel_sources.FROM_COMPILER if compiled.window else
                      kernel_sources.FROM_FILE)
      chosen = (legal.tiles == loops.tiles_of(
          kernel.config_feat[row:row + 1])).all(axis=1).argmax()
    places = [*range(len(order))[:top_k],  # From 0; the default's at the end.
              int(np.flatnonzero(order == chosen)[0])]
    tiles, measured = legal.tiles[order[places]], _measured(kernel, loops)
    for place, score, tile, explained in zip(
        places, scores[order[places]].tolist(), tiles.tolist(),
        explain.explain(loops, tiles, constants)):
      time_ns = explained.time_ns if ranker.constants else None
      choices.append(tile_ranking.TileChoice(
          place + 1, score, explained, time_ns,
          time_ns and time_ns / float(times[chosen]),
          measured.get(tuple(tile))))
    default = choices.pop()
  return tile_ranking.KernelRanking(
      name=kernel.tile_id, copies=source.copies, op_name=compiled.op_name,
      share=source.share, cycles=source.cycles,
      in_open_loop=compiled.in_open_loop, nodes=kernel.num_nodes,
      opcodes=_opcodes(kernel), product=loops.product,
      combinations=legal.combinations, fitting=legal.fitting,
      scored=len(legal.tiles), choices=choices, default=default,
      default_from=default_from, notes=[*source.notes, *default_notes, *notes],
      unfamiliar=unfamiliar)


def _with_default(source: kernel_sources.SourceKernel,
                  loops: Loops) -> tuple[Kernel, list[str]]:
  """(the kernel, without the compiler's tile if that does not fit, notes)."""
  bounds = (source.compiled.window or ())[:2]
  if all(len(of) == len(most) and all(0 < b <= m for b, m in zip(of, most))
         for of, most in zip(bounds, loops.largest())):
    return source.kernel, []
  return never_timed(source.kernel, source.kernel.config_feat[:0]), [
      f"the compiler's tile, output {list(bounds[0])}, kernel "
      f'{list(bounds[1])}, belongs to another tensor than the one that is '
      'tiled here']


def legal_tiles(loops: Loops, kernel: Kernel
                ) -> tuple[candidates.Candidates, list[str]]:
  """Legal tiles, those of the kernel's own that the rules miss, and notes.

  Raises UserError if the kernel's own count elements.
  """
  notes, listed = [], loops.tiles_of(kernel.config_feat)
  if _count_elements(kernel, listed, loops):
    raise UserError(f'{kernel.tile_id}: its tiles count elements, not layout '
                    'tiles, so they are not for a TPU, the only hardware whose '
                    'legal tiles are known; to rank those of the file, train a '
                    'model on such tiles and give it to evaluate or predict')
  if loops.products > 1:
    notes.append(f'it fuses {loops.products} products, and only tiles of a '
                 'single one are understood, so it is not ranked')
    return candidates.Candidates(listed[:0], 0, 0, 0), notes
  if len(listed) and not kernel.config_feat.any():  # The file's tile is whole.
    legal = candidates.Candidates(loops.whole[np.newaxis], 1, 1, 1)
  else:
    legal = candidates.candidates(loops, MOST_TILES).with_extra(listed)
  if legal.looked_at < legal.combinations:
    notes.append(f'of {legal.combinations:,} combinations of bounds '
                 f'{legal.looked_at:,} were looked at, evenly spread')
  if len(legal.tiles) < 2:
    notes.append('it has one legal tile, so there is nothing to choose')
  return legal, notes


def _count_elements(kernel: Kernel, listed: np.ndarray, loops: Loops) -> bool:
  """Whether a kernel's own tiles are not a TPU's.

  Fewer than 20 that fit are taken for a TPU's: of 700 kernels compiled for a
  v3, 11 have a default tile that, read as elements, suits one of their tensors
  better, and none have 20 tiles that do.
  """
  distinct = set(map(tuple, listed.tolist()))
  return (len(distinct) >= _TILES_THAT_TELL or (listed > loops.whole).any()
          ) and feature_stats.what_tiles_count([kernel])[0] == 'elements'


def _scores(ranker: scoring.Ranker, kernel: Kernel, rows: np.ndarray,
            at_once: int) -> np.ndarray:
  kernel = tile_batches.with_known_types(
      ranker.prepared(never_timed(kernel, rows[:1])), ranker.stats)
  parts = [rows[start:start + _AT_ONCE]
           for start in range(0, len(rows), _AT_ONCE)]
  with ThreadPoolExecutor(min(threads.cores(), at_once)) as pool:
    return np.concatenate(list(pool.map(
        lambda part: ranker.scored(never_timed(kernel, part)).of_tiles, parts)))


def _measured(kernel: Kernel, loops: Loops) -> dict[tuple, int]:
  """The least time in ns of each of the kernel's own tiles, if known."""
  if not (kernel.runtime_ns > 1).all():
    return {}
  runs = sorted(zip(kernel.runtime_ns.tolist(), map(
      tuple, loops.tiles_of(kernel.config_feat).tolist())), reverse=True)
  return {tile: runtime_ns for runtime_ns, tile in runs}


def _opcodes(kernel: Kernel) -> list[str]:
  names = [schema.OPCODE_NAMES.get(int(number), 'unknown')
           for number in kernel.node_opcode]
  first = [name for name in _TELLING if name in names]
  return [name for name in dict.fromkeys(first + names) if name not in _PLAIN]
