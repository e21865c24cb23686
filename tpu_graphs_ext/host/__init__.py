"""This package's own trainer and ranker, with the baseline's artifacts.

settings         what a verb is told, with its flags' help, checked when created
recipes          sets of settings with a name, for `train --recipe`
inputs           what a user names as kernels: a folder, .npz or .pb
batches          kernels -> GraphTensors
training_data    the splits of a run, read and looked over
train            the training loop; callbacks, losses, threads serve it
run_log          what a run says, in a file beside it
curves           a picture of its learning curves
members          several of a model, trained as one
resume           the folder of a run that was broken off; finished runs
outputs          whether files can be written, before work begins
scoring          a trained model with all that it takes to score a kernel
distinct         tiles that a kernel lists again, which come last
evaluate         errors on labelled kernels; metrics has the formulas
results          what it measured, as a table: means, JSON and CSV of both tasks
evaluation_text  the same as text, of one model and of several
statistics       how sure a mean over kernels, or a difference of two, is
unfamiliar       kernels beyond what a model was trained on
predict, rank    the CSV of the test split; the best tiles of any kernel
predictions_csv  the CSV itself, written and read
artifacts        model_<hash>/ and run_<hash>.jsonz
run_file         what the latter may hold, which anybody may have written
saved_weights    the weights of the first, of which nothing is run
compact          a model on disk as its weights alone
feature_stats    what features are scaled with, as an argument of a model
"""
