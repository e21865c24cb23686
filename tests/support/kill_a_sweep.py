"""Kills a worker and a sweep, twice, and runs the sweep until it is done.

    python kill_a_sweep.py FOLDER GRID.json

On a Dask cluster of two workers on this machine. FOLDER gets the sweep in
`out`. Prints a line an event, and at the end what was done more than once.
Wants the extra [scale].
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from support import dask_cluster, waiting
from tpu_graphs_ext.sweep import study

SECONDS = 7200  # Until a step gives up.
START = time.monotonic()


class Show:
  """A sweep, and who is to be killed.

  Args:
    folder: for everything.
    grid: path of the file.
    address: of the scheduler.
    many: finished trials before each of the kills: of a worker, of the sweep,
      of the sweep again.
  """

  def __init__(self, folder: pathlib.Path, grid: str, address: str,
               many: tuple[int, int, int]):
    self._out = folder / 'out'
    self._log = folder / 'sweep.log'
    self._grid, self._address, self._many = grid, address, many
    self._done: dict[str, str] = {}

  def run(self) -> dict:
    import distributed
    with distributed.Client(self._address, set_as_default=False) as client:
      sweep = self._started()
      self._wait_for(self._many[0])
      victim = self._busy(client)
      os.kill(client.run(os.getpid, workers=[victim])[victim], signal.SIGKILL)
      self._say(f'kill -9 of the worker {victim}')
      for number in self._many[1:]:
        self._wait_for(number)
        sweep.kill()
        sweep.wait()
        self._note()
        self._say('kill -9 of the sweep')
        sweep = self._started()
    code = sweep.wait(timeout=SECONDS)
    self._say(f'the sweep ended with exit code {code}')
    return self._account(code)

  def _started(self) -> subprocess.Popen:
    with open(self._log, 'ab') as log:
      return subprocess.Popen(
          [sys.executable, '-m', 'tpu_graphs_ext.cli', 'sweep', self._grid,
           '--out', str(self._out), '--scheduler', self._address],
          stdout=log, stderr=log)

  def _rows(self) -> dict[str, dict]:
    return study.rows(str(self._out)) if self._out.is_dir() else {}

  def _finished(self) -> list[str]:
    return [key for key, row in self._rows().items()
            if row['state'] == 'finished']

  def _wait_for(self, number: int) -> None:
    assert waiting.wait_for(lambda: len(self._finished()) >= number, SECONDS), (
        self._log.read_text())

  def _busy(self, client) -> str:
    """A worker that trains."""
    def found():
      return [worker for worker, keys in client.processing().items() if keys]

    assert waiting.wait_for(found, SECONDS)
    return found()[0]

  def _note(self) -> None:
    """Remembers when the runs of finished trials were written."""
    for key in self._finished():
      self._done.setdefault(key, self._written(key))

  def _written(self, key: str) -> str:
    row = self._rows()[key]
    return str([row, *(os.stat(self._out / name).st_mtime_ns for name in (
        f'run_{row["run"]}.jsonz', f'model_{row["run"]}'))])

  def _say(self, text: str) -> None:
    print(f'{time.monotonic() - START:7.1f} s  {len(self._finished())} '
          f'finished: {text}', flush=True)

  def _account(self, code: int) -> dict:
    rows = self._rows().values()
    return {
        'code': code, 'states': [row['state'] for row in rows],
        'started more than once': sum(row['attempts'] > 1 for row in rows),
        'done again': [key for key, written in self._done.items()
                       if self._written(key) != written]}


def run(folder: pathlib.Path, grid: str, many: tuple[int, int, int]) -> dict:
  """Returns what came of it; see `Show`."""
  with dask_cluster.started(folder) as address:
    return Show(folder, grid, address, many).run()


if __name__ == '__main__':
  print(json.dumps(run(pathlib.Path(sys.argv[1]).absolute(), sys.argv[2],
                       (2, 4, 8)), indent=1))
