"""Compiles the sample programs with Google's TPU compiler, for maintainers.

  python run_scripts/compile_kernels.py DIR [--tpu v3] [--only NAME ...]

Needs a Python of 3.11 or newer with `pip install "jax[tpu]"`; no TPU, no
TensorFlow. It took 80 min on two busy cores for v3. For each program of
`sample_programs/table.py` it writes

  DIR/TPU/NAME.pb        the program as compiled
  DIR/TPU/NAME.json.gz   kernel -> [[output bounds, kernel bounds, cycles,
                         and of products bytes of on-chip memory]]
  DIR/programs.json      split -> names of its programs

with all tiles that the compiler weighed for each kernel and its estimate of
their cycles, as its log has them. A program whose files are there is passed
over, so an interrupted run goes on. `pack_kernels.py` makes the package's
sample data of them.

The log is nothing that libtpu promises: what it says was checked for the
version that `sample_programs/README.md` names.
"""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOPOLOGIES = {'v3': 'v3:2x2x1', 'v4': 'v4:2x2x1', 'v5e': 'v5e:2x2',
              'v5p': 'v5p:2x2x1', 'v6e': 'v6e:2x2', 'v7x': 'tpu7x:2x2x1'}
LOGGED = 'fusion_emitter=5,spatial_major_convolution=3'
_PREFIX = re.compile(r'I\d+ \S+ +(\d+) ')
_START = re.compile(r'::Emit START for (?:HLO: )?(\S+)')
_CONVOLUTION = re.compile(
    r'Generated Candidate: out=([\d,]*) kern=([\d,]*) cycles=(\d+)'
    r'(?: vmem_needed=(\d+))?')
_LOOP = re.compile(
    r'Potential window config \[([\d, ]*)\].* total_cycles (\d+)')
_WANTED = 'Emit START for|Generated Candidate: |Potential window config'


def candidates(lines) -> dict:
  """Log lines -> {kernel: {(output bounds, kernel bounds): cycles}}.

  A thread compiles one kernel at a time. A kernel that is compiled again,
  with less memory for its tiles, has those of the last time.
  """
  tiles_of, kernel_of = {}, {}
  for line in lines:
    prefix = _PREFIX.match(line)
    if not prefix:
      continue
    thread = prefix[1]
    if start := _START.search(line):
      kernel_of[thread] = start[1]
      tiles_of[start[1]] = {}
    elif thread not in kernel_of:
      continue  # A pass before the emitter weighs some tiles, without a name.
    elif match := _CONVOLUTION.search(line):
      output, kernel, cycles, vmem = match.groups()
      tiles_of[kernel_of[thread]][_bounds(output), _bounds(kernel)] = [
          int(cycles), int(vmem or 0)]
    elif match := _LOOP.search(line):
      tiles_of[kernel_of[thread]].setdefault(
          (_bounds(match[1]), ()), [int(match[2])])
  return tiles_of


def _bounds(text: str) -> tuple:
  return tuple(int(part) for part in text.split(',') if part.strip())


def compile_one(name: str, topology: str, target: str, folder: str) -> int:
  """Writes both files of a program; returns how many kernels it has.

  At this level libtpu also writes its log, of up to 1 GiB, into a `folder`.
  """
  log = {'TPU_STDERR_LOG_LEVEL': '0', 'TPU_MIN_LOG_LEVEL': '0',
         'TPU_VMODULE': LOGGED, 'TPU_LOG_DIR': folder}
  # Gigabytes of log, of which grep keeps what is read here.
  with open(target + '.err', 'wb') as messages:
    compiling = subprocess.Popen(
        [sys.executable, os.path.join(HERE, 'compile_program.py'), name,
         topology, target + '.pb'],
        env={**os.environ, **log}, stderr=subprocess.PIPE,
        stdout=messages)
    wanted = subprocess.Popen(
        ['grep', '--text', '-E', _WANTED + '|^[A-Za-z.]+Error|^Traceback'],
        stdin=compiling.stderr, stdout=subprocess.PIPE, text=True,
        errors='replace', env={**os.environ, 'LC_ALL': 'C'})
    compiling.stderr.close()
    errors = []

    def lines():
      for line in wanted.stdout:
        if not line.startswith('I'):
          errors.append(line)
        yield line

    tiles_of = candidates(lines())
    wanted.wait()
    if compiling.wait():
      raise RuntimeError(''.join(errors[-2:]).strip()
                         or f'exit code {compiling.returncode}')
  os.remove(target + '.err')
  rows = {kernel: [[*tile, *cycles] for tile, cycles in tiles.items()]
          for kernel, tiles in tiles_of.items()}
  with gzip.open(target + '.tmp', 'wt') as file:
    file.write(json.dumps(rows))
  os.replace(target + '.tmp', target + '.json.gz')
  return len(rows)


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('dir')
  parser.add_argument('--tpu', choices=sorted(TOPOLOGIES), default='v3')
  parser.add_argument('--only', nargs='*', help='names of programs, also of '
                      'those for layouts, which are in no split here')
  args = parser.parse_args()
  os.environ['JAX_PLATFORMS'] = 'cpu'
  from sample_programs import table
  folder = os.path.join(args.dir, args.tpu)
  os.makedirs(folder, exist_ok=True)
  splits = {}
  for program in table.PROGRAMS.values():
    splits.setdefault(program.split, []).append(program.name)
  with open(os.path.join(args.dir, 'programs.json'), 'w') as file:
    json.dump(splits, file, indent=1)
  failed = 0
  for name in args.only or table.PROGRAMS:
    target = os.path.join(folder, name)
    if os.path.exists(target + '.json.gz'):
      continue
    start = time.monotonic()
    try:
      with tempfile.TemporaryDirectory() as logs:
        kernels = compile_one(name, TOPOLOGIES[args.tpu], target, logs)
      print(f'{name}: {kernels} kernels, {time.monotonic() - start:.0f} s',
            flush=True)
    except RuntimeError as error:
      failed += 1
      print(f'{name}: {error}', file=sys.stderr, flush=True)
  sys.exit(failed > 0)


if __name__ == '__main__':
  main()
