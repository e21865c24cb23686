"""A folder of sample data: written whole, and again only where it is ours.

`sample_data.json` beside the folders has the settings, the statistics and the
checksums of all files. Equal settings reuse what is there; others replace it,
unless a checksum says that a file is not ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError

_MARKER = schema.SAMPLE_DATA_MARK


@dataclasses.dataclass(frozen=True)
class Summary:
  """The result of writing sample data.

  Attributes:
    out: the folder.
    statistics: of each split or collection.
    columns: heading -> statistics to print there, with the keys of `rows`.
    rows: key -> name of the row.
    reused: whether the folder had exactly this data already.
  """
  out: str
  statistics: dict
  columns: Mapping[str, Mapping]
  rows: Mapping[str, str]
  reused: bool

  def text(self) -> str:
    """A table of the statistics."""
    table = pd.DataFrame(self.columns, dtype=object).loc[
        list(self.rows)].rename(index=self.rows)
    return (f'Sample data {"already there" if self.reused else "written"}: '
            f"{self.out}\nRuntimes are estimates of Google's TPU compiler.\n\n"
            + table.apply(lambda cells: cells.map('{:,g}'.format)).to_string())


def write_folders(out: str, what: str, folders: Sequence[str],
                  fingerprint: Mapping, fill: Callable) -> tuple[dict, bool]:
  """Fills folders, or finds them written.

  Args:
    out: full path of the folder; made if missing.
    what: the first line of the marker, which names the kind of data.
    folders: names of the folders in `out`.
    fingerprint: what the content depends on, for the marker.
    fill: takes {folder: place to write it}, returns the statistics.

  Returns:
    (statistics, whether they were there already).

  Raises:
    UserError: `out` holds something that is not sample data, or cannot be
      written.
  """
  marker = _read_marker(out, what, folders)
  if marker.get('settings') == fingerprint and all(
      os.path.isfile(os.path.join(out, path)) for path in marker['files']):
    return marker['splits'], True
  try:
    with contextlib.ExitStack() as stack:
      places = {folder: stack.enter_context(
          files.new_folder(os.path.join(out, folder))) for folder in folders}
      statistics = fill(places)
      written = {f'{folder}/{path}': content for folder in folders
                 for path, content in files.sums(places[folder]).items()}
      # Read again, as filling took minutes. While the folders change places,
      # the marker knows the old files and the new ones.
      earlier = _read_marker(out, what, folders).get('files', {})
      _write_marker(out, what, {'files': written, 'earlier': earlier})
    _write_marker(out, what, {
        'settings': fingerprint, 'splits': statistics, 'files': written})
  except OSError as error:
    raise files.cannot_be_written(out, error) from error
  return statistics, False


def _read_marker(out: str, what: str, folders: Sequence[str]) -> dict:
  """The folder's marker; empty if the folder is.

  Raises:
    UserError: the folder holds something that no marker says is sample data.
  """
  if not os.path.lexists(out):
    return {}
  if not os.path.isdir(out):
    raise UserError(f'{out}: is a file; give a folder for the sample data')
  files.remove_leftovers(out)
  marker = _marker_in(os.path.join(out, _MARKER), what)
  for name in sorted(os.listdir(out)):
    if name.endswith(files.TEMPORARY) or (marker and name == _MARKER):
      continue
    place, strangers = os.path.join(out, name), [name]
    if marker and name in folders and not os.path.islink(place):
      strangers = [f'{name}/{path}' for path in files.foreign(place, *(
          {path[len(name) + 1:]: content for path, content in of.items()
           if path.startswith(name + '/')}
          for of in (marker.get('files', {}), marker.get('earlier', {}))))]
    if strangers:
      raise UserError(
          f'{out}: holds {strangers[0]!r}, which is not sample data of this '
          'package, or was changed since; give a new or an empty folder, or '
          'remove this one by hand if nothing in it is needed')
  return marker


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
