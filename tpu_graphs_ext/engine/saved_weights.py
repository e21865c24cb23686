"""The weights in a model folder, read without running anything in it.

A SavedModel is a program: Keras runs code from its layers' settings, and
TensorFlow its graph. This module reads only the tensors of its checkpoint, in
the order of the model's `trainable_variables`, which the checkpoint stores. A
folder of `artifacts.save_weights_only` has these tensors as an .npz file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Union

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import (
  saved_model_pb2,
  trackable_object_graph_pb2,
)

from tpu_graphs_ext.data import npz

# The one file of a folder with weights only.
COMPACT_FILE = 'weights.npz'

_OBJECT_GRAPH = '_CHECKPOINTABLE_OBJECT_GRAPH'
_VARIABLES = 'trainable_variables'


@dataclasses.dataclass(frozen=True)
class SavedVariable:
  """One variable, not yet read.

  Attributes:
    key: its name in the checkpoint.
    name: its name in the model.
    shape: its sizes.
  """
  key: str
  name: str
  shape: tuple[int, ...]


class SavedWeights:
  """The trainable variables of a model folder.

  Attributes:
    variables: `SavedVariable`s, in the model's order.

  Raises:
    ValueError: the folder holds no whole SavedModel of Keras.
  """

  def __init__(self, model_dir: str):
    with _as_value_error():
      # Not needed here, but the baseline's scripts load it.
      with open(os.path.join(model_dir, 'saved_model.pb'), 'rb') as file:
        saved_model_pb2.SavedModel.FromString(file.read())
      self._reader = tf.train.load_checkpoint(
          os.path.join(model_dir, 'variables', 'variables'))
      shapes = self._reader.get_variable_to_shape_map()
      self._types = self._reader.get_variable_to_dtype_map()
      nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
          self._reader.get_tensor(_OBJECT_GRAPH)).nodes
      self.variables = [
          SavedVariable(attribute.checkpoint_key, attribute.full_name,
                        tuple(shapes[attribute.checkpoint_key]))
          for node in _members(nodes, _VARIABLES)
          for attribute in nodes[node].attributes]

  def value(self, variable: SavedVariable) -> np.ndarray:
    """Reads a variable; raises ValueError if it is not a float."""
    if not self._types[variable.key].is_floating:
      raise ValueError(f'{variable.name} has the type '
                       f'{self._types[variable.key]}')
    with _as_value_error():
      value = self._reader.get_tensor(variable.key)
    return _finite(variable, value)


class CompactWeights:
  """`SavedWeights` of a folder of `artifacts.save_weights_only`."""

  def __init__(self, model_dir: str):
    path = os.path.join(model_dir, COMPACT_FILE)
    with _as_value_error():
      names = sorted(npz.array_names(path))
      self._arrays, faults = npz.read_arrays(path, names)
    for name, fault in faults.items():
      raise ValueError(f'{COMPACT_FILE}: {name} {fault}')
    self.variables = [SavedVariable(name, name, array.shape)
                      for name, array in self._arrays.items()]

  def value(self, variable: SavedVariable) -> np.ndarray:
    """Reads a variable; raises ValueError if it is not a float."""
    return _finite(variable, self._arrays[variable.key])


def of_folder(model_dir: str) -> Union[SavedWeights, CompactWeights]:
  """The weights of a model folder of either form.

  Raises:
    ValueError: see the classes.
  """
  if os.path.isfile(os.path.join(model_dir, COMPACT_FILE)):
    return CompactWeights(model_dir)
  return SavedWeights(model_dir)


def _finite(variable: SavedVariable, value: np.ndarray) -> np.ndarray:
  if value.dtype.kind != 'f':
    raise ValueError(f'{variable.name} is of {value.dtype}')
  if not np.isfinite(value).all():
    raise ValueError(f'{variable.name} has values that are not finite')
  return value


@contextlib.contextmanager
def _as_value_error() -> Iterator[None]:
  """TensorFlow's reader raises IndexError and many others."""
  try:
    yield
  except Exception as error:
    text = ' '.join(str(error).split())[:200]
    raise ValueError(text or type(error).__name__) from error


def _members(nodes, name: str) -> list[int]:
  """Numbers of the nodes in one of the root's lists, in order."""
  found = [child.node_id for child in (nodes[0].children if nodes else ())
           if child.local_name == name]
  if len(found) != 1 or not 0 <= found[0] < len(nodes):
    raise ValueError(f'its checkpoint has no {name}')
  members = {int(child.local_name): child.node_id
             for child in nodes[found[0]].children
             if re.fullmatch('[0-9]{1,9}', child.local_name)}
  if any(not 0 <= node < len(nodes) for node in members.values()):
    raise ValueError(f'{name} of its checkpoint names what is not there')
  return [members[number] for number in sorted(members)]
