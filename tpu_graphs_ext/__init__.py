"""Learned cost models for TPU tile sizes, around one drop-in models.py.

Import the module of the verb that you need, for example
`from tpu_graphs_ext.host import train`. Importing this package imports nothing;
it only sees to it that TensorFlow will come with Keras 2 (see `stacks`), so it
must be imported before Keras is used.
"""

from tpu_graphs_ext.stacks import imports

__version__ = '0.1.0'

imports.install()
