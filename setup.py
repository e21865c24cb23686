"""Installs tpu_graphs_ext and its command line, `tpu-graphs-ext`."""

import os
import pathlib
import re
import runpy

import setuptools

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE / 'tpu_graphs_ext'
VERSION = re.search(r"^__version__ = '(.+)'", (
    PACKAGE / '__init__.py').read_text(encoding='utf-8'), re.MULTILINE)[1]
# A file that needs nothing else: which packages go with this Python.
STACKS = runpy.run_path(str(PACKAGE / 'stacks' / 'versions.py'))

setuptools.setup(
    name='tpu_graphs_ext',
    version=VERSION,
    description='Better models, a faster host and tools for the tile task of '
                'the TpuGraphs data set',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    # What it extends; this project has no page of its own.
    url='https://github.com/google-research-datasets/tpu_graphs',
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        *(f'Programming Language :: Python :: 3.{minor}'
          for minor in range(9, 14)),
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Topic :: Software Development :: Compilers'],
    packages=setuptools.find_packages(include=['tpu_graphs_ext*']),
    package_data={'tpu_graphs_ext': ['pretrained/*.jsonz',
                                     'pretrained/*/weights.npz',
                                     'sample/compiled/*.xz',
                                     'report/templates/*']},
    python_requires='>=3.9,<3.14',
    install_requires=STACKS['install_requires'](
        os.environ.get(STACKS['STACK_VARIABLE'], '')),
    extras_require={
        # Plots of the reports and benchmarks; how a kernel's graph is laid
        # out in layers.
        'report': ['jinja2', 'matplotlib', 'grandalf'],
        # `rank` of HLO text, which jaxlib parses, and of functions of JAX.
        'jax': ['jax>=0.4.26'],
        # Google's TPU compiler, under Google Cloud's terms: the versions that
        # were tested, as what they say of kernels is promised by nobody.
        'tpu': [
            'libtpu==0.0.42.1; python_version == "3.11" and '
            'sys_platform == "linux" and platform_machine == "x86_64"',
            'libtpu==0.0.50.1; python_version >= "3.12" and '
            'sys_platform == "linux" and platform_machine == "x86_64"'],
        # optuna: the study of a sweep; fsspec: the files of `rank --workers`,
        # with gcsfs, s3fs and the like also at URLs; distributed (Dask):
        # workers on other machines; pyarrow: Parquet, HDFS.
        'scale': ['distributed', 'optuna>=4.4', 'fsspec', 'pyarrow'],
        # The documentation as a site, by mkdocs.yml.
        'docs': ['mkdocs-material>=9.5,<10', 'mkdocstrings-python>=1.10'],
        # What benchmarks/accuracy.py compares the models with.
        'benchmarks': ['lightgbm>=4.5,<5', 'matplotlib'],
        # matplotlib, grandalf, jinja2: the tests draw what `report` draws;
        # jaxlib: they parse HLO text; lightgbm: the benchmark's trees;
        # distributed, optuna, fsspec, pyarrow: as of scale. Not jax, which
        # TensorFlow 2.15 loads where it is: a second for each process.
        'dev': ['jaxlib>=0.4.26', 'lightgbm>=4.5,<5', 'matplotlib',
                'grandalf', 'jinja2', 'pytest', 'pytest-xdist', 'hypothesis',
                'ruff', 'distributed', 'optuna>=4.4', 'fsspec', 'pyarrow',
                'nbclient', 'ipykernel'],
    },
    entry_points={
        'console_scripts': ['tpu-graphs-ext = tpu_graphs_ext.cli:main'],
    },
)
