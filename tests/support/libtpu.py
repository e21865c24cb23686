"""A mark for tests that compile for a TPU."""

import importlib.util
import os

import pytest

from tpu_graphs_ext.hlo import libtpu

needs_libtpu = pytest.mark.skipif(
    not os.environ.get(libtpu.LIBRARY_VARIABLE)
    and importlib.util.find_spec('libtpu') is None,
    reason='needs the extra [tpu]')
