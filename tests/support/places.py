"""Folders that tests look into."""

import pathlib

PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent
TESTS = PROJECT / 'tests'
SUPPORT = TESTS / 'support'
BENCHMARKS = PROJECT / 'benchmarks'
# Real kernels, which are not in this repository; may be missing.
SHARED_DATA = PROJECT.parent / 'shared' / 'data'
