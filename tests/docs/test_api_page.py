"""docs/api.md is what the docstrings say today."""

import dataclasses
import importlib.util

import pytest

import tpu_graphs_ext
from support.places import PROJECT


@pytest.fixture(scope='module')
def script():
  spec = importlib.util.spec_from_file_location(
      'api_page', PROJECT / 'run_scripts' / 'api_page.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_the_page_is_current(script):
  assert script.PAGE.read_text(encoding='utf-8') == script.page(), (
      'docs/api.md is not what the docstrings say; run '
      'run_scripts/api_page.py')


def test_every_public_name_has_its_arguments_and_errors(script):
  entry = '\n'.join(script._entry(
      'CostModel', tpu_graphs_ext.CostModel))
  assert '### CostModel.score' in entry and '__init__' not in entry
  assert '- `bounds`: the tiles, at least one; None: ' in entry
  assert '**Returns:** float32 [tiles].' in entry
  assert '- `UserError`: a file cannot be read, ' in entry
  assert '```\nmodel = CostModel.load(' in entry
  entry = '\n'.join(script._entry(
      'TrainSettings', tpu_graphs_ext.TrainSettings))
  for field in dataclasses.fields(tpu_graphs_ext.TrainSettings):
    assert f'- `{field.name}`, `{field.default!r}`: ' in ' '.join(
        entry.split())
