"""The trained models that the package brings, by name; whoever has none.

In place of a model folder `pretrained` names that of a TPU v3, and
`pretrained:v6e` that of another generation. Needs no TensorFlow.
"""

from __future__ import annotations

import glob
import os

from tpu_graphs_ext import files
from tpu_graphs_ext.data.schema import DEFAULT_TPU
from tpu_graphs_ext.errors import UserError

NAME = 'pretrained'
# <generation>/model_<hash>, beside its run file.
FOLDER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), NAME)


def tpu_of(name: str | os.PathLike[str]) -> str:
  """The generation of a model of the package; '' for a folder's name."""
  first, _, tpu = os.fspath(name).partition(':')
  return (tpu or DEFAULT_TPU) if first == NAME else ''


def name_for(tpu: str) -> str:
  """The name of the model for a generation: its own, else a v3's."""
  has_own = tpu != DEFAULT_TPU and tpu in os.listdir(FOLDER)
  return f'{NAME}:{tpu}' if has_own else NAME


def require_folder(name: str) -> None:
  """Raises UserError unless a model folder is there, or is the package's."""
  if not tpu_of(name) and not os.path.isdir(files.full_path(name)):
    raise UserError(f'{name}: there is no such model folder; name one that '
                    'exists, or `latest`')


def folder_of(name: str) -> str:
  """The folder model_<hash> of a model of the package, or a UserError."""
  tpu, known = tpu_of(name), sorted(os.listdir(FOLDER))
  if tpu not in known:
    raise UserError(f'{name}: the package has no model of a TPU {tpu}, only of '
                    f'{", ".join(known)}')
  return glob.glob(os.path.join(glob.escape(FOLDER), tpu, 'model_*'))[0]
