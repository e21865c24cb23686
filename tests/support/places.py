"""Folders that tests look into."""

import os
import pathlib

PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent
TESTS = PROJECT / 'tests'
# Where other processes find the package and what supports its tests.
PYTHONPATH = os.pathsep.join([str(PROJECT), str(TESTS)])
SUPPORT = TESTS / 'support'
BENCHMARKS = PROJECT / 'benchmarks'
# Real kernels, which are not in this repository; may be missing.
SHARED_DATA = PROJECT.parent / 'shared' / 'data'
