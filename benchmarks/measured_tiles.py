"""Finds tiles measured on other hardware, and makes a data root of them."""

from __future__ import annotations

import dataclasses
import os
import shutil

import numpy as np

from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError

VARIABLE = 'TPU_GRAPHS_EXT_MEASURED_TILES'


def source(path: str) -> str:
  """Their folder: `path`, else what `VARIABLE` names; empty without either.

  Raises:
    UserError: the folder has not the splits train and valid.
  """
  where = f'--measured_tiles={path}'
  if not path:
    path = os.environ.get(VARIABLE, '')
    where = f'{VARIABLE}={path}'
  if not path:
    return ''
  folder = os.path.abspath(os.path.expanduser(path))
  for split in ('train', 'valid'):
    if not os.path.isdir(os.path.join(folder, split)):
      raise UserError(f'{where}: there is no folder {split} in it; name a '
                      'folder with the splits train and valid')
  return folder


def data_root(folder: str, root: str) -> str:
  """Makes `root` anew: links to the splits there are; returns it.

  A data root has a test split. Where the folder has none, it gets one kernel
  of valid without its labels, on which nothing is measured.
  """
  shutil.rmtree(root, ignore_errors=True)
  os.makedirs(root)
  for split in ('train', 'valid', 'test', 'test_labelled'):
    if os.path.isdir(os.path.join(folder, split)):
      os.symlink(os.path.join(folder, split), os.path.join(root, split))
  test = os.path.join(root, 'test')
  if not os.path.isdir(test):
    os.makedirs(test)
    kernel = Kernel.load(read.find_npz(os.path.join(root, 'valid'))[0])
    dataclasses.replace(
        kernel, runtime_ns=np.zeros_like(kernel.runtime_ns),
        normalizer_ns=np.ones_like(kernel.normalizer_ns)).save(test)
  return root
