"""Compiles one of the sample programs for a TPU, ahead of time.

  python compile_program.py NAME v3:2x2x1 OUT.pb     needs jax and libtpu

Run by compile_kernels.py: libtpu can abort the process that it is in.
"""

import os
import sys

os.environ.update({
    'TPU_SKIP_MDS_QUERY': '1', 'TPU_WORKER_HOSTNAMES': 'localhost',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1', 'JAX_PLATFORMS': 'cpu'})
os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v3-8')

import jax
from jax.experimental import topologies
from sample_programs import table


def compiled_module(program: table.Program, topology: str) -> bytes:
  """The program after all passes, a serialized HloModuleProto."""
  described = topologies.get_topology_desc(
      platform='tpu', topology_name=topology)
  place = jax.sharding.SingleDeviceSharding(described.devices[0])
  function, shapes = program.function_and_shapes()
  shapes = jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), shapes)
  compiled = jax.jit(function).lower(*shapes).compile()
  module = compiled.runtime_executable().hlo_modules()[0]
  return module.as_serialized_hlo_module_proto()


def main() -> None:
  name, topology, out = sys.argv[1:]
  module = compiled_module(
      {**table.LAYOUT_PROGRAMS, **table.PROGRAMS}[name], topology)
  with open(out + '.tmp', 'wb') as file:
    file.write(module)
  os.replace(out + '.tmp', out)


if __name__ == '__main__':
  main()
