"""A folder of sample data: written whole, and again only where it is ours.

`sample_data.json` beside the folders has the settings, the statistics and the
sums of all files. The same settings find what is there; other ones replace it,
but only where the sums say that all in it was written here.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError

_MARKER = schema.SAMPLE_DATA_MARK


def write_folders(out: str, what: str, folders: Sequence[str],
                  fingerprint: Mapping, fill: Callable, is_whole: Callable
                  ) -> tuple[dict, bool]:
  """Fills folders, or finds them written.

  Each folder is made beside the one it then replaces, inside `out`.

  Args:
    out: full path of the folder; made if missing.
    what: the first line of the marker, which says whose it is.
    folders: names of the folders in `out`.
    fingerprint: what the content depends on, for the marker.
    fill: takes {folder: place to write it}, returns the statistics.
    is_whole: whether statistics are such as `fill` returns.

  Returns:
    (statistics, whether they were there already).

  Raises:
    UserError: `out` holds something that is not sample data, or cannot be
      written.
  """
  marker = _read_marker(out, what, folders)
  statistics = marker.get('splits', {})
  if (marker.get('settings') == fingerprint and is_whole(statistics)
      and all(os.path.isfile(os.path.join(out, path))
              for path in marker.get('files', {}))):
    return statistics, True
  try:
    with contextlib.ExitStack() as stack:
      places = {folder: stack.enter_context(
          files.new_folder(os.path.join(out, folder))) for folder in folders}
      statistics = fill(places)
      written = {f'{folder}/{path}': content for folder in folders
                 for path, content in files.sums(
                     places[folder]).items()}
      # Once more, for that took minutes. While the folders change their
      # places, this marker knows both.
      earlier = _read_marker(out, what, folders).get('files', {})
      _write_marker(out, what, {'files': written, 'earlier': earlier})
    _write_marker(out, what, {
        'settings': fingerprint, 'splits': statistics, 'files': written})
  except OSError as error:
    raise files.cannot_be_written(out, error) from error
  return statistics, False


def _read_marker(out: str, what: str, folders: Sequence[str]) -> dict:
  """What the marker in the folder says; empty where nothing is.

  Raises:
    UserError: the folder holds something that no marker says is sample data.
  """
  if not os.path.lexists(out):
    return {}
  if not os.path.isdir(out):
    raise UserError(f'{out}: is a file; give a folder for the sample data')
  files.remove_leftovers(out)
  path = os.path.join(out, _MARKER)
  marker = _marker_in(path, what)
  known = [marker.get('files', {}), marker.get('earlier', {})]
  own = [_MARKER] * bool(marker)
  for name in sorted(os.listdir(out)):
    if name.endswith(files.TEMPORARY) or name in own:
      continue
    strangers = [name]
    if name in folders and marker and not os.path.islink(
        os.path.join(out, name)):
      strangers = [f'{name}/{path}' for path in files.foreign(
          os.path.join(out, name),
          *(_below(name, paths) for paths in known))]
    if strangers:
      raise UserError(
          f'{out}: holds {strangers[0]!r}, which is not sample data of this '
          'package, or was changed since; give a new or an empty folder, or '
          'remove this one by hand if nothing in it is needed')
  return marker


def _below(folder: str, paths: dict[str, str]) -> dict[str, str]:
  """The paths in one of the folders, without its name."""
  return {path[len(folder) + 1:]: content for path, content in paths.items()
          if path.startswith(folder + '/')}


def _marker_in(path: str, what: str) -> dict:
  """A marker that `_write_marker` wrote, else nothing."""
  try:
    if not os.path.isfile(path) or os.path.islink(path):
      return {}
    with open(path, 'rb') as file:
      marker = files.parse_json(file.read(), path)
  except (OSError, UserError):
    return {}
  whole = isinstance(marker, dict) and marker.get('what') == what and all(
      isinstance(marker.get(key, {}), dict)
      for key in ('files', 'earlier', 'settings', 'splits'))
  return marker if whole else {}


def _write_marker(out: str, what: str, content: dict) -> None:
  text = json.dumps({'what': what, **content}, indent=1)
  files.write_file(os.path.join(out, _MARKER), text.encode())
