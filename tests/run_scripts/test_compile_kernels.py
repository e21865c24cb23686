"""The maintainers' script of the sample data: what it reads from a log."""

import importlib.util

from support.places import PROJECT


def script():
  path = PROJECT / 'run_scripts' / 'compile_kernels.py'
  spec = importlib.util.spec_from_file_location('compile_kernels', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


LOG = '''\
I1123 19:51:11.1    9795 fusion_emitter.cc:1] FusionEmitter::Emit START for HLO: copy.1
I1123 19:51:11.2    9796 spatial_major_convolution.cc:1] SpatialMajorConvolution::Emit START for fusion.8
I1123 19:51:11.3    9795 fusion_emitter.cc:2] Potential window config [1, 4] compute_cycles 2 transfer_cycles 9 total_cycles 559 window_bounds 1
I1123 19:51:11.4    9796 spatial_major_convolution.cc:2] X Generated Candidate: out=2,1 kern=3,1 cycles=70 vmem_needed=5
window_bounds: (1, 1)
I1123 19:51:11.5    9796 spatial_major_convolution.cc:1] SpatialMajorConvolution::Emit START for fusion.8
I1123 19:51:11.6    9796 spatial_major_convolution.cc:2] X Generated Candidate: out=1,1 kern=3,1 cycles=90 vmem_needed=5
'''  # noqa: E501


def test_tiles_belong_to_the_kernel_of_their_thread():
  assert script().candidates(LOG.splitlines()) == {
      'copy.1': {((1, 4), ()): 559},
      # Compiled again, with less memory: the first tile is no longer one.
      'fusion.8': {((1, 1), (3, 1)): 90}}
