"""The script that times modules, on JAX's CPU: it runs what it was given."""

import csv
import os
import subprocess
import sys

from support.places import PROJECT

# A folder like that of --modules, with a product compiled for the CPU.
CODE = '''
import json, pathlib, sys
import jax, jax.numpy as jnp
sys.path.insert(0, sys.argv[1])
import time_modules  # Refuses a JAX before 0.9.
folder = pathlib.Path(sys.argv[2])
x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
w = jax.ShapeDtypeStruct((16, 4), jnp.float32)
code = jax.jit(lambda x, w: x @ w).lower(x, w).compile(
    ).runtime_executable().serialize()
size = place = 0
while b'pjrt_ifrt' in code[:64] and (not place or code[place - 1] & 128):
  size |= (code[place] & 127) << 7 * place
  place += 1
(folder / 'a.tpu').write_bytes(code[place + size:])
def tensor(*shape):
  return dict(dtype='float32', shape=shape, major_to_minor=[0, 1])
row = dict(module='a.pb', arguments=[tensor(8, 16), tensor(16, 4)],
           results=[tensor(8, 4)])
(folder / 'modules.json').write_text(json.dumps(
    {'tpu': 'v5e', 'modules': [row]}))
executable = time_modules.loaded(
    jax.devices()[0].client, (folder / 'a.tpu').read_bytes(), row['results'])
product, = executable.execute([jnp.ones((8, 16)), jnp.ones((16, 4))])
assert (product == 16).all(), product  # Not the zeros of the header's program.
time_modules.main(folder, runs=3)
(folder / 'a.tpu').write_bytes(b'for a TPU')
time_modules.main(folder)
'''


def test_it_runs_what_was_compiled_and_times_it(
    tmp_path, jax_python, jax_version):
  done = subprocess.run(
      [jax_python or sys.executable, '-c', CODE, str(PROJECT / 'run_scripts'),
       str(tmp_path)], check=False, capture_output=True, text=True,
      env={**os.environ, 'JAX_PLATFORMS': 'cpu'})
  if jax_version < (0, 9):
    assert done.stderr == (
        f'error: this is JAX {".".join(map(str, jax_version))}; install 0.9 or '
        'later\n')
    return
  assert done.returncode == 1 and (
      'a.tpu: a cpu cannot load it; use a TPU v5e and the libtpu that compiled '
      in done.stderr.splitlines()[-1]), done.stderr
  for script, what in (('time_modules', 'that `rank --modules` wrote'),
                       ('lower_programs', 'to write')):
    nothing = subprocess.run(
        [jax_python or sys.executable, PROJECT / f'run_scripts/{script}.py'],
        check=False, capture_output=True, text=True, cwd=PROJECT)
    assert (nothing.returncode, nothing.stderr) == (
        1, f'error: name the folder {what}\n')
  row, *_ = csv.DictReader(done.stdout.splitlines())
  assert row['module'] == 'a.pb' and int(row['runtime_ns']) > 0
  assert (row['runs'], row['device']) == ('3', 'cpu')
