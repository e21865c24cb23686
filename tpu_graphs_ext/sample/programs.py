"""The programs that the package brings for the layout task: read, and packed.

`compiled/programs.xz` is an .npz, compressed as a whole: `about`, a JSON text
of format and programs, and `modules`, the bytes of their HLO one after another.
"""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import os
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sample.kernels import FOLDER

PATH = os.path.join(FOLDER, 'programs.xz')
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Program:
  """A whole program, before layouts are assigned.

  Attributes:
    name: of the program.
    split: train, valid or test.
    source: 'xla', or 'nlp' for programs on texts and speech.
    module: a serialized `HloModuleProto` of `hlo.whole_program`.
  """
  name: str
  split: str
  source: str
  module: bytes


def load(path: str = PATH) -> list[Program]:
  """All programs, in the order of their names.

  Raises:
    UserError: the file is missing, damaged, or of another format.
  """
  try:
    with lzma.open(path) as file, np.load(
        io.BytesIO(file.read()), allow_pickle=False) as stored:
      about = json.loads(stored['about'].tobytes())
      modules = stored['modules'].tobytes()
    if about['format'] != _FORMAT:
      raise ValueError(f'format {about["format"]}, not {_FORMAT}')
    found, end = [], 0
    for name, split, source, size in about['programs']:
      found.append(Program(name, split, source, modules[end:end + size]))
      end += size
  except (OSError, EOFError, ValueError, LookupError,
          lzma.LZMAError) as error:
    raise UserError(
        f'{path}: cannot be read ({error}); it is a part of the package: '
        'install the package again') from error
  return found


def save(programs: Sequence[Program], path: str = PATH) -> None:
  """Writes a file that `load` reads; for maintainers."""
  programs = sorted(programs, key=lambda program: program.name)
  about = {'format': _FORMAT, 'programs': [
      [p.name, p.split, p.source, len(p.module)] for p in programs]}
  content = io.BytesIO()
  np.savez(content,
           about=np.frombuffer(json.dumps(about).encode(), np.uint8),
           modules=np.frombuffer(
               b''.join(p.module for p in programs), np.uint8))
  with lzma.open(path, 'wb', preset=9 | lzma.PRESET_EXTREME) as file:
    file.write(content.getvalue())
