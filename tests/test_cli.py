"""The command line: text in, exit code, stdout and stderr out."""

import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from support import eager_training, tiny_kernels, tiny_models
from tpu_graphs_ext import cli
from tpu_graphs_ext.engine.settings import (
  LoadSettings,
  StatsSettings,
  TrainSettings,
)
from tpu_graphs_ext.errors import UserError

VERBS = ('train', 'evaluate', 'predict', 'rank', 'report', 'export', 'sweep',
         'trace', 'check-data', 'featurize', 'sample-data', 'doctor', 'install',
         'uninstall', 'verify', 'package', 'kaggle-csv', 'run', 'stats')


# What stands for a path in the help.
PATHS = {'DIR', 'FILE', 'FILE.pb', 'PATH', 'MODEL_DIR', 'CSV', 'CHECKOUT',
         'SCRIPT', 'DATA_ROOT', 'OUT_DIR', 'CACHE_DIR', 'MODELS_PY',
         'RESULTS_CSV', 'TENSORBOARD', 'CSV_LOG'}


def paths_of_all_verbs():
  verbs, = (action for action in cli._parser()._actions if action.choices)
  assert set(verbs.choices) == set(VERBS)
  return [(verb, action) for verb, parser in verbs.choices.items()
          for action in parser._actions if action.metavar in PATHS]


@pytest.mark.parametrize('verb, action', [
    pytest.param(verb, action, id=f'{verb} {action.dest}')
    for verb, action in paths_of_all_verbs()])
def test_an_empty_path_is_refused_or_has_a_meaning(verb, action, capsys):
  if 'empty' in action.help:  # As in "empty: none".
    assert not action.type or action.type('') == ''
    return
  flag = action.option_strings[0] if action.option_strings else action.metavar
  for empty in ('', ' '):
    with pytest.raises(UserError, match=f'{flag} is empty; name a file or'):
      action.type(empty)
  assert action.type('~/x') == '~/x'


@pytest.mark.parametrize('call', [
    'sample-data --out=', 'predict --dir=x --out=', 'check-data "" --json',
    'train --data_root= --epochs=1', 'stats --data_root=', 'run "" --help'])
def test_an_empty_path_is_wrong_usage(call, capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as exited:
    cli.main(shlex.split(call))
  assert exited.value.code == 2
  assert 'is empty; name a file or folder' in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """data/: a data root; out/: a model trained on it through the CLI."""
  folder = tmp_path_factory.mktemp('cli')
  tiny_kernels.write_data_root(folder / 'data')
  settings = tiny_models.tiny_settings(
      folder / 'data', folder / 'out', epochs=1)
  flags = [f'--{field.name}={getattr(settings, field.name)}'
           for field in dataclasses.fields(settings)]
  with eager_training.eager_steps():
    assert cli.main(['train', *flags]) == 0
  return folder


@pytest.fixture
def model_flags(folder):
  model_dir, = (folder / 'out').glob('model_*')
  return [f'--dir={model_dir}/', f'--data_root={folder / "data"}',
          '--cache_dir=', f'--models_py={tiny_models.__file__}']


def usage_error(capsys, *argv):
  with pytest.raises(SystemExit) as exit_info:
    cli.main(list(argv))
  assert exit_info.value.code == 2
  return capsys.readouterr().err


def parser_of(verb):
  verbs = next(action for action in cli._parser()._actions
               if action.dest == 'verb')
  return verbs.choices[verb]


def test_help_names_every_verb_and_imports_no_tensorflow():
  script = ('import sys\nfrom tpu_graphs_ext import cli\n'
            'try:\n  cli.main(["--help"])\nexcept SystemExit:\n  pass\n'
            'print(sorted({"tensorflow", "numpy"} & set(sys.modules)))')
  output = subprocess.run([sys.executable, '-c', script], check=True,
                          capture_output=True, text=True).stdout
  for verb in VERBS:
    assert re.search(rf'^ +{verb}\s', output, re.MULTILINE)
  assert output.endswith('[]\n')


@pytest.mark.parametrize('verb', VERBS)
def test_every_flag_has_help_with_its_default(verb):
  text = parser_of(verb).format_help()
  for action in parser_of(verb)._actions:
    assert action.help
    if action.option_strings and action.default is not None and (
        action.option_strings != ['-h', '--help']):
      assert f'(default: {action.default or repr(action.default)})' in (
          ' '.join(text.split()))


@pytest.mark.parametrize('settings_class, argv', [
    (TrainSettings, ['train']),
    (LoadSettings, ['evaluate', '--dir=m']),
    (LoadSettings, ['predict', '--dir=m']),
    (LoadSettings, ['rank', '--dir=m']),
    (StatsSettings, ['stats'])])
def test_flags_are_the_settings_with_their_defaults_and_help(
    settings_class, argv):
  args = cli._parser().parse_args(argv)
  help_texts = {action.dest: action.help
                for action in parser_of(argv[0])._actions}
  for field in dataclasses.fields(settings_class):
    assert getattr(args, field.name) == field.default
    assert help_texts[field.name] == field.metadata['help']
  assert cli._given(args, settings_class) == settings_class()


def test_flags_have_the_types_and_choices_of_the_fields(capsys):
  args = cli._parser().parse_args(
      ['train', '--seed=3', '--lr=1', '--epochs=4', '--run_id=5'])
  given = (args.seed, args.lr, args.epochs, args.run_id)
  assert given == (3, 1.0, 4, '5')
  assert list(map(type, given)) == [int, float, int, str]
  assert "invalid choice: 'x'" in usage_error(capsys, 'train', '--test_mode=x')
  assert "invalid choice: 'x'" in usage_error(
      capsys, 'rank', '--dir=m', '--stats=x')


def test_switches_as_absl_writes_them():
  parse = cli._parser().parse_args
  assert parse(['train', '--toy_data']).toy_data is True
  assert parse(['train', '--toy_data=true']).toy_data is True
  assert parse(['train', '--toy_data=False']).toy_data is False


@pytest.mark.parametrize('verb', cli._EXAMPLES)
def test_every_verb_has_two_examples_that_parse(
    verb, capsys, monkeypatch, tmp_path):
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'out/tpugraphs_tiles/model_0').mkdir(parents=True)
  for words in cli._EXAMPLES[verb]:
    argv = [verb, *shlex.split(words)]
    args, unknown = cli._parser().parse_known_args(
        cli._spelled_out(cli._parser(), argv))
    assert args.verb == verb and not unknown
  with pytest.raises(SystemExit):
    cli.main([verb, '--help'])
  assert capsys.readouterr().out.count(f'  tpu-graphs-ext {verb} ') == 2


def test_no_verb_is_without_examples():
  assert set(cli._verbs_of(cli._parser())) == set(cli._EXAMPLES)


def test_a_model_is_found_by_the_start_of_its_hash_or_as_the_latest(tmp_path):
  for seconds, name in enumerate(('model_b2', 'model_a1', 'model_a2')):
    (tmp_path / name).mkdir()
    os.utime(tmp_path / name, (seconds, seconds))
  assert cli._model_dir(f'{tmp_path}/model_b') == f'{tmp_path}/model_b2'
  assert cli._model_dir(f'{tmp_path}/latest') == f'{tmp_path}/model_a2'
  assert cli._model_dir(f'{tmp_path}/model_b,{tmp_path}/model_a1') == (
      f'{tmp_path}/model_b2,{tmp_path}/model_a1')
  assert cli._model_dir('pretrained') == 'pretrained'
  assert cli._model_dir(f'{tmp_path}/model_c') == f'{tmp_path}/model_c'
  with pytest.raises(UserError, match='2 folders begin so'):
    cli._model_dir(f'{tmp_path}/model_a')
  with pytest.raises(UserError, match='there is no model_<hash> in'):
    cli._model_dir(f'{tmp_path}/model_b2/latest')


def test_usage_errors(capsys):
  assert usage_error(capsys, 'train', '--batch=x').count('\n') == 1
  assert "value: 'x'" in usage_error(
      capsys, '--quiet', 'train', '--batch=x')
  assert "invalid choice: 'trian'" in usage_error(capsys, 'trian')
  assert 'did you mean --epochs?' in usage_error(capsys, 'train', '--epoch=3')
  assert '--dir' in usage_error(capsys, 'evaluate', '--task=layout')
  assert "invalid int value: 'x'" in usage_error(capsys, 'train', '--batch=x')
  assert "must be at least 1; got '0'" in usage_error(
      capsys, 'rank', '--dir=m', '--top_k=0')
  for text in ('1,0', '5,', 'x'):
    assert 'must be at least 1' in usage_error(
        capsys, 'evaluate', '--dir=m', f'--top_k={text}')
  assert "must be true or false; got 'x'" in usage_error(
      capsys, 'train', '--toy_data=x')


def test_user_error_is_one_line_and_exit_code_1(capsys):
  assert cli.main(['train', '--epochs=0']) == 1
  captured = capsys.readouterr()
  assert captured.err == 'error: --epochs=0: must be at least 1\n'
  assert captured.out == ''


def test_missing_file_is_an_error_not_a_trace(capsys, tmp_path):
  assert cli.main(['evaluate', f'--dir={tmp_path}/model_x']) == 1
  assert capsys.readouterr().err.startswith(
      f'error: {tmp_path}/model_x: there is no such model folder')


@pytest.mark.parametrize('error, code, message', [
    (KeyboardInterrupt(), 130, 'interrupted\n'),
    (OSError(28, 'No space left on device', '/x'), 1,
     "error: [Errno 28] No space left on device: '/x'; free some space\n"),
])
def test_interruption_and_full_disk(monkeypatch, capsys, error, code, message):
  def fail(*unused_args):
    raise error

  monkeypatch.setattr(TrainSettings, '__post_init__', fail)
  assert cli.main(['train']) == code
  assert capsys.readouterr().err == message


def test_evaluate(folder, model_flags, capsys):
  assert cli.main(['evaluate', *model_flags]) == 0
  out = capsys.readouterr().out
  assert out.splitlines()[0].endswith(f'on {folder / "data"}/valid')
  assert re.search(r'^delta_net +12 ', out, re.MULTILINE)
  labelled = f'--data={folder}/data/test_labelled'
  assert cli.main(['evaluate', *model_flags, labelled, '--json']) == 0
  content = json.loads(capsys.readouterr().out)
  assert content['micro']['kernels'] == 6


def test_evaluate_several_models(model_flags, capsys):
  twice = model_flags[0] + ',' + model_flags[0][len('--dir='):]
  assert cli.main(['evaluate', twice, *model_flags[1:], '--json']) == 0
  first, second = json.loads(capsys.readouterr().out)
  assert first == second
  assert first['differences'][0]['slowdown']['5'] == {
      'mean': 0.0, 'interval': [0.0, 0.0]}


def test_evaluate_by_any_k_and_as_a_csv(model_flags, capsys, tmp_path):
  path = tmp_path / 'e.csv'
  assert cli.main(['evaluate', *model_flags, '--top_k=20,2', '--by_kernel',
                   f'--csv={path}']) == 0
  out = capsys.readouterr().out
  assert out.split('top-k %')[0].split()[3:8] == [
      'kernels', 'top-2', '%', 'top-20', '%']
  assert len(re.findall(r'^delta_net_[0-9a-f]{16} ', out, re.MULTILINE)) == 12
  header, *rows = path.read_text().splitlines()
  assert 'slowdown_2,slowdown_20' in header and len(rows) == 12


def test_evaluate_refuses_the_blanked_test_split(folder, model_flags, capsys):
  assert cli.main(
      ['evaluate', *model_flags, f'--data={folder}/data/test']) == 1
  assert '6 of 6 kernels have no labels' in capsys.readouterr().err


def test_predict_and_rank(folder, model_flags, capsys, tmp_path):
  path = tmp_path / 'sub' / 'p.csv'
  assert cli.main(['predict', *model_flags, f'--out={path}']) == 0
  assert capsys.readouterr().out == f'{path}\n'
  rows = dict(row.removeprefix('tile:xla:').split(',')
              for row in path.read_text().splitlines()[1:])
  assert cli.main(['rank', *model_flags, '--json']) == 0
  for ranking in json.loads(capsys.readouterr().out):
    chosen = [choice['index'] for choice in ranking['choices']]
    # The CSV is padded with 0, the list is not.
    assert rows[ranking['tile_id']] == ';'.join(
        map(str, chosen + [0] * (5 - len(chosen))))
  assert cli.main(['rank', *model_flags, '--top_k=1']) == 0
  assert capsys.readouterr().out.count('\n      1 ') == 6


def test_check_data(folder, capsys, tmp_path):
  assert cli.main(['check-data', str(folder / 'data')]) == 0
  assert 'valid' in capsys.readouterr().out
  (tmp_path / 'cut_0.npz').write_bytes(b'PK')
  assert cli.main(['check-data', str(tmp_path), '--json']) == 1
  assert 'cut_0.npz' in json.dumps(json.loads(capsys.readouterr().out))


def test_featurize(shared_data, capsys, tmp_path):
  assert cli.main(['featurize', str(shared_data / 'op_tuning_data.pb'),
                   '--out', str(tmp_path)]) == 0
  paths = capsys.readouterr().out.splitlines()
  assert len(paths) == 15
  assert sorted(paths) == sorted(map(str, tmp_path.glob('*.npz')))


def test_sigterm_ends_like_ctrl_c(monkeypatch, capsys):
  seen = []

  def wait(*unused_args):
    try:
      signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
      seen.append('put in order')
      raise

  monkeypatch.setattr(TrainSettings, '__post_init__', wait)
  assert cli.main(['train']) == 143
  assert capsys.readouterr().err == 'interrupted\n' and seen
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_sigterm_that_is_ignored_stays_ignored(monkeypatch):
  def told(*unused_args):
    signal.raise_signal(signal.SIGTERM)
    raise OSError('went on')

  monkeypatch.setattr(TrainSettings, '__post_init__', told)
  before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
  try:
    assert cli.main(['train']) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
  finally:
    signal.signal(signal.SIGTERM, before)


def test_a_models_py_that_exits_is_an_error(tmp_path, capsys):
  path = tmp_path / 'models.py.original'
  path.write_text('import sys\nsys.exit(0)\n')
  assert cli.main(['train', f'--models_py={path}']) == 1
  assert re.search(r'models.py.original cannot be imported \(SystemExit: 0\)',
                   capsys.readouterr().err)


def test_a_verb_that_exits_is_an_error(monkeypatch, capsys):
  monkeypatch.setattr(TrainSettings, '__post_init__',
                      lambda *_: sys.exit(0))
  assert cli.main(['train']) == 1
  assert 'models.py ended the program (exit code 0)' in (
      capsys.readouterr().err)


def test_a_switch_takes_no_file(tmp_path, capsys):
  code = cli.main(['check-data', '--json', str(tmp_path / 'none')])
  assert code and 'must be true or false' not in capsys.readouterr().err
