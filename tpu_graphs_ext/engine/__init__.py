"""Trains, evaluates, predicts and ranks, once for every task.

task               the protocol of a task and of the problems that it ranks
settings           the settings of each verb, checked when created
recipes            named settings, for `train --recipe`
train              the training loop; callbacks, threads serve it
compiled_model     the model to train, with loss, optimizer and metric
run_log            a run's messages, in a file beside it
resume             the folder of an interrupted run; finished runs
output_paths       whether files can be written, before work begins
scoring            a trained model, ready to score problems
duplicate_configs  duplicates of a configuration, which come last
evaluate           errors on labelled problems; metrics has the formulas
results            the table of an evaluation: means, JSON and CSV
evaluation_text    the same as printed
statistics         intervals of a mean and of a paired difference
out_of_range       problems beyond the range of the training data
predict, rank      the CSV of the test split; the best of any problem
predictions_csv    the CSV itself, written and read
artifacts          model_<hash>/ and run_<hash>.jsonz
run_file           the latter, read and checked: it may come from anybody
saved_weights      the weights of a SavedModel, read without running it
"""
