"""The course's assignment: checked as the graders do, packed, sent.

checkout         finding a checkout of the baseline, copying it, running its
                 scripts
swap             puts a models.py into the checkout and takes it out again
allowed_imports  what a models.py may import there
run_script       starts one of its scripts on either stack
doctor           versions, checkout, data, disk and memory
verify           does what the graders do; names every reason to fail
verify_layout    the same with the baseline's scripts for layouts
sandbox          where that runs: a folder out of this package's reach
grader_steps     what runs there (a script)
layout_steps     what runs there of the layout task (a script)
process_limits   bounds for the code of a hand-in
without_package  hides this package from it (a script)
diagnose         why a hand-in fails
agreement        compares two rankings
zip_file         packs a hand-in
kaggle           the competition's file
"""
