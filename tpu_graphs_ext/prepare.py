"""The old place of `stacks.imports`, kept for one release.

Start-up hooks that version 0.1.0 installed import it from here.
"""

from tpu_graphs_ext.stacks.imports import finder  # noqa: F401
