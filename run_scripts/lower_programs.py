"""Lowers the sample programs to HLO, before any optimisation.

  python run_scripts/lower_programs.py DIR      needs jax

For each of the layout programs in `sample_programs/table.py` it writes
DIR/hlo/NAME.pb, whose layouts `compile_layouts.py` judges.
"""

import json
import os
import sys

import jax
from sample_programs import table


def main() -> None:
  if len(sys.argv) != 2:
    sys.exit('error: name the folder to write')
  jax.config.update('jax_platforms', 'cpu')
  folder = os.path.join(sys.argv[1], 'hlo')
  os.makedirs(folder, exist_ok=True)
  splits = {}
  for program in table.LAYOUT_PROGRAMS.values():
    function, shapes = program.function_and_shapes()
    module = jax.jit(function).lower(*shapes).compiler_ir('hlo')
    with open(os.path.join(folder, program.name + '.pb'), 'wb') as file:
      file.write(module.as_serialized_hlo_module_proto())
    splits[program.name] = program.split
  with open(os.path.join(folder, 'programs.json'), 'w') as file:
    json.dump(splits, file, indent=1)


if __name__ == '__main__':
  main()
