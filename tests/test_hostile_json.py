"""Every reader of JSON, with values of every type in every field.

A reader takes what keeps its rules, or raises one `UserError` that can be
printed.
"""

import gzip
import json

import pytest

from support import damage
from support import tiny_traces as tiny
from tpu_graphs_ext import errors, files
from tpu_graphs_ext.engine import settings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import compare, page, report, runs
from tpu_graphs_ext.sweep import grid
from tpu_graphs_ext.tasks.tile import TrainSettings
from tpu_graphs_ext.traces import analysis, calibrate

STATS = {'minimum': [0.0, 1.0], 'maximum': [1.0, 1e9]}
RUN = {
    'seed': 1, 'seconds': {'train': 1.5}, 'host': 'tpu_graphs_ext',
    'settings': {'data_root': 'a', 'toy_data': False},
    'args': TrainSettings(seed=1).baseline_args(),
    'final_error': {'val': {'1': 0.25}}, 'num_ops': 120,
    'feature_stats': {'node': STATS, 'config': STATS},
    'train_curve': {'epoch': [0, 1], 'train_loss': [2.5, 1.25],
                    'val_opa': [0.5, 0.75]}}
GRID = {
    'models': ['MLP', {'model': 'MLP', 'kwargs': {'hidden_dim': [1, 2]}}],
    'settings': {'epochs': 2, 'lr': {'min': 1, 'max': 4}},
    'seeds': [0, 1], 'data_root': 'a', 'prune': {'min_epochs': 1},
    'search': {'method': 'random', 'configurations': 2, 'seed': 1}}


def read_grid(path):
  parsed = grid.filled(grid.Grid, files.read_json(path), path)
  assert 0 < parsed.num_trials <= grid.MOST_TRIALS and parsed.study_name


def read_kwargs(path):
  text = files.read_file(path).decode()
  assert isinstance(settings.parse_model_kwargs(text), dict)


LEARNED = calibrate.calibrate('t', 'a GPU', [('k', {'bytes': 12.0}, 3.0)],
                              {'pause': (1.0, 1)})


def read_trace(path):
  compared = analysis.compared(path, None, LEARNED)
  json.dumps(analysis.to_json(compared), allow_nan=False)
  for text in (analysis.text(compared), files.csv_of(compared.kernels)):
    text.encode()


def read_report(path):
  """All of a page about a run file but the drawing."""
  with gzip.open(f'{path}z', 'wb', 1) as file:
    file.write(files.read_file(path))
  runs_there, _ = runs.find([f'{path}z'])
  groups = runs.grouped(runs_there)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(page, 'svg', lambda *unused: '')
    section = report.runs_section(groups, None, compare.looks_of(
        [group.name for group in groups], groups[0].runs[0].task))
  str(section).encode()


READERS = {
    'run': (read_report, RUN), 'grid': (read_grid, GRID),
    'kwargs': (read_kwargs, {'hidden_dim': 3, 'feature_stats': STATS}),
    'calibration': (calibrate.read, json.loads(calibrate.to_json(LEARNED))),
    'trace': (read_trace, {'traceEvents': tiny.one_step()[:6]})}


@pytest.mark.parametrize('every', [
    23, pytest.param(1, marks=pytest.mark.survive)])  # No divisor of all.
@pytest.mark.parametrize('name', READERS)
def test_hostile_values(tmp_path, name, every):
  reader, content = READERS[name]
  path = tmp_path / 'run_x.json'
  for what, changed in [('sound', content), *damage.hostile(content)][::every]:
    path.write_text(json.dumps(changed))
    with damage.within_limits(what):
      try:
        reader(str(path))
      except UserError as error:
        assert what != 'sound'
        said = errors.printable(str(error))
        assert max(map(len, said.encode().decode().split('\n'))) <= 500
      except Exception as error:
        raise AssertionError(f'{name}: {what}: {error!r}') from error


def test_a_printed_line_is_short_and_can_be_encoded():
  first, second = errors.printable(
      'a.json: ' + 'x' * 2000 + '; give less\nb \ud800').split('\n')
  assert len(first) <= 500
  assert first.startswith('a.json: x') and first.endswith('; give less')
  assert second == 'b \\ud800'
