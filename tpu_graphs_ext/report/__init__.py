"""One page that compares training runs: what they learned, where they err.

report     from what a user names to the page; learning curves, tables of runs
runs       finds runs, and groups those that differ only in their seed
measure    what their models do on labelled problems, as pandas frames
compare    which run is better: first screen, by program, in pairs
kernels    single kernels: where models do worst and best
page       tables, matplotlib's figures, numbers; templates/ makes HTML of them
"""

# Kernels of each kind, best and worst, that a page shows of each group.
KERNELS = 2
