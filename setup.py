"""Installs tpu_graphs_ext and its command line, `tpu-graphs-ext`."""

import importlib
import os
import pathlib
import sys

import setuptools

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
tpu_graphs_ext = importlib.import_module('tpu_graphs_ext')
versions = importlib.import_module('tpu_graphs_ext.stacks.versions')

setuptools.setup(
    name='tpu_graphs_ext',
    version=tpu_graphs_ext.__version__,
    description='Better models, a faster host and tools for the tile task of '
                'the TpuGraphs data set',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=setuptools.find_packages(include=['tpu_graphs_ext*']),
    package_data={'tpu_graphs_ext': ['pretrained/*.jsonz',
                                     'pretrained/*/weights.npz',
                                     'sample/compiled/*.xz']},
    python_requires='>=3.9,<3.14',
    install_requires=versions.install_requires(
        os.environ.get(versions.STACK_VARIABLE, '')),
    extras_require={
        # Plots of the reports and benchmarks; how a kernel's graph is laid
        # out in layers.
        'report': ['matplotlib', 'grandalf'],
        # `rank` of HLO text, which jaxlib parses, and of functions of JAX.
        'jax': ['jax>=0.4.26'],
        # Google's TPU compiler, under Google Cloud's terms: the versions that
        # were tested, as what they say of kernels is promised by nobody.
        'tpu': [
            'libtpu==0.0.42.1; python_version == "3.11" and '
            'sys_platform == "linux" and platform_machine == "x86_64"',
            'libtpu==0.0.50.1; python_version >= "3.12" and '
            'sys_platform == "linux" and platform_machine == "x86_64"'],
        # distributed (Dask): workers on other machines; optuna: search, and
        # the end of poor trials; fsspec: the files of `rank --workers`, with
        # gcsfs, s3fs and the like also at URLs; pyarrow: Parquet, HDFS. A grid
        # on this machine needs none of them.
        'scale': ['distributed', 'optuna>=4.4', 'fsspec', 'pyarrow'],
        # What benchmarks/accuracy.py compares the models with.
        'benchmarks': ['lightgbm>=4.5,<5', 'matplotlib'],
        # matplotlib, grandalf: the tests draw what `report` draws; jaxlib: they
        # parse HLO text; lightgbm: they train the benchmark's trees;
        # distributed, optuna, fsspec, pyarrow: as of scale. Not jax, which
        # TensorFlow 2.15 loads where it is: a second for each process.
        'dev': ['jaxlib>=0.4.26', 'lightgbm>=4.5,<5', 'matplotlib',
                'grandalf', 'pytest', 'pytest-xdist', 'hypothesis', 'ruff',
                'distributed', 'optuna>=4.4', 'fsspec', 'pyarrow'],
    },
    entry_points={
        'console_scripts': ['tpu-graphs-ext = tpu_graphs_ext.cli:main'],
    },
)
