"""Trains, evaluates, predicts and ranks, once for every task.

task               the protocol of a task and of the problems that it ranks
settings           the settings of each verb, checked when created
recipes            named settings, for `train --recipe`
train              the training loop; callbacks, losses, threads serve it
compiled_model     the model to train, with loss, optimizer and metric
run_log            what a run prints, in a file beside it
curves             a picture of its learning curves
resume             the folder of an interrupted run; finished runs
output_paths       whether files can be written, before work begins
scoring            a trained model with all that it takes to score a problem
duplicate_configs  configurations that a file repeats, which come last
evaluate           errors on labelled problems; metrics has the formulas
results            the table of an evaluation: means, JSON and CSV
evaluation_text    the same as printed
statistics         intervals of a mean and of a paired difference
out_of_range       problems beyond what a model was trained on
predict, rank      the CSV of the test split; the best of any problem
predictions_csv    the CSV itself, written and read
artifacts          model_<hash>/ and run_<hash>.jsonz
run_file           what a run file may hold: anybody may have written it
saved_weights      the weights of a SavedModel, read without running it
weights_only       a model on disk as its weights alone
"""
