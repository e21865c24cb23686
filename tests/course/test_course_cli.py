"""The verbs of the assignment: text in, exit code and text out."""

import json

import pytest

from tpu_graphs_ext import cli
from tpu_graphs_ext.course import verify, zip_file


def test_verify(monkeypatch, capsys):
  asked, faults = [], []

  def fake(model_dir, **kwargs):
    asked.append({'model_dir': model_dir, **kwargs})
    return verify.Verdict(model_dir, 'm.py', faults=list(faults))

  monkeypatch.setattr(verify, 'verify', fake)
  monkeypatch.setattr(zip_file, 'unpack', lambda path, folder: (
      f'model_{path}', 'packed.py'))
  settings = {'root': 'r', 'data_root': 'd', 'cache_dir': '', 'time_limit': 0.5}
  flags = [f'--{name}={value}' for name, value in settings.items()]
  assert cli.main(['verify', '--dir=a', '--models_py=m.py', *flags]) == 0
  assert capsys.readouterr().out == 'this hand-in works\n'
  faults.append('it is broken')
  assert cli.main(['verify', '--package=b', '--json', *flags]) == 1
  content = json.loads(capsys.readouterr().out)
  assert (content['ok'], content['faults']) == (False, ['it is broken'])
  assert asked == [
      {'model_dir': 'a', 'models_py': 'm.py', **settings},
      {'model_dir': 'model_b', 'models_py': 'packed.py', **settings}]


def test_usage(capsys):
  for flags in ([], ['--model_dir=a', '--package=b'],
                ['--package=b', '--models_py=c']):
    assert cli.main(['verify', *flags]) == 1
    assert 'name --model_dir, or --package' in capsys.readouterr().err
  with pytest.raises(SystemExit):
    cli.main(['package', '--help'])
  text = ' '.join(capsys.readouterr().out.split())
  assert 'runs the code of the hand-in, as you' in text
