"""What callers name a kernel and its tiles by, as a `Kernel`'s arrays."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Union

import numpy as np

from tpu_graphs_ext.data import rules, schema
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.data.partition import require_readable
from tpu_graphs_ext.errors import UserError, did_you_mean
from tpu_graphs_ext.hlo.features import config_features

KernelLike = Union[Kernel, str, 'os.PathLike[str]', Mapping[str, Any]]
# One tile, or several; see `config_rows`.
BoundsLike = Any
# The largest bounds of a kernel's tiled tensor and of its filter, which are
# asked for only where a tile is given by its bounds.
Limits = Callable[[], tuple[Sequence[int], Sequence[int]]]

_GRAPH = tuple(field.name for field in schema.TILE_FIELDS[:3])
_CONFIG, _RUNTIME, _NORMALIZER = (
    field.name for field in schema.TILE_FIELDS[3:])
_CONFIG_WIDTH = len(schema.CONFIG_FEATURES)


def kernel_of(given: KernelLike) -> Kernel:
  """The kernel that a caller names.

  Args:
    given: a `Kernel`; the path of an .npz file; or the arrays of one by their
      names there. Of arrays, those of the labels may be missing, and
      `config_feat` where tiles are given apart; lists and wider types will do
      where no value changes.

  Raises:
    UserError: there is no such file, or it is damaged; an array is missing, or
      is no array of numbers of the right type.
  """
  if isinstance(given, Kernel):
    return given
  if isinstance(given, (str, os.PathLike)):
    return _from_file(os.path.expanduser(os.fspath(given)))
  if isinstance(given, Mapping):
    return _from_arrays(given)
  raise UserError(
      f'a kernel is a {type(given).__name__}; give the path of an .npz file, a '
      f'Kernel, or a dict with the arrays {", ".join(_GRAPH)}')


def _from_file(path: str) -> Kernel:
  if not path.endswith('.npz'):
    raise UserError(f'{path or "an empty path"}: is no kernel; give the path '
                    'of an .npz file')
  return Kernel.load(path)


def _from_arrays(given: Mapping[str, Any]) -> Kernel:
  names = list(STORED_NAMES.values())
  for name in given:
    if name not in names:
      hint = did_you_mean(str(name), names)
      raise UserError(
          f'arrays of a kernel: there is none of the name {name!r}; {hint}'
          f'{" " if hint else ""}they are {", ".join(names)}')
  missing = [name for name in _GRAPH if name not in given]
  if missing:
    raise UserError(f'arrays of a kernel: {", ".join(missing)} not given; '
                    f'they are {", ".join(names)}')
  arrays = {name: _as_stored(name, value) for name, value in given.items()}
  configs = arrays.setdefault(
      _CONFIG, np.zeros((0, _CONFIG_WIDTH), np.float32))
  arrays.setdefault(_RUNTIME, np.zeros(len(configs), np.int64))
  arrays.setdefault(_NORMALIZER, np.ones(len(configs), np.int64))
  return Kernel(tile_id='kernel', **{
      name: arrays[key] for name, key in STORED_NAMES.items()})


def _as_stored(name: str, value: Any) -> np.ndarray:
  """An array of the type that files have, with the same values."""
  field = rules.FIELDS[name]
  try:
    array = np.asarray(value)
    if array.dtype.kind not in 'iuf':
      raise ValueError(f'it holds {array.dtype}, not numbers')
    with np.errstate(all='ignore'):
      stored = array.astype(field.dtype)
    # Features of float64 are rounded; whole numbers must stay what they are.
    if field.dtype != 'float32' and (stored != array).any():
      raise ValueError(f'a value does not fit into {field.dtype}')
  except (ValueError, TypeError) as error:
    raise UserError(
        f'arrays of a kernel: {name} cannot be taken as {field.dtype} '
        f'[{", ".join(map(str, field.axes))}] ({error})') from error
  if stored.size or stored.ndim == len(field.axes):
    return stored
  return stored.reshape([0, *field.axes[1:]])  # [] of no edges.


def with_tiles(kernel: Kernel, bounds: BoundsLike, limits: Limits) -> Kernel:
  """The kernel with these tiles as its configurations, checked.

  Args:
    kernel: from `kernel_of`.
    bounds: several tiles; see `config_rows`. None: the kernel's own.
    limits: of the kernel's bounds.

  Raises:
    UserError: there is no tile, or what the arrays say makes no sense.
  """
  if bounds is not None:
    require_graph(kernel)
    kernel = _of_rows(kernel, config_rows(kernel, bounds, limits))
  elif kernel.config_feat.ndim and not kernel.num_configs:
    raise UserError(f'{kernel.tile_id}: has no config_feat; say which tiles '
                    'are meant with bounds=')
  require_readable(kernel)
  return kernel


def require_graph(kernel: Kernel) -> None:
  """Raises a UserError where the graph of a kernel makes no sense."""
  require_rows(kernel, np.zeros((1, _CONFIG_WIDTH), np.float32))


def require_rows(kernel: Kernel, rows: np.ndarray) -> None:
  """The same, also for rows of `config_feat` with values that are not finite.
  """
  require_readable(_of_rows(kernel, rows))


def _of_rows(kernel: Kernel, rows: np.ndarray) -> Kernel:
  """The kernel with other configurations, of which no time is known."""
  return dataclasses.replace(
      kernel, config_feat=rows, runtime_ns=np.zeros(len(rows), np.int64),
      normalizer_ns=np.ones(len(rows), np.int64))


def config_rows(kernel: Kernel, bounds: Sequence[Any],
                limits: Limits) -> np.ndarray:
  """Tiles as rows of `config_feat`: float32 [tiles, 24].

  Args:
    kernel: whose tiles they are.
    limits: of its bounds.
    bounds: tiles, each in one of these forms, or an array of one form:
      - layout tiles along the tiled tensor's physical dimensions, most major
        first, such as [16, 32];
      - these and those of a convolution's filter, as ([16, 32], [4, 8]);
      - anything with both as `output_bounds` and `kernel_bounds`, such as a
        `Choice` of a ranking;
      - a row of `config_feat`, 24 numbers;
      - the number of one of the kernel's own configurations, from 0.

  Raises:
    UserError: it is none of these, or a bound is no whole number from 1 to the
      whole dimension, or there are too few or too many. Rows are not looked
      at.
  """
  if isinstance(bounds, (str, bytes, Mapping)) or not hasattr(
      bounds, '__len__') or not hasattr(bounds, '__iter__'):
    raise UserError(f'bounds must be a list of tiles; got {bounds!r:.100}')
  if not len(bounds):
    raise UserError('bounds must name at least one tile; got none')
  table = _table(bounds)
  if table is not None and table.shape[1] == _CONFIG_WIDTH:
    return table.astype(np.float32)
  if table is not None:
    return config_features(*_checked_table(table, limits))
  rows = np.empty((len(bounds), _CONFIG_WIDTH), np.float32)
  for row, tile in zip(rows, bounds):
    row[:] = config_row(kernel, tile, limits)
  return rows


def _table(bounds: Sequence[Any]) -> np.ndarray | None:
  """[tiles, numbers] where all tiles have one form of numbers alone."""
  try:
    table = np.asarray(bounds)
  except ValueError:  # Of unequal lengths.
    return None
  return table if table.ndim == 2 and table.dtype.kind in 'iuf' else None


def config_row(kernel: Kernel, tile: Any, limits: Limits) -> np.ndarray:
  """A single tile as a row of `config_feat`: float32 [24].

  See `config_rows`.
  """
  if isinstance(tile, (int, np.integer)) and not isinstance(tile, bool):
    if not 0 <= tile < kernel.num_configs:
      raise UserError(
          f'{kernel.tile_id}: there is no configuration {tile}; it has '
          f'{kernel.num_configs}, counted from 0')
    return np.asarray(kernel.config_feat[tile], np.float32)
  output, filters = tile, ()
  if hasattr(tile, 'output_bounds'):
    output, filters = tile.output_bounds, tile.kernel_bounds
  elif _is_pair(tile):
    output, filters = tile
  output = _numbers(output, tile)
  if output.shape == (_CONFIG_WIDTH,):
    return output.astype(np.float32)
  return config_features(
      *_checked(_numbers(filters, tile), output, tile, limits))


def _is_pair(tile: Any) -> bool:
  """Whether it is ([16, 32], [4, 8])."""
  return (isinstance(tile, (tuple, list)) and len(tile) == 2
          and all(hasattr(part, '__len__') for part in tile))


def _numbers(bounds: Any, tile: Any) -> np.ndarray:
  """The bounds of one tensor, or a row, as an array of one axis."""
  try:
    numbers = np.asarray(bounds, np.float64)
  except (ValueError, TypeError):
    numbers = np.zeros(())
  if numbers.ndim != 1:
    raise UserError(
        f'a tile is {tile!r:.100}; it must be bounds such as [16, 32], with '
        'those of a filter as ([16, 32], [4, 8]), a row of config_feat, or the '
        "number of one of the kernel's configurations")
  return numbers


def _checked_table(table: np.ndarray, limits: Limits) -> list[np.ndarray]:
  """`_checked` of many tiles; an error names the first that is wrong."""
  try:
    return _checked((), table, table, limits)
  except UserError:
    for tile in table:
      _checked((), tile, tile.tolist(), limits)
    raise


def _checked(filters: Any, output: np.ndarray, tile: Any,
             limits: Limits) -> list[np.ndarray]:
  """The bounds of the filter and of the output, int64 [..., dimensions]."""
  checked = []
  for bounds, most, of in zip(
      (np.asarray(filters), output), reversed(limits()),
      ("of a product's filter", 'of the tiled tensor')):
    if bounds.shape[-1] != len(most):
      raise UserError(
          f'a tile is {tile!r:.100}; it has {bounds.shape[-1]} bounds {of}, '
          f'and it must have {len(most)}: up to {list(most)}')
    with np.errstate(invalid='ignore'):
      whole = bounds.astype(np.int64)
    if (whole != bounds).any() or (whole < 1).any() or (whole > most).any():
      raise UserError(
          f'a tile is {tile!r:.100}; bounds {of} must be whole numbers of at '
          f'least 1 and at most {list(most)}')
    checked.append(whole)
  return checked
