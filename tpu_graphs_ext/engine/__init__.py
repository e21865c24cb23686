"""Trains, evaluates, predicts and ranks, once for every task.

task               the protocol of a task and of the problems that it ranks
settings           the settings of each verb, checked when created
train              a training run; callbacks, compiled_model, threads serve it
resume             the folder of an interrupted run; finished runs
output_paths       whether files can be written, before work begins
scoring            a trained model, ready to score problems
duplicate_configs  duplicates of a configuration, which come last
evaluate           errors on labelled problems; metrics has the formulas
results            the table of an evaluation: means, text, JSON and CSV
statistics         intervals of a mean and of a paired difference
out_of_range       problems beyond the range of the training data
predict, rank      the CSV of the test split; the best of any problem
predictions_csv    the CSV itself, written and read
artifacts          model_<hash>/ and run_<hash>.jsonz
saved_weights      the weights of a SavedModel, read without running it
"""
