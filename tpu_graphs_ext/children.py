"""Starts other Pythons so that they run nothing of the working folder.

`python -c` and `python -m` search the working folder for modules before the
standard library: a json.py that lies there would be run. From Python 3.13 on,
`-c` itself imports one, before any code that forbids it.
"""

from __future__ import annotations

import os
import sys

_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def command(code: str, *arguments: str, python: str = '') -> list[str]:
  """Runs code, which finds `arguments` in sys.argv[1:].

  It imports from where this process does, the working folder left out, or with
  `python`, another interpreter, from that one's own places; that one needs
  PYTHONSAFEPATH=1 in its environment, as it may be too old to have -P.
  """
  paths = None if python else [*_paths(), _PROJECT]
  safe = ['-P'] if not python and sys.version_info >= (3, 11) else []
  return [os.path.expanduser(python) or sys.executable, *safe, '-c',
          f'import sys; sys.path[:] = {paths!r} or filter(None, sys.path); '
          + code, *arguments]


def _paths() -> list[str]:
  # Where -m put the working folder, as '' is that of -c.
  by_m = getattr(sys.modules['__main__'], '__spec__', None)
  return [path for path in sys.path
          if path and not (by_m and path == os.getcwd())]
