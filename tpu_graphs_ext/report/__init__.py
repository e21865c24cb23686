"""One page that compares training runs: what they learned, where they err.

report     from what a user names to the page; learning curves, tables of runs
runs       finds runs, and groups those that differ only in their seed
compare    what models do on labelled problems, and which run is better
kernels    single kernels: where models do worst and best
page       tables, matplotlib's figures, numbers; templates/ makes HTML of them
"""

# Kernels of each kind, best and worst, that a page shows of each group.
KERNELS = 2
