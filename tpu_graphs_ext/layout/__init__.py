"""The layout task: models that rank the layouts of whole programs.

models           a link to layout_models.py, which takes the place of the
                 baseline's own file
programs         a collection: graphs, configurations, runtimes
stored           its files in the cache, of which only what is used is read
batches          programs -> GraphTensors
settings         what a verb is told, with its flags' help
train            what `host.train` needs to know of this task
scoring          a trained model with all that it takes to score a program
evaluate         errors on labelled programs; Kendall's tau
evaluation_text  its tables
unfamiliar       programs beyond what a model was trained on
predict, rank    the CSV of the test split; the best of any program
cli              the verbs with `--task layout`
"""
