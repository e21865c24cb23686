"""Fixtures that more than one test file uses."""

import os
import pathlib

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import pytest

# Before any test imports TensorFlow: it then comes with Keras 2.
import tpu_graphs_ext  # noqa: F401

PROJECT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='session')
def shared_data() -> pathlib.Path:
  """Folder with the real TPU kernels; the test is skipped without it."""
  folder = PROJECT.parent / 'shared' / 'data'
  if not folder.is_dir():
    pytest.skip(f'needs the real TPU kernels in {folder}, which is missing')
  return folder
