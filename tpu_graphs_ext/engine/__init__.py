"""Trains, evaluates, predicts and ranks, once for every task.

task             the protocol of a task and of the problems that it ranks
settings         the settings of each verb, checked when created
train            a training run; callbacks, compiled_model, threads serve it
resume           the folder of an interrupted run; finished runs
scoring          a trained model, ready to score problems; duplicates
origin           the models.py and the data that a run was trained with
evaluate         measures our models and others; metrics has the formulas
results          the table of an evaluation: means, text, JSON and CSV
out_of_range     problems beyond the range of the training data
rank             the first choices of a problem, and the CSV of a split
predictions_csv  the CSV itself, written and read
artifacts        model_<hash>/ and run_<hash>.jsonz
pretrained       the trained models that the package brings
saved_weights    the weights of a SavedModel, read without running it
"""
