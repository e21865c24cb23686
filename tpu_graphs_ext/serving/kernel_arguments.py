"""Reads the kernel and the tiles that a caller of `CostModel` passes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np

from tpu_graphs_ext.data import rules, schema
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel, require_readable
from tpu_graphs_ext.errors import UserError, did_you_mean
from tpu_graphs_ext.hlo.features import config_features

KernelLike = Union[Kernel, str, 'os.PathLike[str]', Mapping[str, Any]]
BoundsLike = Any  # One tile, or several; see `config_rows`.
# The largest bounds of a kernel's tiled tensor and of its filter; called only
# if a tile is given by its bounds.
Limits = Callable[[], tuple[Sequence[int], Sequence[int]]]

_GRAPH = tuple(field.name for field in schema.TILE_FIELDS[:3])
_CONFIG, _RUNTIME, _NORMALIZER = (
    field.name for field in schema.TILE_FIELDS[3:])
_CONFIG_WIDTH = len(schema.CONFIG_FEATURES)


def kernel_of(given: KernelLike) -> Kernel:
  """The kernel that a caller passes in one of the forms of `CostModel`.

  Arrays of labels may be missing, and so may `config_feat` if tiles are passed
  separately. Lists and wider types are converted if no value changes.

  Raises:
    UserError: the file is missing or damaged; or an array is missing, or does
      not hold numbers of the right type.
  """
  if isinstance(given, Kernel):
    return given
  if isinstance(given, (str, os.PathLike)):
    path = os.path.expanduser(os.fspath(given))
    if not path.endswith('.npz'):
      raise UserError(f'{path or "an empty path"}: is not a kernel; give the '
                      'path of an .npz file')
    return Kernel.load(path)
  if not isinstance(given, Mapping):
    raise UserError(
        f'a kernel is a {type(given).__name__}; give the path of an .npz file, '
        f'a Kernel, or a dict with the arrays {", ".join(_GRAPH)}')
  names = list(STORED_NAMES.values())
  for name in given:
    if name not in names:
      raise UserError(
          f'arrays of a kernel: there is none of the name {name!r}; '
          f'{did_you_mean(str(name), names)} They are {", ".join(names)}')
  missing = [name for name in _GRAPH if name not in given]
  if missing:
    raise UserError(f'arrays of a kernel: {", ".join(missing)} not given; '
                    f'they are {", ".join(names)}')
  arrays = {name: _converted(name, value) for name, value in given.items()}
  configs = arrays.setdefault(
      _CONFIG, np.zeros((0, _CONFIG_WIDTH), np.float32))
  arrays.setdefault(_RUNTIME, np.zeros(len(configs), np.int64))
  arrays.setdefault(_NORMALIZER, np.ones(len(configs), np.int64))
  return Kernel(tile_id='kernel', **{
      name: arrays[key] for name, key in STORED_NAMES.items()})


def _converted(name: str, value: Any) -> np.ndarray:
  """An array in the file's type, with the same values."""
  field = rules.TILE.fields[name]
  try:
    array = np.asarray(value)
    if array.dtype.kind not in 'iuf':
      raise ValueError(f'it holds {array.dtype}, not numbers')
    with np.errstate(all='ignore'):
      stored = array.astype(field.dtype)
    # Features in float64 are rounded; whole numbers must not change.
    if field.dtype != 'float32' and (stored != array).any():
      raise ValueError(f'a value does not fit into {field.dtype}')
  except (ValueError, TypeError) as error:
    raise UserError(
        f'arrays of a kernel: {name} cannot be taken as {field.dtype} '
        f'[{", ".join(map(str, field.axes))}] ({error})') from error
  if stored.size or stored.ndim == len(field.axes):
    return stored
  return stored.reshape([0, *field.axes[1:]])  # [] of no edges.


def with_tiles(kernel: Kernel, bounds: Optional[BoundsLike],
               limits: Limits) -> Kernel:
  """The kernel with these tiles, or its own, as its configurations, checked.

  Raises:
    UserError: there is no tile, or the arrays make no sense.
  """
  if bounds is not None:
    require_graph(kernel)
    kernel = _with_rows(kernel, config_rows(kernel, bounds, limits))
  elif kernel.config_feat.ndim and not kernel.num_configs:
    raise UserError(f'{kernel.tile_id}: has no config_feat; say which tiles '
                    'are meant with bounds=')
  require_readable(kernel)
  return kernel


def require_graph(kernel: Kernel) -> None:
  """Raises a UserError if a kernel's graph makes no sense."""
  require_readable(_with_rows(
      kernel, np.zeros((1, _CONFIG_WIDTH), np.float32)))


def _with_rows(kernel: Kernel, rows: np.ndarray) -> Kernel:
  """The kernel with other configurations, never timed."""
  return dataclasses.replace(
      kernel, config_feat=rows, runtime_ns=np.zeros(len(rows), np.int64),
      normalizer_ns=np.ones(len(rows), np.int64))


def config_rows(kernel: Kernel, bounds: Sequence[Any],
                limits: Limits) -> np.ndarray:
  """Tiles, in the forms of `CostModel`, as rows: float32 [tiles, 24].

  Raises:
    UserError: it is none of these; or a bound is not a whole number from 1 to
      the whole dimension; or there are too few or too many.
  """
  if isinstance(bounds, (str, bytes, Mapping)) or not hasattr(
      bounds, '__len__') or not hasattr(bounds, '__iter__'):
    raise UserError(f'bounds must be a list of tiles; got {bounds!r:.100}')
  if not len(bounds):
    raise UserError('bounds must name at least one tile; got none')
  try:
    table = np.asarray(bounds)
  except ValueError:  # Tiles of unequal lengths.
    table = np.zeros(0)
  if table.ndim == 2 and table.dtype.kind in 'iuf':  # Thousands at once.
    return _rows(table, np.zeros((len(table), 0)), limits)
  return np.concatenate([_row(kernel, tile, limits) for tile in bounds])


def _row(kernel: Kernel, tile: Any, limits: Limits) -> np.ndarray:
  """One tile as a row of `config_feat`: float32 [1, 24]."""
  if isinstance(tile, (int, np.integer)) and not isinstance(tile, bool):
    if not 0 <= tile < kernel.num_configs:
      raise UserError(
          f'{kernel.tile_id}: there is no configuration {tile}; it has '
          f'{kernel.num_configs}, counted from 0')
    return np.asarray(kernel.config_feat[tile:tile + 1], np.float32)
  output, filters = tile, ()
  if hasattr(tile, 'output_bounds'):
    output, filters = tile.output_bounds, tile.kernel_bounds
  elif isinstance(tile, (tuple, list)) and len(tile) == 2 and all(
      hasattr(part, '__len__') for part in tile):
    output, filters = tile
  try:
    output, filters = (np.asarray(part, np.float64)[np.newaxis]
                       for part in (output, filters))
    if output.ndim != 2 or filters.ndim != 2:
      raise ValueError
  except (ValueError, TypeError) as error:
    raise UserError(
        f'a tile is {tile!r:.100}; it must be bounds such as [16, 32], with '
        "a filter's as ([16, 32], [4, 8]), a row of config_feat, or the "
        "number of one of the kernel's configurations") from error
  return _rows(output, filters, limits)


def _rows(output: np.ndarray, filters: np.ndarray,
          limits: Limits) -> np.ndarray:
  """Rows of `config_feat` as they are, or of bounds [tiles, dimensions]."""
  if output.shape[1] == _CONFIG_WIDTH:
    return output.astype(np.float32)
  for bounds, most, of in zip(
      (filters, output), reversed(limits()),
      ("of a product's filter", 'of the tiled tensor')):
    if bounds.shape[1] != len(most):
      raise UserError(
          f'a tile has {bounds.shape[1]} bounds {of}, and it must have '
          f'{len(most)}: up to {list(most)}')
    bad = ~((bounds == np.floor(bounds)) & (bounds >= 1)
            & (bounds <= most)).all(axis=1)
    if bad.any():
      raise UserError(
          f'a tile is {bounds[bad][0].tolist()}; bounds {of} must be whole '
          f'numbers of at least 1 and at most {list(most)}')
  return config_features(filters.astype(np.int64), output.astype(np.int64))
