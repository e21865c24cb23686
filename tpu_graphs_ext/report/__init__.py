"""One page that compares training runs: what they learned, where they err.

report     from what a user names to the page
runs       finds runs, and groups those that differ in their seed alone
measure    what the models of the runs do on labelled kernels
counts     what a configuration does: steps, bytes, padding
page       what stands in a page; templates/ make HTML of it
charts     matplotlib's figures
drawing    a kernel's graph
summary    the first screen: which run wins, and how certain that is
slowdowns  sections: slowdowns by program, over kernels, between runs
overview   sections: learning curves, physical constants, runs
kernels    the section of single kernels
pictures   the figures of a page as SVG pictures of their own

layout_report  the sections of runs of the layout task
"""

# Kernels of each kind, best and worst, that a page shows of each group.
KERNELS = 2
