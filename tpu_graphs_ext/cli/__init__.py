"""The command line, `tpu-graphs-ext VERB`; `main` runs one command.

__main__    `python -m tpu_graphs_ext.cli`
app         reads the words of a command, runs its verb, sets the exit code
flags       what a flag is, and the flags that come from settings
verbs       training, evaluation, data, reports, sweeps, traces
rank        the verb of that name, of one file and of many
assignment  from the baseline's checkout to a file for Kaggle
"""

from tpu_graphs_ext.cli.app import main as main
