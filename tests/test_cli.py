"""The command line: text in, exit code, stdout and stderr out."""

import dataclasses
import inspect
import io
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from tqdm import tqdm

from support import eager_training, tiny_kernels, tiny_models, waiting
from support.places import PROJECT
from tpu_graphs_ext import cli
from tpu_graphs_ext.cli import app, flags
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import TEMPORARY
from tpu_graphs_ext.hlo import kernel_modules, kernel_sources
from tpu_graphs_ext.serving import tile_search
from tpu_graphs_ext.serving.tile_ranking import SourceRanking
from tpu_graphs_ext.tasks.tile import LoadSettings, StatsSettings, TrainSettings

VERBS = list(flags.VERBS)

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """data/: a data root; out/: a model trained on it through the CLI."""
  folder = tmp_path_factory.mktemp('cli')
  tiny_kernels.write_data_root(folder / 'data')
  settings = tiny_models.tiny_settings(
      folder / 'data', folder / 'out', epochs=1)
  (folder / 'train.json').write_text(json.dumps(
      {**dataclasses.asdict(settings), 'epochs': 9}))
  with eager_training.eager_steps():
    assert cli.main(['train', f'--config={folder}/train.json',
                     '--epochs=1']) == 0
  return folder


@pytest.fixture
def model_flags(folder):
  model_dir, = (folder / 'out').glob('model_*')
  return [f'--dir={model_dir}/', f'--data_root={folder / "data"}',
          '--cache_dir=', f'--models_py={tiny_models.__file__}']


def usage_error(capsys, call):
  with pytest.raises(SystemExit) as exit_info:
    cli.main(shlex.split(call))
  error = capsys.readouterr().err
  assert exit_info.value.code == 2 and error.count('\n') == 1, error
  assert error.endswith(' --help\n')
  return error


# ----------------------------------------------------------------------- help


def test_without_stderr_stdout_has_no_messages(tmp_path):
  """And a pipe to another process does not get its number, which hangs."""
  for closed, err in ('2>&-', b''), ('>&-', b'error: none.pb: no such file'):
    done = subprocess.run(
        ['bash', '-c', f'"$0" -m tpu_graphs_ext.cli rank none.pb {closed}',
         sys.executable], capture_output=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b'')
    assert done.stderr.startswith(err), done.stderr


def test_a_command_ends_with_its_code_and_all_of_its_text(tmp_path):
  """Also where it leaves without unloading what it loaded."""
  (tmp_path / 'cut_0.npz').write_bytes(b'PK')
  for words, code, out, err in (
      (['check-data', str(tmp_path), '--json'], 1, 'cut_0.npz', ''),
      (['trian'], 2, '', "'trian' (choose from"), (['--version'], 0, 'tpu', '')
  ):
    done = subprocess.run([sys.executable, '-m', 'tpu_graphs_ext.cli', *words],
                          capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert out in done.stdout and err in done.stderr


def test_help_of_every_verb(capsys, monkeypatch, tmp_path):
  """Each flag, and two examples, which parse."""
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'out/tpugraphs_tiles/model_0').mkdir(parents=True)
  (tmp_path / 'out/tpugraphs_tiles/run_0.jsonz').touch()
  for verb in VERBS:
    with pytest.raises(SystemExit):
      cli.main([verb, '--help'])
    text = ' '.join(capsys.readouterr().out.split())
    assert all(action.help for action in app.make_parser(
        [verb]).verbs[verb]._actions)
    assert text.count(f' tpu-graphs-ext {verb} ') == 3  # And the usage.
    for words in flags.VERBS[verb].examples:
      assert app.parse([verb, *shlex.split(words)]).verb == verb
  with pytest.raises(SystemExit):
    cli.main(['train', '--task=layout', '--help'])
  text = capsys.readouterr().out
  assert '--keep_nodes' in text and '(default: 0.001)' in text


def test_completion(capsys):
  with pytest.raises(SystemExit):
    cli.main(['--print-completion', 'bash'])
  script = capsys.readouterr().out
  assert 'kaggle-csv' in script and '--early_stop' in script
  subprocess.run(['bash', '-n'], input=script, text=True, check=True)


# ---------------------------------------------------------------------- words


def test_flags_are_the_settings_with_their_defaults():
  for verb, settings_class in (
      ('train', TrainSettings), ('evaluate', LoadSettings),
      ('predict', LoadSettings), ('rank', LoadSettings),
      ('stats', StatsSettings)):
    assert flags.given(app.parse([verb]), settings_class) == settings_class()
  args = app.parse(
      ['train', '--seed=3', '--lr=1', '--epochs', '4', '--run-id=5'])
  values = (args.seed, args.lr, args.epochs, args.run_id)
  assert values == (3, 1.0, 4, '5')
  assert list(map(type, values)) == [int, float, int, str]
  kernels = app.parse(['sample-data', '--out=o', '--kernels=all']).kernels
  assert kernels is None  # All of them, as in the settings.


def test_switches_as_absl_writes_them():
  for words, on in (('--toy_data', True), ('--toy_data=true', True),
                    ('--toy-data=False', False), ('', False)):
    assert app.parse(['train', *words.split()]).toy_data is on
  # The flags of a script are its own.
  args = app.parse(['run', '--root=r', 's.py', '--data-root', '--help', '-x'])
  assert args.root == 'r' and args.arguments == ['--data-root', '--help', '-x']


def test_config(tmp_path, capsys):
  path = tmp_path / 'c.json'
  path.write_text('{"task": "layout", "keep_nodes": 7, "toy_data": true, '
                  '"model_kwargs_json": {"a": 1}, "lr": 0.1, "seed": null}')
  args = app.parse(['train', '--lr=2', '--config', str(path)])
  assert (args.keep_nodes, args.toy_data, args.lr) == (7, True, 2.0)
  assert args.model_kwargs_json == '{"a": 1}'
  path.write_text('{"dir": ["a-1", "b"], "data-root": "d-r", '
                  '"keep-repeats": true, "cache-dir": null}')
  args = app.parse(['evaluate', f'--config={path}'])
  assert (args.dir, args.data_root) == (['a-1', 'b'], 'd-r')
  assert args.keep_repeats is True
  path.write_text('{"scores": ["a.npz", "b.npz"]}')
  args = app.parse(['report', f'--config={path}', 'out'])
  assert (args.scores, args.runs) == (['a.npz', 'b.npz'], ['out'])
  path.write_text('{"layout": ["a.csv", "b.csv"], "sample": "s", "tile": "t"}')
  args = app.parse(['kaggle-csv', '--out=o', f'--config={path}'])
  assert args.layout == ['a.csv', 'b.csv']
  for content, error in (('{"epoch": 3}', 'unrecognized arguments: --epoch=3 '
                          f'(on the command line or in {path}); see '),
                         ('[1]', 'must be a JSON object of flags'),
                         ('{', 'is not JSON')):
    path.write_text(content)
    assert error in usage_error(capsys, f'train --config={path}')
  assert 'cannot be read' in usage_error(
      capsys, f'train --config={tmp_path}/none')


def test_a_model_is_found_by_the_start_of_its_hash_or_as_the_latest(tmp_path):
  def folder_of(text):
    return flags.model_dir(text, str(tmp_path))

  for seconds, name in enumerate((  # The last is half-written.
      'model_b2', 'model_a1', 'model_a2', 'model_b2.01234567' + TEMPORARY,
      'model_notes')):  # It has no run file.
    (tmp_path / name).mkdir()
    if name != 'model_notes':
      (tmp_path / f'run_{name[6:]}.jsonz').touch()
    os.utime(tmp_path / name, (seconds, seconds))
  assert folder_of(f'{tmp_path}/model_b') == f'{tmp_path}/model_b2'
  assert folder_of('latest') == folder_of(f'{tmp_path}/latest') == (
      f'{tmp_path}/model_a2')
  assert folder_of(f'{tmp_path}/model_b,{tmp_path}/model_a1') == (
      f'{tmp_path}/model_b2,{tmp_path}/model_a1')
  assert folder_of('pretrained') == 'pretrained'
  with pytest.raises(UserError, match='2 folders begin like this'):
    folder_of(f'{tmp_path}/model_a')
  with pytest.raises(UserError, match='there is no model_<hash> with'):
    folder_of(f'{tmp_path}/model_b2/latest')


# ---------------------------------------------------------------- wrong usage


def test_the_data_root_is_that_of_data_where_the_default_is_missing(
    tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  for task, data in (('tile', 'root/valid'),
                     ('layout', 'root/xla/random/valid')):
    call = ['evaluate', f'--task={task}', '--dir=mine',
            f'--data={tmp_path / data}']
    default = app.parse(call)
    assert flags.loading(default).data_root.startswith('~')
    (tmp_path / data).with_name('train').mkdir(parents=True)
    assert flags.loading(default).data_root == f'{tmp_path}/root'
    nobody = app.parse([*call, '--data=~no-such-user/valid'])
    assert flags.loading(nobody).data_root.startswith('~')
    elsewhere = app.parse([*call, '--data_root=other'])
    assert flags.loading(elsewhere).data_root == 'other'


def test_usage_errors(capsys):
  for call, error in (
      ('trian', "invalid choice: 'trian' (choose from"),
      ('train --batch=x', "--batch: invalid int value: 'x'"),
      ('train --epo=3', 'unrecognized arguments: --epo=3'),
      ('train --recipe=bets', "invalid choice: 'bets' (choose from"),
      ('train --toy_data=x', "must be true or false; got 'x'"),
      ('train --task=layout --losses=MSE:1', 'unrecognized arguments: --l'),
      ('report out --kernels=-1', 'of at least 0'),
      ('trace a.json --step=9-3', 'must be N or N-M, N first'),
      ('evaluate --top_k=1,0', 'of at least 1')):
    assert error in usage_error(capsys, call), call


@pytest.mark.parametrize('words, rule', [
    ('a.pb --data=b', 'give one of the two'),
    ('--out=a.jsonl', 'goes with --workers'),
    ('--workers=2 --out=gs://a/b.jsonl', 'must be the path of a .jsonl'),
    ('--scheduler=tcp://a:1', '--workers needs --out'),
    ('--workers=2 --out=a.jsonl --shapes=f32[8]', 'workers rank files'),
    ('--blocks=usual', '--blocks goes with one module:function'),
    ('a:f --check', '--check and --vmem_limit go with --blocks'),
    ('--shapes=f32[3]', '--shapes goes with module:function'),
    ('--modules=new', '--modules goes with FILE'),
    ('a.pb --modules=.', '--modules=.: is there already'),
    ('a.pb --modules=/proc/new', '--modules=/proc: cannot be written')])
def test_flags_of_rank_that_do_not_go_together(capsys, words, rule):
  assert cli.main(['rank', '--dir=m', *words.split()]) == 1
  assert rule in capsys.readouterr().err


def test_modules_are_written_though_nobody_reads_the_list(
    monkeypatch, capsys, tmp_path):
  """And where none can be, what is wrong with the sources is said, too."""
  def ranked(*unused, **unused_too):
    return [SourceRanking('f', [], ['a note'], ['one fault'], None)]

  def write(folder, *unused):
    if not folder.endswith('more'):
      raise UserError('no kernel here')
    return 7, ['another']

  def show(*unused):
    raise BrokenPipeError

  source = kernel_sources.Source('f', [], [], [])
  monkeypatch.setattr(kernel_sources, 'open_all', lambda *_: [source])
  monkeypatch.setattr(tile_search, 'rank_sources', ranked)
  monkeypatch.setattr(kernel_modules, 'write', write)
  monkeypatch.setattr(flags, 'show', show)
  for folder, fault in ('none', 'no kernel here'), ('more', 'another'):
    call = ['rank', 'f', '--tpu=v3', f'--modules={tmp_path}/{folder}']
    assert cli.main(call) == 1
    err = capsys.readouterr().err
    assert f'error: one fault\nerror: {fault}\n' in err
  assert 'more: 7 modules' in err


def test_an_empty_path_is_refused(capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  for call in ('sample-data --out=', 'check-data "" --json',
               'train --data_root=" " --epochs=1', 'run "" --help',
               'verify --model_dir=', 'kaggle-csv --tile='):
    assert 'is empty; name a file or folder' in usage_error(capsys, call)
  assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------- exit codes


def test_user_errors_are_one_line_and_exit_code_1(capsys, tmp_path):
  models_py = tmp_path / 'models.py'
  models_py.write_text('import sys\nsys.exit(0)\n')
  for words, error in (
      (['train', '--epochs=0'], '--epochs=0: must be at least 1'),
      (['train', f'--models_py={models_py}'],
       'models.py cannot be imported (SystemExit: 0)')):
    assert cli.main(words) == 1
    captured = capsys.readouterr()
    line = captured.err.replace(
        'loading TensorFlow and the model, about ten seconds ...\n', '')
    assert line.startswith('error: ') and error in line
    assert line.count('\n') == 1 and not captured.out


@pytest.mark.parametrize('error, code, message', [
    (KeyboardInterrupt(), 130, 'interrupted\n'),
    (SystemExit(0), 1, 'error: the code of a model has called exit()\n'),
    (MemoryError(), 1, 'error: there is not enough memory; give this process '
     'more (ulimit -v), or free some\n'),
    (OSError(28, 'No space left on device', '/x'), 1,
     "error: [Errno 28] No space left on device: '/x'; free some space\n"),
    (OSError(5, 'I/O error', '/x'), 1, "error: [Errno 5] I/O error: '/x'\n")])
def test_what_ends_a_verb(monkeypatch, capsys, error, code, message):
  def fail(*unused_args):
    raise error

  monkeypatch.setattr(TrainSettings, '__post_init__', fail)
  assert cli.main(['train']) == code
  assert capsys.readouterr().err == message


@pytest.mark.parametrize('words, shown', [
    ([], ['reading', 'odd kernel', 'a bar']), (['--quiet'], ['odd kernel'])])
def test_quiet_shows_warnings_and_results_alone(
    monkeypatch, capsys, tmp_path, words, shown):
  """Neither messages nor bars, which look whether stderr is a terminal."""
  log = logging.getLogger('tpu_graphs_ext')
  terminal = io.StringIO()
  terminal.isatty = lambda: True

  def work(unused_args):
    log.info('reading')
    log.warning('odd kernel')
    for _ in tqdm(range(3), desc='a bar', disable=None):
      pass
    print('result')

  monkeypatch.setitem(
      flags.VERBS, 'check-data', flags.VERBS['check-data']._replace(run=work))
  monkeypatch.setattr(logging.getLogger(), 'handlers', [])
  monkeypatch.setattr(log, 'level', log.level)
  monkeypatch.setattr(sys, 'stderr', terminal)
  assert cli.main(['check-data', str(tmp_path), *words]) == 0
  assert capsys.readouterr().out == 'result\n'
  text = terminal.getvalue()
  assert [part for part in ('reading', 'odd kernel', 'a bar')
          if part in text] == shown


# ----------------------------------------------------------------- whole verbs


def test_evaluate(folder, model_flags, capsys, tmp_path):
  path = tmp_path / 'e.csv'
  assert cli.main(['evaluate', *model_flags, '--top_k=20,2', '--by_kernel',
                   f'--csv={path}']) == 0
  out = capsys.readouterr().out
  assert out.splitlines()[0].endswith(f'on {folder / "data"}/valid')
  assert 'top-20' in out
  assert len(re.findall(r'^delta_net_[0-9a-f]{16} ', out, re.MULTILINE)) == 12
  assert len(path.read_text().splitlines()) == 1 + 12
  # The model given twice, which is as good as itself.
  twice = model_flags[0] + ',' + model_flags[0][len('--dir='):]
  assert cli.main(['evaluate', twice, *model_flags[1:], '--json',
                   f'--data={folder}/data/test_labelled']) == 0
  first, second = json.loads(capsys.readouterr().out)
  assert first == second and first['micro']['kernels'] == 6


def test_predict_and_rank(model_flags, capsys, tmp_path):
  path = tmp_path / 'sub' / 'p.csv'
  assert cli.main(['predict', *model_flags, f'--out={path}']) == 0
  assert capsys.readouterr().out == f'{path}\n'
  rows = dict(row.removeprefix('tile:xla:').split(',')
              for row in path.read_text().splitlines()[1:])
  loud = tmp_path / 'loud.py'
  loud.write_text(inspect.getsource(tiny_models) + '\nprint("as it loads")\n')
  assert cli.main([
      'rank', *model_flags[:-1], f'--models_py={loud}', '--json']) == 0
  for ranking in json.loads(capsys.readouterr().out):
    chosen = [choice['index'] for choice in ranking['choices']]
    # The CSV is padded with 0, the list is not.
    assert rows[ranking['tile_id']] == ';'.join(
        map(str, chosen + [0] * (5 - len(chosen))))


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_what_the_verb_started(tmp_path, number):
  """Here the process that lowers, sent to the parent alone; within 2 s."""
  (tmp_path / 'slow.py').write_text(
      'import os, pathlib, time\n'
      'pathlib.Path("pid").write_text(str(os.getpid()))\n'
      'time.sleep(120)\ndef f(x): pass\n')
  (tmp_path / 'libtpu.so').touch()
  process = subprocess.Popen(
      [sys.executable, '-c', 'import signal\n'
       'signal.signal(signal.SIGINT, signal.default_int_handler)\n'
       'import tpu_graphs_ext.cli as c; raise SystemExit(c.main())',
       'rank', 'slow.py:f', '--shapes', 'f32[3]'], cwd=tmp_path,
      env={**os.environ, 'PYTHONPATH': str(PROJECT),
           'TPU_GRAPHS_EXT_LIBTPU': str(tmp_path / 'libtpu.so')},
      stderr=subprocess.PIPE, start_new_session=True)
  assert waiting.wait_for(lambda: (tmp_path / 'pid').exists()
                          and (tmp_path / 'pid').read_text(), 60)
  start = time.monotonic()
  process.send_signal(number)
  error = process.communicate(timeout=60)[1].decode()
  assert time.monotonic() - start < 10  # On a busy machine; .4 s on a free one.
  assert process.returncode == 128 + number and 'interrupted' in error
  with pytest.raises(ProcessLookupError):
    os.kill(int((tmp_path / 'pid').read_text()), 0)
