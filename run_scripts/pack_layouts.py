"""Packs what compile_layouts.py found into the package, for maintainers."""

import io
import json
import lzma
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.sample import layouts


def save(programs: Sequence[layouts.Program], compiler: str,
         path: str = layouts.PATH) -> None:
  """Writes a file that `layouts.load` reads."""
  about = {'format': layouts.FORMAT, 'compiler': compiler, 'programs': [
      [p.name, p.split, len(p.module),
       next(iter(p.searches.values()))[0].shape[1],
       {search: len(cycles) for search, (_, cycles) in p.searches.items()}]
      for p in programs]}
  judged = [one for p in programs for one in p.searches.values()]
  content = io.BytesIO()
  np.savez(content,
           about=np.frombuffer(json.dumps(about).encode(), np.uint8),
           modules=np.frombuffer(
               b''.join(p.module for p in programs), np.uint8),
           chosen=np.concatenate(
               [options.T.reshape(-1) for options, _ in judged]).astype(
                   np.uint8),
           cycles=np.concatenate([cycles for _, cycles in judged]))
  with lzma.open(path, 'wb', preset=9 | lzma.PRESET_EXTREME) as file:
    file.write(content.getvalue())
