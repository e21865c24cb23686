"""One page that compares training runs: what they learned, where they err.

cli        the verb `report`
report     from what a user names to the page
runs       finds runs, and groups those that differ in their seed alone
measure    what the models of the runs do on labelled kernels
counts     what a configuration does: steps, bytes, padding
document   a whole page of sections
html       pieces of a page: tables, figures, details
style      how it looks: on screens, phones and paper, light and dark
charts     matplotlib's figures, as SVG that follows the page's colours
drawing    a kernel's graph as SVG
overview   sections of the page: runs, learning curves, physical constants
slowdowns  sections: slowdowns by program, over kernels, between runs
kernels    the section of single kernels
pictures   the figures of a page as SVG pictures of their own

layout_report  the sections of runs of the layout task
"""
