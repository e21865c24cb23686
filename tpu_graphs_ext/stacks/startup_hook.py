"""Runs whenever Python starts, where `tpu-graphs-ext hook install` put it.

It must cost nothing, so it imports only sys, which every Python has loaded.
The package is imported at the moment that TensorFlow is.
"""

import sys


class _Startup:
  """Finds no module; only notices that TensorFlow is about to be imported."""

  seen = False

  @classmethod
  def find_spec(cls, name, path=None, target=None):
    if name == 'tensorflow' and not cls.seen:
      cls.seen = True
      try:
        from tpu_graphs_ext.stacks import imports
      except ImportError:
        return None  # The package was uninstalled, the hook was not.
      # Its finder, now the first, comes too late for this one import.
      return imports.finder.find_spec(name, path, target)
    return None


sys.meta_path.insert(0, _Startup)
