"""Reads the kernel and the tiles that a caller of `CostModel` passes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Union

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo.features import config_features

KernelLike = Union[Kernel, str, 'os.PathLike[str]', Mapping[str, Any]]
BoundsLike = Sequence[Any]  # Tiles; see `config_rows`.

_GRAPH = tuple(field.name for field in schema.TILE_FIELDS[:3])
_CONFIG, _RUNTIME, _NORMALIZER = (
    field.name for field in schema.TILE_FIELDS[3:])
_CONFIG_WIDTH = len(schema.CONFIG_FEATURES)


def kernel_of(given: KernelLike) -> Kernel:
  """The kernel that a caller passes in one of the forms of `CostModel`.

  Of arrays, those of labels and `config_feat` may be missing.

  Raises:
    UserError: the file is missing or damaged; or arrays are missing, or others
      than a file's.
  """
  if isinstance(given, Kernel):
    return given
  if isinstance(given, (str, os.PathLike)):
    return Kernel.load(os.path.expanduser(os.fspath(given)))
  names = set(given) if isinstance(given, Mapping) else set()
  if not set(_GRAPH) <= names <= set(STORED_NAMES.values()):
    raise UserError(
        'a kernel must be the path of an .npz file, a Kernel, or a dict with '
        f'arrays of such a file: {", ".join(_GRAPH)} and, if tiles are known, '
        f'{_CONFIG}; got {sorted(names) or type(given).__name__}')
  arrays = {name: np.asarray(value) for name, value in given.items()}
  configs = np.atleast_1d(arrays.setdefault(
      _CONFIG, np.zeros((0, _CONFIG_WIDTH), np.float32)))
  arrays.setdefault(_RUNTIME, np.zeros(len(configs), np.int64))
  arrays.setdefault(_NORMALIZER, np.ones(len(configs), np.int64))
  return Kernel(tile_id='kernel', **{
      name: arrays[key] for name, key in STORED_NAMES.items()})


def never_timed(kernel: Kernel, rows: np.ndarray) -> Kernel:
  """The kernel with other rows of `config_feat`, which have no times."""
  return dataclasses.replace(
      kernel, config_feat=rows, runtime_ns=np.zeros(len(rows), np.int64),
      normalizer_ns=np.ones(len(rows), np.int64))


def config_rows(bounds: BoundsLike, limits: Callable) -> np.ndarray:
  """Tiles, in the forms of `CostModel`, as rows: float32 [tiles, 24].

  `limits` returns the largest bounds of the tiled tensor and of a filter; it is
  called only if tiles are given by their bounds.

  Raises:
    UserError: they are not tiles; or a bound is not a whole number from 1 to
      the whole dimension; or there are too few or too many.
  """
  try:
    has_filters = np.ndim(bounds[0][0]) > 0
    output, filters = (np.asarray(table, np.float64) for table in (
        zip(*bounds) if has_filters else (
            bounds, np.zeros((len(bounds), 0)))))
    if output.ndim != 2 or filters.ndim != 2:
      raise ValueError
  except (ValueError, TypeError, LookupError) as error:
    raise UserError(
        f'bounds={bounds!r:.100}: must be a list of at least one tile, such as '
        "[16, 32] or, with a filter's bounds, ([16, 32], [4, 8]), or rows of "
        f'{_CONFIG}') from error
  if output.shape[1] == _CONFIG_WIDTH:
    return output.astype(np.float32)
  for table, most, of in zip(
      (filters, output), reversed(limits()),
      ("of a product's filter", 'of the tiled tensor')):
    if table.shape[1] != len(most):
      raise UserError(
          f'a tile has {table.shape[1]} bounds {of}, and it must have '
          f'{len(most)}: up to {list(most)}')
    bad = ~((table == np.floor(table)) & (table >= 1)
            & (table <= most)).all(axis=1)
    if bad.any():
      raise UserError(
          f'a tile is {table[bad][0].tolist()}; bounds {of} must be whole '
          f'numbers of at least 1 and at most {list(most)}')
  return config_features(filters.astype(np.int64), output.astype(np.int64))
