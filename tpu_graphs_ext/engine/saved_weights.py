"""The weights in a model folder, read without running anything in it.

Loading a SavedModel runs code of whoever wrote it. This module reads only the
tensors of its checkpoint, or an .npz file, as the package's own model is.
"""

from __future__ import annotations

import os
import re

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tpu_graphs_ext.data import npz
from tpu_graphs_ext.engine import checkpoint_index
from tpu_graphs_ext.errors import reason_of

# The one file of a folder with weights only: float32 arrays, named by their
# place among the trainable variables, as '0007'.
COMPACT_FILE = 'weights.npz'


def read(model_dir: str) -> list[tuple[str, np.ndarray]]:
  """(name, value) of each trainable variable, in the model's order.

  Raises ValueError if the folder holds no SavedModel of Keras, or a variable is
  not made of finite floats.
  """
  compact = os.path.join(model_dir, COMPACT_FILE)
  try:
    if os.path.isfile(compact):
      arrays, faults = npz.read_arrays(
          compact, sorted(npz.array_names(compact)))
      if faults:
        raise ValueError(f'{COMPACT_FILE}: {faults}')
      weights = list(arrays.items())
    else:
      weights = _of_checkpoint(model_dir)
  except Exception as error:  # TensorFlow raises IndexError and many others.
    raise ValueError(reason_of(error)) from error
  for name, value in weights:
    if value.dtype.kind != 'f' or not np.isfinite(value).all():
      raise ValueError(f'{name} must be finite floats')
  return weights


def _of_checkpoint(model_dir: str) -> list[tuple[str, np.ndarray]]:
  prefix = os.path.join(model_dir, 'variables', 'variables')
  checkpoint_index.require_sound(prefix)
  reader = tf.train.load_checkpoint(prefix)
  nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
      reader.get_tensor('_CHECKPOINTABLE_OBJECT_GRAPH')).nodes
  lists = [child.node_id for child in nodes[0].children
           if child.local_name == 'trainable_variables']
  if len(lists) != 1:
    raise ValueError('its checkpoint has no trainable_variables')
  members = {int(child.local_name): child.node_id
             for child in nodes[lists[0]].children
             if re.fullmatch('[0-9]{1,9}', child.local_name)}
  if min([*lists, *members.values()]) < 0:
    raise ValueError('its checkpoint names nodes that are missing')
  keys = {attribute.checkpoint_key: attribute.full_name
          for _, node in sorted(members.items())
          for attribute in nodes[node].attributes}
  return [(name, reader.get_tensor(key)) for key, name in keys.items()]
