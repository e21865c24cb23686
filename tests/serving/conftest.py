"""Fixtures of the tests of serving."""

import pytest

from support import saved_run


@pytest.fixture(scope='session')
def model_dir(tmp_path_factory):
  """A model that nobody trained; only to be read."""
  return saved_run.save(tmp_path_factory.mktemp('saved_run'))
