"""Lowers the sample programs to HLO, before any optimisation.

  python run_scripts/lower_programs.py DIR      needs jax

For each training step of `sample_programs/table.py` it writes
DIR/hlo/NAME.pb, of which `pack_programs.py` makes the sample data of the
layout task.
"""

import json
import os
import sys

import jax
from sample_programs import table


def main() -> None:
  jax.config.update('jax_platforms', 'cpu')
  folder = os.path.join(sys.argv[1], 'hlo')
  os.makedirs(folder, exist_ok=True)
  places = {}
  for program in table.PROGRAMS.values():
    if program.step == 'infer':
      continue
    function, shapes = program.function_and_shapes()
    module = jax.jit(function).lower(*shapes).compiler_ir('hlo')
    with open(os.path.join(folder, program.name + '.pb'), 'wb') as file:
      file.write(module.as_serialized_hlo_module_proto())
    places[program.name] = program.split, program.source
  with open(os.path.join(folder, 'programs.json'), 'w') as file:
    json.dump(places, file, indent=1)


if __name__ == '__main__':
  main()
