"""Fixtures that more than one test file uses."""

import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
# The first of several processes would take all memory of a graphics card.
os.environ.setdefault('CUDA_VISIBLE_DEVICES', '-1')

import pytest

# Before any test imports TensorFlow: it then comes with Keras 2.
import tpu_graphs_ext  # noqa: F401
from support.places import SHARED_DATA

# Under a hook of git these would lead the tests' own repositories to its.
for variable in ('GIT_DIR', 'GIT_WORK_TREE', 'GIT_INDEX_FILE'):
  os.environ.pop(variable, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
  """Keras finds saved classes by names; after a test it finds them again.

  A models.py of a test's own may give the names to classes of its own.
  """
  tensorflow = sys.modules.get('tensorflow')
  known = tensorflow.keras.utils.get_custom_objects() if tensorflow else {}
  before = dict(known)
  result = yield
  known.update((name, before[name]) for name in before.keys() & known.keys())
  return result


@pytest.fixture(autouse=True, scope='session')
def data_home(tmp_path_factory) -> None:
  """Trainings note the models.py there, not in the home of who runs tests."""
  os.environ['XDG_DATA_HOME'] = str(tmp_path_factory.mktemp('data_home'))


@pytest.fixture
def plain_git(monkeypatch) -> None:
  """Git without the settings of whoever runs the tests, such as signing."""
  monkeypatch.setenv('GIT_CONFIG_GLOBAL', os.devnull)
  monkeypatch.setenv('GIT_CONFIG_NOSYSTEM', '1')


@pytest.fixture(scope='session')
def shared_data() -> pathlib.Path:
  """Folder with the real TPU kernels; the test is skipped without it."""
  if not SHARED_DATA.is_dir():
    pytest.skip(f'needs the real TPU kernels in {SHARED_DATA}, which is '
                'missing')
  return SHARED_DATA


@pytest.fixture(scope='session')
def jax_python() -> str:
  """A Python with JAX, '' for this one; the test is skipped without any."""
  python = os.environ.get('TPU_GRAPHS_EXT_JAX_PYTHON', '')
  if not python and importlib.util.find_spec('jax') is None:
    pytest.skip('needs JAX here, or a Python that has it, named by '
                'TPU_GRAPHS_EXT_JAX_PYTHON')
  return python


@pytest.fixture(scope='session')
def jax_version(jax_python) -> tuple[int, ...]:
  """The version of that JAX: (0, 4, 34) beside TensorFlow 2.15."""
  done = subprocess.run(
      [jax_python or sys.executable, '-c',
       'import jax; print(*jax.__version_info__)'],
      check=True, capture_output=True, text=True)
  return tuple(map(int, done.stdout.split()))


@pytest.fixture(scope='session')
def checkout_root() -> str:
  """A checkout of the baseline, not to be written to; skips without one."""
  from tpu_graphs_ext.course import checkout
  path = checkout.find()
  if path is None:
    pytest.skip(f'needs a checkout of the baseline, named by '
                f'{checkout.ROOT_VARIABLE}, which is not set')
  return path


@pytest.fixture(scope='session')
def their_models(checkout_root, tmp_path_factory):
  """Folder of the baseline's tasks -> its module of models, untouched."""
  from tpu_graphs_ext.course import checkout
  copy = checkout.working_copy(
      checkout_root, str(tmp_path_factory.mktemp('untouched') / 'tpu_graphs'))
  sys.path.insert(0, copy)
  try:
    yield lambda folder: importlib.import_module(
        f'tpu_graphs.baselines.{folder}.models')
  finally:
    sys.path.remove(copy)


@pytest.fixture(scope='session')
def data_root(tmp_path_factory) -> pathlib.Path:
  """Splits of small kernels; only to be read."""
  from support import tiny_kernels
  return tiny_kernels.write_data_root(tmp_path_factory.mktemp('data_root'))


@pytest.fixture(scope='session')
def layout_run(tmp_path_factory):
  """A run of a small layout model, and its data root; only to be read."""
  from support import tiny_layout_models, tiny_layouts
  root = tiny_layouts.write_collection(
      str(tmp_path_factory.mktemp('layout') / 'npz'))
  return tiny_layout_models.trained(
      root, tmp_path_factory.mktemp('layout_out'), epochs=3), root


@pytest.fixture(scope='session')
def saved_model_dir(tmp_path_factory) -> str:
  """The folder of a model that nobody trained; only to be read."""
  from support import saved_run
  return saved_run.save(tmp_path_factory.mktemp('saved_run'))
