"""Run files written by hand, and pages that are read back."""

from __future__ import annotations

import collections
import html.parser
import os

from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.tasks import TILE


def run_info(model: str = 'TinyRanker', seed: int = 1, top1: float = 0.5,
             kwargs: str = '{}', **args) -> dict:
  """What a finished run of this package's host writes, the main part of it."""
  return {
      'train_curve': {
          'epoch': [0, 1, 2], 'train_loss': [3.0, 2.5, 2.0],
          'train_opa': [0.6, 0.65, 0.7], 'val_loss': [3.5, 3.25, 3.0],
          'val_opa': [0.55, 0.6, 0.65]},
      'final_error': {'val': {'1': top1, '5': top1 / 2, '10': top1 / 4}},
      'args': {'model': model, 'model_kwargs_json': kwargs, 'configs': 6,
               'learning_rate': 0.01, 'run_id': f'seed{seed}', **args},
      'seed': seed, 'seconds': {'train': 60.0, 'total': 70.0},
      'host': 'tpu_graphs_ext', 'settings': {'data_root': 'somewhere'}}


def write_run(folder, info: dict, with_model: bool = False) -> str:
  """Writes a run file, and an empty model folder; returns the file's path."""
  path = artifacts.save_run_file(info, str(folder), TILE)
  if with_model:
    os.makedirs(artifacts.model_path(
        str(folder), TILE.train_hash(info['args'])))
  return path


class Page(html.parser.HTMLParser):
  """A page's ids, elements by `counts`, elements that are `unclosed`, `text`.

  `outside` is what would be loaded from elsewhere.
  """

  _VOID = ('meta', 'link', 'br', 'img')

  def __init__(self, content: str):
    super().__init__()
    self.ids, self.outside, self.unclosed, self.text = [], [], [], ''
    self.counts = collections.Counter()
    self.feed(content)
    self.close()

  def handle_starttag(self, tag, attrs):
    if tag not in self._VOID:
      self.unclosed.append(tag)
    self.counts[tag] += 1
    for name, value in attrs:
      if name == 'id':
        self.ids.append(value)
      elif name in ('href', 'xlink:href', 'src', 'srcset', 'data', 'action'):
        self.outside.append(value)

  def handle_endtag(self, tag):
    if tag not in self._VOID:
      assert self.unclosed.pop() == tag

  def handle_data(self, data):
    if self.unclosed and self.unclosed[-1] != 'style':
      self.text += data
