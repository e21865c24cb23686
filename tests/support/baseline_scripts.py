"""The baseline's scripts, unchanged, in a working copy of its checkout."""

from tpu_graphs_ext.course import checkout


def run(copy, arguments, log):
  """Runs a script with its flags to the end; its output goes to `log`."""
  checkout.run_to_end(
      arguments[0], checkout.script_command(arguments), log, cwd=copy)
