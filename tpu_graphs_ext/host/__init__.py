"""This package's own trainer and ranker, with the baseline's artifacts.

Of any task:
task             what a task is, and the problems that it ranks
settings         what a verb is told, with its flags' help, checked when created
train            the training loop; callbacks, losses, threads serve it
compiled         what it trains: a model with loss, optimizer and metric
run_log          what a run says, in a file beside it
curves           a picture of its learning curves
resume           the folder of a run that was broken off; finished runs
outputs          whether files can be written, before work begins
scoring          a trained model with all that it takes to score a problem
distinct         configurations that a file lists again, which come last
evaluate         errors on labelled problems; metrics has the formulas
results          what it measured, as a table: means, JSON and CSV
evaluation_text  cells and rows of what it prints
statistics       how sure a mean over problems, or a difference of two, is
unfamiliar       problems beyond what a model was trained on
predict, rank    the CSV of the test split; the best of any problem
predictions_csv  the CSV itself, written and read
artifacts        model_<hash>/ and run_<hash>.jsonz
run_file         what the latter may hold, which anybody may have written
saved_weights    the weights of the first, of which nothing is run
compact          a model on disk as its weights alone

Of the tile task:
tile             the task
tile_results     how close a model comes to the best tile of measured kernels
inputs           what a user names as kernels: a folder, .npz or .pb
batches          kernels -> GraphTensors
recipes          sets of settings with a name, for `train --recipe`
members          several of a model, trained as one
feature_stats    what features are scaled with, as an argument of a model
"""
