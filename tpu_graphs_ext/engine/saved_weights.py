"""The weights in a model folder, read without running anything in it.

A SavedModel is a program: Keras runs code from its layers' settings, and
TensorFlow its graph. This module reads only the tensors of its checkpoint, in
the order of the model's `trainable_variables`, which the checkpoint stores. A
folder of `artifacts.save_weights_only` has these tensors as an .npz file.
"""

from __future__ import annotations

import os
import re

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


def read(model_dir: str) -> list[tuple[str, np.ndarray]]:
  """(name, value) of each trainable variable, in the model's order.

  Raises:
    ValueError: the folder holds no whole SavedModel of Keras, or a variable is
      not made of finite floats.
  """
  try:
    weights = (_compact(os.path.join(model_dir, COMPACT_FILE))
               if os.path.isfile(os.path.join(model_dir, COMPACT_FILE))
               else _of_checkpoint(model_dir))
  except Exception as error:  # TensorFlow raises IndexError and many others.
    text = ' '.join(str(error).split())[:200]
    raise ValueError(text or type(error).__name__) from error
  for name, value in weights:
    if not np.isfinite(value).all():
      raise ValueError(f'{name} has values that are not finite')
  return weights


def _compact(path: str) -> list[tuple[str, np.ndarray]]:
  arrays, faults = npz.read_arrays(path, sorted(npz.array_names(path)))
  for name, fault in faults.items():
    raise ValueError(f'{COMPACT_FILE}: {name} {fault}')
  for name, array in arrays.items():
    if array.dtype.kind != 'f':
      raise ValueError(f'{name} is of {array.dtype}')
  return list(arrays.items())


def _of_checkpoint(model_dir: str) -> list[tuple[str, np.ndarray]]:
  # Not needed here, but the baseline's scripts load it.
  with open(os.path.join(model_dir, 'saved_model.pb'), 'rb') as file:
    saved_model_pb2.SavedModel.FromString(file.read())
  reader = tf.train.load_checkpoint(
      os.path.join(model_dir, 'variables', 'variables'))
  dtypes = reader.get_variable_to_dtype_map()
  nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
      reader.get_tensor(_OBJECT_GRAPH)).nodes
  weights = []
  for node in _members(nodes, _VARIABLES):
    for attribute in nodes[node].attributes:
      key, name = attribute.checkpoint_key, attribute.full_name
      if not dtypes[key].is_floating:
        raise ValueError(f'{name} is of {dtypes[key]}')
      weights.append((name, reader.get_tensor(key)))
  return weights


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
    raise ValueError(f'{name} of its checkpoint names nodes that are missing')
  return [members[number] for number in sorted(members)]
