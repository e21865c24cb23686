"""The course's assignment: checked as the graders do, packed, sent.

checkout         finds a checkout of the baseline, copies it, runs its scripts
swap             puts a models.py into the checkout and takes it out again
allowed_imports  what a models.py may import there
training         trains through tiles_train.py, for assignment_train.sh
doctor           checks versions, checkout, data, disk and memory
verify           does what the graders do; names every reason to fail
sandbox          the temporary folder where a hand-in is run, and its limits
steps            what runs there (a script)
without_package  hides this package from it (a script)
agreement        compares two rankings
zip_file         packs a hand-in
kaggle           the competition's file
"""
