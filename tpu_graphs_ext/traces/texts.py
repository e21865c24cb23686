"""An analysis for people to read, as JSON, and as a CSV of its rows."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, Optional

from tpu_graphs_ext.csv_text import of_rows
from tpu_graphs_ext.host import outputs
from tpu_graphs_ext.traces.analysis import Analysis, Group, Row
from tpu_graphs_ext.traces.calibrate import Calibration

_COLUMNS = ('name', 'kind', 'phase', 'sizes', 'start_us', 'cpu_us', 'work',
            'measured_us', 'predicted_us', 'error', 'bound', 'reason')
CSV = outputs.Text('--csv', ','.join(_COLUMNS), 'CSV of trace')
NONE = '-'


def heading(found: Analysis) -> list[str]:
  """What was read, how long it took, and what it lacks."""
  part = found.part
  names = sorted({device.name for number, device in found.trace.devices.items()
                  if number in found.busy_us})
  kind = 'profiler trace' if found.trace.timed else 'execution trace'
  steps = ', '.join(map(str, part.steps))
  where = (f'step{"s" * (len(part.steps) > 1)} {steps}' if steps
           else 'all of it, without steps')
  lines = [f'{found.trace.path}: ' + ', '.join([kind, *names, where])]
  if found.trace.timed:
    lines.append(f'  {part.duration_us:,.0f} us, {len(part.calls):,} calls')
  for device, busy_us in found.busy_us.items():
    share = f' ({busy_us / part.duration_us:.1%})' if part.duration_us else ''
    lines.append(f'  GPU {device}: busy {busy_us:,.0f} us{share}, idle '
                 f'{part.duration_us - busy_us:,.0f} us')
  if part.activities:
    lines.append(f'  {found.attributed:,} of {len(part.activities):,} kernels, '
                 'copies and fills belong to an operator')
  return lines + [f'  note: {note}' for note in found.notes]


def text(found: Analysis, top: int = 15) -> str:
  """The tables, each with its `top` dearest rows."""
  blocks = [heading(found)]
  if found.groups:
    blocks.append([
        f'Predicted for {found.hardware.name}; times in us, errors '
        '|predicted - measured| / measured', *_table(group_rows(found)),
        f'  {whole(found)}'])
  if found.replayed:
    predicted, known, measured = found.replayed
    ratio = f' ({predicted / measured - 1:+.1%})' if measured else ''
    other = f' ({known / measured - 1:+.1%})' if measured else ''
    blocks.append([
        f'From the first launch to the last end: measured {us(measured)} us, '
        f'predicted {us(predicted)} us{ratio}, with communication as recorded '
        f'{us(known)} us{other}'])
  missing = unpredicted_rows(found)
  if len(missing) > 1:
    blocks.append(['Without a prediction', *_table(missing[:top + 1]),
                   *_left_out(len(missing) - 1, top)])
  operators = operator_rows(found)
  if found.trace.timed:
    blocks.append(['Operators, times in us', *_table(operators[:top + 1]),
                   *_left_out(len(operators) - 1, top)])
  for device in found.idle_us:
    rows = idle_rows(found, device)
    blocks.append([f'GPU {device} waits for, in us', *_table(rows[:top + 1]),
                   *_left_out(len(rows) - 1, top)])
  return '\n\n'.join('\n'.join(block) for block in blocks)


def _left_out(number: int, top: int) -> list[str]:
  return [f'  and {number - top:,} more; --top shows them'] * (number > top)


def whole(found: Analysis) -> str:
  """The prediction against all that was measured."""
  total, measured = found.total, found.measured_us
  said = f'all together: predicted {us(total.predicted_us)} us'
  if total.measured_us is None or not measured:
    return said
  others = measured - found.communication_us
  what = 'of operators on the CPU' if found.on_cpu else 'of the GPU'
  return (f'{said}, measured {us(total.measured_us)} us; that is '
          f'{total.measured_us / measured:.1%} of all work {what}, '
          f'{us(measured)} us, of which the prediction is '
          f'{total.predicted_us / measured:.1%}'
          + (f'; {total.measured_us / others:.1%} of what is no communication'
             if 0 < found.communication_us < measured else ''))


def group_rows(found: Analysis) -> list[list[str]]:
  """A table of kinds, its head first and its sum last."""
  rows = [['kind', 'phase', 'calls', 'measured', 'predicted', 'ratio',
           'mean error', 'geometric', 'deviation']]
  return rows + [_group_row(group) for group in (*found.groups, found.total)]


def _group_row(group: Group) -> list[str]:
  return [group.kind or 'all of these', group.phase, f'{group.calls:,}',
          us(group.measured_us), us(group.predicted_us),
          NONE if group.ratio is None else f'{group.ratio:.3f}',
          *(percent(value) for value in (
              group.mean_error, group.geometric_error, group.deviation))]


def unpredicted_rows(found: Analysis) -> list[list[str]]:
  """A table of operators and why they have no prediction, dearest first."""
  sums: dict[tuple, list[float]] = collections.defaultdict(lambda: [0, 0.0])
  for row in found.rows:
    if row.price.us is None:
      of = sums[row.name, row.price.reason]
      of[0] += 1
      of[1] += row.measured_us or 0.0
  ordered = sorted(sums.items(), key=lambda one: (-one[1][1], one[0]))
  return [['operator', 'calls', 'measured', 'why'], *(
      [short(name), f'{int(number):,}', us(measured), reason]
      for (name, reason), (number, measured) in ordered)]


def operator_rows(found: Analysis) -> list[list[str]]:
  """A table of operators, dearest first."""
  return [['operator', 'calls', 'CPU', 'itself', 'GPU', 'itself', 'GPU waits'],
          *([short(one.name), f'{one.calls:,}', us(one.cpu_us),
             us(one.self_cpu_us), us(one.gpu_us), us(one.self_gpu_us),
             us(one.idle_us)] for one in found.operators)]


def idle_rows(found: Analysis, device: int) -> list[list[str]]:
  """A table of what a GPU waits for, the longest first."""
  waits = found.idle_us[device]
  total = sum(waits.values())
  return [['operator', 'idle', 'part'], *(
      [short(name), us(lost), f'{lost / total:.1%}' if total else NONE]
      for name, lost in waits.items())]


def calibration_text(learned: Calibration, path: str) -> str:
  """What was learned of each kind of kernel; where it is kept."""
  rows = [['kind', 'kernels', 'least', 'by', 'us of a million', 'exponent',
           'spread']]
  for kind, one in sorted(learned.kinds.items(), key=lambda of: -of[1].count):
    for size, curve in [*one.curves.items()][:1]:
      rows.append([kind, f'{one.count:,}', us(curve.least_us), size,
                   f'{curve.us_per_million:.3g}', f'{curve.exponent:.2f}',
                   percent(curve.spread)])
  return '\n'.join([
      f'{path}: {learned.source}; {len(learned.functions):,} functions of '
      'kernels, of these kinds:', *_table(rows)])


def us(value: Optional[float]) -> str:
  """Microseconds: '12,345', '12.3', '0.12'."""
  if value is None:
    return NONE
  digits = 0 if value >= 100 else 1 if value >= 10 else 2
  return f'{value:,.{digits}f}' if value else '0'


def percent(value: Optional[float]) -> str:
  return NONE if value is None else f'{100 * value:.1f} %'


def short(name: str, most: int = 60) -> str:
  """Names of templates go on for lines."""
  return name if len(name) <= most else name[:most - 3] + '...'


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
  """Columns one below another: text to the left, numbers to the right."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  numeric = [all(_is_number(cell) for cell in column[1:])
             for column in zip(*rows)]
  return ['  ' + '  '.join(
      cell.rjust(width) if right else cell.ljust(width)
      for cell, width, right in zip(row, widths, numeric)).rstrip()
          for row in rows]


def _is_number(cell: str) -> bool:
  return cell == NONE or cell[:1].isdigit()


# --------------------------------------------------------------- JSON and CSV


def to_json(found: Analysis) -> dict[str, Any]:
  """All of it; times in microseconds, errors as parts of 1."""
  part, machine = found.part, found.hardware
  return {
      'file': found.trace.path, 'steps': list(part.steps),
      'duration_us': part.duration_us if found.trace.timed else None,
      'hardware': machine.name if machine else None,
      'times_of': ('nothing' if not found.trace.timed
                   else 'cpu' if found.on_cpu else 'gpu'),
      'work': len(part.activities), 'attributed': found.attributed,
      'busy_us': {str(key): value for key, value in found.busy_us.items()},
      'idle_us': {str(key): value for key, value in found.idle_us.items()},
      'measured_us': found.measured_us, 'notes': found.notes,
      'communication_us': found.communication_us,
      'replayed_us': found.replayed,
      'groups': [_group_json(group) for group in found.groups],
      'total': _group_json(found.total),
      'operators': [one._asdict() for one in found.operators],
      'calls': [_row_json(row) for row in found.rows]}


def _group_json(group: Group) -> dict[str, Any]:
  return {**group._asdict(), 'ratio': group.ratio}


def _row_json(row: Row) -> dict[str, Any]:
  call = row.call
  return dict(zip(_COLUMNS, (
      row.name, row.kind, row.phase, row.price.sizes,
      call.start if call else None, call.duration_us if call else None,
      row.work, row.measured_us, row.price.us, row.error, row.price.bound,
      row.price.reason)))


def csv_text(found: Analysis) -> str:
  """A row a call; empty where there is no number."""
  return of_rows([_COLUMNS, *(
      ['' if value is None else value for value in _row_json(row).values()]
      for row in found.rows)])
