"""Times the kernels that `rank --modules DIR` wrote, on a machine with a TPU.

    python time_modules.py DIR > DIR/measured.csv

Needs JAX 0.9 or later, with the libtpu that compiled them; `tpu-graphs-ext
featurize DIR/measured.csv --out kernels` makes .npz files of the times. Runs
follow one another: starting one, some 50 us, hides a shorter kernel."""

import csv
import json
import pathlib
import sys
import time

import jax
from jax import numpy as jnp

if jax.__version_info__ < (0, 9):  # Lacks `LoadedExecutable.serialize`.
  sys.exit(f'error: this is JAX {jax.__version__}; install 0.9 or later')
from jax.experimental.layout import Format, Layout


def loaded(client, serialized, results):
  """What libtpu compiled, behind the header that this JAX puts in front."""
  zeros = jax.jit(lambda: [jnp.zeros(r['shape'], r['dtype']) for r in results])
  sample = bytes(zeros.lower().compile().runtime_executable().serialize())
  size = place = 0  # The header's length, a varint.
  while b'pjrt_ifrt' in sample[:64] and (not place or sample[place - 1] & 128):
    size |= (sample[place] & 127) << 7 * place
    place += 1
  code = sample[:place + size] + serialized
  return client.deserialize_executable(code, jax.devices()[:1])


def runtime_ns(executable, arguments, runs):
  """Nanoseconds of one run, the least mean of three rounds after a first."""
  means = []
  for _ in range(4):
    start = time.perf_counter_ns()
    for _ in range(runs):
      result = executable.execute(arguments)
    jax.block_until_ready(result)
    means.append((time.perf_counter_ns() - start) / runs)
  return round(min(means[1:]))


def main(folder, runs=200):
  device, writer = jax.devices()[0], csv.writer(sys.stdout)
  place = jax.sharding.SingleDeviceSharding(device)
  writer.writerow(['module', 'runtime_ns', 'runs', 'device'])
  listed = json.loads((folder / 'modules.json').read_text())
  for row in listed['modules']:
    arguments = [jax.device_put(jnp.ones(a['shape'], a['dtype']), Format(
        Layout(tuple(a['major_to_minor'])), place)) for a in row['arguments']]
    path = (folder / row['module']).with_suffix('.tpu')
    try:
      executable = loaded(device.client, path.read_bytes(), row['results'])
    except jax.errors.JaxRuntimeError as error:
      sys.exit(f'error: {path}: a {device.device_kind} cannot load it; use a '
               f'TPU {listed["tpu"]} and the libtpu that compiled it: {error}')
    time_ns = runtime_ns(executable, arguments, runs)
    writer.writerow([row['module'], time_ns, runs, device.device_kind])

if __name__ == '__main__':
  if not pathlib.Path(*sys.argv[1:], 'modules.json').exists():
    sys.exit('error: name the folder that `rank --modules` wrote')
  main(pathlib.Path(*sys.argv[1:]))
