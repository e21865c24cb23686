"""Execution traces of PyTorch: operators, shapes and values, without times.

Two forms: fields beside one another (`input_shapes`, `parent`; schema 1.0.1),
and those of Chakra (`inputs` with `shapes`, `ctrl_deps`; 1.0.2 and later).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import calls
from tpu_graphs_ext.traces.calls import Call, Trace


def trace_of(path: str, nodes: Sequence[Any]) -> Trace:
  """A trace without times of the nodes of a file.

  The arguments of a call get the names that a profiler's trace has for them.

  Raises:
    UserError: two nodes have one number.
  """
  found: dict[int, Call] = {}
  parents: dict[int, Optional[int]] = {}
  unusable = 0
  for node in nodes:
    number = node.get('id') if isinstance(node, dict) else None
    if type(number) is not int or not isinstance(node.get('name'), str):
      unusable += 1
      continue
    if number in found:
      raise UserError(f'{path}: two nodes have the id {number}; ids must '
                      'differ')
    found[number] = _call(node)
    parents[number] = node.get('parent', node.get('ctrl_deps'))
  ordered = _nested(found, parents)
  notes = ['an execution trace has no times: predictions alone']
  if unusable:
    notes.append(f'{unusable:,} nodes without an id and a name are left out')
  return Trace(path, ordered, [], {}, notes, timed=False)


def _nested(found: dict[int, Call], parents: dict) -> list[Call]:
  """Calls in the order of their numbers, outer ones first.

  Outer calls have smaller numbers, so a parent with a larger one is none.
  """
  for number in sorted(found):
    parent = parents[number]
    if type(parent) is int and parent < number and parent in found:
      found[number].parent = found[parent]
      found[parent].children.append(found[number])
  ordered: list[Call] = []
  for number in sorted(found):
    if found[number].parent is None:
      ordered.extend(found[number].downward())
  calls.settle(ordered)
  return ordered


def _call(node: dict) -> Call:
  listed = node.get('attrs')
  attributes = {one.get('name'): one.get('value')
                for one in (listed if isinstance(listed, list) else ())
                if isinstance(one, dict) and isinstance(one.get('name'), str)}
  inputs = node.get('inputs')
  if isinstance(inputs, dict):
    values, shapes, types = (inputs.get(key) for key in (
        'values', 'shapes', 'types'))
  else:
    values = inputs
    shapes, types = node.get('input_shapes'), node.get('input_types')
  # An operator has a schema; what has none is an annotation or a thread.
  schema = node.get('op_schema') or attributes.get('op_schema')
  return Call(
      node['name'], calls.OPERATOR if schema else calls.ANNOTATION,
      ('', str(attributes.get('tid', node.get('tid')))), 0.0, 0.0,
      {'Input Dims': shapes, 'Input type': types, 'values': values,
       'devices': _devices(values),
       'Sequence number': attributes.get('seq_id', node.get('seq_id'))})


def _devices(values: Any) -> set[str]:
  """Kinds of devices that the tensors of a call are on, as 'cpu', 'cuda'.

  A tensor is written as six values, the last of which is its device.
  """
  found = set()
  for value in values if isinstance(values, list) else ():
    if not isinstance(value, list) or not value:
      continue
    if len(value) == 6 and isinstance(value[5], str):
      found.add(value[5].split(':')[0])
    elif isinstance(value[0], list):  # A list of tensors.
      found |= _devices(value)
  return found
