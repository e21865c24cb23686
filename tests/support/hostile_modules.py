"""HLO modules with a few fields changed, such as references to elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from tpu_graphs_ext.hlo import protos

_HOSTILE = 0, 1, -1, 7, 2**31 - 1, -2**31, 2**62
_OPCODES = (
    'and', 'bitcast', 'call', 'compare', 'conditional', 'constant',
    'convolution', 'copy', 'custom-call', 'dot', 'dynamic-update-slice',
    'fusion', 'get-tuple-element', 'parameter', 'reduce', 'reduce-window',
    'scatter', 'select-and-scatter', 'slice', 'tuple', 'while', 'no')


def changed(module: protos.HloModuleProto,
            rng: np.random.Generator) -> protos.HloModuleProto:
  """A copy with one to four fields changed, removed, doubled or swapped."""
  copy = protos.HloModuleProto()
  copy.CopyFrom(module)
  ids = [each.id for each in (*copy.computations, *protos.nodes(copy))]
  for _ in range(rng.integers(1, 5)):
    every = list(_fields(copy))
    _change(*every[rng.integers(len(every))], ids, rng)
  nodes = list(protos.nodes(copy))
  if nodes and rng.random() < 0.3:  # It may call what calls it.
    node = nodes[rng.integers(len(nodes))]
    node.opcode = 'fusion'
    node.called_computation_ids.append(copy.computations[0].id)
  return copy


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
  """(message, field) of all that are set, at any depth."""
  for field, value in message.ListFields():
    if field.type == FieldDescriptor.TYPE_MESSAGE:
      if field.message_type.GetOptions().map_entry:
        continue
      for inner in [value] if hasattr(value, 'ListFields') else value:
        yield from _fields(inner)
    yield message, field


def _change(message: Any, field: Any, ids: list[int],
            rng: np.random.Generator) -> None:
  value = getattr(message, field.name)
  if field.type == FieldDescriptor.TYPE_MESSAGE:
    if hasattr(value, 'ListFields'):
      message.ClearField(field.name)
      return
    at, other = rng.integers(len(value), size=2).tolist()
    kind = rng.integers(3)
    if kind == 0:
      del value[at]
    elif kind == 1:
      value.add().CopyFrom(value[at])
    else:
      kept = type(value[at])()
      kept.CopyFrom(value[at])
      value[at].CopyFrom(value[other])
      value[other].CopyFrom(kept)
  elif isinstance(value, str):
    if field.name == 'opcode':
      message.opcode = _OPCODES[rng.integers(len(_OPCODES))]
  elif isinstance(value, bytes):
    at = rng.integers(len(value))
    setattr(message, field.name, value[:at] + rng.bytes(1) + value[at + 1:])
  elif isinstance(value, bool):
    setattr(message, field.name, not value)
  else:
    number = [ids[rng.integers(len(ids))], *_HOSTILE][rng.integers(8)]
    try:
      if isinstance(value, int):
        setattr(message, field.name, number)
      elif rng.random() < 0.5:
        value[int(rng.integers(len(value)))] = number
      else:
        value.append(number)
    except ValueError:  # More than the field takes.
      pass
