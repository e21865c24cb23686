"""The model in the package belongs to models.py, is small and ranks well."""

import os

import numpy as np

from tpu_graphs_ext.engine import artifacts, metrics, scoring
from tpu_graphs_ext.sample import kernels, write
from tpu_graphs_ext.tasks.tile import LoadSettings


def test_it_is_small():
  sizes = [os.path.getsize(os.path.join(folder, name))
           for folder, _, names in os.walk(artifacts.PRETRAINED_FOLDER)
           for name in names]
  assert len(sizes) == 2 and sum(sizes) < 5 << 20


def test_it_ranks_kernels_that_it_was_not_trained_on():
  """Fails where models.py has changed so that the weights mean other things.

  Then train the model again; see run_scripts/pretrained.py.
  """
  ranker = scoring.load_ranker(artifacts.PRETRAINED, LoadSettings())
  compiled = kernels.split_kernels('v3', 'test')
  slowdowns = []
  for kernel in compiled[::len(compiled) // 16]:
    sample = write.sample_kernel(kernel, 'k', 0.94, seed=0)
    slowdowns.append(metrics.slowdown_of(
        sample.runtime_ns, ranker.scored(sample).order[:5]))
  assert len(slowdowns) >= 16
  assert np.mean(slowdowns) < 0.06
