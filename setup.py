"""Installs tpu_graphs_ext and its command line, `tpu-graphs-ext`."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
VERSION = re.search(
    r"__version__ = '(.+)'",
    (HERE / 'tpu_graphs_ext' / '__init__.py').read_text(encoding='utf-8'))[1]

setuptools.setup(
    name='tpu_graphs_ext',
    version=VERSION,
    description='Better models, a faster host and tools for the tile task of '
                'the TpuGraphs data set',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=['tpu_graphs_ext', 'tpu_graphs_ext.hlo'],
    # The baseline imports tensorflow_ranking, which needs
    # tensorflow.estimator: gone after TensorFlow 2.15, whose wheels end at
    # Python 3.11.
    python_requires='>=3.9,<3.12',
    install_requires=[
        'tensorflow>=2.15.1,<2.16',
        'tensorflow_gnn>=1.0.3,<1.1',
        'tensorflow-ranking>=0.5.5,<0.6',
        'numpy>=1.22,<2',
        'tqdm',
    ],
    extras_require={
        # Plots of the reports and benchmarks.
        'report': ['matplotlib'],
        # pandas is what the course's create_kaggle_csv.py imports.
        'dev': ['pytest', 'pytest-xdist', 'ruff', 'pandas'],
    },
    entry_points={
        'console_scripts': ['tpu-graphs-ext = tpu_graphs_ext.cli:main'],
    },
)
