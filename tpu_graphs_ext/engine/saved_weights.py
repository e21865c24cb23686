"""The weights in a model folder, read without running anything in it.

Loading a SavedModel runs code of whoever wrote it. This module reads only the
tensors of its checkpoint, or an .npz file, as the package's own model is.

TensorFlow ends the process at a shape or type that cannot be, so the index of a
checkpoint is checked first. It is a table of LevelDB's format
(https://github.com/google/leveldb/blob/main/doc/table_format.md): blocks of
entries, each a key, without what it shares with the key before, and a value.
Here a value is a `BundleEntryProto`, and that of the empty key a header.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import (
  tensor_bundle_pb2,
  trackable_object_graph_pb2,
)

from tpu_graphs_ext import files
from tpu_graphs_ext.data import npz
from tpu_graphs_ext.errors import reason_of

# The one file of a folder with weights only: float32 arrays, named by their
# place among the trainable variables, as '0007'.
COMPACT_FILE = 'weights.npz'
MOST_BYTES = 1 << 30  # Of all weights.
_FOOTER_BYTES, _MAGIC = 48, struct.pack('<Q', 0xdb4775248b80fb57)
_MOST_DIMS = 32  # NumPy's.
# Type of numbers -> their bytes.
_NUMBERS = {tf.as_dtype(name).as_datatype_enum: tf.as_dtype(name).size
            for name in ('float16', 'bfloat16', 'float32', 'float64', 'bool',
                         'int8', 'int16', 'int32', 'int64', 'uint8')}


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
      with files.no_pattern(model_dir) as folder:
        weights = _of_checkpoint(folder)
  except Exception as error:  # TensorFlow raises IndexError and many others.
    raise ValueError(reason_of(error)) from error
  for name, value in weights:
    if value.dtype.kind != 'f' or not np.isfinite(value).all():
      raise ValueError(f'{name} must be finite floats')
  return weights


def _of_checkpoint(model_dir: str) -> list[tuple[str, np.ndarray]]:
  prefix = os.path.join(model_dir, 'variables', 'variables')
  require_sound(prefix)
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


def require_sound(prefix: str) -> None:
  """Raises ValueError unless TensorFlow can read a checkpoint.

  It is in the files `<prefix>.index` and `<prefix>.data-00000-of-00001`.
  """
  try:
    _check(prefix)
  except Exception as error:  # Numbers lead anywhere, such as past the end.
    raise ValueError(f'its checkpoint is damaged ({reason_of(error)})'
                     ) from error


def _check(prefix: str) -> None:
  content = files.read_file(prefix + '.index', MOST_BYTES)
  footer = content[-_FOOTER_BYTES:]
  if len(footer) != _FOOTER_BYTES or not footer.endswith(_MAGIC):
    raise ValueError('its index is cut off')
  with files.open_ordinary(prefix + '.data-00000-of-00001') as data:
    size = os.fstat(data.fileno()).st_size
    if size > MOST_BYTES:
      raise ValueError(f'it has {size:,} bytes; {MOST_BYTES:,} are allowed')
    index = _varints(footer, 0, 4)[0][2:]
    for _, block in _entries(content, *index):
      for key, value in _entries(content, *_varints(block, 0, 2)[0]):
        if key:
          entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
          if not _is_sound(entry, data, size):
            raise ValueError(f'its index says nonsense of {key[:80]!r}')
        elif tensor_bundle_pb2.BundleHeaderProto.FromString(
            value).num_shards != 1:
          raise ValueError('its weights must be in one file')


def _is_sound(entry, data, size: int) -> bool:
  shape = [dim.size for dim in entry.shape.dim]
  if (entry.shape.unknown_rank or len(shape) > _MOST_DIMS or entry.shard_id
      or entry.slices or min([entry.offset, entry.size, *shape]) < 0
      or entry.offset + entry.size > size):
    return False
  if entry.dtype == tf.string.as_datatype_enum: # Length, sum, letters.
    data.seek(entry.offset)
    (length,), start = _varints(data.read(5), 0, 1)
    return not shape and start + 4 + length == entry.size
  return math.prod(shape) * _NUMBERS.get(entry.dtype, -1) == entry.size


def _entries(content: bytes, start: int,
             size: int) -> Iterator[tuple[bytes, bytes]]:
  """(key, value) of each entry of a block."""
  # The byte after a block says how it is compressed; 0: not at all.
  block = content[start:start + size]
  if len(block) < 8 or content[start + size:start + size + 1] != b'\0':
    raise ValueError('its index has a block that is cut off or compressed')
  number, = struct.unpack('<I', block[-4:])
  end = size - 4 * (number + 1)
  if end < 0:
    raise ValueError('its index has a block that is cut off')
  place, key, whole_keys = 0, b'', {0}
  while place < end:
    first = place
    (shared, rest, length), place = _varints(block, place, 3)
    if not shared:
      whole_keys.add(first)
    key = key[:shared] + block[place:place + rest]
    place += rest + length
    if len(key) != shared + rest or place > end:
      raise ValueError('its index has an entry that is cut off')
    yield key, block[place - length:place]
  # TensorFlow searches from these places, which could hide another entry.
  if not set(struct.unpack(f'<{number}I', block[end:-4])) <= whole_keys:
    raise ValueError('its index has a block whose entries overlap')


def _varints(content: bytes, place: int, number: int) -> tuple[list[int], int]:
  """Numbers of seven bits a byte, lowest first, and where they end."""
  values = []
  while len(values) < number:
    value = shift = 0
    while True:
      byte = content[place]  # IndexError: it is cut off.
      value |= (byte & 127) << shift
      place, shift = place + 1, shift + 7
      if byte < 128:
        break
    if value >= 1 << 32:  # TensorFlow would drop the rest.
      raise ValueError('its index has a number that is too large')
    values.append(value)
  return values, place
