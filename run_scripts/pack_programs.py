"""Packs what lower_programs.py wrote into the package, for maintainers.

  python run_scripts/pack_programs.py DIR

Simplifies each program as the layout collection has it, leaves out those with
too little to choose, and writes `tpu_graphs_ext/sample/compiled/programs.xz`.
"""

import json
import math
import os
import sys

from tpu_graphs_ext.hlo import fusions, layout_choices, protos, whole_program
from tpu_graphs_ext.sample import programs

# The real programs are large, and all of them are trained.
MIN_NODES, MIN_COMBINATIONS = 300, 64


def main() -> None:
  folder = os.path.join(sys.argv[1], 'hlo')
  with open(os.path.join(folder, 'programs.json')) as file:
    places = json.load(file)
  found = []
  for name, (split, source) in places.items():
    with open(os.path.join(folder, name + '.pb'), 'rb') as file:
      module = protos.as_module(file.read())
    module = whole_program.whole_program(fusions.inlined(module), name)
    nodes = sum(len(c.instructions) for c in module.computations)
    groups = {choice.group: len(choice.options)
              for choice in layout_choices.layout_choices(module)}
    if nodes < MIN_NODES or math.prod(groups.values()) < MIN_COMBINATIONS:
      print(f'{name}: left out, {nodes} nodes', file=sys.stderr)
      continue
    found.append(programs.Program(
        name, split, source, module.SerializeToString(deterministic=True)))
  programs.save(found)
  print(f'{programs.PATH}: {len(found)} programs, '
        f'{os.path.getsize(programs.PATH) / 1024:.0f} KiB')


if __name__ == '__main__':
  main()
