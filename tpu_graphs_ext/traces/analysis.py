"""From a trace to what its operators took, and should have taken."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, Optional

from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.traces import calls, embeddings, launches, predict, read
from tpu_graphs_ext.traces import hardware as machines
from tpu_graphs_ext.traces.calls import Activity, Call, Trace
from tpu_graphs_ext.traces.hardware import Hardware
from tpu_graphs_ext.traces.launches import Window

NO_FORMULA = 'no formula for this operator'
NOBODY = '(launched by no operator that is in the trace)'


@dataclasses.dataclass(frozen=True)
class Row:
  """A call whose time is compared, or that stands for itself.

  Attributes:
    name: of the operator.
    kind: one of `predict.KINDS`, or ''.
    phase: 'forward', 'backward' or 'optimizer'.
    call: None of work that nobody launched.
    measured_us: of its work on the GPU, all added up, or its own time on a
      CPU; None in a trace without times.
    work: how many kernels, copies and fills.
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


@dataclasses.dataclass(frozen=True)
class Group:
  """Rows of one kind and phase, or all of them.

  Attributes:
    kind, phase: '' where there are several.
    calls: with a prediction.
    measured_us: of those; None in a trace without times.
    predicted_us: of those.
    mean_error, geometric_error, deviation: means and the sample's standard
      deviation of their relative errors; None without any.
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


@dataclasses.dataclass(frozen=True)
class OperatorSum:
  """All calls of one operator.

  Attributes:
    name: its name.
    calls: how many.
    cpu_us: on its thread, with what it calls; calls within one of the same
      name are counted once.
    self_cpu_us: without operators and annotations within it, and without the
      runtime's calls.
    gpu_us: of the work that it launched, with what it calls.
    self_gpu_us: of what it launched itself.
    idle_us: during which the GPU waited for it.
  """
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
    trace: all of it.
    part: the part.
    hardware: what was predicted for; None: nothing was.
    on_cpu: whether measured times are those of a CPU.
    rows: by their start.
    groups: of `rows` with a prediction, kinds in the order of `KINDS`.
    total: of all those.
    operators: the dearest first.
    attributed: how much of the GPU's work has an operator.
    busy_us: device -> time in which anything runs.
    idle_us: device -> {name: time}; see `launches.idle`.
    notes: what could not be done, and why.
  """
  trace: Trace
  part: Window
  hardware: Optional[Hardware]
  on_cpu: bool
  rows: list[Row]
  groups: list[Group]
  total: Group
  operators: list[OperatorSum]
  attributed: int
  busy_us: dict[int, float]
  idle_us: dict[int, dict[str, float]]
  notes: list[str]

  @property
  def measured_us(self) -> Optional[float]:
    """All of the work, or of the own time on a CPU."""
    known = [row.measured_us for row in self.rows]
    return None if None in known else sum(known)


def analyse(path: str, step: Optional[int] = None,
            hardware: str = '') -> Analysis:
  """Reads a trace and compares what it took with rooflines.

  Args:
    path: the file.
    step: number of a `ProfilerStep`; None: all of them.
    hardware: a preset, a JSON file, or empty: the GPU that the trace names.

  Raises:
    UserError: the file is no usable trace, the step is not in it, or the
      hardware is unknown.
  """
  trace = read.read(path)
  steps = launches.steps_of(trace)
  if step is not None:
    if step not in steps:
      found = shortened([str(one) for one in steps], 8) or 'none'
      raise UserError(f'{path}: has no step {step}; its steps are: {found}')
    steps = {step: steps[step]}
  launches.attribute(trace)
  part = launches.window(trace, steps)
  machine = machines.find(hardware, _device_of(trace, part))
  return _analysed(trace, part, machine)


def _device_of(trace: Trace, part: Window) -> Optional[calls.Device]:
  """The GPU that most of the work ran on."""
  used = collections.Counter(one.device for one in part.activities)
  number = used.most_common(1)[0][0] if used else None
  return trace.devices.get(number)


def _analysed(trace: Trace, part: Window,
              machine: Optional[Hardware]) -> Analysis:
  on_cpu = trace.timed and not trace.activities
  notes = [*trace.notes, *_missing(trace, part, machine, on_cpu)]
  if machine is not None and on_cpu and machine.device != 'cpu':
    machine = None  # Times of a CPU say nothing about a GPU.
  pairs = embeddings.paired(part.calls)
  rows = (_rows_of_gpu(part, machine, pairs) if part.activities
          else [] if trace.activities
          else _rows_of_host(trace, part, machine, pairs))
  rows.sort(key=lambda row: row.call.start if row.call else math.inf)
  devices = sorted({one.device for one in part.activities})
  idle = launches.idle(trace, part) if part.activities else {}
  busy = {device: sum(end - start for start, end in launches.busy(
      [one for one in trace.activities if one.device == device],
      part.start, part.end)) for device in devices}
  return Analysis(
      trace, part, machine, on_cpu, rows, _groups(rows),
      _group('', '', rows), _operators(part, idle),
      sum(one.caller is not None for one in part.activities), busy,
      {device: _by_name(waits) for device, waits in idle.items()
       if device in busy}, notes)


def _missing(trace: Trace, part: Window, machine: Optional[Hardware],
             on_cpu: bool) -> list[str]:
  """What a trace lacks, in words."""
  notes = []
  shaped = any(call.args.get('Input Dims') or call.args.get('Input dims')
               for call in part.calls)
  if not shaped:
    notes.append('the trace has no shapes, so only copies are predicted; '
                 'record_shapes=True records them')
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


def _rows_of_gpu(part: Window, machine: Optional[Hardware],
                 pairs: dict) -> list[Row]:
  """A row for each operator that has work, nearest kinds first.

  Copies and fills that no other kind of operator asked for are rows of their
  own kind: they tell their bytes.
  """
  owners: dict[Any, list[Activity]] = collections.defaultdict(list)
  for activity in part.activities:
    owners[_owner(activity)].append(activity)
  rows = []
  for owner, work in owners.items():
    kind = predict.kind_of(owner) if owner else ''
    copies = all(one.kind != calls.KERNEL for one in work)
    if copies and kind in ('', predict.ELEMENTWISE):
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
  if devices - {'cpu'}:  # What an execution trace has on the host is not its.
    standing = [call for call in standing
                if call.args.get('devices') != {'cpu'}]
  known = set(standing)
  rows = []
  for call in standing:
    own = sum(inner.self_us for inner in call.downward() if next(
        one for one in inner.upward() if one in known) is call)
    rows.append(Row(
        call.name, predict.kind_of(call), call.phase, call,
        own if trace.timed else None, 0,
        predict.price(call, (), machine, pairs.get(call))))
  if not trace.timed:
    return rows
  for call in part.calls:
    if call.kind == calls.OPERATOR and not any(
        one in known for one in call.upward()):
      rows.append(Row(call.name, '', call.phase, call, call.self_us, 0,
                      predict.Price(None, reason=NO_FORMULA)))
  return rows


def _has_own_kind_within(call: Call) -> bool:
  kind = predict.kind_of(call)
  return any(predict.kind_of(inner) == kind
             for child in call.children for inner in child.downward())


# ------------------------------------------------------------------- groups


def _groups(rows: Sequence[Row]) -> list[Group]:
  phases = (calls.FORWARD, calls.BACKWARD, calls.OPTIMIZER)
  found = [_group(kind, phase, [
      row for row in rows if row.kind == kind and row.phase == phase])
      for kind in predict.KINDS for phase in phases]
  return [group for group in found if group.calls]


def _group(kind: str, phase: str, rows: Sequence[Row]) -> Group:
  priced = [row for row in rows if row.price.us is not None]
  errors = [row.error for row in priced if row.error is not None]
  measured = [row.measured_us for row in priced]
  return Group(
      kind, phase, len(priced), None if None in measured else sum(measured),
      sum(row.price.us for row in priced),
      statistics.fmean(errors) if errors else None,
      _geometric_mean(errors) if errors else None,
      statistics.stdev(errors) if len(errors) > 1 else None)


def _geometric_mean(values: Sequence[float]) -> float:
  if min(values) <= 0:
    return 0.0
  return math.exp(statistics.fmean(map(math.log, values)))


# ---------------------------------------------------------------- operators


def _operators(part: Window, idle: dict[int, dict]) -> list[OperatorSum]:
  """Sums by name, the dearest on the GPU first, or else on the CPU."""
  own_gpu: dict[Call, float] = collections.defaultdict(float)
  for activity in part.activities:
    if activity.caller is not None:
      own_gpu[activity.caller] += activity.duration_us
  waits: dict[Any, float] = collections.defaultdict(float)
  for causes in idle.values():
    for cause, lost in causes.items():
      waits[cause] += lost
  sums: dict[str, list[float]] = {}
  inside = _sums_within(part.calls, own_gpu)
  listed = {id(call) for call in part.calls}
  # A backward pass may wait for operators of a step before.
  for call in [*part.calls, *(cause for cause in waits if isinstance(
      cause, Call) and id(cause) not in listed)]:
    if call.kind != calls.OPERATOR and call not in own_gpu:
      continue
    of = sums.setdefault(call.name, [0, 0.0, 0.0, 0.0, 0.0, 0.0])
    of[5] += waits.get(call, 0.0)
    if id(call) not in listed:
      continue
    of[0] += 1
    if not _within_its_own_name(call):
      of[1] += call.duration_us
      of[3] += inside[call]
    of[2] += call.self_us
    of[4] += own_gpu.get(call, 0.0)
  found = [OperatorSum(name, int(of[0]), *of[1:]) for name, of in sums.items()]
  return sorted(found, key=lambda one: (-one.self_gpu_us, -one.self_cpu_us,
                                        one.name))


def _sums_within(all_calls: Sequence[Call],
                 own: dict[Call, float]) -> dict[Call, float]:
  """The sums of calls with all that is in them."""
  found: dict[Call, float] = collections.defaultdict(float)
  for call, value in own.items():
    for one in call.upward():
      found[one] += value
  return found


def _within_its_own_name(call: Call) -> bool:
  return call.parent is not None and any(
      one.name == call.name for one in call.parent.upward())


def _by_name(waits: dict[Any, float]) -> dict[str, float]:
  found: dict[str, float] = collections.defaultdict(float)
  for cause, lost in waits.items():
    found[cause.name if isinstance(cause, Call) else cause] += lost
  return dict(sorted(found.items(), key=lambda one: -one[1]))
