"""Learned cost models for TPU tile sizes, around one drop-in models.py.

Import the module of the verb that you need, for example
`from tpu_graphs_ext import train`. Importing this package imports nothing.
"""

__version__ = '0.1.0'
