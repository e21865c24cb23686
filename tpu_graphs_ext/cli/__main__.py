"""`python -m tpu_graphs_ext.cli` is the command `tpu-graphs-ext`."""

import sys

from tpu_graphs_ext.cli import main

sys.exit(main())
