"""From a trace to what its operators took, and should have taken."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import statistics
from collections.abc import Sequence
from typing import NamedTuple, Optional, Union

from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.traces import (
  calibrate,
  calls,
  embeddings,
  launches,
  predict,
  read,
  replay,
)
from tpu_graphs_ext.traces import hardware as machines
from tpu_graphs_ext.traces.calibrate import Calibration
from tpu_graphs_ext.traces.calls import Activity, Call, Trace
from tpu_graphs_ext.traces.hardware import Hardware
from tpu_graphs_ext.traces.launches import Window

NO_FORMULA = 'no formula for this operator'
NOBODY = '(launched by no operator that is in the trace)'
Steps = Union[int, range, None]


class Row(NamedTuple):
  """A call, or with a calibration a kernel, whose time is compared.

  Attributes:
    name: of the operator.
    kind: of `predict.KINDS`, `calibrate.KINDS`, or ''.
    phase: 'forward', 'backward' or 'optimizer'.
    call: None of work that nobody launched.
    measured_us: of its work on the GPU, all added up, or its own time on a
      CPU; None in a trace without times.
    work: number of kernels, copies and fills.
    price: the prediction.
  """
  name: str
  kind: str
  phase: str
  call: Optional[Call]
  measured_us: Optional[float]
  work: int
  price: predict.Price

  @property
  def error(self) -> Optional[float]:
    """|predicted - measured| / measured; None without one of them."""
    if not self.measured_us or self.price.us is None:
      return None
    return abs(self.price.us - self.measured_us) / self.measured_us


class Group(NamedTuple):
  """Predicted rows of one kind and phase, or all of them ('').

  Errors are means and the sample's standard deviation of the rows' errors;
  None without any, as is `measured_us` in a trace without times.
  """
  kind: str
  phase: str
  calls: int
  measured_us: Optional[float]
  predicted_us: float
  mean_error: Optional[float]
  geometric_error: Optional[float]
  deviation: Optional[float]

  @property
  def ratio(self) -> Optional[float]:
    """Predicted over measured."""
    return self.predicted_us / self.measured_us if self.measured_us else None


class OperatorSum(NamedTuple):
  """All calls of one name: time on the CPU and the GPU, with what is called
  (calls within one of the same name count once) and by itself; `idle_us`, in
  which the GPU waited for its launches."""
  name: str
  calls: int
  cpu_us: float
  self_cpu_us: float
  gpu_us: float
  self_gpu_us: float
  idle_us: float


@dataclasses.dataclass(frozen=True)
class Analysis:
  """What is known of a part of a trace.

  Attributes:
    trace, part: all of it, and the part.
    hardware: what was predicted for; None: nothing was.
    on_cpu: whether measured times are those of a CPU.
    rows: by their start.
    groups: of rows with a prediction.
    operators: the dearest first.
    busy_us: device -> time in which anything runs.
    idle_us: device -> {name: time}; see `launches.idle`.
    replayed: the time of the steps, predicted, predicted with communication
      as recorded, and measured; None unless calibrated.
    notes: what could not be done, and why.
  """
  trace: Trace
  part: Window
  hardware: Optional[Hardware]
  on_cpu: bool
  rows: list[Row]
  groups: list[Group]
  operators: list[OperatorSum]
  busy_us: dict[int, float]
  idle_us: dict[int, dict[str, float]]
  replayed: Optional[tuple[float, float, float]]
  notes: list[str]

  @property
  def total(self) -> Group:
    """All rows with a prediction."""
    return _group('', '', self.rows)

  @property
  def attributed(self) -> int:
    """How much of the GPU's work has an operator."""
    return sum(one.caller is not None for one in self.part.activities)

  @property
  def measured_us(self) -> Optional[float]:
    """All of the work, or of the own time on a CPU."""
    known = [row.measured_us for row in self.rows]
    return None if None in known else sum(known)

  @property
  def communication_us(self) -> float:
    """Of kernels that wait for other machines."""
    return sum(one.duration_us for one in self.part.activities
               if calibrate.kind_of(one.name) == calibrate.COMMUNICATION)


def analyse(path: str, step: Steps = None, hardware: str = '') -> Analysis:
  """Reads a trace and compares what it took with predictions.

  Args:
    path: the file.
    step: numbers of `ProfilerStep`; None: all of them.
    hardware: a preset, a JSON file, or empty: the GPU that the trace names.

  Raises:
    UserError: the file is no usable trace, the step is not in it, or the
      hardware is unknown.
  """
  trace, part = _part(path, step)
  machine = machines.find(hardware, _device_of(trace, part))
  on_cpu = trace.timed and not trace.activities
  notes = [*trace.notes, *_missing(trace, part, machine, on_cpu)]
  if machine is not None and on_cpu and machine.device != 'cpu':
    machine = None  # Times of a CPU say nothing about a GPU.
  pairs = embeddings.paired(part.calls)
  if machine is not None and machine.calibration and part.activities:
    rows = [_row_of_kernel(one, machine.calibration) for one in part.activities]
  elif trace.activities:
    rows = _rows_of_gpu(part, machine, pairs)
  else:
    rows = _rows_of_host(trace, part, machine, pairs)
  rows.sort(key=lambda row: row.call.start if row.call else math.inf)
  idle = launches.idle(trace, part) if part.activities else {}
  return Analysis(
      trace, part, machine, on_cpu, rows, _groups(rows), _operators(part, idle),
      {device: part.duration_us - sum(waits.values())
       for device, waits in idle.items()}, idle,
      _replayed(trace, part, machine), notes)


def calibrated(path: str, step: Steps = None) -> Calibration:
  """Learns the constants of a GPU from the kernels of a trace's steps.

  Raises:
    UserError: as of `analyse`, or there is no work of a GPU.
  """
  trace, part = _part(path, step)
  if not any(one.duration_us > 0 for one in part.activities):
    raise UserError(f'{path}: has no work of a GPU to learn from'
                    + (' in these steps' if step is not None else ''))
  device = _device_of(trace, part)
  where = f'steps {part.steps[0]}-{part.steps[-1]}' if part.steps else 'all'
  return calibrate.calibrate(
      ', '.join((os.path.basename(path), device.name if device else 'a GPU',
                 where)),
      ((one.name, predict.sizes_of(_owner(one), one), one.duration_us)
       for one in part.activities), replay.host_of(trace, part))


def _part(path: str, step: Steps) -> tuple[Trace, Window]:
  trace = read.read(path)
  steps = launches.steps_of(trace)
  if step is not None:
    wanted = range(step, step + 1) if isinstance(step, int) else step
    missing = next((one for one in wanted if one not in steps), None)
    if missing is not None:
      found = shortened([str(one) for one in steps], 8) or 'none'
      raise UserError(f'{path}: has no step {missing}; its steps are: {found}')
    steps = {one: steps[one] for one in wanted}
  launches.attribute(trace)
  return trace, launches.window(trace, steps)


def _device_of(trace: Trace, part: Window) -> Optional[calls.Device]:
  """The GPU that most of the work ran on."""
  used = collections.Counter(one.device for one in part.activities)
  return trace.devices.get(used.most_common(1)[0][0]) if used else None


def _replayed(trace: Trace, part: Window,
              machine: Optional[Hardware]) -> Optional[tuple]:
  learned = machine.calibration if machine else None
  if learned is None or not part.activities:
    return None

  def duration_us(one: Activity) -> float:
    us = learned.us(one.name, predict.sizes_of(_owner(one), one))
    return one.duration_us if us is None else us

  def waiting_us(one: Activity) -> float:
    waits = calibrate.kind_of(one.name) == calibrate.COMMUNICATION
    return one.duration_us if waits else duration_us(one)

  known, measured = replay.replay(trace, part, learned.host, waiting_us)
  return replay.replay(
      trace, part, learned.host, duration_us)[0], known, measured


def _missing(trace: Trace, part: Window, machine: Optional[Hardware],
             on_cpu: bool) -> list[str]:
  """What a trace lacks, in words."""
  notes = []
  if not any(call.args.get('Input Dims') or call.args.get('Input dims')
             for call in part.calls):
    notes.append('the trace has no shapes, so only copies are predicted by '
                 'rooflines; record_shapes=True records them')
  if on_cpu and (machine is None or machine.device != 'cpu'):
    notes.append('the trace has no work of a GPU: times are those of '
                 'operators on the CPU, and are predicted only for --hardware '
                 'of a .json file with "device": "cpu"')
  elif trace.activities and not part.activities:
    notes.append('no work of the GPU was launched in this part of the trace')
  elif machine is None:
    device = _device_of(trace, part)
    name = f'no preset for {device.name}' if device else 'which GPU is not told'
    notes.append(f'nothing is predicted: {name}; --hardware NAME or FILE.json '
                 'says what it can do')
  elif machine.device == 'cpu' and trace.activities:
    notes.append('the hardware is a CPU, and the times are those of a GPU')
  return notes


# --------------------------------------------------------------------- rows


def _row_of_kernel(one: Activity, learned: Calibration) -> Row:
  owner = _owner(one)
  return Row(owner.name if owner else NOBODY, calibrate.kind_of(one.name),
             owner.phase if owner else calls.FORWARD, owner, one.duration_us, 1,
             predict.price_of_kernel(owner, one, learned))


def _rows_of_gpu(part: Window, machine: Optional[Hardware],
                 pairs: dict) -> list[Row]:
  """A row for each operator that has work, nearest kinds first.

  Copies and fills that no other kind of operator asked for are rows of their
  own kind: they tell their bytes.
  """
  owners = collections.defaultdict(list)
  for activity in part.activities:
    owners[_owner(activity)].append(activity)
  rows = []
  for owner, work in owners.items():
    kind = predict.kind_of(owner) if owner else ''
    if kind in ('', predict.ELEMENTWISE) and all(
        one.kind != calls.KERNEL for one in work):
      kind, price = predict.COPY, predict.price_of_copies(work, machine)
    elif kind:
      price = predict.price(owner, work, machine, pairs.get(owner))
    else:
      price = predict.Price(None, reason=NO_FORMULA if owner else NOBODY)
    rows.append(Row(
        owner.name if owner else NOBODY, kind,
        owner.phase if owner else calls.FORWARD, owner,
        sum(one.duration_us for one in work), len(work), price))
  return rows


def _owner(activity: Activity) -> Optional[Call]:
  """The innermost call of a kind that it was launched in, or its caller."""
  if activity.caller is None:
    return None
  return next((call for call in activity.caller.upward()
               if predict.kind_of(call)), activity.caller)


def _rows_of_host(trace: Trace, part: Window, machine: Optional[Hardware],
                  pairs: dict) -> list[Row]:
  """A row for each operator of a kind; on a CPU with its time.

  Of operators of one kind within one another, such as relu and clamp_min,
  only the innermost one stands; its time is what is in no other row. Of an
  execution trace with a GPU, operators on the host's tensors are left out.
  """
  standing = [call for call in part.calls if predict.kind_of(call)
              and not _has_own_kind_within(call)]
  devices = set().union(*(call.args.get('devices', ()) for call in part.calls))
  if devices - {'cpu'}:
    standing = [call for call in standing
                if call.args.get('devices') != {'cpu'}]
  own_us = dict.fromkeys(standing, 0.0)
  others = []
  for call in part.calls:
    around = next((one for one in call.upward() if one in own_us), None)
    if around is not None:
      own_us[around] += call.self_us
    elif call.kind == calls.OPERATOR and trace.timed:
      others.append(Row(call.name, '', call.phase, call, call.self_us, 0,
                        predict.Price(None, reason=NO_FORMULA)))
  return others + [
      Row(call.name, predict.kind_of(call), call.phase, call,
          us if trace.timed else None, 0,
          predict.price(call, (), machine, pairs.get(call)))
      for call, us in own_us.items()]


def _has_own_kind_within(call: Call) -> bool:
  kind = predict.kind_of(call)
  return any(predict.kind_of(inner) == kind
             for child in call.children for inner in child.downward())


# --------------------------------------------------------------------- sums


def _groups(rows: Sequence[Row]) -> list[Group]:
  by_kind = collections.defaultdict(list)
  for row in rows:
    by_kind[row.kind, row.phase].append(row)
  found = [_group(kind, phase, by_kind.get((kind, phase), ()))
           for kind in dict.fromkeys((*predict.KINDS, *calibrate.KINDS))
           for phase in (calls.FORWARD, calls.BACKWARD, calls.OPTIMIZER)]
  return [group for group in found if group.calls]


def _group(kind: str, phase: str, rows: Sequence[Row]) -> Group:
  priced = [row for row in rows if row.price.us is not None]
  errors = [row.error for row in priced if row.error is not None]
  measured = [row.measured_us for row in priced]
  # Errors below 1 % count as 1 %, so that a single 0 does not decide.
  return Group(
      kind, phase, len(priced), None if None in measured else sum(measured),
      sum(row.price.us for row in priced),
      statistics.fmean(errors) if errors else None,
      math.exp(statistics.fmean(math.log(max(error, 0.01)) for error in errors))
      if errors else None,
      statistics.stdev(errors) if len(errors) > 1 else None)


def _operators(part: Window, idle: dict[int, dict]) -> list[OperatorSum]:
  """Sums by name, the dearest on the GPU first, or else on the CPU."""
  own_gpu: dict[Call, float] = collections.defaultdict(float)
  for activity in part.activities:
    if activity.caller is not None:
      own_gpu[activity.caller] += activity.duration_us
  sums = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0, 0.0])
  for call in part.calls:
    if call.kind != calls.OPERATOR and call not in own_gpu:
      continue
    of = sums[call.name]
    of[0] += 1
    if not any(one.name == call.name for one in call.upward()
               if one is not call):
      of[1] += call.duration_us
    of[2] += call.self_us
    of[4] += own_gpu.get(call, 0.0)
  for call, us in own_gpu.items():
    for name in {one.name for one in call.upward()} & sums.keys():
      sums[name][3] += us
  found = [OperatorSum(name, *of, sum(
      waits.get(name, 0.0) for waits in idle.values()))
           for name, of in sums.items()]
  return sorted(found, key=lambda one: (-one.self_gpu_us, -one.self_cpu_us,
                                        one.name))
