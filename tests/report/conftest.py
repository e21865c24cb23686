"""What both tests of pages use."""

import pytest

from tpu_graphs_ext.report import page


@pytest.fixture
def undrawn(monkeypatch):
  """Without the figures, which take most of the time."""
  monkeypatch.setattr(page, 'svg', lambda *_: '<svg></svg>')
