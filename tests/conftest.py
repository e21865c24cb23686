"""Fixtures that more than one test file uses."""

import os
import pathlib

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import pytest

# Before any test imports TensorFlow: it then comes with Keras 2.
import tpu_graphs_ext  # noqa: F401
from support.places import SHARED_DATA


@pytest.fixture(scope='session')
def shared_data() -> pathlib.Path:
  """Folder with the real TPU kernels; the test is skipped without it."""
  if not SHARED_DATA.is_dir():
    pytest.skip(f'needs the real TPU kernels in {SHARED_DATA}, which is '
                'missing')
  return SHARED_DATA
